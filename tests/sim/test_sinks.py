"""Jobs that write exactly once, in the simulator: a few seeds, the same seed twice, and guards turned off (I12)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from pydanube.base.errors import DanubeError, DiskFailed
from pydanube.base.retry import Backoff
from pydanube.broker.commit import sinks
from pydanube.broker.commit.sinks import Sinks
from pydanube.broker.topic.topic import Topic
from pydanube.sim.plan import plan_for
from pydanube.sim.run import Outcome, run_plan, run_seed
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic import sinks as ledger
from pydanube.topic.sinks import Part, Ref, Request, SinkRecord, Verdict, judge
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
    def hide_alone(self: Topic, offset: int | None) -> None:
        self.reserved, self.ledger.hidden_from = False, offset
        self._changed(None)

    monkeypatch.setattr(Topic, "reserve", hide_alone)
    found("I12", "I2")


@pytest.mark.parametrize("wrong", [-1, 1])
def test_rows_that_are_counted_wrongly_after_a_crash_are_found(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    honest = sinks.rows_from

    async def miscounted(topic: Topic, offset: int) -> int:
        there = await honest(topic, offset)
        return max(0, there + wrong) if there else 0

    monkeypatch.setattr(sinks, "rows_from", miscounted)
    found("I12", first=30 if wrong > 0 else 0)  # one row too many is noticed less often


def test_rows_that_are_counted_while_some_are_in_transit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rows after them cannot be read at the first attempt, they are counted soon after they were sent."""
    honest, reads = sinks.staged_batches, 0

    async def failing(staged: Topic, refs: list[Ref], skipped: int) -> AsyncIterator[Batch]:
        nonlocal reads
        async for batch in honest(staged, refs, skipped):
            reads += 1
            if reads % 3 == 0:
                raise DiskFailed("planted")
            yield batch

    async def hasty(_: object) -> None:
        pass

    monkeypatch.setattr(sinks, "staged_batches", failing)
    monkeypatch.setattr(sinks, "RETRY", Backoff(0.001, 5.0))
    plans = [plan_for(seed, "sinks").only(faults=()) for seed in range(4)]
    assert [run_plan(plan).violations for plan in plans] == [()] * 4
    monkeypatch.setattr(sinks, "landed", hasty)
    assert any(run_plan(plan).violations for plan in plans)


def test_a_decision_that_is_stored_after_the_first_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Sinks._store_decision

    async def later(self: Sinks, digest: str, record: SinkRecord) -> None:
        staged, refs = await self._decided(record)
        await asyncio.gather(*(self._fill(digest, part, refs[part.place], staged) for part in record.parts))
        await honest(self, digest, record)

    monkeypatch.setattr(Sinks, "_store_decision", later)
    found("I12")


def test_a_decision_that_is_revoked_although_it_may_be_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def faint_hearted(self: Sinks, digest: str, record: SinkRecord) -> None:
        version = self._unstored.pop(digest, None)
        if version is not None:
            try:
                await self._put(record, version)
            except DanubeError:
                self._release(digest)
                raise

    monkeypatch.setattr(Sinks, "_store_decision", faint_hearted)
    found("I12", "I1", "I2", "I8", first=20)


def test_a_replay_that_is_taken_for_new_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(record: SinkRecord | None, request: Request, others: object, query: str) -> Verdict:
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


def test_partitions_that_open_before_the_batch_is_durable_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, messages that others have published since would count as rows of the job."""
    honest = Sinks._append

    async def eager(self: Sinks, topic: Topic, part: Part, refs: list[Ref], staged: Topic) -> None:
        await honest(self, topic, part, refs, staged)
        topic.reserve(None)

    monkeypatch.setattr(Sinks, "_append", eager)
    found("I2", "I8")


def test_decided_writes_that_are_not_continued_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sinks, "resume", lambda self: None)
    found("I8", first=10)


def test_staged_rows_that_pile_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def untidy(self: Sinks, staged: Topic, record: SinkRecord) -> None:
        pass

    monkeypatch.setattr(Sinks, "_clear", untidy)
    found("I9")
