"""A topic's state ledger: compacted, trimmed, whole again after failures; what it says equals what memory had."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from broker.topic_world import Inbox, TopicWorld, batch_of, connected, insist, numbers, publish, subscribed
from pydanube.base.errors import AcksScattered, DanubeError, StateInvalid, TopicBusy, TopicClosed, TopicRecovering
from pydanube.base.limits import KIB
from pydanube.broker.state import log as state_log
from pydanube.broker.topic.topic import Topic
from pydanube.topic import ackset
from pydanube.topic.records import Cause, SubscriptionDeleted, SubscriptionKind, encode
from pydanube.topic.state import TopicState
from pydanube.wire.batch import build

SHARED = SubscriptionKind.SHARED


def image(state: TopicState, data_offset: int) -> list[bytes]:
    """All of a state, to compare."""
    return [encode(record) for record in state.snapshot(data_offset)]


async def ready(world: TopicWorld, count: int = 200) -> tuple[Topic, Inbox]:
    topic = await world.open()
    inbox = connected(topic, await subscribed(topic, SHARED))
    for first in range(0, count, 100):
        await publish(topic, *numbers(first, first + 99))
    await inbox.until(count)
    return topic, inbox


async def until_acked(inbox: Inbox, *offsets: int) -> list[type[DanubeError]]:
    """Tries until it is confirmed; the errors on the way."""
    errors: list[type[DanubeError]] = []
    while True:
        try:
            await inbox.ack(*offsets)
            return errors
        except DanubeError as error:
            errors.append(type(error))
            await asyncio.sleep(0.02)


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(state_log, "STATE_COMPACT_BYTES", 4 * KIB)
    return


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("stop", ["restart", "cut"])
def test_it_compacts_trims_what_is_old_and_a_restart_reads_the_same(world: TopicWorld, stop: str) -> None:
    async def first_life() -> tuple[list[bytes], int]:
        topic, inbox = await ready(world)
        session = await topic.attach("p")
        for number in range(100):
            batch = batch_of("x", producer_id=session.producer, first_sequence=number)
            await topic.publish(batch, session.epoch).confirmed
            await inbox.ack(2 * number + 1)
        await topic.seek(inbox.host, 7)
        await asyncio.sleep(1)
        record, _ = await world.catalog.load("/default/t#state")
        assert record.ledgers[0].first > 0, "the oldest state was trimmed"
        assert len(record.ledgers) <= 3
        assert topic._core.log.bytes < 12 * KIB
        end = topic.ledger.confirmed_end
        return image(topic.state, end), end

    async def second_life(before: list[bytes], end: int) -> None:
        topic = await world.open()
        assert image(topic.state, end) == before

    before, end = world.run(first_life())
    getattr(world, stop)()
    world.run(second_life(before, end))


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_moment_of_a_compaction_loses_nothing(seed: int) -> None:
    world = TopicWorld(seed)
    confirmed: list[int] = []

    async def first_life() -> None:
        _, inbox = await ready(world)
        for offset in range(1, 199, 2):
            await inbox.ack(offset)
            confirmed.append(offset)

    async def second_life() -> None:
        topic = await world.open()
        cursor = topic.subscriptions["s"].known.cursor
        assert [offset for offset in confirmed if cursor.pending(offset, offset)] == []

    world.run_until_cut(first_life(), 110 + 14 * seed)
    assert 0 < len(confirmed) < 99
    world.run(second_life())
    world.end()


@pytest.mark.parametrize("seed", range(8))
def test_acks_of_one_moment_are_logged_in_the_order_of_their_decisions(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their causes: an ack may fit the cursor only because of the one before it, and the log must replay."""
    monkeypatch.setattr(ackset, "CURSOR_CHUNKS_MAX", 2)
    world, draw, end = TopicWorld(seed), Random(seed), 1_000_000
    causes = [Cause.ACKED, Cause.EXPIRED, Cause.DEAD_LETTERED, Cause.UNUSED]

    async def first_life() -> list[bytes]:
        topic = await world.open()
        cursors = [(await subscribed(topic, SHARED, name=name)).known.cursor for name in ("a", "b")]
        for _ in range(40):
            for _ in range(draw.randrange(1, 12)):  # these are one group
                cursor = draw.choice(cursors)
                first = draw.choice([cursor.floor, draw.randrange(cursor.floor, cursor.ceiling)])
                ranges = [(first, first + draw.choice([0, 0, 1, 900, 2048]))]
                with suppress(AcksScattered):
                    if (record := cursor.decide_ack(ranges, end, draw.choice(causes))) is not None:
                        topic._core.log.apply(record)
                if not draw.randrange(9):
                    move = draw.choice([Cause.SEEK, Cause.SKIPPED])
                    moved = cursor.decide_move(max(0, cursor.floor + draw.randrange(-90, 90)), end, move)
                    topic._core.log.apply(*[moved] if moved else [])
            await topic._core.log.barrier()
        return image(topic.state, 0)

    async def second_life(before: list[bytes]) -> None:
        assert image((await world.open()).state, 0) == before

    before = world.run(first_life())
    world.restart()
    world.run(second_life(before))
    world.end()


