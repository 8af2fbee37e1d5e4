"""A wall clock that is wrong, while a topic is served and between two starts: what is stamped, found and deleted."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.test_housekeeping import SHARED, SMALL
from broker.topic_world import TopicWorld, publish, subscribed
from pydanube.base.errors import TooManyProducers
from pydanube.base.limits import (
    CLOCK_AHEAD_DAYS,
    CLOCK_DISTRUST_SECONDS,
    CLOCK_HELD_SECONDS,
    CLOCK_JUMP_SECONDS,
    SECOND,
)
from pydanube.broker.topic.topic import Topic
from pydanube.storage.checked_clock import CheckedClock
from pydanube.stream.retention import RetentionPolicy
from pydanube.topic import dedup
from pydanube.topic.records import Cause

HOUR = 3600.0
YEAR = 365 * 24 * HOUR
KEEP_AN_HOUR = replace(SMALL, ttl_seconds=3600, retention=RetentionPolicy(seconds=3600))


@pytest.fixture
def world() -> TopicWorld:
    return TopicWorld(options=KEEP_AN_HOUR)


async def hours(topic: Topic, count: float) -> None:
    """Housekeeping goes on meanwhile."""
    for _ in range(round(count * 12)):
        await asyncio.sleep(HOUR / 12)
        await topic.tick()


async def ahead(world: TopicWorld, topic: Topic, offset: int) -> float:
    """By how many seconds the message's append time is ahead of now."""
    (batch, *_) = await topic.ledger.read(offset)
    return (batch.append_time - world.clock.wall()) / SECOND


def test_a_jump_that_is_put_right_within_a_minute_is_in_no_message(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, "a")
        world.clock.jump(YEAR)
        await topic.tick()
        await publish(topic, "b")
        await asyncio.sleep(CLOCK_HELD_SECONDS - 5)
        await publish(topic, "c")
        world.clock.jump(-YEAR)
        await publish(topic, "d")
        for offset in range(4):
            assert await ahead(world, topic, offset) <= 0

    world.run(main())


def test_a_clock_that_stays_ahead_is_followed(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, "a")
        world.clock.jump(YEAR)
        await publish(topic, "b")
        await asyncio.sleep(CLOCK_HELD_SECONDS + 1)  # counted from when it was seen first
        await publish(topic, "c")
        assert await ahead(world, topic, 1) < -YEAR + 2 * CLOCK_HELD_SECONDS
        assert abs(await ahead(world, topic, 2)) < 1

    world.run(main())


@pytest.mark.parametrize("restarts", [False, True])
def test_deletion_by_time_recovers_when_the_clock_does(world: TopicWorld, restarts: bool) -> None:
    async def wrong() -> None:
        topic = await world.open()
        await subscribed(topic, SHARED)
        await publish(topic, "before")
        world.clock.jump(YEAR)
        await hours(topic, 0.5)
        await publish(topic, "wrong")
        assert abs(await ahead(world, topic, 1)) < 1

    async def right() -> None:
        topic = await world.open_topic() if not restarts else await world.open()
        world.clock.jump(-YEAR)
        await topic.tick()
        await publish(topic, "later")
        assert await ahead(world, topic, 2) > YEAR - HOUR, "append times do not fall while nobody can tell who is right"
        await hours(topic, CLOCK_DISTRUST_SECONDS / HOUR + 0.2)
        await publish(topic, "right")
        last = topic.ledger.confirmed_end - 1
        assert abs(await ahead(world, topic, last)) < 1
        assert topic.ledger.first <= 2, "they count from when the clock was known to be right"
        await hours(topic, 1.5)
        assert topic.ledger.first == last + 1
        assert topic.subscriptions["s"].known.counts[Cause.EXPIRED] == last + 1

    world.run(wrong())
    if restarts:
        world.restart()
    world.run(right())


