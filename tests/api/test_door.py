"""I10: every verb of every face asks whether its caller may, before anything is done. The verbs are those of the faces'
own tables, so that one that is added without a case in `door_cases.py` fails here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from api.door_cases import GRPC, HTTP, NATIVE, NATIVE_FREE, Case, of_topic
from api.door_rig import CALLER, JOB, LETTERS, ORDERS, SECOND, World, native_code, published, world_of
from api.frame_client import Client
from api.http_client import Http, Reply
from grpc_face.rig import SECONDS, channel
from pydanube.access.rights import Action, Resource
from pydanube.api.grpc.calls import Method
from pydanube.api.grpc.messages import FILES, message_class, service
from pydanube.api.http.operations import make_router
from pydanube.api.http.router import Route
from pydanube.api.native.connection import _HANDLERS
from pydanube.api.native.operations import VERBS
from pydanube.base.errors import NotAllowed
from pydanube.broker.door.session import Origin, Session
from pydanube.operations.sinks import BeginSink
from pydanube.operations.storage import ListSealed
from pydanube.operations.subscriptions import ListSubscriptions
from pydanube.operations.topics import CreateTopic, DescribeTopic
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build
from pydanube.wire.commands import (
    Ack,
    Acked,
    Closed,
    Deliver,
    Grant,
    Hello,
    Nack,
    Ping,
    Pong,
    Publish,
    Published,
    RequestFrame,
    Taken,
)

Story = Callable[[World], Coroutine[Any, Any, None]]


def run(directory: Path, monkeypatch: pytest.MonkeyPatch, story: Story, *, prepared: bool = False) -> None:
    async def main() -> None:
        async with world_of(directory, monkeypatch, prepared=prepared) as world:
            await story(world)

    asyncio.run(main())


async def checked(world: World, name: str, case: Case, call: Callable[[dict[str, Any]], Any]) -> None:
    """Refused first, when it must change nothing, and then allowed; `call` returns the code of the error, if any."""
    for _ in range(5):  # if something changed: an earlier verb may have left that over, but not every time
        before = world.state()
        with world.recorder.refusing(), world.recorder.recording() as asked:
            code = await call(case.given(world))
        assert code == "not_allowed", (name, code)
        assert set(asked) <= case.rights_if_refused(world), name
        if world.state() == before:
            break
    else:
        pytest.fail(f"{name} changes something although it is refused")
    rights = case.rights(world)
    with world.recorder.recording() as asked:
        code = await call(case.given(world))
    assert code == case.fails, (name, code)
    assert set(asked) == rights, name


# -- the native protocol -----------------------------------------------------------------------------------------------


def test_every_verb_of_the_native_protocol_has_a_case() -> None:
    assert {*NATIVE, *NATIVE_FREE} == set(VERBS)


def test_every_verb_of_the_native_protocol_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        await client.ask("open_consumer", channel=2, topic=ORDERS, subscription="billing", type="shared")
        number = 100
        for name, case in NATIVE.items():

            async def call(fields: dict[str, Any], name: str = name) -> str | None:
                nonlocal number
                number += 1
                return await native_code(client, number, name, fields)

            await checked(world, name, case, call)
        with world.recorder.refusing(), world.recorder.recording() as asked:
            await native_code(client, 1_000, "close", {"channel": 2})
        assert asked == []

    run(tmp_path, monkeypatch, story)


# Frames of a producer or consumer, which was asked about when it was opened; and those of a connection, which are free
# (decision 0067).
BY_HANDLE = {Publish, Ack, Grant, Nack, Taken}
OF_THE_CONNECTION = {Hello, Ping, Pong}


def test_every_frame_is_a_request_or_belongs_to_something_that_was_asked_about() -> None:
    assert set(_HANDLERS) == {RequestFrame, *BY_HANDLE, *OF_THE_CONNECTION}


def test_the_greeting_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        with world.recorder.refusing(), world.recorder.recording() as asked:
            client = await Client.connect(world.server.address)
            client.send(Ping())
            assert isinstance(await client.receive(), Pong)
        assert asked == []

    run(tmp_path, monkeypatch, story)


def test_frames_ask_nothing_until_rights_are_reconsidered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was accepted before stays accepted; afterwards nothing is delivered, published or acknowledged."""

    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        await client.ask("open_producer", channel=1, topic=ORDERS)
        await client.ask(
            "open_consumer", channel=2, topic=ORDERS, subscription="billing", type="shared", start="earliest"
        )
        with world.recorder.refusing(), world.recorder.recording() as asked:
            offset = (await client.publish(1, b"one more")).base_offset
            client.send(Grant(2, 1, 0))
            delivered = await client.receive()
            assert isinstance(delivered, Deliver)
            held = [(delivered.first, delivered.last)]
            client.send(Taken(2, delivered.generation, held))
            client.send(Ack(2, 5, delivered.generation, held))
            assert isinstance(await client.receive(), Acked)
            client.send(Nack(2, 0, delivered.generation, held, 0, ""))
            assert asked == []
            client.send(Grant(2, 100, 0))
            while not isinstance(await client.receive(), Deliver):
                pass
            world.door.reconsider()
            assert {action for action, _ in asked} == {Action.TOPIC_PUBLISH, Action.SUBSCRIPTION_CONSUME}
            ended: dict[int, str] = {}
            while len(ended) < 2:
                if isinstance(frame := await client.receive(), Closed):
                    ended[frame.channel] = frame.code
            assert ended == {1: "not_allowed", 2: "not_allowed"}
            batch = build([b"too late"], publish_time=1).to_bytes()
            for frame in (Publish(1, 7, batch), Ack(2, 8, delivered.generation, held)):
                client.send(frame)
                assert (await client.receive()).code == "channel_invalid"  # type: ignore[union-attr]
        opened = next(each for each in world.door.topics.opened() if str(each.name) == ORDERS)
        assert (opened.producers, opened.consumers) == ({}, {})
        assert opened.reliable.ledger.confirmed_end == offset + 1
        assert opened.reliable.subscriptions["billing"].engine.in_flight == 0
        await client.ask("open_producer", channel=3, topic=ORDERS)
        world.door.reconsider()  # who may stay stays
        assert isinstance(await client.publish(3, b"allowed again"), Published)

    run(tmp_path, monkeypatch, story)


