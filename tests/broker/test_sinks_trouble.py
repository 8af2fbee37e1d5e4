"""Jobs that write exactly once, while disks and the metadata store fail, callers leave, and others publish."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.door_world import caller
from broker.sink_world import KEY, OTHER, TOPIC, Crash, Job, message, rows_of, seen, started
from pydanube.base.errors import DiskFailed, DiskFull, MetadataConflict
from pydanube.base.retry import Backoff
from pydanube.broker.commit import sinks as module
from pydanube.broker.commit.sinks import Sinks, staging_topic
from pydanube.broker.topic.served import Receipt
from pydanube.broker.topic.topic import Topic
from pydanube.metadata.tables import SINKS
from pydanube.operations.sinks import ListSinks
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic.sinks import SinkKey, Verdict
from pydanube.wire.batch import Batch
from tier.broker_world import in_loop, opened, topic_of
from waiting import until

YEAR_MICROSECONDS = 365 * 24 * 3600 * 1_000_000


class Failing:
    """The metadata store, while `error` is set: it writes nothing about jobs. `wait` makes them wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.asked = 0
        self.may_write = asyncio.Event()
        self.may_write.set()
        real = RaftMetadata.transact

        async def transact(store: RaftMetadata, checks: Any, changes: Sequence[Any], **options: Any) -> int:
            if any(key.startswith(SINKS.prefix) for key, _ in changes):
                self.asked += 1
                await self.may_write.wait()
                if self.error is not None:
                    raise self.error
            return await real(store, checks, changes, **options)

        monkeypatch.setattr(RaftMetadata, "transact", transact)

    async def until_asked(self, times: int) -> None:
        while self.asked < times:  # noqa: ASYNC110 - it does not tell, it is asked
            await asyncio.sleep(0.001)


@in_loop
async def test_a_partition_shows_its_part_whatever_becomes_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others publish behind it is theirs, and the next start does not write the part again."""
    real = Topic.append_rows

    def failing(topic: Topic, batch: Batch) -> Receipt:
        if topic.name == OTHER:
            raise DiskFull("planted")
        return real(topic, batch)

    rows = {TOPIC: rows_of("a", 10), OTHER: rows_of("o", 4)}
    async with started(tmp_path) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(Topic, "append_rows", failing)
            writing = asyncio.create_task(Job(broker).write(0, rows))
            topic = await topic_of(broker, TOPIC)
            await until(lambda: topic.ledger.confirmed_end == 10)
            other = await topic_of(broker, OTHER)
            await other.publish(message("between")).confirmed
            assert (other.ledger.confirmed_end, other.ledger.written_end) == (0, 1)
            await topic.publish(message("behind")).confirmed
            assert await Job(broker, key=SinkKey("another", TOPIC)).write(0, {TOPIC: rows_of("b", 4)}) is Verdict.NEW
            writing.cancel()
    async with started(tmp_path) as broker:
        assert await Job(broker, "run-2").write(0, {TOPIC: ["x"]}) is Verdict.DONE
        assert await seen(broker) == [*rows[TOPIC], "behind", *rows_of("b", 4)]
        assert await seen(broker, OTHER) == ["between", *rows[OTHER]]


@in_loop
async def test_a_decision_that_could_not_be_stored_holds_up_only_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(monkeypatch)
    async with started(tmp_path) as broker:
        failing.error = DiskFailed("planted")
        writing = asyncio.create_task(Job(broker).write(0, {TOPIC: rows_of("a", 5)}))
        await failing.until_asked(2)
        await (await topic_of(broker, TOPIC)).publish(message("meanwhile")).confirmed
        assert await seen(broker) == ["meanwhile"]
        assert not writing.done()
        failing.error = None
        assert await writing is Verdict.NEW
        assert await seen(broker) == ["meanwhile", *rows_of("a", 5)]


@in_loop
async def test_a_decision_that_the_store_refuses_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(monkeypatch)
    async with started(tmp_path) as broker:
        failing.error = MetadataConflict("planted: somebody else was quicker")
        with pytest.raises(MetadataConflict):
            await Job(broker).write(0, {TOPIC: ["a"]})
        failing.error = None
        await (await topic_of(broker, TOPIC)).publish(message("open again")).confirmed
        assert await Job(broker, "run-2").write(0, {TOPIC: ["b"]}) is Verdict.NEW
        assert await seen(broker) == ["open again", "b"]


@in_loop
async def test_a_batch_is_answered_before_it_is_recorded_as_done_and_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition remembers it across restarts, also if what was staged is gone by then."""
    failing = Failing(monkeypatch)
    async with started(tmp_path) as broker:
        writing = asyncio.create_task(Job(broker).write(0, {TOPIC: rows_of("a", 5)}))
        await failing.until_asked(1)
        failing.error = DiskFailed("planted")
        assert await writing is Verdict.NEW
        [listed] = (await caller(broker.door).carry_out(ListSinks())).sinks
        assert listed.committed
        await (await topic_of(broker, TOPIC)).publish(message("after")).confirmed
    async with opened(tmp_path, None) as broker:
        assert await seen(broker) == [*rows_of("a", 5), "after"]
        staged = await topic_of(broker, staging_topic(KEY))
        await staged.truncate()
        failing.error = None
        broker.door.reopen()
        assert await Job(broker, "run-2").write(0, {TOPIC: ["x"]}) is Verdict.DONE
        assert await Job(broker, "run-2").write(1, {TOPIC: ["b"]}) is Verdict.NEW
        assert await seen(broker) == [*rows_of("a", 5), "after", "b"]


