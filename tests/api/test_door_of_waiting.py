"""I10: rights that end while something waits. It is answered by the rights of the moment when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from api.door_cases import GRPC, of_topic
from api.door_rig import CALLER, JOB, LETTERS, ORDERS, SECOND, World
from api.http_client import Http
from api.test_door import METHODS, run
from grpc_face.rig import SECONDS, channel
from pydanube.access.principals import SYSTEM
from pydanube.access.rights import BROKER, Action, Resource
from pydanube.api.grpc.ids import producer_id
from pydanube.api.grpc.messages import message_class
from pydanube.api.http.operations import make_router
from pydanube.base.errors import DanubeError, NotAllowed
from pydanube.broker.cold.storage_admin import StorageAdmin
from pydanube.broker.door.asking import Asking
from pydanube.broker.door.backups import Backups
from pydanube.broker.door.cached_page import CachedPage
from pydanube.broker.door.session import CARRIED_OUT, Origin, Session
from pydanube.broker.door.verbs import broker as broker_verbs
from pydanube.broker.door.verbs import subscriptions as subscription_verbs
from pydanube.broker.door.verbs import topics as topic_verbs
from pydanube.broker.serving.lifecycle import Lifecycle
from pydanube.broker.serving.salvage import Salvage
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.jobs import JobAnswer, Jobs
from pydanube.operations.backups import BeginBackup, ListBackupFiles
from pydanube.operations.broker import GetStatus
from pydanube.operations.operation import Request
from pydanube.operations.options import OptionChanges
from pydanube.operations.sinks import CommitSink, ForgetSink
from pydanube.operations.storage import ListDamage, ListSealed, ListSegments, SalvageTopic, UploadTopic, VerifySegment
from pydanube.operations.subscriptions import (
    AlterSubscription,
    CreateSubscription,
    DeleteSubscription,
    DescribeSubscription,
    Explain,
    ListAbandoned,
    ListBlocked,
    ListSubscriptions,
    SeekSubscription,
)
from pydanube.operations.topics import AlterTopic, CreateTopic, FindOffset, ListTopics, TruncateTopic
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build
from waiting import until


def rights_end_after(world: World, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, soon: bool) -> None:
    """All rights end when this method is done; if `soon`, in the next turn of the loop. Afterwards they are back."""
    method = getattr(owner, name)

    def end() -> None:
        with world.recorder.refusing():
            world.door.reconsider()

    async def ending(*arguments: Any, **named: Any) -> Any:
        done = await method(*arguments, **named)
        if soon:
            asyncio.get_running_loop().call_soon(end)
        else:
            world.door.reconsider()
            world.recorder.refuses = lambda action, resource: True
        return done

    monkeypatch.setattr(owner, name, ending)


def test_what_is_read_while_rights_end_is_not_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        rights_end_after(world, monkeypatch, ManagedLedger, "read", soon=False)
        with pytest.raises(NotAllowed):
            await world.door.session(CALLER, Origin("test")).read(ORDERS, 0, 1_000)

    run(tmp_path, monkeypatch, story)


def test_a_piece_of_a_backup_that_is_read_while_rights_end_is_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        session = world.door.session(CALLER, Origin("test"))
        backup = (await session.carry_out(BeginBackup())).backup
        [file, *_] = (await session.carry_out(ListBackupFiles(backup))).files
        rights_end_after(world, monkeypatch, Backups, "read", soon=False)
        with pytest.raises(NotAllowed):
            await session.backups.read(backup, file.name, 0, 1)

    run(tmp_path, monkeypatch, story)


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the loop complains about."""
    found: list[dict[str, Any]] = []
    call: Callable[..., None] = lambda self, context: found.append(context)  # noqa: E731
    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", call)
    return found


def test_a_request_whose_consumer_is_ended_as_soon_as_it_is_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaints: list[dict[str, Any]]
) -> None:
    async def story(world: World) -> None:
        http = await Http.connect(world.server)
        with monkeypatch.context() as patch:
            rights_end_after(world, patch, Session, "open_consumer", soon=True)
            path = f"/api/v1/topics{ORDERS}/subscriptions/billing/receive?wait=20"
            assert (await http.ask("POST", path)).status == 403
        opened = next(each for each in world.door.topics.opened() if str(each.name) == ORDERS)
        assert (len(world.door.leasing), opened.consumers) == (0, {})
        assert len((await http.ask("POST", path)).json["messages"]) > 0  # it may again
        await http.close()

    run(tmp_path, monkeypatch, story)
    assert complaints == []


