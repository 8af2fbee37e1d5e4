"""Acknowledgements: single, ranges, cumulative; what is confirmed never comes again, whatever stops in between."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import Inbox, TopicWorld, connected, numbers, publish, subscribed
from pydanube.base.errors import AckInvalid, OffsetNotConfirmed, SubscriptionKindDiffers, SubscriptionNotFound
from pydanube.broker.topic.topic import Topic
from pydanube.topic.records import SubscriptionKind

ALL = list(SubscriptionKind)
ORDERED = [SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER]
UNORDERED = [SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED]


async def filled(world: TopicWorld, kind: SubscriptionKind, count: int = 30) -> tuple[Topic, Inbox]:
    """A topic with one consumer that was handed everything."""
    topic = await world.open()
    inbox = connected(topic, await subscribed(topic, kind))
    for first in range(0, count, 10):
        await publish(topic, *numbers(first, first + 9))
    await inbox.until(count)
    return topic, inbox


async def redelivered(world: TopicWorld) -> list[int]:
    """What a new consumer is handed by a new process, all of it."""
    topic = await world.open()
    inbox = connected(topic, topic.subscriptions["s"])
    await asyncio.sleep(5)
    return sorted(inbox.offsets)


@pytest.mark.parametrize("stop", ["restart", "cut"])
@pytest.mark.parametrize("kind", ALL)
def test_a_confirmed_range_stays_done(world: TopicWorld, kind: SubscriptionKind, stop: str) -> None:
    async def first_life() -> None:
        _, inbox = await filled(world, kind)
        await inbox.host.ack(0, [(0, 4), (10, 24)])

    world.run(first_life())
    getattr(world, stop)()
    assert world.run(redelivered(world)) == [*range(5, 10), *range(25, 30)]


@pytest.mark.parametrize("stop", ["restart", "cut"])
@pytest.mark.parametrize("kind", ORDERED)
def test_a_cumulative_ack_finishes_everything_before_it(world: TopicWorld, kind: SubscriptionKind, stop: str) -> None:
    async def first_life() -> None:
        _, inbox = await filled(world, kind)
        await inbox.host.ack(0, [(3, 3)])
        await inbox.host.ack_through(0, 17)
        await inbox.host.ack_through(0, 5)  # says nothing new
        assert inbox.host.known.cursor.floor == 18

    world.run(first_life())
    getattr(world, stop)()
    assert world.run(redelivered(world)) == list(range(18, 30))


@pytest.mark.parametrize("kind", UNORDERED)
def test_without_order_there_is_no_cumulative_ack(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        _, inbox = await filled(world, kind)
        with pytest.raises(AckInvalid):
            inbox.host.ack_through(0, 3)

    world.run(main())


def test_only_what_was_published_can_be_acknowledged(world: TopicWorld) -> None:
    async def main() -> None:
        _, inbox = await filled(world, SubscriptionKind.SHARED)
        with pytest.raises(OffsetNotConfirmed):
            inbox.host.ack(0, [(30, 30)])
        with pytest.raises(AckInvalid):
            inbox.host.ack(0, [(5, 4)])
        with pytest.raises(AckInvalid, match="generation"):
            inbox.host.ack(1, [(5, 5)])
        assert inbox.host.known.cursor.floor == 0

    world.run(main())


def test_an_ack_is_not_confirmed_before_it_is_on_disk(world: TopicWorld) -> None:
    async def main() -> None:
        _, inbox = await filled(world, SubscriptionKind.SHARED)
        await inbox.ack(0)  # the state ledger is there
        world.disk.slow(1.0)
        start = world.loop.time()
        again = asyncio.ensure_future(inbox.ack(1))
        await asyncio.sleep(0.01)
        repeated = asyncio.ensure_future(inbox.ack(1))
        await asyncio.sleep(0.5)
        assert not again.done()
        assert not repeated.done(), "an ack that was taken but is not durable was confirmed to whoever repeated it"
        await asyncio.gather(again, repeated)
        assert world.loop.time() - start > 1

    world.run(main())


def test_an_ack_cut_off_by_a_crash_is_either_done_or_delivered_again(world: TopicWorld) -> None:
    async def first_life() -> None:
        _, inbox = await filled(world, SubscriptionKind.SHARED)
        await inbox.ack(0)
        inbox.host.ack(0, [(1, 9)])
        await asyncio.sleep(0.0005)

    world.run(first_life())
    world.cut()
    assert world.run(redelivered(world)) in (list(range(1, 30)), list(range(10, 30)))


def test_a_thousand_acks_of_one_moment_are_one_record(world: TopicWorld) -> None:
    async def main() -> None:
        topic, inbox = await filled(world, SubscriptionKind.SHARED, 1000)
        before = topic.state_stream.next_offset
        await asyncio.gather(*[inbox.host.ack(0, [(offset, offset)]) for offset in range(1000)])
        assert topic.state_stream.next_offset - before == 1
        assert inbox.host.known.cursor.floor == 1000

    world.run(main())


def test_subscriptions_have_cursors_of_their_own(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic, inbox = await filled(world, SubscriptionKind.SHARED)
        other = connected(topic, await subscribed(topic, SubscriptionKind.EXCLUSIVE, name="other"))
        await other.until(30)
        await inbox.ack(*range(20))
        await other.ack(*range(5))

    async def second_life() -> None:
        topic = await world.open()
        floors = {name: host.known.cursor.floor for name, host in topic.subscriptions.items()}
        assert floors == {"s": 20, "other": 5}

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_subscription_keeps_its_kind_and_its_name(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SubscriptionKind.SHARED)
        assert await subscribed(topic, SubscriptionKind.SHARED) is host
        with pytest.raises(SubscriptionKindDiffers):
            await subscribed(topic, SubscriptionKind.EXCLUSIVE)

    world.run(main())


def test_a_deleted_subscription_takes_nothing_more_and_stays_deleted(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic, inbox = await filled(world, SubscriptionKind.SHARED)
        await topic.unsubscribe("s")
        with pytest.raises(SubscriptionNotFound):
            inbox.host.ack(0, [(0, 0)])
        with pytest.raises(SubscriptionNotFound):
            await topic.seek(inbox.host, 0)
        with pytest.raises(SubscriptionNotFound):
            connected(topic, inbox.host)
        with pytest.raises(SubscriptionNotFound):
            await topic.unsubscribe("s")

    async def second_life() -> None:
        topic = await world.open()
        assert topic.subscriptions == {}
        again = connected(topic, await subscribed(topic, SubscriptionKind.EXCLUSIVE))
        assert await again.until(30) == list(range(30))

    world.run(first_life())
    world.cut()
    world.run(second_life())
