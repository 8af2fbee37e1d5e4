"""What is said about input that is out of bounds, and about failures that are not the caller's."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.http_client import Http, with_http
from pydanube.api.grpc.consumers import Acks
from pydanube.api.http.operations import make_router
from pydanube.api.listening.failures import error_of
from pydanube.api.server import Server
from pydanube.base.errors import DanubeError, TopicNotFound
from pydanube.base.limits import PUBLISHED_MESSAGES_MAX, TOPIC_NAME_CHARACTERS_MAX
from pydanube.wire.objects import Object, read_object

ORDERS = "/api/v1/topics/default/orders"
PLAIN = "/api/v1/topics/default/plain"
SUB = f"{ORDERS}/subscriptions/workers"
NO_TYPE = "type must be exclusive, shared, failover or key_shared, got 'odd'"
WRONG: list[tuple[str, str, Any, str]] = [
    ("GET", "/api/v1/namespaces?limit=9223372036854775808", None, ""),  # a list is cut to what fits an answer
    ("GET", "/api/v1/namespaces?limit=" + "9" * 20, None, "limit: a number has more than 64 bits"),
    ("GET", "/api/v1/namespaces?limit=-" + "9" * 19, None, "limit: a number has more than 64 bits"),
    ("GET", f"{ORDERS}/messages?offset=" + "9" * 19, None, f"offset must be {(1 << 62) - 1} or less, got {'9' * 19}"),
    ("POST", f"{ORDERS}/messages", {}, "messages is missing"),
    ("POST", f"{ORDERS}/messages", {"messages": []}, "messages must have at least 1 entry, got a list"),
    ("POST", f"{ORDERS}/messages", {"messages": [{}] * 1001}, "messages must have at most 1000 entries, got a list"),
    (
        "POST",
        f"{ORDERS}/messages",
        {"messages": [{}, {"value_base64": "?"}]},
        "messages[1].value_base64 is not valid Base64",
    ),
    (
        "POST",
        f"{ORDERS}/messages",
        {"messages": [{"key": "a", "key_base64": "YQ=="}]},
        "messages[0] cannot have both key and key_base64",
    ),
    ("POST", f"{SUB}/receive?consumer=" + "c" * 256, None, "consumer must have at most 255 characters, got 'ccc"),
    ("PUT", SUB, {"type": "odd"}, NO_TYPE),
    ("PATCH", PLAIN, {"partitions": 2}, "/default/plain was created without partitions, so none can be added"),
    ("PATCH", ORDERS, {"partitions": 1}, "/default/orders can have 2, as now, to 1024 partitions, not 1"),
]


def test_what_is_out_of_bounds_is_refused_with_the_bound(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS, {"partitions": 2})
        await http.ask("PUT", PLAIN)
        for method, path, body, sentence in WRONG:
            reply = await http.ask(method, path, body)
            assert reply.status == (400 if sentence else 200), path
            assert not sentence or reply.json["detail"].startswith(sentence)

    with_http(tmp_path, story)


def test_the_description_states_the_bounds_that_are_checked() -> None:
    async def described() -> Object:
        [route] = [each for each in make_router().routes if each.operation == "openapi"]
        caller: Any = SimpleNamespace(session=SimpleNamespace(ask=lambda action: None))
        return read_object((await route.answer(caller, None)).content, 1 << 20)

    paths = asyncio.run(described())["paths"]
    publish = paths["/api/v1/topics/{namespace}/{topic}/messages"]["post"]
    messages = publish["requestBody"]["content"]["application/json"]["schema"]["properties"]["messages"]
    assert (messages["minItems"], messages["maxItems"]) == (1, PUBLISHED_MESSAGES_MAX)
    receive = paths["/api/v1/topics/{namespace}/{topic}/subscriptions/{subscription}/receive"]["post"]
    [consumer] = [each for each in receive["parameters"] if each["name"] == "consumer"]
    assert consumer["schema"]["maxLength"] == TOPIC_NAME_CHARACTERS_MAX


def test_a_bug_in_the_broker_is_logged_and_answered_as_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    known = TopicNotFound("no")
    assert error_of(known) is known
    assert not caplog.records
    error = error_of(ZeroDivisionError("by zero"))
    assert (type(error), str(error)) == (DanubeError, "the broker failed: ZeroDivisionError")
    assert [(each.levelno, each.exc_info is not None) for each in caplog.records] == [(logging.ERROR, True)]


def test_a_bug_in_the_broker_is_logged_when_an_ack_over_grpc_fails_because_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = list[DanubeError]()
    handle: Any = SimpleNamespace(generation=0)
    acks = Acks(handle, SimpleNamespace())  # type: ignore[arg-type]
    calls: Any = [(SimpleNamespace(fail=failed.append), 1)]
    acks.calls = calls

    async def fail() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_exception(ZeroDivisionError("by zero"))
        acks._logged(done)

    asyncio.run(fail())
    assert [str(each) for each in failed] == ["the broker failed: ZeroDivisionError"]
    assert "by zero" in caplog.text