def test_a_request_that_shares_a_consumer_asks_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        http = await Http.connect(world.server)
        path = f"/api/v1/topics{ORDERS}/subscriptions/billing/receive?limit=1"
        assert (await http.ask("POST", path)).status == 200
        with world.recorder.refusing():  # the consumer of the first request is still there
            assert (await http.ask("POST", path)).status == 403
        await http.close()

    run(tmp_path, monkeypatch, story)


def test_handles_that_have_ended_publish_and_acknowledge_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        session = world.door.session(CALLER, Origin("test"))
        producer = await session.open_producer(ORDERS, lambda error: None)
        consumer = await session.open_consumer(ORDERS, "ordered", SubscriptionKind.EXCLUSIVE, Mock(), start=0)
        with world.recorder.refusing():
            world.door.reconsider()
        before = world.state()
        for call in (
            lambda: producer.publish(build([b"too late"], publish_time=1)),
            lambda: consumer.ack(0, [(0, 0)]),
            lambda: consumer.ack_through(0, 0),
            consumer.pause,
            consumer.resume,
        ):
            with pytest.raises(NotAllowed):
                call()
        consumer.nack(0, [(0, 0)])
        with pytest.raises(NotAllowed):
            await consumer.seek(offset=5)
        assert world.state() == before

    run(tmp_path, monkeypatch, story)


def test_a_consumer_that_ends_while_it_looks_for_a_time_does_not_seek(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        session = world.door.session(CALLER, Origin("test"))
        consumer = await session.open_consumer(ORDERS, "billing", SubscriptionKind.SHARED, Mock())
        before = consumer.generation
        rights_end_after(world, monkeypatch, Topic, "find_time", soon=False)
        with pytest.raises(NotAllowed):
            await consumer.seek(time=1)
        assert consumer.generation == before

    run(tmp_path, monkeypatch, story)


def test_a_producer_that_is_ended_as_soon_as_it_is_there_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, send = "danube.ProducerService/CreateProducer", "danube.ProducerService/SendMessage"
    named = {"topic_name": ORDERS, "producer_name": "q", "dispatch_strategy": 1}

    async def story(world: World) -> None:
        host, port = world.server.address
        async with channel(f"{host}:{port}") as opened:

            async def ask(name: str, fields: dict[str, Any]) -> Any:
                method = METHODS[name]
                answers = message_class(method.output_type.full_name)
                call = opened.unary_unary(f"/{name}", lambda each: each.SerializeToString(), answers.FromString)
                return await call(message_class(method.input_type.full_name)(**fields), timeout=SECONDS)

            with monkeypatch.context() as patch:
                rights_end_after(world, patch, Session, "open_producer", soon=True)
                created = await ask(create, named)
            assert created.producer_id == producer_id(ORDERS, "q", reliable=True)
            assert isinstance(GRPC[send].fields, dict)
            with world.recorder.refusing(), pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(send, GRPC[send].fields)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            await ask(send, GRPC[send].fields)

    run(tmp_path, monkeypatch, story)


def test_handles_end_although_another_one_cannot_be_asked_about_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        session, told, sink = world.door.session(CALLER, Origin("test")), list[DanubeError](), Mock()
        sink.closed.side_effect = RuntimeError
        unaskable = await session.open_producer(ORDERS, told.append)
        untold = await session.open_producer(SECOND, Mock(side_effect=RuntimeError))
        consumer = await session.open_consumer(SECOND, "ordered", SubscriptionKind.EXCLUSIVE, sink)
        last = await session.open_producer(LETTERS, told.append)

        def fails(action: Action, resource: Resource) -> bool:
            if resource == of_topic(ORDERS):
                raise RuntimeError("no rule can be read")
            return True

        with world.recorder.refusing(fails):
            world.door.reconsider()
        for producer in (unaskable, untold, last):
            with pytest.raises(NotAllowed):
                producer.publish(build([b"too late"], publish_time=1))
        with pytest.raises(NotAllowed):
            consumer.ack(0, [(0, 0)])
        assert [each.code for each in told] == ["not_allowed", "not_allowed"]
        opened = {str(each.name): each for each in world.door.topics.opened()}
        assert [opened[name].producers for name in (ORDERS, SECOND, LETTERS)] == [{}, {}, {}]
        assert opened[SECOND].consumers == {}

    run(tmp_path, monkeypatch, story)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError] * 3


