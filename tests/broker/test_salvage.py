"""Damage as the door deals with it: beside retention, among very many topics, and for consumers that wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from broker.door_world import DoorWorld, caller, served
from broker.topic_world import Inbox
from pydanube.access.principals import ANONYMOUS
from pydanube.base.errors import OffsetsDamaged
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import BLOCK_BYTES, DAMAGE_NOTICE_SECONDS
from pydanube.broker.door.door import Door
from pydanube.broker.serving.salvage import TOPICS_A_TURN, Examined
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.topic import Topic
from pydanube.operations.topics import CreateTopic
from pydanube.storage.stream.tail import TailCache
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

ORDERS = "/default/orders"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def published(door: Door, count: int) -> Topic:
    """Each message in a ledger of its own, and none in memory."""
    await caller(door).carry_out(CreateTopic(ORDERS))
    topic = (await served(door, ORDERS)).reliable
    for number in range(count):
        await topic.publish(build([b"payload-%d." % number], publish_time=1)).confirmed
        await topic.ledger.stream.seal()
    topic.ledger._tail = TailCache(0).tail()
    return topic


def damage(world: DoorWorld, *payloads: bytes) -> None:
    disk = world.disks[1]
    for name in disk.names():
        for payload in payloads:
            if (at := disk.content(name).find(payload)) >= 0:
                disk.overwrite(name, at // BLOCK_BYTES * BLOCK_BYTES, b"\xa5" * BLOCK_BYTES)


async def examined(door: Door, *, accept: bool = False) -> Examined:
    found: Examined = (await door.salvage.examine(ANONYMOUS, ORDERS, accept=accept, ticket=None)).result
    return found


async def opened(door: Door) -> Topic:
    return (await served(door, ORDERS)).reliable


@pytest.mark.parametrize("at", range(1, 12))
def test_what_retention_deletes_while_a_topic_is_examined_is_no_damage(at: int) -> None:
    """Whenever it does: the first half of the ledgers goes before the read of that number."""

    async def work(door: Door) -> None:
        topic = await published(door, 10)
        stream, reads = topic.ledger.stream, 0
        read = stream._read_ledger

        async def noted(*arguments: object) -> object:
            nonlocal reads
            reads += 1
            if reads == at:
                await stream.trim(5)
            return await read(*arguments)  # type: ignore[arg-type]

        stream._read_ledger = noted  # type: ignore[assignment,method-assign]
        assert (await examined(door, accept=True)).found == []
        assert stream.first == 5 or at > 10

    DoorWorld().run(work)


def test_a_reader_beside_retention_goes_on_behind_what_is_deleted() -> None:
    async def work(door: Door) -> None:
        topic = await published(door, 10)
        read = topic.ledger.stream._read_ledger

        async def late(*arguments: object) -> object:
            topic.ledger.stream._read_ledger = read  # type: ignore[method-assign]
            await topic.ledger.stream.trim(5)
            return await read(*arguments)  # type: ignore[arg-type]

        topic.ledger.stream._read_ledger = late  # type: ignore[assignment,method-assign]
        assert (await caller(door).read(ORDERS, 2, 1))[0].base_offset == 5

    DoorWorld().run(work)


def test_damage_is_forgotten_when_retention_has_passed_it() -> None:
    """What was found and not accepted, and what was accepted and counted as lost."""
    world = DoorWorld()

    async def write(door: Door) -> None:
        await published(door, 6)
        await asyncio.sleep(2)  # a mark covers the last group

    async def look(door: Door) -> None:
        topic = await opened(door)
        stream = topic.ledger.stream
        assert [(each.lost.first, each.lost.last) for each in (await examined(door)).found] == [(1, 1), (3, 3)]
        assert stream.damaged == {1: 1, 3: 3}
        await stream.trim(2)
        assert stream.damaged == {3: 3}
        await examined(door, accept=True)
        assert [each.first for each in stream.record.lost] == [3]
        await stream.trim(5)
        assert (stream.record.lost, stream.damaged) == ((), {})

    world.run(write)
    damage(world, b"payload-1.", b"payload-3.")
    world.run(look)


class Waiting(Inbox):
    """A consumer of the topic that takes whatever it is given."""

    def __init__(self, topic: Topic, host: SubscriptionHost) -> None:
        super().__init__(host)
        self.id: ConsumerId = topic.connect(host, "c", self).id
        host.grant(self.id, 100)


def test_a_consumer_is_told_of_damage_now_and_then_and_once_when_it_is_over() -> None:
    world = DoorWorld()

    async def write(door: Door) -> None:
        topic = await published(door, 4)
        await topic.subscribe("s", SubscriptionKind.FAILOVER, start="earliest")
        await asyncio.sleep(2)

    async def consume(door: Door) -> None:
        topic = await opened(door)
        host = topic.subscriptions["s"]
        active, standby = Waiting(topic, host), Waiting(topic, host)
        await active.until(1)
        await asyncio.sleep(2.5 * DAMAGE_NOTICE_SECONDS)
        assert [type(each) for each in active.notices] == [OffsetsDamaged] * 3
        assert "offset 1 is damaged" in str(active.notices[0])
        late = Waiting(topic, host)
        host.leave(active.id, crashed=False)
        await asyncio.sleep(1)
        assert len(standby.notices) == 1
        await examined(door, accept=True)
        assert standby.notices[1:] == [None]
        assert await standby.until(3) == [0, 2, 3]
        assert (late.notices, len(standby.notices)) == ([], 2)

    world.run(write)
    damage(world, b"payload-1.")
    world.run(consume)


def test_looking_for_damaged_topics_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many topics and partitions there are, a turn is about a few of them."""
    count, rest = 4 * TOPICS_A_TURN, asyncio.sleep
    loads = most = 0

    async def work(door: Door) -> None:
        for number in range(count):
            await caller(door).carry_out(CreateTopic(f"/default/t{number}"))
        await caller(door).carry_out(CreateTopic("/default/wide", partitions=count))
        load = door.around.catalog.load

        async def counted(stream: str) -> object:
            nonlocal loads, most
            loads += 1
            most = max(most, loads)
            return await load(stream)

        async def turn(seconds: float) -> None:
            nonlocal loads
            loads = 0
            await rest(seconds)

        with monkeypatch.context() as patch:
            patch.setattr(door.around.catalog, "load", counted)
            patch.setattr("pydanube.broker.serving.salvage.asyncio.sleep", turn)
            assert await door.salvage.damaged() == []
        assert 0 < most <= 2 * TOPICS_A_TURN  # messages and state of each place

    DoorWorld().run(work)
