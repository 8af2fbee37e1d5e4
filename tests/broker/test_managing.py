"""A topic managed while it works: truncated, its subscriptions altered, skipped through and deleted, its users told."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import TopicWorld, batch_of, connected, insist, numbers, publish, subscribed
from pydanube.base.errors import DanubeError, SubscriptionNotFound, TopicClosed, TopicNotFound
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import FailurePolicy
from pydanube.topic.records import Cause, SubscriptionKind

ALL = list(SubscriptionKind)


@pytest.mark.parametrize("kind", ALL)
def test_consumers_are_told_when_their_subscription_or_topic_ends(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def life() -> None:
        topic = await world.open()
        gone = connected(topic, await subscribed(topic, kind, name="gone"))
        stays = connected(topic, await subscribed(topic, kind, name="stays"))
        await topic.unsubscribe("gone")
        assert (type(gone.ended), stays.ended) == (SubscriptionNotFound, None)
        with pytest.raises(SubscriptionNotFound):
            gone.host.ack(0, [(0, 0)])
        await topic.close(TopicNotFound("it was deleted"))
        assert isinstance(stays.ended, TopicNotFound)
        with pytest.raises(TopicNotFound):
            await publish(topic, "late")
        with pytest.raises(TopicNotFound):
            await subscribed(topic, kind, name="late")

    world.run(life())


def test_a_topic_that_is_only_closed_may_be_looked_for_elsewhere(world: TopicWorld) -> None:
    async def life() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.SHARED))
        await topic.close()
        assert isinstance(inbox.ended, TopicClosed)
        assert inbox.ended.retriable

    world.run(life())


def test_a_deletion_that_is_not_durable_is_told_to_nobody_yet(world: TopicWorld) -> None:
    async def life() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.SHARED))
        await publish(topic, *numbers(0, 9))
        await inbox.until(10)
        deleting = asyncio.ensure_future(topic.unsubscribe("s"))
        await asyncio.sleep(0)
        assert inbox.ended is None
        await publish(topic, "more")
        await deleting
        assert isinstance(inbox.ended, SubscriptionNotFound)
        assert len(inbox.offsets) == 10

    world.run(life())


# -- altering ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_a_message_that_blocks_goes_to_the_dead_letters_once_they_are_named(
    world: TopicWorld, kind: SubscriptionKind
) -> None:
    async def first_life() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, kind, policy=FailurePolicy(max_redelivery_count=0)))
        await publish(topic, "bad", keys=["k"])
        await inbox.until(1)
        inbox.nack(0)
        await asyncio.sleep(10)
        assert world.dead_letters == []
        failure = {"poison": "dead_letter", "dead_letter_topic": "/default/dead"}
        await topic.alter_subscription("s", {"failure": failure})
        await asyncio.sleep(1)
        assert [name for name, _ in world.dead_letters] == ["/default/dead"]
        assert inbox.host.known.counts[Cause.DEAD_LETTERED] == 1

    async def second_life() -> None:
        policy = (await world.open()).subscriptions["s"].engine.policy
        assert (policy.max_redelivery_count, policy.dead_letter_topic) == (0, "/default/dead")

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_dead_letters_that_find_no_way_out_stay_when_there_is_no_way_any_more(world: TopicWorld) -> None:
    async def life() -> None:
        topic = await world.open()
        dead = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": "/default/dead"}
        host = await subscribed(topic, SubscriptionKind.SHARED)
        await topic.alter_subscription("s", {"failure": dead})
        inbox = connected(topic, host)
        world.dead_letters_fail = True
        await publish(topic, "bad")
        await inbox.until(1)
        inbox.nack(0)
        await asyncio.sleep(1)
        await topic.alter_subscription("s", {"failure": {"poison": "block", "dead_letter_topic": None}})
        world.dead_letters_fail = False
        await asyncio.sleep(100)
        assert (world.dead_letters, host.known.cursor.floor) == ([], 0)
        await topic.alter_subscription("s", {"failure": {"poison": "drop"}})
        await asyncio.sleep(1)
        assert (world.dead_letters, host.known.cursor.floor) == ([], 1)

    world.run(life())


def test_an_ack_timeout_that_is_named_later_counts_for_what_is_in_flight(world: TopicWorld) -> None:
    async def life() -> None:
        topic = await world.open()
        policy = FailurePolicy(ack_timeout=None, base_delay=0)
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.SHARED, policy=policy))
        await publish(topic, "slow")
        await inbox.until(1)
        await asyncio.sleep(1000)
        await topic.alter_subscription("s", {"failure": {"ack_timeout": 1}})
        await inbox.until(2)
        assert [delivery.attempt for delivery in inbox.deliveries] == [0, 1]

    world.run(life())


# -- truncating --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_consumers_go_on_behind_what_was_truncated(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def life() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind)
        for first in range(0, 30, 10):
            await publish(topic, *numbers(first, first + 9))
        inbox = connected(topic, host, permits=5)
        await inbox.until(5)
        await topic.truncate(25)
        assert (topic.ledger.first, host.known.cursor.floor) == (25, 25)
        assert host.known.counts[Cause.SKIPPED] == 25
        host.grant(inbox.id, 100)
        await publish(topic, *numbers(30, 34))
        assert await inbox.until(15) == [*range(5), *range(25, 35)]
        await inbox.ack_all()
        assert host.known.cursor.floor == 35

    world.run(life())


def test_messages_published_while_a_topic_is_truncated_stay(world: TopicWorld) -> None:
    async def life() -> None:
        topic = await world.open()
        host = await subscribed(topic, SubscriptionKind.SHARED)
        inbox = connected(topic, host)
        sent: list[int] = []

        async def publishing() -> None:
            for number in range(200):
                sent.append(await publish(topic, f"m{number}"))

        async def truncating() -> None:
            for _ in range(20):
                await topic.truncate()
                await asyncio.sleep(0.005)

        await asyncio.gather(publishing(), truncating())
        end = topic.ledger.confirmed_end
        assert end == 200
        done = host.known.counts[Cause.SKIPPED]
        await inbox.until(200 - done)
        await inbox.ack_all()
        assert host.known.cursor.floor == 200

    world.run(life())


@pytest.mark.parametrize("changes", range(1, 40, 2))
def test_a_truncation_cut_short_has_happened_or_not(changes: int) -> None:
    world = TopicWorld(changes)

    async def prepare() -> None:
        topic = await world.open()
        await subscribed(topic, SubscriptionKind.SHARED)
        session = await topic.attach("till")
        for number in range(6):
            columns = {"producer_id": session.producer, "first_sequence": number}
            await publish_as(topic, session.epoch, f"m{number}", **columns)

    async def truncate() -> None:
        topic = await world.open()
        await topic.truncate(4)
        await topic.close()

    async def check() -> None:
        topic = await world.open()
        assert topic.ledger.first in (0, 4)
        floor = topic.subscriptions["s"].known.cursor.floor
        assert floor in (0, 4)
        assert floor >= topic.ledger.first
        assert (await topic.attach("till")).next_sequence == 6
        inbox = connected(topic, topic.subscriptions["s"])
        assert await inbox.until(6 - floor) == list(range(floor, 6))
        await insist(topic.truncate)
        assert topic.ledger.first == 6

    async def check_producers() -> None:
        topic = await world.open()
        assert topic.ledger.first == 6
        assert (await topic.attach("till")).next_sequence == 6  # known without the messages

    world.run(prepare())
    world.restart()
    world.run_until_cut(truncate(), changes)
    world.run(check())
    world.cut()
    world.run(check_producers())
    world.end()


async def publish_as(topic: Topic, epoch: int, payload: str, **columns: int) -> None:
    await topic.publish(batch_of(payload, **columns), epoch).confirmed


def test_what_is_skipped_counts_only_what_was_not_done(world: TopicWorld) -> None:
    async def life() -> None:
        topic = await world.open()
        await publish(topic, *numbers(0, 9))
        host = await subscribed(topic, SubscriptionKind.SHARED)
        await host.ack(0, [(1, 3), (6, 6)])
        assert await topic.skip("s", count=3) == 3  # 0, 4 and 5, and with them 6
        assert host.known.cursor.floor == 7
        assert await topic.skip("s", count=0) == 0
        assert await topic.skip("s", to=7) == 0
        with pytest.raises(DanubeError):
            await topic.skip("s", to=11)
        with pytest.raises(SubscriptionNotFound):
            await topic.skip("x", count=1)

    world.run(life())