def test_rights_that_end_while_a_producer_or_consumer_is_opened_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        session = world.door.session(CALLER, Origin("test"))
        sink: Any = None
        for opening in (
            session.open_producer(ORDERS, lambda error: None, name="named"),
            session.open_consumer(ORDERS, "fresh", SubscriptionKind.SHARED, sink),
        ):
            task = asyncio.ensure_future(opening)
            await asyncio.sleep(0)
            assert not task.done()  # what it asks for is being written
            with world.recorder.refusing():
                world.door.reconsider()
                with pytest.raises(NotAllowed):
                    await task
        opened = next(each for each in world.door.topics.opened() if str(each.name) == ORDERS)
        assert (opened.producers, opened.consumers) == ({}, {})

    run(tmp_path, monkeypatch, story)


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.bounds(CLOSED),
        lambda session: session.read(CLOSED, 0, 1),
        lambda session: session.offset_of_time(CLOSED, 0),
        lambda session: session.find_subscription(CLOSED, "billing"),
        lambda session: session.carry_out(ListSealed(CLOSED, end=1)),
        lambda session: session.carry_out(DescribeTopic(CLOSED)),
        lambda session: session.carry_out(ListSubscriptions(CLOSED)),
    ],
    ids=["bounds", "read", "offset_of_time", "find_subscription", "list_sealed", "describe", "list_subscriptions"],
)
def test_rights_that_end_while_a_topic_is_opened_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Session], Coroutine[Any, Any, Any]]
) -> None:
    async def story(world: World) -> None:
        await world.system.carry_out(CreateTopic(CLOSED))
        task = asyncio.ensure_future(call(world.door.session(CALLER, Origin("test"))))
        await asyncio.sleep(0)
        assert not task.done()  # the topic is being opened
        with world.recorder.refusing():
            world.door.reconsider()
            with pytest.raises(NotAllowed):
                await task

    run(tmp_path, monkeypatch, story)


CLOSED = "/default/closed"


# -- REST --------------------------------------------------------------------------------------------------------------


ROUTES = {route.operation: route for route in make_router().routes}


def test_every_route_of_rest_has_a_case() -> None:
    assert len(ROUTES) == len(make_router().routes)
    assert set(ROUTES) - set(NATIVE) == set(HTTP)


def test_every_route_of_rest_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = HTTP | {name: case for name, case in NATIVE.items() if name in ROUTES}

    async def story(world: World) -> None:
        http = await Http.connect(world.server)
        for name, case in cases.items():

            async def call(fields: dict[str, Any], route: Route = ROUTES[name]) -> str | None:
                reply = await http.ask(route.method, *request_of(route, fields))
                if reply.status < 400 and route.operation == "receive":
                    world.memory["leases"] = [each["lease"] for each in reply.json["messages"]]
                return code_of(reply)

            await checked(world, name, case, call)
        await http.close()

    run(tmp_path, monkeypatch, story)


