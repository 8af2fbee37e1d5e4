"""Snapshots of a large state: written in parts while acks go on, whole after any failure, harmless without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from broker.topic_world import Inbox, TopicWorld, connected, insist, numbers, publish, subscribed
from pydanube.base.errors import TopicBusy
from pydanube.base.limits import KIB
from pydanube.broker.state import group as state_group
from pydanube.broker.state import log as state_log
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import FailurePolicy, PoisonPolicy
from pydanube.storage.stream import writer
from pydanube.topic.records import SubscriptionKind, encode
from storage.node_world import until

SHARED = SubscriptionKind.SHARED
SUBSCRIPTIONS = 40
COUNT = 400


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A snapshot of 40 KiB is to this stream what one of hundreds of MiB is to a real one."""
    monkeypatch.setattr(state_group, "GROUP_BYTES_TARGET", 1 * KIB)
    monkeypatch.setattr(writer, "WRITER_WAITING_BYTES_MAX", 8 * KIB)
    return


def image(topic: Topic) -> list[bytes]:
    return [encode(record) for record in topic.state.snapshot(topic.ledger.confirmed_end)]


async def large(world: TopicWorld) -> tuple[Topic, Inbox]:
    """A topic with much to remember, and a consumer of the first of its subscriptions."""
    topic = await world.open()
    policy = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=f"/default/{'x' * 200}")
    options = SubscriptionOptions(policy)
    for number in range(SUBSCRIPTIONS):
        await insist(lambda number=number: topic.subscribe(f"s{number:03}", SHARED, start="earliest", options=options))
    inbox = connected(topic, topic.subscriptions["s000"])
    for first in range(0, COUNT, 100):
        await publish(topic, *numbers(first, first + 99))
    await inbox.until(COUNT)
    return topic, inbox


async def compacted(topic: Topic) -> None:
    """A snapshot that begins now is durable, and what is older has gone."""
    begun = topic.state_stream.next_offset
    topic._core.log.compact_soon()
    await until(lambda: topic.state_stream.first >= begun and topic._core.log._compacting is None)


@pytest.mark.parametrize("stop", ["restart", "cut"])
def test_a_snapshot_larger_than_what_may_wait_is_written_once(world: TopicWorld, stop: str) -> None:
    async def first_life() -> list[bytes]:
        topic, inbox = await large(world)
        size = sum(map(len, image(topic)))
        assert size > 2 * writer.WRITER_WAITING_BYTES_MAX
        await compacted(topic)
        await asyncio.sleep(10)
        assert topic.state_stream.bytes < 2 * size, "it was not begun repeatedly"
        await inbox.ack(1, 3, 5)
        return image(topic)

    async def second_life(before: list[bytes]) -> None:
        assert image(await world.open()) == before

    before = world.run(first_life())
    getattr(world, stop)()
    world.run(second_life(before))


def test_what_is_acknowledged_while_a_snapshot_is_written_counts_on_top_of_it(world: TopicWorld) -> None:
    async def first_life() -> list[bytes]:
        topic, inbox = await large(world)
        topic._core.log.compact_soon()
        await asyncio.sleep(0)
        between = 0
        for offset in range(1, COUNT, 2):
            await inbox.ack(offset)
            if topic._core.log._compacting is not None:
                between += 1
            if between == 3:
                await topic.seek(inbox.host, 11)
                await topic.unsubscribe("s007")
                await subscribed(topic, SHARED, name="new")
        assert between > 3
        assert topic._core.log._compacting is None
        return image(topic)

    async def second_life(before: list[bytes]) -> None:
        assert image(await world.open()) == before

    before = world.run(first_life())
    world.cut()
    world.run(second_life(before))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_a_crash_in_the_middle_of_a_snapshot_is_harmless(seed: int) -> None:
    world = TopicWorld(seed)
    confirmed: list[int] = []

    async def first_life() -> None:
        topic, inbox = await large(world)
        for offset in range(1, COUNT, 2):
            if offset % 40 == 1:
                topic._core.log.compact_soon()
            await inbox.ack(offset)
            confirmed.append(offset)

    async def second_life() -> None:
        topic = await world.open()
        cursor = topic.subscriptions["s000"].known.cursor
        assert [offset for offset in confirmed if cursor.pending(offset, offset)] == []
        assert len(topic.subscriptions) == SUBSCRIPTIONS
        await compacted(topic)

    world.run_until_cut(first_life(), 160 + 17 * seed)
    assert 0 < len(confirmed) < COUNT // 2
    world.run(second_life())
    world.end()


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("parts", [0, 1, 7])
def test_a_write_that_fails_amid_a_snapshot_heals(world: TopicWorld, kind: str, parts: int) -> None:
    async def first_life() -> list[bytes]:
        topic, inbox = await large(world)
        before = topic.state_stream.next_offset
        topic._core.log.compact_soon()
        await until(lambda: topic.state_stream.next_offset >= before + parts)
        world.disk.fail_next(kind)
        for offset in range(1, 40, 2):
            await insist(lambda offset=offset: inbox.ack(offset))
        await compacted(topic)
        assert topic.state_stream.bytes < 3 * sum(map(len, image(topic)))
        return image(topic)

    async def second_life(before: list[bytes]) -> None:
        assert image(await world.open()) == before

    before = world.run(first_life())
    world.restart()
    world.run(second_life(before))


def test_a_log_whose_snapshot_shares_a_ledger_with_records_before_it_opens_again(world: TopicWorld) -> None:
    """The first ledger of a new owner is still being made: it cannot be rolled, and what is older goes all the same."""

    async def first_life() -> None:
        await large(world)

    async def second_life() -> None:
        topic = await world.open()
        acked = topic.subscriptions["s000"].ack(0, [(7, 7)])
        topic._core.log.compact_soon()
        await acked
        await until(lambda: topic.state_stream.first > 0 and topic._core.log._compacting is None)

    async def third_life() -> None:
        topic = await world.open()
        assert topic.subscriptions["s000"].known.cursor.pending(6, 8) == [(6, 6), (8, 8)]
        assert len(topic.subscriptions) == SUBSCRIPTIONS

    for life in (first_life, second_life, third_life):
        world.run(life())
        world.restart()


def test_records_between_the_parts_of_a_snapshot_are_bounded(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def life() -> None:
        topic, inbox = await large(world)
        monkeypatch.setattr(state_log, "STATE_AMID_SNAPSHOT_RECORDS_MAX", 3)
        topic._core.log.compact_soon()
        await asyncio.sleep(0)
        for offset in (1, 3, 5):
            await inbox.ack(offset)
        await until(lambda: topic._core.log._amid >= 2)  # the first may have been written before the snapshot began
        with suppress(TopicBusy):
            await inbox.ack(7)
        with pytest.raises(TopicBusy, match="while a snapshot is"):
            await inbox.ack(9)
        await insist(lambda: inbox.ack(399))

    world.run(life())
