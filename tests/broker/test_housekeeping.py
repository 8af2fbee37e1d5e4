"""What a topic gives up with time: expired messages, ledgers that nobody needs; never what a cursor needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from broker.topic_world import TopicWorld, batch_of, connected, insist, numbers, publish, subscribed
from pydanube.base.errors import PolicyInvalid, TopicRecovering
from pydanube.base.limits import CLOCK_DISTRUST_SECONDS, EXAMINED_AT_ONCE, KIB, SECOND
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.topic import upkeep
from pydanube.broker.topic.topic import Topic
from pydanube.stream.retention import RetentionPolicy
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.wire.batch import Batch

SHARED = SubscriptionKind.SHARED
SMALL = TopicOptions(ledger_bytes=KIB)  # each batch of these tests fills a ledger
FILLER = "x" * 2000


async def passes(topic: Topic, seconds: float) -> None:
    """Time, with a tick every second."""
    for _ in range(round(seconds)):
        await asyncio.sleep(1)
        await topic.tick()


async def ledgers(world: TopicWorld, topic: Topic, count: int) -> None:
    """So many ledgers with a batch each, and one that is open."""
    for _ in range(count):
        await publish(topic, FILLER)
        await topic.ledger.stream.ready()
        await asyncio.sleep(0.1)


# -- time to live ------------------------------------------------------------------------------------------------------


def test_many_messages_with_times_of_their_own_expire_some_in_each_turn(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = Counter[int]()  # messages, by the event of the loop in which it happened
    decode = Batch.delivery_times

    def counted(batch: Batch, rows: range | None = None) -> list[int | None]:
        looked_at[world.loop.events] += batch.count if rows is None else len(rows)
        return decode(batch, rows)

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        later = world.clock.wall() + 1_000 * SECOND
        count = 5 * EXAMINED_AT_ONCE + 7
        await publish(topic, *numbers(0, count - 1), delivery_times=[later if at % 2 else None for at in range(count)])
        await publish(topic, *numbers(0, 9))
        monkeypatch.setattr(Batch, "delivery_times", counted)
        await passes(topic, 12)
        assert host.known.counts[Cause.EXPIRED] == (count + 1) // 2 + 10
        assert host.known.cursor.pending(0, count + 9) == [(at, at) for at in range(1, count, 2)]
        assert sum(looked_at.values()) >= count
        assert max(looked_at.values()) <= 2 * EXAMINED_AT_ONCE

    world.options = TopicOptions(ttl_seconds=10)
    world.run(main())


def test_a_message_that_nobody_took_in_time_expires_and_is_counted(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await publish(topic, *numbers(0, 9))
        await passes(topic, 6)
        await publish(topic, *numbers(10, 14))
        await host.ack(0, [(2, 3)])
        await passes(topic, 6)
        assert (host.known.cursor.floor, host.known.counts[Cause.EXPIRED]) == (10, 8)
        inbox = connected(topic, host)
        assert await inbox.until(5) == list(range(10, 15))

    async def second_life() -> None:
        topic = await world.open()
        known = topic.subscriptions["s"].known
        assert (known.cursor.floor, known.counts[Cause.EXPIRED], known.counts[Cause.ACKED]) == (10, 8, 2)

    world.options = TopicOptions(ttl_seconds=10)
    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_delayed_message_lives_from_its_delivery_time_and_holds_up_nobody(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        due = world.clock.wall() + 30 * SECOND
        await publish(topic, "soon", "late", delivery_times=[None, due])
        await publish(topic, "after")
        await passes(topic, 15)
        assert host.known.cursor.pending(0, 2) == [(1, 1)]
        await passes(topic, 20)
        assert host.known.cursor.floor == 1
        await passes(topic, 10)
        assert host.known.cursor.floor == 3

    world.options = TopicOptions(ttl_seconds=10)
    world.run(main())


def test_what_expires_in_small_steps_expires_all_the_same(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EXPIRY_READS_MAX", 1)

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        late = world.clock.wall() + 3600 * SECOND
        await publish(topic, "now", "late", delivery_times=[None, late])
        for _ in range(3):
            await publish(topic, "now", "late", "now", delivery_times=[None, late, None])
        await passes(topic, 20)
        assert host.known.cursor.pending(0, 10) == [(1, 1), (3, 3), (6, 6), (9, 9)]
        await publish(topic, "young")
        await passes(topic, 20)
        assert host.known.cursor.pending(10, 11) == []

    world.options = TopicOptions(ttl_seconds=10)
    world.run(main())


def test_thousands_of_expired_ranges_are_no_trouble(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        late = world.clock.wall() + 3600 * SECOND
        count = 10_000
        await publish(topic, *["x"] * count, delivery_times=[None, late] * (count // 2))
        await passes(topic, 13)
        assert host.known.counts[Cause.EXPIRED] == count // 2

    world.options = TopicOptions(ttl_seconds=10)
    world.run(main())


def test_a_message_in_flight_expires_too_and_its_late_ack_is_fine(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.EXCLUSIVE), permits=1)
        await publish(topic, "a", "b")
        await inbox.until(1)
        await passes(topic, 12)
        await inbox.ack(0)
        assert inbox.host.known.counts[Cause.EXPIRED] == 2
        assert inbox.host.known.counts[Cause.ACKED] == 0
        inbox.host.grant(inbox.id, 10)
        await publish(topic, "c")
        assert await inbox.until(2) == [0, 2]

    world.options = TopicOptions(ttl_seconds=10)
    world.run(main())


def test_a_time_to_live_is_above_zero() -> None:
    with pytest.raises(PolicyInvalid):
        TopicOptions(ttl_seconds=0)


# -- retention ---------------------------------------------------------------------------------------------------------


def test_without_subscriptions_everything_stays(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await ledgers(world, topic, 4)
        await passes(topic, 100)
        assert topic.ledger.first == 0

    world.options = SMALL
    world.run(main())


def test_data_goes_when_every_durable_cursor_has_passed_it(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        hosts = [await subscribed(topic, SHARED, name=name) for name in ("quick", "slow")]
        await ledgers(world, topic, 4)
        await hosts[0].ack(0, [(0, 3)])
        await passes(topic, 2)
        assert topic.ledger.first == 0
        await hosts[1].ack(0, [(0, 1), (3, 3)])
        await passes(topic, 2)
        assert topic.ledger.first == 2
        await topic.unsubscribe("slow")
        await passes(topic, 2)
        assert topic.ledger.first == 4

    world.options = SMALL
    world.run(main())


def test_an_ack_that_is_not_durable_deletes_nothing(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await ledgers(world, topic, 3)
        world.disk.fail_next("sync", count=20)
        with pytest.raises(TopicRecovering):
            await host.ack(0, [(0, 2)])
        assert host.known.cursor.floor == 3
        await topic.tick()
        assert topic.ledger.first == 0
        world.disk.cure()
        await insist(lambda: host.ack(0, [(0, 2)]))
        await passes(topic, 3)
        assert topic.ledger.first == 3

    world.options = SMALL
    world.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_a_seek_back_and_a_trim_at_the_same_time_agree(seed: int) -> None:
    """Either the data goes first and the seek lands behind it, or the seek keeps it."""
    world = TopicWorld(seed, options=SMALL)

    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.EXCLUSIVE))
        await ledgers(world, topic, 4)
        await inbox.until(4)
        await inbox.ack(0, 1, 2, 3)
        trimming = asyncio.ensure_future(topic.tick())
        await asyncio.sleep(0.0005 * seed)
        await topic.seek(inbox.host, 1)
        await trimming
        floor = inbox.host.known.cursor.floor
        assert floor in (1, 4)
        assert topic.ledger.first <= floor
        await publish(topic, FILLER)
        await asyncio.sleep(1)
        again = [delivery.first for delivery in inbox.deliveries if delivery.generation == 1]
        assert again == list(range(floor, 5))

    world.run(main())
    world.end()


def test_retention_by_time_keeps_what_is_young_although_it_is_acked(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await ledgers(world, topic, 2)
        await passes(topic, 30)
        await ledgers(world, topic, 2)
        await host.ack(0, [(0, 3)])
        await passes(topic, 10)
        assert topic.ledger.first == 0
        await passes(topic, 25)
        assert topic.ledger.first == 2
        await passes(topic, 40)
        assert topic.ledger.first == 4

    world.options = replace(SMALL, retention=RetentionPolicy(seconds=60))
    world.run(main())


def test_retention_by_time_does_not_wait_for_a_ledger_to_be_full(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await publish(topic, *numbers(0, 9))
        await passes(topic, 10)
        assert not list(topic.ledger.stream.record.sealed_parts()), (
            "nothing of it may go, so there is nothing to be sealed for"
        )
        await host.ack(0, [(0, 9)])
        await passes(topic, 3)
        assert (topic.ledger.first, topic.ledger.stream.bytes) == (10, 0)
        await publish(topic, *numbers(10, 12))
        await host.ack(0, [(10, 12)])
        await topic.tick()
        assert topic.ledger.first == 10, "what is young stays"

    world.options = TopicOptions(retention=RetentionPolicy(seconds=2))
    world.run(main())


def test_a_subscription_that_only_holds_lets_nothing_go_that_would_stay_without_it(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await ledgers(world, topic, 3)
        holding = SubscriptionOptions(holds_only=True)
        pipeline = await topic.subscribe("pipeline", SHARED, start="earliest", options=holding)
        await pipeline.ack(0, [(0, 2)])
        await passes(topic, 3)
        assert topic.ledger.first == 0, "kept before it came, and after it has read it"
        other = await subscribed(topic, SHARED)
        await ledgers(world, topic, 3)
        await other.ack(0, [(0, 5)])
        await passes(topic, 3)
        assert topic.ledger.first == 3, "the other one lets go, and this one holds what it has not read"
        await topic.alter_subscription("pipeline", {"holds_only": False})
        await topic.unsubscribe("s")
        await pipeline.ack(0, [(3, 5)])
        await passes(topic, 3)
        assert topic.ledger.first == 6, "it was asked for"

    world.options = SMALL
    world.run(main())


def test_what_a_subscription_only_holds_outlives_the_retention_time(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await topic.subscribe("pipeline", SHARED, start="earliest", options=SubscriptionOptions(holds_only=True))
        await ledgers(world, topic, 3)
        await passes(topic, 10)
        assert topic.ledger.first == 0
        await topic.subscription("pipeline").ack(0, [(0, 2)])
        await passes(topic, 10)
        assert topic.ledger.first == 3

    world.options = replace(SMALL, retention=RetentionPolicy(seconds=2))
    world.run(main())


def test_retention_by_size_keeps_the_newest_ledgers(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await ledgers(world, topic, 6)
        await passes(topic, 2)
        assert topic.ledger.first == 4
        late = connected(topic, await subscribed(topic, SHARED, start="earliest"))
        assert await late.until(2) == [4, 5]

    world.options = replace(SMALL, retention=RetentionPolicy(bytes=5000))
    world.run(main())


def test_an_idle_topic_rolls_by_age_so_that_its_last_messages_can_go(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await publish(topic, "a")
        await host.ack(0, [(0, 0)])
        await passes(topic, 50)
        assert topic.ledger.first == 0
        await passes(topic, 20)
        assert topic.ledger.first == 1

    world.options = TopicOptions(ledger_seconds=60)
    world.run(main())


DAYS = 24 * 3600


@pytest.mark.parametrize(
    ("retention", "lag", "most"),
    [
        (None, None, 3),
        (RetentionPolicy(), None, 3),
        (RetentionPolicy(seconds=365 * DAYS), None, 6),
        (RetentionPolicy(seconds=7 * DAYS), None, 22),
        (RetentionPolicy(seconds=DAYS, bytes=20_000), None, 22),
        (RetentionPolicy(bytes=20_000), None, 22),
        (RetentionPolicy(seconds=DAYS), 1 << 30, 4),  # somebody needs everything
        (None, 1 << 30, 4),
        (None, 0, 4),
        (None, 120, 6),
    ],
)
def test_however_long_a_topic_lives_time_alone_makes_few_ledgers(
    world: TopicWorld, retention: RetentionPolicy | None, lag: int | None, most: int
) -> None:
    """For two months, with a message every two hours; whoever reads it is that many messages behind."""
    seen: list[int] = []

    async def main() -> None:
        topic = await world.open()
        host = None if lag is None else await subscribed(topic, SHARED)
        for number in range(60 * 12):
            await publish(topic, "x" * 100)
            if host is not None and lag is not None and number >= lag:
                await host.ack(0, [(0, number - lag)])
            await asyncio.sleep(2 * 3600)
            await topic.tick()
            seen.append(world.node.ledgers)
        if retention is not None and retention.seconds == 7 * DAYS:
            assert topic.ledger.confirmed_end - topic.ledger.first <= 7 * 12 * 9 // 8
        if lag is not None and lag < 1000 and retention is None:
            assert topic.ledger.confirmed_end - topic.ledger.first <= 2 * lag + 12

    world.options = TopicOptions(retention=retention)
    world.run(main())
    assert max(seen) <= most


def test_producers_do_not_keep_data_for_ever(world: TopicWorld) -> None:
    """A restart reads headers since the last snapshot; a snapshot is taken when that alone keeps data."""

    async def first_life() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        session = await topic.attach("p")
        for number in range(4):
            batch = batch_of(FILLER, producer_id=session.producer, first_sequence=number)
            await topic.publish(batch, session.epoch).confirmed
            await asyncio.sleep(0.1)
        await host.ack(0, [(0, 3)])
        await passes(topic, 3)
        assert topic.ledger.first == 4

    async def second_life() -> None:
        topic = await world.open()
        session = await topic.attach("p")
        assert session.next_sequence == 4
        again = topic.publish(batch_of(FILLER, producer_id=1, first_sequence=3), session.epoch)
        assert (again.offset, again.duplicate) == (3, True)

    world.options = SMALL
    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_jump_of_the_clock_suspends_deletion_by_time(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        other = await subscribed(topic, SHARED, name="other")
        await ledgers(world, topic, 3)
        await host.ack(0, [(0, 2)])
        await passes(topic, 5)
        world.clock.jump(10 * 24 * 3600.0)
        await passes(topic, 60)
        assert topic.ledger.first == 0
        assert other.known.counts[Cause.EXPIRED] == 0
        await asyncio.sleep(CLOCK_DISTRUST_SECONDS)
        await passes(topic, 2)
        assert other.known.counts[Cause.EXPIRED] == 3
        assert topic.ledger.first == 3

    world.options = replace(SMALL, ttl_seconds=3600, retention=RetentionPolicy(seconds=3600))
    world.run(main())


def test_a_clock_that_goes_back_does_not_bring_append_times_back(world: TopicWorld) -> None:
    async def first_life() -> int:
        topic = await world.open()
        await publish(topic, "a")
        world.clock.jump(-3600.0)
        await publish(topic, "b")
        first, second = (await topic.ledger.read(0))[0], (await topic.ledger.read(1))[0]
        assert second.append_time == first.append_time
        return second.append_time

    async def second_life(newest: int) -> None:
        topic = await world.open()
        await publish(topic, "c")
        assert (await topic.ledger.read(2))[0].append_time == newest
        assert await topic.find_time(newest) == 0

    newest = world.run(first_life())
    world.restart()
    world.run(second_life(newest))


def test_a_failing_disk_does_not_end_the_housekeeping(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await ledgers(world, topic, 3)
        world.disk.fail_next("sync", count=3)
        await passes(topic, 30)
        assert host.known.cursor.floor == 3
        assert topic.ledger.first == 3

    world.options = replace(SMALL, ttl_seconds=5)
    world.run(main())