def test_a_start_with_a_clock_that_is_behind_deletes_nothing_before_its_time(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic = await world.open()
        await subscribed(topic, SHARED)
        await publish(topic, "a")

    async def second_life() -> None:
        world.clock.jump(-YEAR)
        topic = await world.open()
        await topic.tick()
        await publish(topic, "b")
        assert await ahead(world, topic, 1) > YEAR - HOUR
        await hours(topic, 0.3)
        world.clock.jump(YEAR)  # as when the network comes up, and the right time with it
        await hours(topic, CLOCK_DISTRUST_SECONDS / HOUR)
        await publish(topic, "c")
        assert abs(await ahead(world, topic, 2)) < 1
        assert topic.ledger.first <= 2
        await hours(topic, 1.5)
        assert topic.ledger.first == 3

    world.run(first_life())
    world.restart()
    world.run(second_life())


def test_a_clock_that_is_set_back_for_good_is_believed_in_the_end(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic = await world.open()
        await publish(topic, "a")

    async def second_life() -> None:
        world.clock.jump(-10 * HOUR)
        topic = await world.open()
        await publish(topic, "b")
        await hours(topic, CLOCK_DISTRUST_SECONDS / HOUR + 0.2)
        await publish(topic, "c")
        assert abs(await ahead(world, topic, topic.ledger.confirmed_end - 1)) < 1
        await hours(topic, 1.5)
        assert topic.ledger.first == topic.ledger.confirmed_end

    world.run(first_life())
    world.restart()
    world.run(second_life())


def test_a_topic_that_is_opened_after_a_jump_knows_of_it(world: TopicWorld) -> None:
    async def main() -> None:
        await world.open()
        other = await world.open_topic("/default/u")
        await subscribed(other, SHARED)
        await publish(other, "a")
        await other.close()
        world.clock.jump(YEAR)
        other = await world.open_topic("/default/u")
        await other.tick()
        await publish(other, "b")
        assert await ahead(world, other, 1) < -YEAR + HOUR, "the jump may be a glitch, and is in no message yet"
        await hours(other, CLOCK_DISTRUST_SECONDS / HOUR - 0.2)
        assert other.subscriptions["s"].known.counts[Cause.EXPIRED] == 0
        assert other.ledger.first == 0
        await hours(other, 0.5)
        assert other.subscriptions["s"].known.counts[Cause.EXPIRED] == 2, "it lasted, so it is believed"

    world.run(main())


def test_no_producer_is_forgotten_as_idle_after_a_jump(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 2)

    async def main() -> None:
        topic = await world.open()
        for name in ("a", "b"):
            await topic.attach(name)
        world.clock.jump(YEAR)
        with pytest.raises(TooManyProducers):
            await topic.attach("c", fresh=True)
        await hours(topic, CLOCK_DISTRUST_SECONDS / HOUR + 0.2)
        await topic.attach("c", fresh=True)
        assert topic.state.producers.find("a") is None

    world.run(main())


@pytest.mark.parametrize(("days", "trusted"), [(CLOCK_AHEAD_DAYS - 1, True), (CLOCK_AHEAD_DAYS + 1, False)])
def test_a_start_long_after_the_newest_message_waits_before_it_deletes(
    world: TopicWorld, days: int, trusted: bool
) -> None:
    watch = CheckedClock(world.clock)
    watch.begin(0)
    assert watch.trusted(), "there is nothing yet"
    watch.begin(world.clock.wall() - days * 24 * 3600 * SECOND)
    assert watch.trusted() is trusted

    async def main() -> None:
        await asyncio.sleep(CLOCK_DISTRUST_SECONDS)
        assert watch.trusted()

    world.run(main())


def test_a_seek_by_time_finds_its_way_over_a_correction(world: TopicWorld) -> None:
    async def first_life() -> tuple[int, int]:
        topic = await world.open()
        await publish(topic, "before")
        world.clock.jump(YEAR)
        await hours(topic, 0.2)
        await publish(topic, "wrong")
        world.clock.jump(-YEAR)
        await hours(topic, CLOCK_DISTRUST_SECONDS / HOUR + 0.2)
        corrected = world.clock.wall()
        await asyncio.sleep(2 * CLOCK_JUMP_SECONDS)
        await publish(topic, "right")
        await asyncio.sleep(10)
        now = world.clock.wall()
        await publish(topic, "now")
        return corrected, now

    async def check(corrected: int, now: int) -> None:
        topic = await world.open()
        assert await topic.find_time(0) == 0
        assert await topic.find_time(corrected + SECOND) == 2
        assert await topic.find_time(now) == 3
        assert await topic.find_time(now + 10 * SECOND) == 4
        assert len(topic.ledger.stream.record.corrections) == 1

    world.options = SMALL
    times = world.run(first_life())
    world.restart()
    world.run(check(*times))
