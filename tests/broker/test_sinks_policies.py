"""What a namespace or topic refuses a producer, it refuses the commit of a job too, before anything is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.door_world import caller, served
from broker.sink_world import KEY, TOPIC, Job, rows_of, seen, started
from pydanube.base.errors import MessageTooLarge, QuotaReached, RateExceeded
from pydanube.base.limits import MIB, RATE_DEBT_SECONDS_MAX
from pydanube.broker.commit import sinks
from pydanube.broker.commit.rows import slow_down
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.standalone import Broker
from pydanube.operations.namespaces import AlterNamespace
from pydanube.operations.policies import PolicyChanges
from pydanube.topic.sinks import Verdict
from pydanube.wire.batch import Batch, build
from tier.broker_world import in_loop


async def limit(broker: Broker, **policies: int | None) -> None:
    await caller(broker.door).carry_out(AlterNamespace("default", PolicyChanges(**policies)))


async def refused(broker: Broker, error: type[Exception], batch: int, rows: list[str]) -> None:
    before = await seen(broker)
    with pytest.raises(error):
        await Job(broker).write(batch, {TOPIC: rows})
    assert await seen(broker) == before
    record, _ = broker.door.sinks._records.load(KEY)
    assert record is None or record.batch < batch, "nothing is decided"


@in_loop
async def test_a_namespace_that_is_full_takes_no_commit_and_counts_those_it_took(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await limit(broker, namespace_bytes_max=2_000)
        await Job(broker).write(0, {TOPIC: ["x" * 2_000]})
        usage = broker.door.topics._usages["default"]
        assert usage.bytes > 2_000, "at once, not with the next housekeeping"
        await refused(broker, QuotaReached, 1, ["y"])
        await limit(broker, namespace_bytes_max=1_000_000)
        assert await Job(broker).write(1, {TOPIC: ["y"]}) is Verdict.NEW


@in_loop
async def test_a_row_that_is_larger_than_a_message_may_be_refuses_the_whole_commit(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await limit(broker, message_bytes_max=10)
        await Job(broker).write(0, {TOPIC: ["x" * 10]})
        await refused(broker, MessageTooLarge, 1, ["a", "b", "c", "x" * 11, "d"])


@in_loop
async def test_others_have_their_turn_between_batches_whose_rows_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker:
        await limit(broker, message_bytes_max=10)
        name, _ = await broker.door.sinks.begin(KEY)
        staged = (await served(broker.door, name)).reliable
        staged.ledger._tail._cache.bytes_max = MIB  # batches in memory are read without a pause
        turns, looked = 0, list[int]()
        check = OpenTopic.check_messages

        def noted(opened: OpenTopic, batch: Batch) -> None:
            looked.append(turns)
            check(opened, batch)

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(OpenTopic, "check_messages", noted)
        counting = asyncio.ensure_future(others())
        await Job(broker).write(0, {TOPIC: rows_of("a", 60)})
        counting.cancel()
        assert len(looked) == len(set(looked)) == 20


@pytest.mark.slow
@in_loop
async def test_a_commit_beyond_the_rate_is_answered_late_and_the_next_is_refused_until_it_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker:
        await limit(broker, publish_messages_per_second=100)
        asked: list[float] = []

        async def noted(seconds: float) -> None:
            asked.append(seconds)

        async def without_waiting(targets: Sequence[OpenTopic]) -> None:
            with monkeypatch.context() as patched:  # nothing else runs meanwhile, for nothing is awaited
                patched.setattr(asyncio, "sleep", noted)
                await slow_down(targets)

        monkeypatch.setattr(sinks, "slow_down", without_waiting)
        await Job(broker).write(0, {TOPIC: rows_of("a", 250)})
        assert 0 < asked[-1] < RATE_DEBT_SECONDS_MAX
        await Job(broker).write(1, {TOPIC: rows_of("b", 3_000)})
        assert asked[-1] == RATE_DEBT_SECONDS_MAX
        monkeypatch.undo()
        await refused(broker, RateExceeded, 2, ["c"])
        producer = await caller(broker.door).open_producer(TOPIC, lambda _: None)
        with pytest.raises(RateExceeded):
            producer.publish(build([b"x"], publish_time=1))
        await limit(broker, publish_messages_per_second=None)
        assert await Job(broker).write(2, {TOPIC: ["c"]}) is Verdict.NEW
