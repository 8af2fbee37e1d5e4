"""Seek: durable before the answer, and nothing from before it counts after it."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import Inbox, TopicWorld, connected, numbers, publish, subscribed
from pydanube.base.errors import OffsetNotConfirmed
from pydanube.base.limits import SECOND
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import FailurePolicy
from pydanube.topic.records import Cause, SubscriptionKind

ALL = list(SubscriptionKind)


async def done(world: TopicWorld, kind: SubscriptionKind) -> tuple[Topic, Inbox]:
    """Thirty messages, all delivered, ten of them acknowledged."""
    topic = await world.open()
    inbox = connected(topic, await subscribed(topic, kind))
    for first in range(0, 30, 10):
        await publish(topic, *numbers(first, first + 9))
        await asyncio.sleep(10)
    await inbox.until(30)
    await inbox.ack(*range(10))
    return topic, inbox


@pytest.mark.parametrize("kind", ALL)
def test_seeking_back_delivers_again_also_what_was_acknowledged(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def first_life() -> None:
        topic, inbox = await done(world, kind)
        inbox.forget()
        await topic.seek(inbox.host, 5)
        assert (inbox.generation, inbox.resets) == (1, 1)
        assert sorted(await inbox.until(25)) == list(range(5, 30))
        assert {delivery.generation for delivery in inbox.deliveries} == {1}
        assert {delivery.attempt for delivery in inbox.deliveries} == {0}
        await inbox.ack(*range(5, 8))

    async def second_life() -> None:
        topic = await world.open()
        inbox = connected(topic, topic.subscriptions["s"])
        assert sorted(await inbox.until(22)) == list(range(8, 30))
        assert inbox.generation == 1

    world.run(first_life())
    world.cut()
    world.run(second_life())


@pytest.mark.parametrize("kind", ALL)
def test_seeking_forward_skips_and_counts(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def first_life() -> None:
        topic, inbox = await done(world, kind)
        inbox.forget()
        await topic.seek(inbox.host, 25)
        assert sorted(await inbox.until(5)) == list(range(25, 30))
        assert inbox.host.known.counts[Cause.SEEK] == 15

    async def second_life() -> None:
        topic = await world.open()
        assert topic.subscriptions["s"].known.cursor.floor == 25

    world.run(first_life())
    world.restart()
    world.run(second_life())


def test_seeking_to_the_end_waits_for_what_is_new(world: TopicWorld) -> None:
    async def main() -> None:
        topic, inbox = await done(world, SubscriptionKind.FAILOVER)
        inbox.forget()
        await topic.seek(inbox.host, 30)
        await asyncio.sleep(100)
        assert inbox.offsets == []
        await publish(topic, "new")
        assert await inbox.until(1) == [30]
        with pytest.raises(OffsetNotConfirmed):
            await topic.seek(inbox.host, 32)

    world.run(main())


def test_seeking_by_time_starts_with_the_first_message_appended_since(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.EXCLUSIVE))
        times = []
        for first in range(0, 50, 10):
            times.append(world.clock.wall())
            await publish(topic, *numbers(first, first + 9))
            await asyncio.sleep(10)
        await inbox.until(50)
        for at, time in enumerate(times):
            assert await topic.find_time(time) == at * 10
            assert await topic.find_time(time + 5 * SECOND) == (at + 1) * 10
        assert await topic.find_time(0) == 0
        assert await topic.find_time(world.clock.wall()) == 50
        inbox.forget()
        await topic.seek(inbox.host, await topic.find_time(times[3]))
        assert await inbox.until(20) == list(range(30, 50))

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_acks_and_nacks_of_an_older_generation_are_ignored(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic, inbox = await done(world, kind)
        await topic.seek(inbox.host, 0)
        await inbox.until(60)
        await inbox.host.ack(0, [(0, 29)])  # answered as if it counted
        inbox.host.nack(inbox.id, 0, [(5, 5)])
        if kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER):
            await inbox.host.ack_through(0, 29)
        assert inbox.host.known.cursor.pending(0, 29) == [(0, 29)]
        await asyncio.sleep(5)
        assert len(inbox.offsets) == 60

    world.run(main())


def test_nothing_is_delivered_between_the_seek_and_its_durability(world: TopicWorld) -> None:
    async def main() -> None:
        topic, inbox = await done(world, SubscriptionKind.SHARED)
        inbox.forget()
        world.disk.slow(2.0)
        seeking = asyncio.ensure_future(topic.seek(inbox.host, 0))
        await asyncio.sleep(0.5)
        inbox.host.grant(inbox.id, 1000)  # whatever else happens meanwhile
        await asyncio.sleep(0.5)
        assert not seeking.done()
        assert inbox.offsets == []
        await seeking
        world.disk.cure()
        assert sorted(await inbox.until(30)) == list(range(30))

    world.run(main())


def test_a_seek_that_was_not_confirmed_happened_entirely_or_not_at_all(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic, inbox = await done(world, SubscriptionKind.SHARED)
        asyncio.ensure_future(topic.seek(inbox.host, 3))  # noqa: RUF006 - the crash takes it
        await asyncio.sleep(0.001)

    async def second_life() -> None:
        topic = await world.open()
        cursor = topic.subscriptions["s"].known.cursor
        assert (cursor.generation, cursor.floor) in [(0, 10), (1, 3)]

    world.run(first_life())
    world.cut()
    world.run(second_life())


@pytest.mark.parametrize("kind", ALL)
def test_permits_of_messages_that_a_seek_caught_on_their_way_come_back(kind: SubscriptionKind) -> None:
    """They were decided, not read yet and never delivered: the consumer would wait for them forever."""
    world = TopicWorld(cache_bytes=1)

    async def main() -> None:
        topic = await world.open()
        for first in range(0, 20, 10):
            await publish(topic, *numbers(first, first + 9))
        policy = FailurePolicy(base_delay=SECOND)
        host = await subscribed(topic, kind, policy=policy)
        inbox = connected(topic, host, permits=20)
        await inbox.until(20)
        host.grant(inbox.id, 20)
        world.disk.slow(3.0, only="read")
        inbox.nack(*range(20))
        await asyncio.sleep(2)
        assert host._sender.outbox, "the redelivery waits for the disk"
        await topic.seek(host, 0)
        assert len(await inbox.until(40)) == 40, "as many as were asked for"

    world.run(main())
    world.end()


def test_seeks_in_a_row_end_where_the_last_one_says(world: TopicWorld) -> None:
    async def main() -> None:
        topic, inbox = await done(world, SubscriptionKind.FAILOVER)
        inbox.forget()
        await asyncio.gather(*(topic.seek(inbox.host, offset) for offset in (3, 25, 7)))
        cursor = inbox.host.known.cursor
        assert cursor.generation == 3
        assert await inbox.until(30 - cursor.floor) == list(range(cursor.floor, 30))
        assert {delivery.generation for delivery in inbox.deliveries} == {3}

    world.run(main())