def request_of(route: Route, fields: dict[str, Any]) -> tuple[str, Any]:
    """Path and body of the request with these fields, as a verb has them."""
    given = {**fields, "query": fields.get("query", "")}
    _, namespace, name = given.pop("topic", f"/{given.pop('namespace', 'default')}/").split("/")
    path = route.template.format(namespace=namespace, topic=name, **given)
    query = [given["query"], *(f"{each}={given[each]}".lower() for each in route.query if each in given)]
    body = given.get("body", {each: value for each, value in given.items() if each in route.body})
    return f"{path}?{'&'.join(filter(None, query))}", body or None


def code_of(reply: Reply) -> str | None:
    if reply.status < 400:
        return None
    assert (reply.status == 403) == (reply.json["code"] == "not_allowed")
    code: str = reply.json["code"]
    return code


def test_a_request_that_waits_for_messages_ends_when_rights_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        http, waiting = await Http.connect(world.server), await Http.connect(world.server)
        path = request_of(ROUTES["receive"], {"topic": ORDERS, "subscription": "billing"})[0]
        assert len((await http.ask("POST", f"{path}limit=20")).json["messages"]) == 20
        waiting.send("POST", f"{path}wait=20")
        opened = next(each for each in world.door.topics.opened() if str(each.name) == ORDERS)
        while not world.server._http.waiting:  # noqa: ASYNC110 - sockets of this loop
            await asyncio.sleep(0)
        with world.recorder.refusing():
            world.door.reconsider()
            assert code_of(await waiting.reply()) == "not_allowed"
        assert (len(world.door.leasing), opened.consumers) == (0, {})
        await http.close()
        await waiting.close()

    run(tmp_path, monkeypatch, story)


def test_requests_that_wait_for_topics_or_messages_are_answered_by_the_rights_of_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        revision = (await client.ask("topic.watch", namespaces=["default"]))["revision"]
        end = (await client.ask("bounds", topic=ORDERS))["end"]
        client.send(
            RequestFrame(50, "topic.watch", {"namespaces": ["default"], "revision": revision, "milliseconds": 20_000})
        )
        client.send(RequestFrame(51, "news", {"offsets": {ORDERS: end}, "milliseconds": 5_000}))
        await client.ask("status")  # both wait by now
        with world.recorder.refusing(lambda action, _: action in (Action.TOPIC_LIST, Action.TOPIC_READ)):
            world.door.reconsider()
            await world.system.carry_out(CreateTopic("/default/secret"))
            await published(world.system, ORDERS, b"secret")
            answers: dict[int, str] = {}
            while len(answers) < 2:
                frame = await client.receive()
                answers[frame.request] = frame.code  # type: ignore[union-attr]
        assert answers == {50: "not_allowed", 51: "not_allowed"}

    run(tmp_path, monkeypatch, story)


@pytest.mark.parametrize(
    ("verb", "fields"), [("topic.watch", {"namespaces": []}), ("news", {"offsets": {}, "milliseconds": 1})]
)
def test_a_request_about_nothing_asks_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, fields: dict[str, Any]
) -> None:
    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        with world.recorder.refusing():
            assert await client.refused(verb, **fields) in ("not_allowed", "request_invalid")

    run(tmp_path, monkeypatch, story, prepared=False)


# -- gRPC --------------------------------------------------------------------------------------------------------------

METHODS = {
    f"{file.package}.{each.name}/{method.name}": method
    for file in FILES
    for each in file.service
    for method in service(f"{file.package}.{each.name}").methods
}


def test_every_method_of_grpc_asks_or_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        services = world.server._grpc.services
        methods, admin_methods = (_runs(address) for address in (services._data_address, services._admin_address))
        assert set(methods) == set(METHODS)
        assert admin_methods.items() <= methods.items()  # nothing is served only at the admin address, or differently
        served = {path for path, run in methods.items() if not run.endswith("refuse")}
        assert served == set(GRPC)
        for name in METHODS:
            if name not in served:
                with world.recorder.refusing(), world.recorder.recording() as asked:
                    assert await status_of(world, name, {}) == "UNIMPLEMENTED"
                assert asked == []
        for name, case in GRPC.items():

            async def call(fields: dict[str, Any], name: str = name) -> str | None:
                status = await status_of(world, name, fields)
                return {"OK": None, "PERMISSION_DENIED": "not_allowed"}.get(status, status)

            await checked(world, name, case, call)

    run(tmp_path, monkeypatch, story)