Reading = Callable[[Session], Awaitable[object]]


def carried_out(request: Request[Any]) -> Reading:
    return lambda session: session.carry_out(request)


@pytest.mark.parametrize(
    ("ask", "owner", "name"),
    [
        (lambda session: session.offset_of_time(ORDERS, 0), Topic, "find_time"),
        (carried_out(FindOffset(ORDERS, 0)), Topic, "find_time"),
        (carried_out(ListSealed(ORDERS, end=1)), StorageAdmin, "sealed"),
        (carried_out(ListSegments(ORDERS)), StorageAdmin, "parts"),
        (lambda session: session.storage.segments(ORDERS), StorageAdmin, "parts"),
        (carried_out(VerifySegment(ORDERS, 0)), StorageAdmin, "verify"),
        (carried_out(UploadTopic(ORDERS)), StorageAdmin, "upload"),
        (carried_out(ListDamage()), Salvage, "damaged"),
        (carried_out(SalvageTopic(ORDERS)), Jobs, "ask"),
        (carried_out(DescribeSubscription(ORDERS, "billing")), BacklogAges, "seconds"),
        (carried_out(ListSubscriptions(ORDERS)), BacklogAges, "seconds"),
        (carried_out(ListAbandoned()), subscription_verbs, "find_abandoned"),
        (carried_out(ListBlocked()), subscription_verbs, "find_blocked"),
        (carried_out(Explain(ORDERS, "billing", offset=0)), subscription_verbs, "explain"),
        (carried_out(GetStatus()), broker_verbs, "status_of"),
        (carried_out(ListTopics("default")), topic_verbs, "records_of"),
        (lambda session: session.topics.listed(None), topic_verbs, "records_of"),
        (lambda session: session.broker.metrics(), CachedPage, "__call__"),
        (lambda session: session.broker.attention(), subscription_verbs, "find_blocked"),
    ],
)
def test_what_is_looked_up_while_rights_end_is_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Reading, owner: Any, name: str
) -> None:
    """It waits for storage, or for its turn, where the rights end."""

    async def done(*arguments: Any) -> JobAnswer:
        return JobAnswer(1, None)

    async def story(world: World) -> None:
        if name in ("verify", "upload"):
            monkeypatch.setattr(owner, name, done)  # there is no object storage here
        with monkeypatch.context() as patch:
            rights_end_after(world, patch, owner, name, soon=False)
            with pytest.raises(NotAllowed):
                await ask(world.door.session(CALLER, Origin("test")))

    run(tmp_path, monkeypatch, story)


