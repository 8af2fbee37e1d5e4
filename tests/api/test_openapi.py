"""The description of REST says what is answered: every operation is asked, and its answer held against its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pydanube
from api.http_client import Http, with_http
from api.tiered import in_memory
from pydanube.api.http.answer import HTML, JSON, RAW, TEXT
from pydanube.api.http.openapi import describe
from pydanube.api.http.operations import make_router
from pydanube.api.http.router import Route
from pydanube.api.server import Server
from pydanube.operations.operation import Answer, Request

TOPIC = "/api/v1/topics/default/orders"
SUB = f"{TOPIC}/subscriptions/s"
NAMED = {
    "namespace": "default",
    "topic": "orders",
    "subscription": "s",
    "pipeline": "by-minute",
    "role": "loader",
    "binding": "b1",
    "subject": "orders",
}
PATHS = {"namespace.create": "/api/v1/namespaces/shop", "topic.create": "/api/v1/topics/default/other"}
QUERIES = {
    "offset_of_time": "?time=0",
    "explain": "?offset=0",
    "extend": "?lease_seconds=9",
    "can_i": "?action=backup",
    "schema.get_by_id": "?schema_id=1",
}
BODIES: dict[str, Any] = {
    "publish": {"messages": [{"key": "k", "value": "v"}]},
    "namespace.policies": {"policies": {}},
    "subscription.alter": {"options": {}},
    "subscription.seek": {"to": "earliest", "dry_run": True},
    "subscription.skip": {"count": 1, "dry_run": True},
    "topic.truncate": {"dry_run": True},
    "storage.verify": {"first": 0},
    "schema.register": {"type": "avro", "definition": '"long"'},
    "schema.check": {"type": "avro", "definition": '"int"'},
    "schema.find": {"type": "avro", "definition": '"long"'},
    "schema.set_mode": {"mode": "full"},
    "role.put": {"permissions": ["Produce"]},
    "binding.put": {"principal_type": "user", "principal_name": "a", "roles": ["loader"], "scope": "cluster"},
}
OF_A_PROCESS = {"ready_file", "allow_unprotected_network", "log_level"}  # settings of one that was started as such
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


class Acked(Answer):
    """Another one of this name."""


class AskAcked(Request[Acked]):
    operation, summary, answer = "test.acked", "Tell two types of one name apart", Acked


def described() -> dict[str, Any]:
    return describe(make_router().routes)


def test_two_types_of_one_name_are_refused() -> None:
    async def answer(caller: Any, request: Any) -> Any: ...

    another = Route("GET", "/acked", "test.acked", AskAcked.summary, answer, AskAcked)
    with pytest.raises(ValueError, match="Acked"):
        describe([*make_router().routes, another])


def test_a_message_as_bytes_is_described_with_its_headers_and_without_one() -> None:
    path = "/api/v1/topics/{namespace}/{topic}/subscriptions/{subscription}/receive"
    answers = described()["paths"][path]["post"]["responses"]
    assert set(answers) == {"200", "204", "default"}
    assert set(answers["200"]["content"]) == {JSON, RAW}
    assert set(answers["200"]["headers"]) == {
        f"Danube-{each}" for each in ("Lease", "Topic", "Offset", "Attempt", "Key", "Tombstone")
    }


def test_the_front_page_is_described_as_text_and_as_a_page() -> None:
    assert set(described()["paths"]["/"]["get"]["responses"]["200"]["content"]) == {TEXT, HTML}


def test_every_field_in_a_query_is_described_as_a_value_that_is_not_null() -> None:
    for path in described()["paths"].values():
        for each in path.values():
            for field in each["parameters"]:
                assert {"type": "null"} not in field["schema"].get("anyOf", ()), (each["operationId"], field)
                assert field["in"] == "path" or "description" in field, (each["operationId"], field)


def test_an_error_is_as_the_description_says(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        found = await http.ask("GET", TOPIC)
        problem = {"$ref": "#/components/schemas/Problem"}
        assert found.status == 404
        assert fits(described(), problem, found.json)
        assert set(found.json) == set(resolved(described(), problem)["properties"])

    with_http(tmp_path, story)


def fits(described: dict[str, Any], schema: dict[str, Any], value: Any) -> bool:
    """Whether the value is as the schema says, and has no field that it does not name."""
    schema = resolved(described, schema)
    if "anyOf" in schema:
        return any(fits(described, each, value) for each in schema["anyOf"])
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "type" in schema and not isinstance(value, TYPES[schema["type"]]):
        return False
    if isinstance(value, list):
        return all(fits(described, schema["items"], each) for each in value)
    if isinstance(value, dict) and "properties" in schema:
        known = set(schema["required"]) <= set(value) <= set(schema["properties"])
        return known and all(fits(described, schema["properties"][name], each) for name, each in value.items())
    return True


def resolved(described: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def test_every_answer_is_as_the_description_says(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        described = (await http.ask("GET", "/api/v1/openapi.json")).json
        await http.ask("PUT", TOPIC)
        await http.ask("PUT", SUB)
        await http.ask("POST", "/api/v1/schemas/orders/versions", BODIES["schema.register"])
        await http.ask("POST", f"{TOPIC}/messages", {"messages": [{"key_base64": "/w==", "value_base64": "/w=="}] * 3})
        received = (await http.ask("POST", f"{SUB}/receive")).json["messages"]
        leases = {
            verb: {"leases": [each["lease"]]} for verb, each in zip(("ack", "extend", "nack"), received, strict=True)
        }
        bodies = BODIES | leases
        async with pydanube.connect(server.url) as client:
            facts = {"info": {"host": "here"}, "state": "running", "progress": {"batch": 1}, "lines": ["begun"]}
            await client.report_pipeline("by-minute", "r1", **facts)
        asked = 0
        for route in make_router().described:
            operation = described["paths"][route.template][route.method.lower()]
            if route.content_type != JSON or route.status == 204:
                continue
            path = PATHS.get(route.operation) or route.template.format(**NAMED)
            found = await http.ask(route.method, path + QUERIES.get(route.operation, ""), bodies.get(route.operation))
            assert found.status == route.status, (route.operation, found)
            schema = operation["responses"][str(route.status)]["content"][JSON]["schema"]
            if route.request is None:
                assert schema == {"type": "object"}
            else:
                assert fits(described, schema, found.json), (route.operation, found.json)
                untold = OF_A_PROCESS if route.operation == "config" else set()
                assert set(found.json) | untold == set(resolved(described, schema)["properties"])
            asked += 1
        assert asked == 66

    with_http(tmp_path, story, **in_memory())


def test_a_publish_in_json_must_have_messages_and_one_in_bytes_cannot() -> None:
    publish = describe(make_router().routes)["paths"]["/api/v1/topics/{namespace}/{topic}/messages"]["post"]
    body = publish["requestBody"]
    assert body["required"]
    assert body["content"]["application/json"]["schema"]["required"] == ["messages"]