def _runs(address: tuple[Mapping[bytes, Method], object]) -> dict[str, str]:
    """The methods at an address, and the functions that serve them."""
    return {path.decode()[1:]: method.run.__qualname__ for path, method in address[0].items()}


LOST = "Internal error from Core"  # what grpcio says when a call is refused while it writes; the answer is lost then


async def status_of(world: World, name: str, fields: dict[str, Any], **metadata: str) -> str:
    """Of a call on a connection of its own, which has no producers and consumers yet and is gone afterwards."""
    status = await _called(world, name, fields, **metadata)
    while world.server._listener.connections:  # noqa: ASYNC110 - it does not tell, it is asked
        await asyncio.sleep(0.001)
    return status


async def _called(world: World, name: str, fields: dict[str, Any], **metadata: str) -> str:
    method = METHODS[name]
    request = message_class(method.input_type.full_name)(**fields)
    answers = message_class(method.output_type.full_name)
    kinds = {"request_serializer": lambda each: each.SerializeToString(), "response_deserializer": answers.FromString}
    host, port = world.server.address
    sent = tuple(metadata.items())
    async with channel(f"{host}:{port}") as opened:
        call: Any
        if method.client_streaming:
            call = opened.stream_stream(f"/{name}", **kinds)(timeout=SECONDS, metadata=sent)
            with suppress(grpc.aio.AioRpcError):  # refused already: reading says why
                await call.write(request)
        elif method.server_streaming:
            call = opened.unary_stream(f"/{name}", **kinds)(request, timeout=SECONDS, metadata=sent)
        else:
            call = opened.unary_unary(f"/{name}", **kinds)(request, timeout=SECONDS, metadata=sent)
        try:
            await (call.read() if method.server_streaming else call)
        except grpc.aio.AioRpcError as error:
            if error.details() != LOST:
                return str(error.code().name)
        else:
            call.cancel()
            return "OK"
    return await _called(world, name, fields, **metadata)


def test_a_stream_and_the_acks_of_grpc_end_when_rights_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        host, port = world.server.address
        subscribe, receive, ack, send = (
            f"danube.{name}"
            for name in (
                "ConsumerService/Subscribe",
                "ConsumerService/ReceiveMessages",
                "ConsumerService/Ack",
                "ProducerService/SendMessage",
            )
        )
        async with channel(f"{host}:{port}") as opened:

            def ask(name: str, **fields: Any) -> Any:
                method, case = METHODS[name], GRPC[name]
                assert isinstance(case.fields, dict)
                request = message_class(method.input_type.full_name)(**case.fields, **fields)
                make = opened.unary_stream if method.server_streaming else opened.unary_unary
                answers = message_class(method.output_type.full_name)
                return make(f"/{name}", lambda each: each.SerializeToString(), answers.FromString)(
                    request, timeout=SECONDS
                )

            await ask(subscribe)
            stream = ask(receive)
            assert (await stream.read()).payload == b"order"
            await ask(ack)
            await ask(send)
            with world.recorder.refusing(), world.recorder.recording() as asked:
                await ask(ack)
                await ask(send)
                assert asked == []
                world.door.reconsider()
                for call in (ask(ack), ask(send), _drained(stream)):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

    run(tmp_path, monkeypatch, story)


async def _drained(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


# -- more than one right -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "action", "resource"),
    [
        ("dlq.redrive", Action.TOPIC_REDRIVE, of_topic(LETTERS)),
        ("sink.commit", Action.TOPIC_PUBLISH, of_topic(ORDERS)),
        ("sink.commit", Action.TOPIC_PUBLISH, of_topic(SECOND)),
        ("open_consumer", Action.TOPIC_PUBLISH, of_topic(SECOND)),
        ("subscription.create", Action.TOPIC_PUBLISH, of_topic(SECOND)),
        ("subscription.alter", Action.TOPIC_PUBLISH, of_topic(SECOND)),
        ("news", Action.TOPIC_READ, of_topic(SECOND)),
        ("topic", Action.TOPIC_CREATE, of_topic("/default/used")),
        ("open_producer", Action.TOPIC_CREATE, of_topic("/default/new")),
    ],
    ids=str,
)
def test_one_right_that_is_missing_is_enough_to_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, action: Action, resource: Resource
) -> None:
    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        before = world.state()
        with world.recorder.refusing(lambda *right: right == (action, resource)):
            assert await native_code(client, 1, name, NATIVE[name].given(world)) == "not_allowed"
        assert world.state() == before

    run(tmp_path, monkeypatch, story)


