"""The description of REST says what is answered: every operation is asked, and its answer held against its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydanube
from api.http_client import Http, with_http
from api.tiered import in_memory
from pydanube.api.http.answer import JSON
from pydanube.api.http.operations import make_router
from pydanube.api.server import Server

TOPIC = "/api/v1/topics/default/orders"
SUB = f"{TOPIC}/subscriptions/s"
NAMED = {"namespace": "default", "topic": "orders", "subscription": "s", "pipeline": "by-minute"}
PATHS = {"namespace.create": "/api/v1/namespaces/shop", "topic.create": "/api/v1/topics/default/other"}
QUERIES = {"offset_of_time": "?time=0", "explain": "?offset=0", "extend": "?lease_seconds=9"}
BODIES: dict[str, Any] = {
    "publish": {"messages": [{"key": "k", "value": "v"}]},
    "namespace.policies": {"policies": {}},
    "subscription.alter": {"options": {}},
    "subscription.seek": {"to": "earliest", "dry_run": True},
    "subscription.skip": {"count": 1, "dry_run": True},
    "topic.truncate": {"dry_run": True},
    "storage.verify": {"first": 0},
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


def check(schema: dict[str, Any], value: Any, at: str) -> None:
    if "enum" in schema:
        assert value in schema["enum"], at
        return
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert isinstance(value, tuple(kind for name in kinds for kind in TYPES[name])), at
    if isinstance(value, list):
        for each in value:
            check(schema["items"], each, f"{at}[]")
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) <= set(schema["properties"]), at
        for name, each in value.items():
            check(schema["properties"][name], each, f"{at}.{name}")


def test_every_answer_is_as_the_description_says(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        described = (await http.ask("GET", "/api/v1/openapi.json")).json
        await http.ask("PUT", TOPIC)
        await http.ask("PUT", SUB)
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
        for route in make_router().routes:
            operation = described["paths"][route.template][route.method.lower()]
            if route.content_type != JSON or route.status == 204:
                continue
            path = PATHS.get(route.operation) or route.template.format(**NAMED)
            found = await http.ask(route.method, path + QUERIES.get(route.operation, ""), bodies.get(route.operation))
            assert found.status == route.status, (route.operation, found)
            schema = operation["responses"][str(route.status)]["content"][JSON]["schema"]
            check(schema, found.json, route.operation)
            untold = OF_A_PROCESS if route.operation == "config" else set()
            assert set(found.json) | untold == set(schema["properties"])
            asked += 1
        assert asked == 49

    with_http(tmp_path, story, **in_memory())
