"""A topic is read as one stream: from memory, from disk, over the hand-over between them, and over gaps."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import Inbox, TopicWorld, batch_of, connected, numbers, publish, subscribed
from pydanube.base.durability import Durability
from pydanube.base.errors import ArgumentInvalid, DiskFailed, SubscriptionInvalid, TopicRecovering
from pydanube.base.limits import KIB, RESERVE_OFFSETS
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.explain import Cause as Why
from pydanube.storage.stream.tail import TailCache
from pydanube.topic.records import Cause, SubscriptionKind

ALL = list(SubscriptionKind)
EXCLUSIVE, SHARED = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED


async def fill(topic: Topic, count: int, *, size: int = 100) -> None:
    for first in range(0, count, 10):
        await publish(topic, *[f"{number:0{size}}" for number in range(first, first + 10)])


# -- the cache ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", [1, 3000, 1 << 20])
@pytest.mark.parametrize("kind", ALL)
def test_a_consumer_far_behind_catches_up_with_the_live_end(kind: SubscriptionKind, cache_bytes: int) -> None:
    world = TopicWorld(cache_bytes=cache_bytes, options=TopicOptions(ledger_bytes=20 * KIB))

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind)
        await fill(topic, 500)
        inbox = connected(topic, host, permits=10)
        for number in range(500, 1000):
            host.grant(inbox.id, 3)
            await publish(topic, f"{number:0100}")
        seen = await inbox.until(1000)
        assert sorted(seen) == list(range(1000))
        assert [int(payload or b"") for payload in inbox.payloads] == seen
        if kind in (EXCLUSIVE, SubscriptionKind.FAILOVER):
            assert seen == sorted(seen)

    world.run(main())
    world.end()


def test_who_keeps_up_reads_nothing_from_disk_and_who_catches_up_reads_once(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, EXCLUSIVE))
        before = world.disk.operations["read"]
        await fill(topic, 200)
        await inbox.until(200)
        assert world.disk.operations["read"] == before
        topic.ledger._tail.clear()
        late = connected(topic, await subscribed(topic, EXCLUSIVE, name="late"))
        reads = 0
        read = topic.ledger.stream.read

        async def counted(offset: int, bytes_max: int) -> object:
            nonlocal reads
            reads += 1
            return await read(offset, bytes_max)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topic.ledger.stream, "read", counted)
            await late.until(200)
        assert reads == 1

    world.run(main())


def test_the_bound_of_the_cache_holds_for_all_topics_together() -> None:
    world = TopicWorld(cache_bytes=20 * KIB)

    async def main() -> None:
        topics = [await world.open("/default/a"), await world.open_topic("/default/b")]
        inboxes = [connected(topic, await subscribed(topic, EXCLUSIVE)) for topic in topics]
        for number in range(100):
            await publish(topics[number % 3 % 2], "x" * 1000)
            assert world.cache.bytes <= 20 * KIB
            kept = sum(batch.memory for topic in topics for batch in topic.ledger._tail._batches if batch is not None)
            assert kept == world.cache.bytes
        assert [len(await inbox.until(count)) for inbox, count in zip(inboxes, (67, 33), strict=True)] == [67, 33]
        assert topics[0].ledger.find(topics[0].ledger.confirmed_end - 1) is not None

    world.run(main())
    world.end()


def test_a_batch_larger_than_the_cache_is_not_kept() -> None:
    cache = TailCache(2000)
    tail = cache.tail()
    tail.add(batch_of("x").stamped(0, 1, 1))
    tail.add(batch_of("x" * 2000).stamped(1, 1, 1))
    assert (tail.find(0), tail.find(1), cache.bytes) == (None, None, 0)
    small = batch_of("x").stamped(2, 1, 1)
    tail.add(small)
    assert tail.find(2) is small


def test_a_gap_starts_the_tail_anew() -> None:
    cache = TailCache(10_000)
    tail, other = cache.tail(), cache.tail()
    old, new = batch_of("a").stamped(0, 1, 1), batch_of("b").stamped(5, 1, 1)
    tail.add(old)
    other.add(old)
    tail.add(new)
    assert [tail.find(offset) for offset in (0, 4, 5, 6)] == [None, None, new, None]
    for offset in range(6, 30):
        tail.add(batch_of("c").stamped(offset, 1, 1))
        assert cache.bytes <= 10_000
    assert tail.find(29) is not None
    assert other.find(0) is None, "the oldest gives way, whoever's it is"
    assert sum(batch.memory for batch in tail._batches if batch is not None) == cache.bytes


# -- reading fails -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_messages_that_cannot_be_read_now_are_delivered_when_they_can(kind: SubscriptionKind) -> None:
    world = TopicWorld(cache_bytes=1)

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind)
        await fill(topic, 30)
        world.disk.fail_next("read", DiskFailed, count=1_000_000)
        inbox = connected(topic, host)
        await asyncio.sleep(5)
        assert inbox.offsets == []
        assert host.explain(7).cause is Why.UNREADABLE
        world.disk.cure()
        assert sorted(await inbox.until(30)) == list(range(30))
        host.grant(inbox.id, 1000)
        inbox.forget()
        world.disk.fail_next("read", DiskFailed, count=1_000_000)
        inbox.nack(0)
        await asyncio.sleep(5)
        assert inbox.offsets == []
        assert host.explain(0).cause is Why.UNREADABLE
        world.disk.cure()
        await inbox.until(1)
        assert inbox.offsets[0] == 0

    world.run(main())
    world.end()


def test_what_was_acknowledged_while_it_was_read_again_is_not_delivered_again() -> None:
    world = TopicWorld(cache_bytes=1)

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await fill(topic, 30)
        inbox = connected(topic, host, permits=35)
        await inbox.until(30)
        inbox.forget()
        world.disk.slow(1.0, only="read")
        inbox.nack(0, 1, 2)
        await asyncio.sleep(1.5)
        assert host._sender.outbox
        await inbox.ack(1)
        await inbox.until(2)
        await asyncio.sleep(5)
        assert inbox.offsets == [0, 2]
        world.disk.cure()
        await fill(topic, 10)
        assert len(await inbox.until(5)) == 5, "what was not delivered can be asked for again"

    world.run(main())
    world.end()


# -- gaps --------------------------------------------------------------------------------------------------------------


BUFFERED = TopicOptions(durability=Durability.BUFFERED)


async def lossy(world: TopicWorld, kind: SubscriptionKind) -> None:
    topic = await world.open()
    inbox = connected(topic, await subscribed(topic, kind))
    await fill(topic, 50)
    await asyncio.sleep(3)  # these are synced by now
    await inbox.until(50)
    await inbox.ack(*range(40))
    await fill(topic, 50)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ALL)
def test_a_cursor_steps_over_what_a_buffered_topic_lost(kind: SubscriptionKind, seed: int) -> None:
    world = TopicWorld(seed, options=BUFFERED)

    async def second_life() -> int:
        topic = await world.open()
        host = topic.subscriptions["s"]
        inbox = connected(topic, host)
        kept = topic.ledger.confirmed_end - 40
        assert 10 <= kept <= 60
        assert sorted(await inbox.until(kept)) == list(range(40, 40 + kept))
        assert host.explain(40 + kept).cause is Why.NOT_PUBLISHED
        assert await topic.find_time(world.clock.wall()) == 40 + kept
        new = await publish(topic, *numbers(0, 9))
        assert new >= RESERVE_OFFSETS
        await inbox.until(kept + 10)
        await inbox.ack_all()
        assert host.known.cursor.floor == new + 10
        assert host.known.counts[Cause.UNUSED] == new - 40 - kept
        return new

    async def third_life(new: int) -> None:
        topic = await world.open()
        assert topic.subscriptions["s"].known.cursor.floor == new + 10
        host = topic.subscriptions["s"]
        await topic.seek(host, new - 5)  # into the gap
        inbox = connected(topic, host)
        assert sorted(await inbox.until(10)) == list(range(new, new + 10))

    world.run(lossy(world, kind))
    world.cut()
    new = world.run(second_life())
    world.restart()
    world.run(third_life(new))
    world.end()


def test_a_gap_is_stepped_over_although_the_state_could_not_be_written_at_first() -> None:
    world = TopicWorld(options=BUFFERED)

    async def second_life() -> None:
        topic = await world.open()
        host = topic.subscriptions["s"]
        new = await publish(topic, "new")
        world.disk.fail_next("sync", count=3)
        with pytest.raises(TopicRecovering):
            await host.ack(0, [(40, 40)])
        inbox = connected(topic, host)
        await inbox.until(10)
        with pytest.raises(TopicRecovering):
            await inbox.ack_all()
        await asyncio.sleep(20)
        await inbox.ack_all()
        assert host.known.cursor.floor == new + 1

    world.run(lossy(world, SHARED))
    world.cut()
    world.run(second_life())
    world.end()


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_a_gap_at_the_end_with_nothing_before_it_is_no_obstacle(kind: SubscriptionKind) -> None:
    """All that was kept is acknowledged and trimmed, then a ledger starts far above."""
    world = TopicWorld(options=TopicOptions(durability=Durability.BUFFERED, ledger_bytes=KIB))

    async def second_life() -> None:
        topic = await world.open()
        host = topic.subscriptions["s"]
        await host.ack(0, [(0, topic.ledger.confirmed_end - 1)])
        await topic.tick()
        assert topic.ledger.first == topic.ledger.confirmed_end
        earliest = connected(topic, await subscribed(topic, kind, name="earliest", start="earliest"))
        await topic.seek(host, 0)
        inbox = connected(topic, host)
        assert host.explain(topic.ledger.confirmed_end).cause is Why.NOT_PUBLISHED
        new = await publish(topic, "new")
        assert await inbox.until(1) == [new]
        assert await earliest.until(1) == [new]
        await inbox.ack(new)
        assert host.known.cursor.floor == new + 1

    world.run(lossy(world, kind))
    world.cut()
    world.run(second_life())
    world.end()


def test_a_gap_that_is_all_there_is_is_stepped_over_without_waiting_for_a_message() -> None:
    world = TopicWorld(options=TopicOptions(durability=Durability.BUFFERED, ledger_bytes=KIB))

    async def second_life() -> None:
        topic = await world.open()
        await topic.subscriptions["s"].ack(0, [(0, topic.ledger.confirmed_end - 1)])
        await topic.tick()

    async def third_life() -> None:
        topic = await world.open()
        host = topic.subscriptions["s"]
        assert host.known.cursor.floor < topic.ledger.first
        connected(topic, host)
        await asyncio.sleep(1)
        assert host.known.cursor.floor == topic.ledger.confirmed_end
        assert host.explain_reading() is None

    world.run(lossy(world, SHARED))
    world.cut()
    world.run(second_life())
    world.restart()
    world.run(third_life())
    world.end()


def test_expiry_steps_over_a_gap_too() -> None:
    world = TopicWorld(options=BUFFERED)

    async def second_life() -> None:
        topic = await world.open()
        new = await publish(topic, "new")
        await asyncio.sleep(20)
        await topic.tick()
        assert topic.subscriptions["s"].known.cursor.floor == new + 1

    world.run(lossy(world, SHARED))
    world.cut()
    world.options = TopicOptions(durability=Durability.BUFFERED, ttl_seconds=10)
    world.run(second_life())
    world.end()


# -- where a subscription starts ---------------------------------------------------------------------------------------


def test_a_subscription_starts_where_it_is_told(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await fill(topic, 20)
        starts: dict[str, str | int] = {"all": "earliest", "new": "latest", "some": 13}
        inboxes: dict[str, Inbox] = {}
        for name, start in starts.items():
            inboxes[name] = connected(topic, await subscribed(topic, EXCLUSIVE, name=name, start=start))
        await fill(topic, 10)
        assert await inboxes["all"].until(30) == list(range(30))
        assert await inboxes["new"].until(10) == list(range(20, 30))
        assert await inboxes["some"].until(17) == list(range(13, 30))
        assert inboxes["some"].host.explain(12).cause is Why.BELOW_START
        with pytest.raises(SubscriptionInvalid):
            await subscribed(topic, EXCLUSIVE, name="beyond", start=31)
        with pytest.raises(ArgumentInvalid):
            await subscribed(topic, EXCLUSIVE, name="nowhere", start="yesterday")

    world.run(main())