def test_what_was_changed_before_rights_ended_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its caller would believe that it was not."""

    async def story(world: World) -> None:
        rights_end_after(world, monkeypatch, Lifecycle, "create_topic", soon=False)
        session = world.door.session(CALLER, Origin("test"))
        assert (await session.carry_out(CreateTopic("/default/made"))).topic == "/default/made"

    run(tmp_path, monkeypatch, story)


# Work whose answers only report on it: it goes on whether or not they are given.
REPORTED_ON = {"storage.verify", "storage.upload", "storage.salvage"}


def test_requests_that_only_read_are_those_that_rest_gets() -> None:
    routes = {route.operation: route.method for route in make_router().routes}
    for kind in CARRIED_OUT:
        if kind.operation in routes and kind.operation not in REPORTED_ON:
            assert kind.changes == (routes[kind.operation] != "GET"), kind.operation


def test_tasks_that_outlive_a_request_note_nothing_for_it() -> None:
    asking = Asking(lambda principal, action, resource: None)

    async def main() -> None:
        ended = asyncio.Event()

        async def outliving() -> None:
            await ended.wait()
            asking(CALLER, Action.STATUS, BROKER)

        with asking.noting(CALLER) as allowed:
            asking(SYSTEM, Action.CONFIG, BROKER)
            asking(CALLER, Action.HEALTH, BROKER)
            task = asyncio.ensure_future(outliving())
        asking(CALLER, Action.METRICS, BROKER)
        ended.set()
        await task
        assert list(allowed.rights) == [(Action.HEALTH, BROKER)]

    asyncio.run(main())


def test_no_loss_is_accepted_any_more_when_the_right_to_do_so_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        await world.system.carry_out(CreateTopic("/default/wide", partitions=2))
        looked_at: list[object] = []
        partition = Salvage._partition

        async def counted(self: Salvage, record: Any, name: object, *arguments: Any) -> None:
            looked_at.append(name)
            await partition(self, record, name, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Salvage, "_partition", counted)
        rights_end_after(world, monkeypatch, Salvage, "_partition", soon=False)
        with pytest.raises(NotAllowed):
            await world.door.session(CALLER, Origin("test")).carry_out(SalvageTopic("/default/wide", accept=True))
        assert len(looked_at) == 1

    run(tmp_path, monkeypatch, story)


def commit(world: World) -> Request[Any]:
    return CommitSink(JOB.query, JOB.target, 0, world.memory["decision"], run="r1")


@pytest.mark.parametrize(
    ("request_of", "action"),
    [
        (commit, Action.SINK_WRITE),
        (commit, Action.TOPIC_PUBLISH),
        (lambda world: ForgetSink(JOB.query, JOB.target), Action.SINK_FORGET),
    ],
    ids=["write", "publish", "forget"],
)
def test_a_job_that_has_waited_for_its_turn_is_committed_or_forgotten_only_if_its_caller_still_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[World], Request[Any]], action: Action
) -> None:
    """One after the other for each writer: a batch that cannot be written holds up the next for as long as it takes."""

    async def story(world: World) -> None:
        turns, before = world.door.sinks._turns, world.state()
        async with turns.of(JOB.digest):
            asked = request_of(world)
            waiting = asyncio.ensure_future(world.door.session(CALLER, Origin("test")).carry_out(asked))
            await until(lambda: turns._locks[JOB.digest].users == 2)
            world.recorder.refuses = lambda asked, resource: asked == action
            world.door.reconsider()
        with pytest.raises(NotAllowed):
            await waiting
        assert world.state() == before

    run(tmp_path, monkeypatch, story)


WIDE = "/default/wide"
CHANGES: list[tuple[Request[Any], Action]] = [
    (CreateSubscription(WIDE, "new"), Action.SUBSCRIPTION_CREATE),
    (AlterSubscription(WIDE, "s", OptionChanges(idle_seconds=60)), Action.SUBSCRIPTION_ALTER),
    (SeekSubscription(WIDE, "s", "earliest"), Action.SUBSCRIPTION_SEEK),
    (DeleteSubscription(WIDE, "s"), Action.SUBSCRIPTION_DELETE),
    (TruncateTopic(WIDE), Action.TOPIC_TRUNCATE),
    (AlterTopic(WIDE, partitions=3), Action.TOPIC_ALTER),
]


@pytest.mark.parametrize(("request_", "action"), CHANGES, ids=[each.operation for each, _ in CHANGES])
def test_a_change_that_has_waited_for_its_turn_is_made_only_if_its_caller_still_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: Request[Any], action: Action
) -> None:
    """Changes of all partitions of a topic are made one after the other."""

    async def story(world: World) -> None:
        await world.system.carry_out(CreateTopic(WIDE, partitions=2))
        await world.system.carry_out(CreateSubscription(WIDE, "s", "shared"))
        record = await world.system.topics.lookup(WIDE)
        before = world.state()
        async with world.door.spreading._turns.of(record.id):  # of a change that takes long
            waiting = asyncio.ensure_future(world.door.session(CALLER, Origin("test")).carry_out(request_))
            turn = world.door.spreading._turns._locks[record.id]
            await until(lambda: turn.users == 2)  # it is in line
            world.recorder.refuses = lambda asked, resource: asked == action
            world.door.reconsider()
        with pytest.raises(NotAllowed):
            await waiting
        assert world.state() == before

    run(tmp_path, monkeypatch, story)