def test_letters_stay_if_the_caller_may_not_publish_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        with world.recorder.refusing(lambda *right: right == (Action.TOPIC_PUBLISH, of_topic(SECOND))):
            done = await client.ask("dlq.redrive", topic=LETTERS)
            assert (done["redriven"], done["refused"]) == (0, 1)
            assert done["refusals"][0]["error"].startswith("not_allowed")
            assert await client.refused("dlq.redrive", topic=LETTERS, to=SECOND) == "not_allowed"
        assert (await client.ask("dlq.redrive", topic=LETTERS))["redriven"] == 1

    run(tmp_path, monkeypatch, story)


@pytest.mark.parametrize("missing", [Action.TOPIC_CREATE, Action.TOPIC_PUBLISH])
def test_a_commit_that_may_not_make_or_write_to_one_of_its_topics_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Action
) -> None:
    async def story(world: World) -> None:
        staging = (await world.system.carry_out(BeginSink(JOB.query, JOB.target))).staging
        first = await published(world.system, staging, b"row 1", b"row 2")
        parts = {"/default/a": [[first, first]], "/default/b": [[first + 1, first + 1]]}
        decision = await published(world.system, staging, json.dumps({"parts": parts}).encode())
        client = await Client.connect(world.server.address)
        before = world.state()
        with world.recorder.refusing(lambda *right: right == (missing, of_topic("/default/b"))):
            code = await client.refused(
                "sink.commit", query=JOB.query, target=JOB.target, run="r1", batch=0, decision=decision
            )
        assert code == "not_allowed"
        assert world.state() == before

    run(tmp_path, monkeypatch, story)


def test_somebody_with_the_ticket_of_a_job_has_to_be_allowed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets are counted, so anybody can guess one."""

    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        monkeypatch.setattr("pydanube.broker.serving.salvage.JOB_SECONDS", 0)
        begun = await client.ask("storage.salvage", topic=ORDERS)
        assert begun["ticket"]
        with world.recorder.refusing():
            code = await client.refused("storage.salvage", topic=ORDERS, ticket=begun["ticket"])
        assert code == "not_allowed"
        other = await client.ask("storage.salvage", topic=SECOND, ticket=begun["ticket"])
        assert other["ticket"] != begun["ticket"]  # it is of other work, which begins

    run(tmp_path, monkeypatch, story)


def test_a_list_of_storage_goes_on_behind_topics_that_the_caller_may_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        hidden = [of_topic(LETTERS), of_topic(ORDERS)]
        with world.recorder.refusing(lambda action, resource: resource in hidden):
            found = await client.ask("storage.list", namespace="default", limit=1)
        assert ([each["topic"] for each in found["topics"]], found["more"]) == ([SECOND], False)

    run(tmp_path, monkeypatch, story)


def test_the_broker_asks_for_itself_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters, decided rows and what it opens to keep it up. Whatever is open is maintained."""

    async def story(world: World) -> None:
        assert (Action.TOPIC_SERVE, of_topic(LETTERS)) in world.recorder.system
        client = await Client.connect(world.server.address)
        failure = {"poison": "dead_letter", "max_redelivery_count": 0}
        await client.ask("subscription.alter", topic=ORDERS, subscription="billing", options={"failure": failure})
        await client.ask("open_consumer", channel=1, topic=ORDERS, subscription="billing", type="shared")
        client.send(Grant(1, 1, 0))
        while not isinstance(delivered := await client.receive(), Deliver):
            pass
        letters = f"{ORDERS}-billing-dlq"
        client.send(Nack(1, 0, delivered.generation, [(delivered.first, delivered.last)], 0, "bad"))
        while (Action.TOPIC_PUBLISH, of_topic(letters)) not in world.recorder.system:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (Action.TOPIC_CREATE, of_topic(letters)) in world.recorder.system
        world.recorder.system.clear()
        await native_code(client, 50, "sink.commit", NATIVE["sink.commit"].given(world))
        assert {(Action.TOPIC_PUBLISH, of_topic(name)) for name in (ORDERS, SECOND)} <= set(world.recorder.system)

    async def after_a_restart(world: World) -> None:
        while (Action.TOPIC_SERVE, of_topic(ORDERS)) not in world.recorder.system:  # noqa: ASYNC110
            await asyncio.sleep(0)

    run(tmp_path, monkeypatch, story)
    run(tmp_path, monkeypatch, after_a_restart, prepared=True)