def test_a_state_that_does_not_replay_is_a_typed_error_that_says_where(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic = await world.open()
        await subscribed(topic, SHARED)
        stamped, written = topic.state_stream.append(build([encode(SubscriptionDeleted(7))], publish_time=0))
        await written
        assert stamped.base_offset == 1

    async def second_life() -> None:
        with pytest.raises(
            StateInvalid, match="record 1 of /default/t#state contradicts the records before it"
        ) as refused:
            await world.open()
        assert not refused.value.retriable

    world.run(first_life())
    world.restart()
    world.run(second_life())


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("stop", ["restart", "cut"])
def test_a_failed_write_is_told_and_then_the_log_is_whole_again(world: TopicWorld, kind: str, stop: str) -> None:
    async def first_life() -> None:
        _, inbox = await ready(world)
        await inbox.ack(0)
        world.disk.fail_next(kind)
        errors = await until_acked(inbox, 1, 2, 3)
        assert set(errors) == {TopicRecovering}
        await inbox.ack(5)

    async def second_life() -> None:
        topic = await world.open()
        assert topic.subscriptions["s"].known.cursor.pending(0, 6) == [(4, 4), (6, 6)]

    world.run(first_life())
    getattr(world, stop)()
    world.run(second_life())


def test_while_the_log_is_broken_nothing_is_confirmed_that_memory_alone_knows(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.EXCLUSIVE))
        await publish(topic, *numbers(0, 9))
        await inbox.until(10)
        world.disk.fail_next("sync", count=5)
        creating = asyncio.ensure_future(subscribed(topic, SHARED, name="new"))
        with pytest.raises(TopicRecovering):
            await inbox.host.ack_through(0, 5)
        with pytest.raises(TopicRecovering):
            await creating
        assert inbox.host.known.cursor.floor == 6
        with pytest.raises(TopicRecovering):
            await inbox.host.ack_through(0, 5)
        with pytest.raises(TopicRecovering):
            await inbox.ack(3)
        with pytest.raises(TopicRecovering):
            await subscribed(topic, SHARED, name="new")
        with pytest.raises(TopicRecovering):
            await topic.seek(inbox.host, 0)
        with pytest.raises(TopicRecovering):
            await topic.unsubscribe("new")
        await asyncio.sleep(5)
        await inbox.host.ack_through(0, 5)
        await subscribed(topic, SHARED, name="new")

    world.run(main())


def test_a_deletion_that_failed_to_be_written_does_not_hold_data_for_ever(world: TopicWorld) -> None:
    async def main() -> None:
        topic, inbox = await ready(world)
        await subscribed(topic, SHARED, name="idle")
        await inbox.ack_all()
        world.disk.fail_next("sync")
        with pytest.raises(TopicRecovering):
            await topic.unsubscribe("idle")
        assert topic.state.deletable_before() == 0
        await asyncio.sleep(5)
        assert topic.state.deletable_before() == 200

    world.run(main())


