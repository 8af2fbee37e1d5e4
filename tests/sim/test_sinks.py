"""Jobs that write exactly once, in the simulator: a few seeds, the same seed twice, and guards turned off (I12)."""

from __future__ import annotations

import asyncio
import json
from asyncio import Future
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from pydanube.base.errors import DiskFailed
from pydanube.base.retry import Backoff
from pydanube.broker.commit import participant, sinks
from pydanube.broker.commit.participant import OwnPartitions, PartOfBatch
from pydanube.broker.commit.records import SinkRecords
from pydanube.broker.commit.sinks import Sinks
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.state.log import StateLog
from pydanube.broker.topic import filler
from pydanube.broker.topic.filler import Fill, Filler
from pydanube.broker.topic.topic import Topic
from pydanube.sim.plan import plan_for
from pydanube.sim.run import Outcome, run_plan, run_seed
from pydanube.storage.futures import retrieve
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.storage.stream.stream import Stream
from pydanube.topic import sinks as ledger
from pydanube.topic.fills import Fills
from pydanube.topic.sinks import Ref, SinkRecord, SinkRequest, Verdict, judge
from pydanube.wire.batch import Batch

SEEDS = 40


def found(*promises: str, first: int = 0) -> Outcome:
    """The first seed that breaks one of these promises."""
    for seed in range(first, first + SEEDS):
        outcome = run_seed(seed, "sinks")
        if set(promises) & {violation.promise for violation in outcome.violations}:
            return outcome
    pytest.fail(f"{SEEDS} seeds found nothing")


def test_seeds_with_jobs_keep_every_promise() -> None:
    for seed in range(3000, 3006):
        assert run_seed(seed, "sinks").violations == (), f"seed {seed}"


def test_the_same_seed_is_the_same_run() -> None:
    plan = plan_for(1, "sinks")
    assert run_plan(plan).digest == run_plan(plan, record=True).digest
    assert run_seed(2, "sinks").digest == run_seed(2, "sinks").digest


def test_jobs_are_killed_while_they_commit_and_every_action_occurs() -> None:
    """Otherwise the seeds would prove little."""
    lines = [line for seed in range(6) for line in run_plan(plan_for(seed, "sinks"), record=True).lines]
    seen = {
        what: sum(what in line for line in lines)
        for what in ("process.kill", "disk.power_cut", "'new'", "'done'", " zombie ", " failed ", " given up ")
    }
    seen |= {
        what: sum(f" {what} " in line and "sink_conflict" in line for line in lines) for what in ("wiped", "second")
    }
    assert all(seen.values()), seen


# -- guards turned off -------------------------------------------------------------------------------------------------


def test_rows_that_are_visible_before_all_are_written_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManagedLedger, "_hides", lambda self, offset: False)
    monkeypatch.setattr(ManagedLedger, "confirmed_end", property(lambda self: self.stream.confirmed + 1))
    found("I12")


def test_other_jobs_that_write_between_the_rows_of_a_job_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin in the middle of another part, as if it were filled."""

    def intrude(self: Filler, fill: Fill) -> bool:
        if self.open is not None and self.open != fill:
            self.end()
        return False

    monkeypatch.setattr(Filler, "_is_other", intrude)
    found("I12", "I2")


@pytest.mark.parametrize("wrong", [-1, 1])
def test_rows_that_are_counted_wrongly_after_a_crash_are_found(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    honest = filler.rows_from

    async def miscounted(stream: Stream, first: int) -> int:
        there = await honest(stream, first)
        return max(0, there + wrong) if there else 0

    monkeypatch.setattr(filler, "rows_from", miscounted)
    found("I12", "I2")


def test_rows_that_are_counted_while_some_are_in_transit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rows after them cannot be read at the first attempt, they are counted soon after they were sent."""
    honest, reads = participant.staged_batches, 0

    async def failing(staged: Topic, refs: list[Ref], skipped: int) -> AsyncIterator[Batch]:
        nonlocal reads
        async for batch in honest(staged, refs, skipped):
            reads += 1
            if reads % 3 == 0:
                raise DiskFailed("planted")
            yield batch

    async def hasty(_: object) -> None:
        pass

    monkeypatch.setattr(participant, "staged_batches", failing)
    monkeypatch.setattr(sinks, "RETRY", Backoff(0.001, 5.0))
    plans = [plan_for(seed, "sinks").only(faults=()) for seed in range(4)]
    assert [run_plan(plan).violations for plan in plans] == [()] * 4
    monkeypatch.setattr(participant, "landed", hasty)
    assert any(run_plan(plan).violations for plan in plans)


def test_rows_that_are_written_before_it_is_durable_where_they_begin_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, nobody knows of those that are there."""

    def hasty(self: StateLog) -> Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(StateLog, "barrier", hasty)
    found("I12", "I2")


def test_a_part_that_is_hidden_only_in_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(self: Filler) -> None:
        pass

    monkeypatch.setattr(Filler, "load", careless)
    found("I12", "I2")


def test_a_part_that_is_forgotten_before_its_batch_is_recorded_as_done_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Fills, "is_filled", lambda self, sink, batch: False)
    found("I12", "I2")


def test_a_decision_that_is_stored_after_the_first_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Sinks._store_decision

    async def later(self: Sinks, digest: str, record: SinkRecord) -> None:
        await self._fill_parts(record)
        await honest(self, digest, record)

    monkeypatch.setattr(Sinks, "_store_decision", later)
    monkeypatch.setattr(SinkRecords, "is_open", lambda self, sink, batch: True)
    monkeypatch.setattr(PartOfBatch, "fill", property(lambda self: Fill(bytes.fromhex(self.sink), 1, self.part.rows)))
    found("I12", "I2", "I8")


def test_a_replay_that_is_taken_for_new_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(record: SinkRecord | None, request: SinkRequest, others: object, query: str) -> Verdict:
        new = record is not None and record.batch == request.batch and record.run != request.run
        return Verdict.NEW if new else judge(record, request)

    monkeypatch.setattr(sinks, "judge", forgetful)
    found("I12")


def test_a_wiped_checkpoint_that_is_known_by_its_end_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is more input now, so its first batch extends beyond everything that was written."""

    def by_ends(new: str, old: str) -> bool:
        here, there = (json.loads(each)[0]["/default/in"]["0"] for each in (new, old))
        return bool(here <= there)

    monkeypatch.setattr(ledger, "reads_again", by_ends)
    found("I12")


def test_a_second_write_that_is_taken_for_a_repetition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkRecord, "repeated", lambda self, request: self)
    found("I12")


def test_parts_that_are_shown_before_their_rows_are_confirmed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def eager(under_way: Iterable[Future[None]]) -> None:
        for confirmed in under_way:
            confirmed.add_done_callback(retrieve)

    honest = OwnPartitions._append

    async def cut_short(self: OwnPartitions, opened: OpenTopic, topic: Topic, *rest: Any) -> None:
        filling = asyncio.ensure_future(honest(self, opened, topic, *rest))
        filling.add_done_callback(retrieve)
        await asyncio.sleep(0.001)

    monkeypatch.setattr(participant, "landed", eager)
    monkeypatch.setattr(OwnPartitions, "_append", cut_short)
    found("I2", "I12")


def test_decided_writes_that_are_not_continued_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sinks, "resume", lambda self: None)
    found("I8", first=10)


def test_staged_rows_that_pile_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def untidy(self: Sinks, record: SinkRecord) -> None:
        pass

    monkeypatch.setattr(Sinks, "_clear", untidy)
    found("I9")
