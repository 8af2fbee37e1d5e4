"""REST: every verb by its path, messages in and out, and an error of the table for everything that is wrong."""

from __future__ import annotations

import asyncio
import json
import re
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import pytest

import pydanube
from api.http_client import Http, with_http
from pydanube.api.http.answer import JSON, RAW
from pydanube.api.http.errors import errors_page
from pydanube.api.http.operations import make_router
from pydanube.api.server import Server, load, settings
from pydanube.base.errors import error_table
from pydanube.base.limits import KIB, MIB, PUBLISHED_MESSAGES_MAX
from pydanube.broker.door.session import CARRIED_OUT
from pydanube.broker.serving.handles import ProducerHandle
from pydanube.cli.commands.dlq import dlq
from pydanube.cli.commands.namespace import namespace
from pydanube.cli.commands.subscription import subscription
from pydanube.cli.commands.topic import topic

ROOT = Path(__file__).resolve().parents[2]
ORDERS = "/api/v1/topics/default/orders"
SUB = f"{ORDERS}/subscriptions/workers"


# -- what there is -----------------------------------------------------------------------------------------------------


def test_topics_of_all_namespaces_are_listed_page_by_page(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        for name in ("default-2", "shop"):
            assert (await http.ask("PUT", f"/api/v1/namespaces/{name}", {})).status == 201
        for path in ("shop/a", "default/z", "default-2/m", "default/b"):
            assert (await http.ask("PUT", f"/api/v1/topics/{path}", {})).status == 201
        expected = ["/default-2/m", "/default/b", "/default/z", "/shop/a"]
        whole = (await http.ask("GET", "/api/v1/topics")).json
        assert ([each["topic"] for each in whole["topics"]], whole["more"]) == (expected, False)
        found: list[str] = []
        more = True
        while more:
            after = quote(found[-1], safe="") if found else ""
            page = (await http.ask("GET", f"/api/v1/topics?limit=1&after={after}")).json
            found += [each["topic"] for each in page["topics"]]
            more = page["more"]
        assert found == expected
        last = (await http.ask("GET", "/api/v1/topics/default?after=b")).json
        assert [each["topic"] for each in last["topics"]] == ["/default/z"]

    with_http(tmp_path, story)


NATIVE_ONLY = {  # asked by programs that publish and read over a native connection
    "backup.begin",
    "backup.end",
    "backup.files",
    "news",
    "pipeline.record",
    "pipeline.report",
    "sink.begin",
    "sink.commit",
    "sink.forget",
    "sink.list",
    "storage.locate",
    "storage.sealed",
    "topic",  # which is `lookup` here
}


def test_every_operation_that_people_ask_for_has_a_route() -> None:
    routes = make_router().routes
    operations = [route.operation for route in routes]
    assert sorted(operations) == sorted(set(operations))
    requests = {route.request for route in routes}
    assert {request.operation for request in CARRIED_OUT if request not in requests} == NATIVE_ONLY


OTHERWISE_CALLED = {
    "topic.peek": "peek",
    "topic.table": "storage.table",
    "dlq.peek": "peek",
    "subscription.explain": "explain",
    "subscription.lag": "subscription.list",
    "namespace.alter": "namespace.policies",
}


@pytest.mark.parametrize("noun", [topic, subscription, namespace, dlq], ids=lambda noun: noun.name)
def test_what_the_command_line_manages_has_a_route(noun: click.Group) -> None:
    operations = [route.operation for route in make_router().routes]
    named = [f"{noun.name}.{verb}" for verb in noun.list_commands(click.Context(noun))]
    assert len(named) >= 2
    assert [name for name in named if OTHERWISE_CALLED.get(name, name) not in operations] == []


def test_the_description_names_every_route_and_its_fields(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        described = (await http.ask("GET", "/api/v1/openapi.json")).json
        assert described["openapi"] == "3.1.0"
        for route in make_router().routes:
            operation = described["paths"][route.template][route.method.lower()]
            assert operation["operationId"] == route.operation
            assert str(route.status) in operation["responses"]
            named = {each["name"] for each in operation["parameters"]}
            assert named == {part[1:-1] for part in route.segments if part.startswith("{")} | set(route.query)
            if route.body:
                content = operation["requestBody"]["content"]
                assert set(content[JSON]["schema"]["properties"]) == set(route.body)
                assert (RAW in content) is route.raw
        assert sum(map(len, described["paths"].values())) == len(make_router().routes)

    with_http(tmp_path, story)


def test_the_docs_have_the_table_of_routes() -> None:
    text = (ROOT / "docs/rest.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]+) \| `(.*)` \| (.*) \|$", text, re.MULTILINE)
    assert rows == [(route.method, route.template, route.summary) for route in make_router().routes]


def test_the_page_of_errors_is_the_table_and_is_served(tmp_path: Path) -> None:
    page = errors_page()
    assert (ROOT / "docs/errors.md").read_text(encoding="utf-8") == page, "python -m pydanube.api.http.errors"
    assert "a class of `pydanube.errors`" in page  # where programs import them from
    names = re.findall(r"^`(\w+)`: HTTP", page, re.MULTILINE)
    assert "TopicNotFound" in names
    assert [name for name in names if not hasattr(pydanube.errors, name)] == []

    async def story(server: Server, http: Http) -> None:
        served = await http.ask("GET", "/errors")
        assert served.headers["content-type"].startswith("text/html")
        for code in re.findall("^## (.*)$", page, re.MULTILINE):
            assert f"<h2 id={code}>" in served.body.decode()  # where `type` of a problem leads a browser

    with_http(tmp_path, story)


@pytest.mark.parametrize("code", error_table())
def test_every_error_has_a_status_that_says_whose_fault_it_is(code: str) -> None:
    kind = error_table()[code]
    status = kind.http_status
    assert (status < 500 or status == 501) == (kind.blame == "caller")
    if status in (429, 503):
        assert kind.retriable


# -- administration ----------------------------------------------------------------------------------------------------


def test_namespaces_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        assert (await http.ask("PUT", "/api/v1/namespaces/shop", {"policies": {"topics_max": 3}})).status == 201
        twice = await http.ask("PUT", "/api/v1/namespaces/shop")
        assert (twice.json["code"], twice.json["detail"]) == ("namespace_exists", "namespace shop already exists")
        found = await http.ask("GET", "/api/v1/namespaces/shop")
        assert found.json == {"namespace": "shop", "policies": {"topics_max": 3}}
        changed = await http.ask("PATCH", "/api/v1/namespaces/shop", {"policies": {"topics_max": None}})
        assert changed.json == {"policies": {}}
        assert (await http.ask("GET", "/api/v1/namespaces?after=rest&limit=1")).json == {
            "namespaces": ["shop"],
            "more": True,
        }
        deleted = await http.ask("DELETE", "/api/v1/namespaces/shop")
        assert (deleted.status, deleted.body) == (204, b"")
        assert (await http.ask("GET", "/api/v1/namespaces/shop")).json["code"] == "namespace_not_found"

    with_http(tmp_path, story)


def test_topics_are_made_described_altered_listed_truncated_and_deleted(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        made = await http.ask("PUT", ORDERS, {"durability": "buffered", "policies": {"ttl_seconds": 60}})
        assert made.status == 201
        assert made.json["durability"] == "buffered"
        twice = await http.ask("PUT", ORDERS)
        assert (twice.json["code"], twice.json["detail"]) == ("topic_exists", "topic /default/orders already exists")
        odd = await http.ask("PATCH", ORDERS, {"policies": {"ttl_seconds": "soon"}})
        assert (odd.status, odd.json["code"], odd.json["blame"]) == (400, "policy_invalid", "caller")
        for name in ("a", "b"):
            assert (await http.ask("PUT", f"/api/v1/topics/default/{name}", {"partitions": 2})).status == 201
        listed = (await http.ask("GET", "/api/v1/topics/default?limit=2")).json
        assert ([each["topic"] for each in listed["topics"]], listed["more"]) == (["/default/a", "/default/b"], True)
        assert (await http.ask("PATCH", "/api/v1/topics/default/a", {"partitions": 3})).json["partitions"] == 3
        await http.ask("POST", f"{ORDERS}/messages", {"messages": [{"value": str(each)} for each in range(5)]})
        assert (await http.ask("GET", ORDERS)).json["end"] == 5
        assert (await http.ask("GET", f"{ORDERS}/bounds")).json == {"first": 0, "end": 5}
        assert (await http.ask("GET", f"{ORDERS}/offset?time=0")).json == {"offset": 0}
        assert (await http.ask("GET", "/api/v1/lookup/default/a")).json["partitions"] == 3
        assert (await http.ask("GET", "/api/v1/lookup/default/a-part-2")).json["topic"] == "/default/a"
        assert (await http.ask("GET", "/api/v1/lookup/default/a-part-3")).json["code"] == "partition_missing"
        assert (await http.ask("POST", f"{ORDERS}/truncate", {"before": 3})).json == {"messages": 3}
        assert (await http.ask("GET", f"{ORDERS}/bounds")).json == {"first": 3, "end": 5}
        assert (await http.ask("DELETE", ORDERS)).status == 204
        assert (await http.ask("GET", ORDERS)).json["code"] == "topic_not_found"

    with_http(tmp_path, story)


def test_subscriptions_are_made_described_altered_sought_skipped_explained_and_deleted(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("POST", f"{ORDERS}/messages", {"messages": [{"value": str(each)} for each in range(5)]})
        assert (await http.ask("PUT", SUB, {"type": "shared", "start": "earliest"})).status == 201
        [listed] = (await http.ask("GET", f"{ORDERS}/subscriptions")).json["subscriptions"]
        assert (listed["subscription"], listed["type"], listed["backlog"]) == ("workers", "shared", 5)
        altered = await http.ask("PATCH", SUB, {"options": {"failure": {"max_redelivery_count": 2}}})
        assert altered.json["options"]["failure"]["max_redelivery_count"] == 2
        assert (await http.ask("POST", f"{SUB}/skip", {"count": 2})).json == {"skipped": 2}
        assert (await http.ask("GET", SUB)).json["floor"] == 2
        assert (await http.ask("POST", f"{SUB}/seek", {"to": {"time": 0}})).json["floor"] == 0
        said = await http.ask("GET", f"{SUB}/explain?offset=0")
        assert said.json["sentence"] == "No consumer is connected."
        assert (await http.ask("GET", f"{SUB}/explain")).json == said.json  # the first that is not done
        assert (await http.ask("DELETE", SUB)).status == 204
        assert (await http.ask("GET", SUB)).json["code"] == "subscription_not_found"

    with_http(tmp_path, story)


def test_the_broker_says_what_it_is_and_what_is_in_force(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        assert (await http.ask("GET", "/api/v1/broker")).json["url"] == server.url
        assert (await http.ask("GET", "/api/v1/config")).json["data_dir"] == str(tmp_path)
        healthy = await http.ask("GET", "/healthz")
        assert healthy.body == b"ok\n"
        assert abs(parsedate_to_datetime(healthy.headers["date"]).timestamp() - time.time()) < 60
        http.send("HEAD", "/readyz")
        assert (await http.reply(to_head=True)).headers["content-length"] == "6"

    with_http(tmp_path, story)


def test_settings_are_told_with_where_each_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "danube.yaml"
    file.write_text("limits: {connections_max: 77}\n")
    loaded = load(file, {"DANUBE_AUTO_CREATE": "false"}, {"data_dir": str(tmp_path / "data")})

    def flatten(tree: dict[str, Any], prefix: str = "") -> list[str]:
        nested = [
            flatten(each, f"{prefix}{key}.") if isinstance(each, dict) and each else [prefix + key]
            for key, each in tree.items()
        ]
        return [key for keys in nested for key in keys]

    async def story(server: Server, http: Http) -> None:
        server.loaded = loaded
        server._broker.door.process = server._describe()
        told = (await http.ask("GET", "/api/v1/config")).json
        origins = told.pop("origins")
        assert sorted(flatten(told)) == sorted(origins) == sorted(settings())
        assert origins["data_dir"] == {"source": "flag", "name": "--data-dir"}
        assert origins["auto_create"] == {"source": "environment", "name": "DANUBE_AUTO_CREATE"}
        assert origins["limits.connections_max"] == {"source": "file", "name": str(file)}
        assert origins["log_level"] == {"source": "default", "name": None}

    with_http(tmp_path, story)


def test_dead_letters_are_published_again_once_to_where_they_come_from(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        failure = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": "/default/dead"}
        await http.ask("PUT", ORDERS)
        await http.ask("PUT", SUB, {"type": "shared", "options": {"failure": failure}})
        messages = [{"key": f"k{each}", "value": str(each), "attributes": {"mine": "x"}} for each in range(5)]
        await http.ask("POST", f"{ORDERS}/messages", {"messages": messages})
        await http.ask("PUT", "/api/v1/topics/default/dead")
        dead = "/api/v1/topics/default/dead"
        async with (
            pydanube.connect(server.url) as client,
            client.consumer("/default/orders", subscription="workers", type="shared") as consumer,
        ):
            for _ in range(5):
                consumer.nack(await consumer.receive())
            assert (await http.ask("GET", f"{dead}/messages?offset=4&wait=20")).json["end"] == 5

        async def again(limit: int) -> int:
            return int((await http.ask("POST", f"{dead}/redrive", {"limit": limit})).json["redriven"])

        assert [await again(2), await again(500), await again(500)] == [2, 3, 0]
        found = (await http.ask("GET", f"{ORDERS}/messages?offset=5")).json["messages"]
        assert sorted((each["key"], each["value"]) for each in found) == [(f"k{each}", str(each)) for each in range(5)]
        assert [each["attributes"] for each in found] == [{"mine": "x"}] * 5
        await http.ask("POST", f"{dead}/subscriptions/danube-redrive/seek", {"to": "earliest"})
        assert [await again(2), await again(500)] == [2, 3]  # they are wanted once more
        assert (await http.ask("GET", f"{ORDERS}/bounds")).json["end"] == 15
        await http.ask("POST", f"{dead}/messages", {"messages": [{"value": "no letter"}]})
        none = {"redriven": 0, "targets": {}, "left": 1, "refused": 0, "refusals": [], "next": None}
        assert (await http.ask("POST", f"{dead}/redrive")).json == none

    with_http(tmp_path, story)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_what_is_published_over_http_is_read_by_a_client_and_the_other_way_round(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        first = {"key": "k", "value": "grüße", "attributes": {"a": "b"}, "event_time": 7}
        sent = await http.ask("POST", f"{ORDERS}/messages", {"messages": [first, {"value_base64": "/wA="}, {}]})
        assert sent.json["durability"] == "fsynced"
        assert [each["offset"] for each in sent.json["messages"]] == [0, 1, 2]
        assert (await http.ask("POST", f"{ORDERS}/messages?key=raw+key", b"\x00\xff")).json["messages"][0][
            "offset"
        ] == 3
        async with pydanube.connect(server.url) as client:
            async with client.consumer("/default/orders", subscription="s", start="earliest") as consumer:
                got = [await consumer.receive() for _ in range(4)]
            async with client.producer("/default/orders") as producer:
                await producer.send(b"native", key="n")
        assert [message.payload for message in got] == ["grüße".encode(), b"\xff\x00", None, b"\x00\xff"]
        assert (got[0].key, dict(got[0].attributes), got[0].event_time, got[3].key) == ("k", {"a": "b"}, 7, "raw key")
        seen = (await http.ask("GET", f"{ORDERS}/messages?limit=100")).json
        assert (seen["next"], seen["first"], seen["end"]) == (5, 0, 5)
        shown = [(each.get("value"), each.get("value_base64"), each["key"]) for each in seen["messages"]]
        expected = [("grüße", None, "k"), (None, "/wA=", None), (None, None, None), (None, "AP8=", "raw key")]
        assert shown == [*expected, ("native", None, "n")]

    with_http(tmp_path, story)


def test_keys_go_to_the_partition_where_clients_look_for_them(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS, {"partitions": 4})
        keys = [f"key-{each}" for each in range(20)]
        sent = await http.ask("POST", f"{ORDERS}/messages", {"messages": [{"key": key, "value": key} for key in keys]})
        places = {key: each["topic"] for key, each in zip(keys, sent.json["messages"], strict=True)}
        async with pydanube.connect(server.url) as client, client.producer("/default/orders") as producer:
            for key in keys:
                receipt = await producer.send(b"again", key=key)
                assert f"/default/orders-part-{receipt.partition}" == places[key]
        without = [await http.ask("POST", f"{ORDERS}/messages", {"messages": [{"value": "x"}]}) for _ in range(4)]
        assert len({each.json["messages"][0]["topic"] for each in without}) == 4
        assert (await http.ask("GET", f"{ORDERS}/messages")).json["code"] == "partition_missing"
        assert (await http.ask("GET", f"{ORDERS}-part-0/messages")).status == 200

    with_http(tmp_path, story)


def test_whoever_waits_for_a_message_gets_it_when_it_comes(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        http.send("GET", f"{ORDERS}/messages?offset=latest&wait=20")
        other = await Http.connect(server)
        while not server._http.serving:  # noqa: ASYNC110 - what is waited for happens in this loop
            await asyncio.sleep(0)
        for doorway in list(server._listener.connections):
            doorway.look()
            doorway.look()
            doorway.look()  # it is silent, but waits for us
        await other.close()
        other = await Http.connect(server)
        await other.ask("POST", f"{ORDERS}/messages", {"messages": [{"value": "late"}]})
        assert [each["value"] for each in (await http.reply()).json["messages"]] == ["late"]
        await other.close()

    with_http(tmp_path, story)


def test_what_is_looked_at_is_bounded(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        async with pydanube.connect(server.url) as client, client.producer("/default/orders") as producer:
            for _ in range(4):
                await producer.send(b"x" * 500 * KIB)
        seen = (await http.ask("GET", f"{ORDERS}/messages?limit=1000")).json
        assert len(seen["messages"]) == 3  # no more than about a MiB is looked at
        assert {(len(each["value"]), each["value_cut_from_bytes"]) for each in seen["messages"]} == {
            (256 * KIB, 500 * KIB)
        }
        assert seen["next"] == 3

    with_http(tmp_path, story)


def test_a_topic_that_keeps_nothing_gives_no_offsets(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS, {"reliable": False})
        sent = await http.ask("POST", f"{ORDERS}/messages", {"messages": [{"value": "x"}]})
        assert sent.json == {"messages": [{"topic": "/default/orders", "offset": None}], "durability": "none"}
        assert (await http.ask("GET", f"{ORDERS}/messages")).json["code"] == "not_reliable"

    with_http(tmp_path, story)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def many(count: int) -> dict[str, Any]:
    return {"messages": [{}] * count}


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/api/v1/nothing", None, "route_not_found"),
        ("GET", "/api/v1/topics/default/orders/", None, "route_not_found"),
        ("GET", "/api/v1/../v1/broker", None, "route_not_found"),
        ("POST", "/metrics", None, "method_not_allowed"),
        ("GET", "/api/v1/topics/default/%zz", None, "http_request_invalid"),
        ("GET", "/api/v1/topics/default/%ff", None, "http_request_invalid"),
        ("GET", "/api/v1/topics/default/%c0%ae", None, "http_request_invalid"),
        ("GET", "/api/v1/namespaces?limit=0", None, "request_invalid"),
        ("GET", "/api/v1/namespaces?limit=ten", None, "request_invalid"),
        ("GET", "/api/v1/namespaces?limit=" + "9" * 30, None, "request_invalid"),
        ("GET", "/api/v1/namespaces?limit=1&limit=1", None, "request_invalid"),
        ("GET", "/api/v1/namespaces?color=red", None, "request_invalid"),
        ("GET", "/api/v1/namespaces?" + "&" * 100, None, "request_invalid"),
        ("GET", f"{ORDERS}/offset", None, "request_invalid"),
        ("GET", f"{ORDERS}/messages?limit=1001", None, "request_invalid"),
        ("GET", f"{ORDERS}/messages?wait=21", None, "request_invalid"),
        ("GET", f"{ORDERS}/messages?offset=-1", None, "request_invalid"),
        ("GET", f"{ORDERS}/messages?offset=soon", None, "request_invalid"),
        ("GET", f"{SUB}/explain?offset=1&consumer=1", None, "request_invalid"),
        ("PUT", ORDERS, {"color": "red"}, "request_invalid"),
        ("PUT", ORDERS, {"partitions": "two"}, "request_invalid"),
        ("PUT", ORDERS, {"namespace": "other"}, "request_invalid"),
        ("PUT", ORDERS, {"durability": "hope"}, "request_invalid"),
        ("PUT", ORDERS, {"policies": {"no_such": 1}}, "policy_invalid"),
        ("PUT", ORDERS, ["not", "an", "object"], "request_invalid"),
        ("PUT", SUB, {"start": "soon"}, "request_invalid"),
        ("PATCH", SUB, None, "request_invalid"),
        ("POST", f"{SUB}/seek", {}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", None, "request_invalid"),
        ("POST", f"{ORDERS}/messages", many(0), "request_invalid"),
        ("POST", f"{ORDERS}/messages", many(PUBLISHED_MESSAGES_MAX + 1), "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": ["text"]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": [{"value": 1}]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": [{"valeu": "x"}]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": [{"value": "x", "value_base64": ""}]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": [{"value_base64": "a"}]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": [{"value_base64": "ä"}]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": [{"attributes": {"a": 1}}]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages", {"messages": [{"event_time": 1 << 63}]}, "request_invalid"),
        ("POST", f"{ORDERS}/messages?key=a", {"messages": [{}]}, "request_invalid"),
        ("PUT", ORDERS, b"bytes", "content_type_unknown"),
    ],
)
def test_a_wrong_request_gets_a_problem_document_and_the_connection_goes_on(
    tmp_path: Path, method: str, path: str, body: Any, code: str
) -> None:
    async def story(server: Server, http: Http) -> None:
        if (method, path) != ("PUT", ORDERS):
            await http.ask("PUT", ORDERS)
            if path != SUB:
                await http.ask("PUT", SUB)
        reply = await http.ask(method, path, body)
        assert reply.headers["content-type"] == "application/problem+json"
        document = reply.json
        assert document["code"] == code
        assert document["type"] == f"/errors#{code}"
        assert document["status"] == reply.status == error_table()[code].http_status
        assert set(document) == {"type", "title", "status", "detail", "code", "blame", "retriable", "help"}
        assert (await http.ask("GET", "/healthz")).status == 200

    with_http(tmp_path, story)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"policies": {}, "policies": {}}',
        b'{"partitions": NaN}',
        b'{"partitions": 1e999}',
        b'{"partitions": ' + b"9" * 5000 + b"}",
        b'{"policies": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"durability": "\\ud800"}',
        b'{"durability": "\xff"}',
        b"[" * 60_000,
        b'{"durability": "' + b"a" * 70_000 + b'"}',
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_body_that_is_no_json_we_take_is_refused(tmp_path: Path, body: bytes) -> None:
    async def story(server: Server, http: Http) -> None:
        reply = await http.ask("PUT", ORDERS, body, content_type=JSON)
        assert reply.json["code"] == "request_invalid"

    with_http(tmp_path, story)


NAMES = [
    "..",
    ".",
    "%2e%2e",
    "a%2Fb",
    "a%2F..%2Fb",
    "%00",
    "a%0d%0aX-Evil:%201",
    quote("\u202eorders"),
    quote("caf\u00e9"),  # as one character,
    quote("cafe\u0301"),  # and as two
    "a" * 256,
    "a%20b",
    "%252e%252e",
    "a:b",
    "a;b",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_path_is_a_name_or_is_refused(tmp_path: Path, name: str) -> None:
    async def story(server: Server, http: Http) -> None:
        for method, path in (
            ("PUT", f"/api/v1/topics/default/{name}"),
            ("PUT", f"/api/v1/topics/{name}/orders"),
            ("GET", f"/api/v1/topics/default/{name}"),
            ("POST", f"/api/v1/topics/default/{name}/messages"),
            ("PUT", f"/api/v1/namespaces/{name}"),
        ):
            reply = await http.ask(method, path, {"messages": [{}]} if method == "POST" else None)
            assert reply.json["code"] == "name_invalid", (method, path)
            assert "x-evil" not in reply.headers

    with_http(tmp_path, story)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metadata", "node"]


def test_subscriptions_are_called_by_any_text_and_twins_stay_apart(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        names = ["..", "a/b", "caf\u00e9", "cafe\u0301", "%2e", "\U0001f980", "a b+c"]
        for name in names:
            assert (await http.ask("PUT", f"{ORDERS}/subscriptions/{quote(name, safe='')}")).status == 201
            described = await http.ask("GET", f"{ORDERS}/subscriptions/{quote(name, safe='')}")
            assert described.json["subscription"] == name
        listed = (await http.ask("GET", f"{ORDERS}/subscriptions")).json["subscriptions"]
        assert [each["subscription"] for each in listed] == sorted(names)
        for name in ("\0", "a\r\nb", "x" * 256):
            refused = await http.ask("PUT", f"{ORDERS}/subscriptions/{quote(name, safe='')}")
            assert refused.json["code"] == "name_invalid"

    with_http(tmp_path, story)


def test_a_page_of_another_site_changes_nothing(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        refused = await http.ask("PUT", ORDERS, None, origin="http://evil.example")
        assert (refused.status, refused.json["code"]) == (403, "http_origin_refused")
        assert (await http.ask("PUT", ORDERS, None, origin="http://danube")).status == 201
        form = await http.ask("POST", f"{ORDERS}/truncate", b"a=b", content_type="application/x-www-form-urlencoded")
        assert form.json["code"] == "content_type_unknown"

    with_http(tmp_path, story)


def test_a_disk_that_is_full_is_not_the_callers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)

        def full(*_: object) -> None:
            raise error_table()["disk_full"]("no space")

        monkeypatch.setattr(ProducerHandle, "publish", full)
        reply = await http.ask("POST", f"{ORDERS}/messages", {"messages": [{}]})
        assert (reply.status, reply.headers["retry-after"], reply.json["blame"]) == (503, "1", "environment")
        monkeypatch.setattr(ProducerHandle, "publish", lambda *_: 1 / 0)
        reply = await http.ask("POST", f"{ORDERS}/messages", {"messages": [{}]})
        assert (reply.status, reply.json["detail"]) == (500, "the broker failed: ZeroDivisionError")

    with_http(tmp_path, story)


@pytest.mark.parametrize("small", ["[]", "{}", '""', "1", '{"a":1}'])
def test_many_small_things_are_refused_before_they_are_made(tmp_path: Path, small: str) -> None:
    async def story(server: Server, http: Http) -> None:
        body = f'{{"messages":[{",".join([small] * 50_000)}]}}'.encode()
        reply = await http.ask("POST", f"{ORDERS}/messages", body, content_type=JSON)
        assert reply.json["code"] == "request_invalid"
        assert "values" in reply.json["detail"]

    with_http(tmp_path, story)


def test_a_thousand_messages_of_json_are_taken(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        value = json.dumps({"items": [{"a": 1, "b": "c"}] * 8})
        messages = [{"key": str(each), "value": value, "attributes": {"a": "b"}} for each in range(1000)]
        assert (await http.ask("POST", f"{ORDERS}/messages", {"messages": messages})).status == 200
        assert (await http.ask("GET", f"{ORDERS}/messages?offset=999")).json["messages"][0]["value"] == value

    with_http(tmp_path, story)


def test_a_body_of_the_largest_size_is_taken(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        assert (await http.ask("POST", f"{ORDERS}/messages", b"x" * MIB)).status == 200
        refused = await http.ask("POST", f"{ORDERS}/messages", b"x" * (MIB + 1))
        assert (refused.status, refused.headers["connection"]) == (413, "close")

    with_http(tmp_path, story)