def test_a_full_disk_is_a_typed_error_and_all_goes_on_when_there_is_room(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic, inbox = await ready(world)
        await inbox.ack(0)
        world.disk.capacity = 0

        async def fill() -> None:
            for _ in range(200):  # until what is reserved is used up
                await topic.publish(batch_of("x" * 8000)).confirmed

        with pytest.raises(DanubeError) as full:
            await fill()
        assert full.value.retriable
        await asyncio.sleep(10)
        world.disk.capacity = None
        await insist(lambda: inbox.ack(1))
        await insist(lambda: publish(topic, "room again"))
        inbox.host.grant(inbox.id, 1000)
        await asyncio.sleep(5)
        assert inbox.payloads[-1] == b"room again"

    async def second_life() -> None:
        topic = await world.open()
        assert topic.subscriptions["s"].known.cursor.floor == 2

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_queue_that_is_full_refuses_more(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        _, inbox = await ready(world)
        monkeypatch.setattr(state_log, "STATE_QUEUE_RECORDS_MAX", 3)
        answers = [inbox.host.ack(0, [(offset, offset)]) for offset in (1, 3, 5)]
        with pytest.raises(TopicBusy):
            inbox.host.ack(0, [(7, 7)])
        await asyncio.gather(*answers)
        await inbox.ack(7)

    world.run(main())


def test_a_closed_topic_takes_nothing_and_leaves_everything_durable(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic, inbox = await ready(world)
        acked, receipt = inbox.host.ack(0, [(0, 9)]), topic.publish(batch_of("last"))
        await topic.close()
        await topic.close()
        await asyncio.gather(acked, receipt.confirmed)
        for refused in (topic.attach("p"), topic.seek(inbox.host, 0), topic.unsubscribe("s")):
            with pytest.raises(TopicClosed):
                await refused
        with pytest.raises(TopicClosed):
            topic.publish(batch_of("late"))
        with pytest.raises(DanubeError):
            inbox.host.ack(0, [(10, 10)])

    async def second_life() -> None:
        topic = await world.open()
        assert topic.subscriptions["s"].known.cursor.floor == 10
        assert topic.ledger.confirmed_end == 201

    world.run(first_life())
    world.cut()
    world.run(second_life())


@pytest.mark.parametrize("seed", range(6))
def test_a_lazy_stream_that_is_rolled_before_its_first_ledger_is_made_does_not_wait_for_itself(seed: int) -> None:
    world = TopicWorld(seed)

    async def main() -> None:
        topic = await world.open()
        stream = topic.state_stream
        _, first = stream.append(batch_of("a"))
        stream.roll()
        _, second = stream.append(batch_of("b"))
        await asyncio.gather(first, second)
        stream.roll()
        _, third = stream.append(batch_of("c"))
        await third
        assert [ledger.first for ledger in stream.record.sealed_parts()] == [0]

    world.run(main())
    world.end()


@pytest.mark.parametrize("seed", range(12))
def test_an_answer_that_adds_nothing_does_not_wait_for_a_group_that_is_already_answered(seed: int) -> None:
    """Of two groups that become durable together, the later one may be answered first."""
    world = TopicWorld(seed)

    async def main() -> None:
        topic = await world.open()
        log, hosts = topic._core.log, [await subscribed(topic, SHARED, name=name) for name in ("a", "b")]
        await publish(topic, "x")
        for _ in range(20):
            answers, asked = [], []
            for host in hosts:
                [record] = [host.known.cursor.decide_move(1 - host.floor, 1, Cause.SEEK)]
                assert record is not None
                answers.append(log.apply(record))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            answers[-1].add_done_callback(lambda _, asked=asked: asked.append(log.barrier()))
            await asyncio.wait(answers)
            await asyncio.wait_for(asyncio.gather(*asked), 10)

    world.run(main())
    world.end()
