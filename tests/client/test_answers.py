"""Typed answers: how they are read, and that the methods of `client.admin` return what their requests are answered."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

import pydanube
from client.broker import TOPIC
from pydanube import sync
from pydanube.base.errors import BrokerProtocolError, PolicyInvalid, SubscriptionOptionInvalid
from pydanube.client import Admin, Client
from pydanube.client.client import TopicInfo
from pydanube.operations.operation import Answer, Done, Request
from pydanube.operations.policies import Policies
from pydanube.operations.topics import CreateTopic, Topic
from pydanube.testing.broker import broker_thread
from pydanube.wire.commands import Hello, Reply, RequestFrame, Welcome, decode
from pydanube.wire.frames import FrameReader, Side

MADE = Topic(TOPIC, 1, True, 2, "fsynced", Policies(ttl_seconds=60), "fnv1a64", False).to_fields()
METHODS = [name for name in vars(Admin) if not name.startswith("_")]


def asking(answer: dict[str, Any], ask: Callable[[Client], Awaitable[None]]) -> None:
    """Runs the coroutine with a client of a broker that answers every request with these fields."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(Side.BROKER)
        while data := await reader.read(65536):
            for command in map(decode, frames.feed(data)):
                if isinstance(command, Hello):
                    frames.welcome()
                    writer.writelines(Welcome("fake", 1 << 20, 30).encode())
                elif isinstance(command, RequestFrame):
                    writer.writelines(Reply(command.request, answer).encode())
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(20), server, pydanube.connect(f"danube://127.0.0.1:{port}") as client:
            await ask(client)

    asyncio.run(run())


def test_an_answer_has_attributes_and_is_a_mapping_and_may_have_fields_of_a_newer_broker() -> None:
    async def ask(client: Client) -> None:
        made = await client.ask(CreateTopic("orders", partitions=2))
        assert (made.topic, made.partitions, dict(made.policies)) == (TOPIC, 2, {"ttl_seconds": 60})
        assert (made["partitions"], made.get("mood"), "mood" in made) == (2, None, False)
        assert {**made, "policies": dict(made.policies)} == made.to_fields() == MADE

    asking(MADE | {"mood": "sunny"}, ask)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"partitions": "two"}, "partitions must be a whole number, got 'two'"),
        ({"partitions": None}, "partitions must be a whole number, got null"),
        ({"reliable": 1}, "reliable must be true or false, got 1"),
        ({"policies": []}, "policies must be an object, got a list"),
        (None, "id is missing"),
    ],
)
def test_a_wrong_answer_is_the_brokers_fault_and_names_the_field(wrong: dict[str, Any] | None, why: str) -> None:
    async def ask(client: Client) -> None:
        with pytest.raises(BrokerProtocolError) as raised:
            await client.admin.create_topic("orders")
        assert str(raised.value) == f"the answer to topic.create: {why}"
        assert (raised.value.blame, raised.value.retriable, client.connected) == ("server", False, True)

    asking({name: each for name, each in MADE.items() if name != "id"} if wrong is None else MADE | wrong, ask)


def test_batches_that_were_not_asked_for_are_the_brokers_fault() -> None:
    class Other(Request[Done]):
        operation = "read"
        answer = Done
        topic: str
        offset: int

    with broker_thread() as url, sync.connect(url) as client:
        with client.producer(TOPIC) as producer:
            producer.send(b"x").result()
        with pytest.raises(BrokerProtocolError, match="the answer to read has batches"):
            client.ask(Other(TOPIC, 0))


class Asked(Exception):
    """The first request of a method."""


def first_request(name: str) -> type[Request[Any]]:
    async def topic(name: str) -> TopicInfo:
        return TopicInfo(TOPIC, 1, True, 0, "fsynced", Policies(), "fnv1a64", False)

    async def ask(request: Request[Any]) -> Answer:
        raise Asked(type(request))

    client: Any = SimpleNamespace(ask=ask, topic=topic, clock=SimpleNamespace(wall=lambda: 0))
    method = getattr(Admin(client), name)
    values = {"to": "earliest", "options": {}}
    wanted = [each for each in inspect.signature(method).parameters.values() if each.default is each.empty]
    with pytest.raises(Asked) as asked:
        asyncio.run(method(**{each.name: values.get(each.name, "x") for each in wanted}))
    kind: type[Request[Any]] = asked.value.args[0]
    return kind


@pytest.mark.parametrize("name", sorted({*METHODS} - {"topics", "peek", "verify_topic"}))  # which return their own
def test_a_method_returns_the_answer_of_its_request_or_a_field_of_it(name: str) -> None:
    answer = first_request(name).answer
    fields = [each for kind in get_type_hints(answer).values() for each in (kind, *get_args(kind))]
    returned = get_type_hints(getattr(Admin, name))["return"]
    assert returned in ([type(None)] if answer is Done else [answer, *fields])


@pytest.mark.parametrize("name", METHODS)
def test_the_synchronous_client_has_every_method_with_the_same_types(name: str) -> None:
    assert inspect.signature(getattr(sync.Admin, name)) == inspect.signature(getattr(Admin, name))
    assert not inspect.iscoroutinefunction(getattr(sync.Admin, name))


def test_a_channel_whose_opening_was_answered_wrongly_is_closed_on_the_broker() -> None:
    """Otherwise the broker keeps a consumer that no program has, and refuses the next one."""
    closed: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(Side.BROKER)
        while data := await reader.read(65536):
            for command in map(decode, frames.feed(data)):
                if isinstance(command, Hello):
                    frames.welcome()
                    writer.writelines(Welcome("fake", 1 << 20, 30).encode())
                elif isinstance(command, RequestFrame) and command.verb == "close":
                    closed.append(command.fields["channel"])
                elif isinstance(command, RequestFrame):
                    answer = {"consumer": 1} if command.verb == "open_consumer" else MADE | {"partitions": 0}
                    writer.writelines(Reply(command.request, answer).encode())
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(20), server, pydanube.connect(f"danube://127.0.0.1:{port}") as client:
            with pytest.raises(BrokerProtocolError, match="the answer to open_consumer: resume is missing"):
                async with client.consumer(TOPIC, subscription="s"):
                    pass
            while not closed:  # noqa: ASYNC110 - the other side of a socket
                await asyncio.sleep(0)

    asyncio.run(run())


def test_a_report_needs_no_progress() -> None:
    async def ask(client: Client) -> None:
        report = {"info": {"host": "here"}, "state": "running", "progress": None}
        assert (await client.report_pipeline("flow", "r1", **report)).order == "none"

    asking({"order": "none", "number": 0}, ask)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("create_topic", {"topic": "orders", "policies": {"colour": 1}}, PolicyInvalid),
        ("policies", {"namespace": "default", "change": {"ttl_seconds": 0}}, PolicyInvalid),
        (
            "alter_subscription",
            {"topic": "orders", "subscription": "s", "options": {"failure": {"poison": "keep"}}},
            SubscriptionOptionInvalid,
        ),
    ],
)
def test_a_wrong_policy_or_option_is_refused_before_it_is_sent(
    name: str, arguments: dict[str, Any], error: type[Exception]
) -> None:
    async def ask(request: Request[Any]) -> Answer:
        raise Asked(type(request))

    client: Any = SimpleNamespace(ask=ask)
    with pytest.raises(error):
        asyncio.run(getattr(Admin(client), name)(**arguments))