@in_loop
async def test_a_caller_that_leaves_while_it_is_decided_finds_it_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(monkeypatch)
    async with started(tmp_path) as broker:
        job = Job(broker)
        decision = await job.decide({TOPIC: await job.stage(rows_of("a", 5))})
        failing.may_write.clear()
        asking = asyncio.create_task(job.commit(0, decision))
        await failing.until_asked(1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        failing.may_write.set()
        assert await job.commit(0, decision) is Verdict.DONE
        assert await seen(broker) == rows_of("a", 5)


@in_loop
async def test_rows_on_their_way_are_not_sent_again_when_the_staged_ones_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", Backoff(0, 0))
    real = ManagedLedger.read
    failures = 0

    async def failing(ledger: ManagedLedger, offset: int, *bytes_max: int) -> list[Batch]:
        nonlocal failures
        if writing and offset >= 3 and failures < 5:  # the second batch that was staged
            failures += 1
            raise DiskFailed("planted")
        return await real(ledger, offset, *bytes_max)

    async with started(tmp_path) as broker:
        job, writing = Job(broker), False
        decision = await job.decide({TOPIC: await job.stage(rows_of("a", 9))})
        monkeypatch.setattr(ManagedLedger, "read", failing)
        real_append = Topic.append_rows

        def noticed(topic: Topic, batch: Batch) -> Receipt:
            nonlocal writing
            writing = True
            return real_append(topic, batch)

        monkeypatch.setattr(Topic, "append_rows", noticed)
        assert await job.commit(0, decision) is Verdict.NEW
        assert failures == 5
        assert await seen(broker) == rows_of("a", 9)


@in_loop
async def test_commits_of_one_writer_come_one_after_the_other(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        jobs = [Job(broker, f"run-{number}") for number in range(12)]
        decisions = [await job.decide({TOPIC: await job.stage([f"{at}"])}) for at, job in enumerate(jobs)]
        commits = []
        for job, decision in zip(jobs, decisions, strict=True):
            commits.append(asyncio.create_task(job.commit(0, decision)))
            await asyncio.sleep(0)
        verdicts = await asyncio.gather(*commits)
        assert sorted(verdict.value for verdict in verdicts) == ["done"] * 11 + ["new"]
        assert await seen(broker) == ["0"]


@in_loop
async def test_staged_rows_do_not_grow_old_once_they_are_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was down for days finds them when it starts again."""
    async with started(tmp_path) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(Topic, "append_rows", lambda *_: (_ for _ in ()).throw(Crash))
            with pytest.raises(Crash):
                await Job(broker).write(0, {TOPIC: rows_of("a", 5)})
    async with opened(tmp_path, None) as broker:
        staged = await topic_of(broker, staging_topic(KEY))
        late = broker.clock.wall() + YEAR_MICROSECONDS
        await staged._trimming.trim(late, clock_trusted=True)
        broker.door.reopen()
        assert await Job(broker, "run-2").write(0, {TOPIC: ["x"]}) is Verdict.DONE
        assert await seen(broker) == rows_of("a", 5)
        await staged._trimming.trim(late, clock_trusted=True)
        assert staged.ledger.first > 0


@in_loop
async def test_a_row_whose_write_failed_is_not_left_out_because_those_behind_it_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream may be sound again before anybody asks what became of the write."""
    monkeypatch.setattr(module, "RETRY", Backoff(0, 0))
    real, calls = Topic.append_rows, 0

    def failing(topic: Topic, batch: Batch) -> Receipt:
        nonlocal calls
        calls += 1
        if calls != 2:
            return real(topic, batch)
        confirmed = asyncio.get_running_loop().create_future()
        confirmed.set_exception(DiskFailed("planted"))
        topic.failed += 1
        return Receipt(topic.ledger.written_end, confirmed)

    async with started(tmp_path) as broker:
        job = Job(broker)
        decision = await job.decide({TOPIC: await job.stage(rows_of("a", 12))})
        monkeypatch.setattr(Topic, "append_rows", failing)
        assert await job.commit(0, decision) is Verdict.NEW
        assert await seen(broker) == rows_of("a", 12)


@in_loop
@pytest.mark.parametrize("stays", [True, False])
async def test_a_batch_that_comes_while_the_one_before_is_cleaned_up_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """Whether or not its caller waits for the answer: it is decided, and what others publish is not seen before it."""
    cleaning, may_end, decided, fill = asyncio.Event(), asyncio.Event(), asyncio.Event(), Sinks._fill

    async def slow(*_: object) -> None:
        cleaning.set()
        await may_end.wait()

    async def watched(sinks: Sinks, digest: str) -> None:
        if cleaning.is_set():
            asyncio.get_running_loop().call_soon(decided.set)
        await fill(sinks, digest)

    monkeypatch.setattr(Sinks, "_clear", slow)
    monkeypatch.setattr(Sinks, "_fill", watched)
    async with started(tmp_path) as broker:
        job = Job(broker)
        first = asyncio.create_task(job.write(0, {TOPIC: ["a"]}))
        await cleaning.wait()
        first.cancel()  # its caller leaves, and the turn is the next one's
        second = asyncio.create_task(job.write(1, {TOPIC: ["b"]}))
        await decided.wait()
        if not stays:
            second.cancel()
            await asyncio.wait([second])
        under_way = list(broker.door.sinks._rolling.values())
        may_end.set()
        if stays:
            assert await second is Verdict.NEW
        else:
            await asyncio.wait(under_way)
        assert await seen(broker) == ["a", "b"]
