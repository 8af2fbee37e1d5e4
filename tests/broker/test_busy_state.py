"""A state log whose stream is busy, or whose groups are cut into several batches: late, never untrue."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterator

import pytest

from broker.topic_world import Inbox, TopicWorld, connected, insist, numbers, publish, subscribed
from pydanube.base.errors import NodeBusy, NodeUnreachable, TopicBusy, TopicRecovering
from pydanube.broker.state import group as state_group
from pydanube.broker.state import log as state_log
from pydanube.broker.topic.topic import Topic
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(state_group, "GROUP_BYTES_TARGET", 1)  # each record is a batch of its own
    return


class Gate:
    """In front of a stream: lets so many batches pass, and says that it is busy to the others."""

    def __init__(self, topic: Topic, passes: int) -> None:
        self.passes = passes
        self.passed: list[Future[None]] = []
        self._append = topic.state_stream.append
        topic.state_stream.append = self.append  # type: ignore[method-assign]

    def append(self, batch: Batch) -> tuple[Batch, Future[None]]:
        if not self.passes:
            raise NodeBusy("not now")
        self.passes -= 1
        stamped, confirmed = self._append(batch)
        self.passed.append(confirmed)
        return stamped, confirmed


async def ready(world: TopicWorld) -> tuple[Topic, Inbox, Inbox]:
    """Two subscriptions that were handed ten messages each."""
    topic = await world.open()
    inboxes = [connected(topic, await subscribed(topic, SubscriptionKind.SHARED, name=name)) for name in "ab"]
    await publish(topic, *numbers(0, 9))
    for inbox in inboxes:
        await inbox.until(10)
    return topic, inboxes[0], inboxes[1]


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_what_a_busy_stream_refused_is_written_later_and_confirmed_then(world: TopicWorld, passes: int) -> None:
    async def first_life() -> None:
        topic, left, right = await ready(world)
        gate = Gate(topic, passes)
        answers = [inbox.host.ack(0, [(3, 3)]) for inbox in (left, right)]
        await asyncio.sleep(0.02)
        answers += [inbox.host.ack(0, [(5, 5)]) for inbox in (left, right)]
        repeated = left.host.ack(0, [(3, 3)])
        await asyncio.sleep(1)
        assert [answer.done() for answer in answers] == [passes >= 2] * 2 + [False] * 2
        assert not repeated.done()
        gate.passes = 1000
        await asyncio.gather(*answers, repeated)

    async def second_life() -> None:
        topic = await world.open()
        for name in "ab":
            assert topic.subscriptions[name].known.cursor.pending(2, 6) == [(2, 2), (4, 4), (6, 6)]

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_the_queue_before_a_busy_stream_is_bounded(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        topic, left, _ = await ready(world)
        gate = Gate(topic, 0)
        monkeypatch.setattr(state_log, "STATE_QUEUE_RECORDS_MAX", 4)
        answers = []
        for number in range(4):
            answers.append(topic._core.log.apply(*topic.state.producers.decide_attach(f"p{number}", 1)))
            await asyncio.sleep(0.1)
        with pytest.raises(TopicBusy):
            left.host.ack(0, [(1, 1)])
        gate.passes = 1000
        await asyncio.gather(*answers)
        await left.ack(1)

    world.run(main())


def test_a_part_that_is_lost_while_the_rest_waits_is_noticed(world: TopicWorld) -> None:
    """The rest goes to another ledger and would be confirmed; nobody else looks at what became of the first part."""

    async def first_life() -> None:
        topic, left, right = await ready(world)
        gate = Gate(topic, 1)
        world.disk.fail_next("write")
        answers = [inbox.host.ack(0, [(3, 3)]) for inbox in (left, right)]
        await asyncio.wait(answers)
        gate.passes = 1000
        for answer in answers:
            with pytest.raises(TopicRecovering):
                await answer
        assert len(gate.passed) >= 1
        for inbox in (left, right):
            await insist(lambda inbox=inbox: inbox.ack(3))

    async def second_life() -> None:
        topic = await world.open()
        for name in "ab":
            assert topic.subscriptions[name].known.cursor.pending(2, 4) == [(2, 2), (4, 4)]

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_snapshot_cut_off_by_a_busy_stream_counts_for_nothing_and_is_taken_again(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic, left, right = await ready(world)
        await left.ack(*range(1, 10, 2))
        gate = Gate(topic, 2)
        topic._core.log.compact_soon()
        await asyncio.sleep(0.02)
        answer = right.host.ack(0, [(0, 4)])
        await asyncio.sleep(0.5)
        gate.passes = 2  # again not enough
        await asyncio.sleep(0.5)
        gate.passes = 1000
        await answer
        await asyncio.sleep(1)
        assert topic.state_stream.first > 0, "the snapshot was taken in the end, and what is older went"

    async def second_life() -> None:
        topic = await world.open()
        left, right = (topic.subscriptions[name].known.cursor for name in "ab")
        assert left.pending(0, 9) == [(0, 0), (2, 2), (4, 4), (6, 6), (8, 8)]
        assert right.floor == 5

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_log_that_breaks_again_while_it_is_mended_is_whole_in_the_end(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic, left, _ = await ready(world)
        keep = world.node.append
        failures = 3

        def fails(*batch: object) -> Future[None]:
            nonlocal failures
            failures -= 1
            return asyncio.ensure_future(not_told(keep(*batch))) if failures >= 0 else keep(*batch)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.node, "append", fails)
            with pytest.raises(TopicRecovering):
                await left.ack(1)
            await insist(lambda: left.ack(1))
        assert failures < 0
        await left.ack(3)
        assert not topic.lost

    async def second_life() -> None:
        topic = await world.open()
        assert topic.subscriptions["a"].known.cursor.pending(0, 4) == [(0, 0), (2, 2), (4, 4)]

    world.run(first_life())
    world.restart()
    world.run(second_life())


async def not_told(kept: Future[None]) -> None:
    await kept
    raise NodeUnreachable("the answer was lost")
