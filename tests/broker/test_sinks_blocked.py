"""Batches that were decided and cannot be written: never silent, and an operator has a way out. And old records go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.sink_world import KEY, OTHER, TOPIC, Job, message, rows_of, seen, started
from pydanube.access.principals import ANONYMOUS
from pydanube.base.errors import DiskFailed, SinkBlocked, SinkExpired, TooManySinks
from pydanube.base.retry import Backoff
from pydanube.broker.commit import participant, records
from pydanube.broker.commit import sinks as module
from pydanube.broker.commit.sinks import Sinks, staging_topic
from pydanube.broker.door.metrics import Page
from pydanube.broker.standalone import Broker
from pydanube.broker.topic.topic import Topic
from pydanube.stream.record import LostRange
from pydanube.topic import sinks as core
from pydanube.topic.sinks import Once, SinkKey, SinkRecord, SinkRequest, Verdict, overdue
from tier.broker_world import in_loop, topic_of
from waiting import until

DAY = 24 * 3600 * 1_000_000


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """While it is not empty, what was staged is lost for whoever has decided."""
    real, why = Sinks._decided, list[str]()

    async def decided(sinks: Sinks, record: SinkRecord) -> Any:
        if why:
            monkeypatch.setattr(Sinks, "_decision", gone)
        return await real(sinks, record)

    decision = Sinks._decision

    async def gone(sinks: Sinks, staged: Topic, request: SinkRequest) -> Any:
        if why and staged.name == staging_topic(KEY):
            raise SinkExpired(why[0])
        return await decision(sinks, staged, request)

    monkeypatch.setattr(Sinks, "_decided", decided)
    return why


async def scraped(broker: Broker) -> str:
    page = Page()
    await broker.door.metrics.collect(page)
    return await page.text()


async def publish(broker: Broker, topic: str, text: str) -> None:
    await (await topic_of(broker, topic)).publish(message(text)).confirmed


@in_loop
async def test_a_decided_batch_whose_rows_are_lost_says_so_until_it_is_given_up(
    tmp_path: Path, lost: list[str]
) -> None:
    """Nothing of it is written, so it holds up its writer and nobody else."""
    async with started(tmp_path) as broker:
        sinks = broker.door.sinks
        await publish(broker, TOPIC, "before")
        lost.append("the staged rows are not there")
        with pytest.raises(SinkBlocked, match="batch 0 of query query to /default/out is decided") as told:
            await Job(broker).write(0, {TOPIC: rows_of("a", 4)})
        assert not told.value.retriable
        with pytest.raises(SinkBlocked, match="the staged rows are not there"):
            await Job(broker, "run-2").write(1, {TOPIC: rows_of("a", 4)})
        await publish(broker, TOPIC, "beside it")
        assert await Job(broker, key=SinkKey("another", TOPIC)).write(0, {TOPIC: rows_of("b", 2)}) is Verdict.NEW
    async with started(tmp_path) as broker:
        sinks = broker.door.sinks
        await until(lambda: sinks.blocked(KEY) is not None)
        with pytest.raises(SinkBlocked):
            await sinks.forget(ANONYMOUS, KEY)
        await sinks.forget(ANONYMOUS, KEY, abandon=True)
        assert sinks.blocked(KEY) is None
        assert [each.key.query for each in sinks.listed()] == ["another"]
        lost.clear()
        await publish(broker, TOPIC, "after")
        assert await Job(broker, "run-2").write(1, {TOPIC: rows_of("c", 2)}) is Verdict.NEW
        assert await seen(broker) == ["before", "beside it", "b0", "b1", "after", "c0", "c1"]


@in_loop
@pytest.mark.parametrize("first", [3, 6])
async def test_a_decided_batch_is_blocked_at_once_when_rows_of_it_were_given_up_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    real, decided, given_up = participant.staged_batches, asyncio.Event(), asyncio.Event()

    async def waiting(*arguments: Any) -> AsyncIterator[Any]:
        decided.set()
        await given_up.wait()
        async for batch in real(*arguments):
            yield batch

    monkeypatch.setattr(participant, "staged_batches", waiting)
    async with started(tmp_path) as broker:
        sinks = broker.door.sinks
        writing = asyncio.ensure_future(Job(broker).write(0, {TOPIC: rows_of("a", 9)}))
        await decided.wait()
        staged = await topic_of(broker, staging_topic(KEY))
        await staged.ledger.stream.give_up([LostRange(first, first + 2)])
        staged.ledger._tail.clear()  # as after a start
        given_up.set()
        await until(lambda: sinks.blocked(KEY) is not None)
        with pytest.raises(SinkBlocked, match=f"offset {first} of .* is lost"):
            await writing
        await sinks.forget(ANONYMOUS, KEY, abandon=True)
        await publish(broker, TOPIC, "after")
        assert await seen(broker) == [*rows_of("a", first), "after"]


@in_loop
@pytest.mark.parametrize("way_out", ["mended", "abandoned"])
async def test_a_decided_batch_that_cannot_be_written_for_long_is_blocked_and_goes_on_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way_out: str
) -> None:
    monkeypatch.setattr(module, "SINK_BLOCKED_SECONDS", 0.2)
    real, failing = participant.staged_batches, True

    async def unreadable(*arguments: Any) -> AsyncIterator[Any]:
        async for batch in real(*arguments):
            if failing:
                raise DiskFailed("a sector cannot be read")
            yield batch

    monkeypatch.setattr(participant, "staged_batches", unreadable)
    async with started(tmp_path) as broker:
        sinks = broker.door.sinks
        writing = asyncio.ensure_future(Job(broker).write(0, {TOPIC: rows_of("a", 4), OTHER: rows_of("b", 1)}))
        await until(lambda: sinks.blocked(KEY) is not None)
        assert [each.key for each in sinks.listed()] == [KEY]
        assert "danube_sinks_blocked 1" in await scraped(broker)
        for place in (TOPIC, OTHER):
            with pytest.raises(SinkBlocked, match="a sector cannot be read"):
                await publish(broker, place, "refused")
        if way_out == "mended":
            failing = False
            assert await writing is Verdict.NEW
            assert await seen(broker) == rows_of("a", 4)
        else:
            await sinks.forget(ANONYMOUS, KEY, abandon=True)
            with pytest.raises(SinkBlocked):
                await writing
            assert await seen(broker) == []
        assert sinks.blocked(KEY) is None
        assert "danube_sinks_blocked 0" in await scraped(broker)
        await publish(broker, TOPIC, "after")


@in_loop
async def test_failures_far_apart_block_nothing_where_rows_were_written_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SINK_BLOCKED_SECONDS", 0.2)  # less than between one attempt and the one after the next
    monkeypatch.setattr(module, "RETRY", Backoff(0.15, 5.0))
    real, attempts, told = participant.staged_batches, 0, list[SinkBlocked | None]()

    async def unreadable_after_a_while(staged: Topic, *arguments: Any) -> AsyncIterator[Any]:
        nonlocal attempts
        attempts += 1
        told.append(target.filler.blocked)
        written = 0
        async for batch in real(staged, *arguments):
            if written == 2 and attempts < 4:
                raise DiskFailed("a hiccup")
            yield batch
            written += 1

    monkeypatch.setattr(participant, "staged_batches", unreadable_after_a_while)
    async with started(tmp_path) as broker:
        await publish(broker, TOPIC, "before")
        target = await topic_of(broker, TOPIC)
        assert await Job(broker).write(0, {TOPIC: rows_of("a", 24)}) is Verdict.NEW
        assert (attempts, told) == (4, [None] * 4)
        assert await seen(broker) == ["before", *rows_of("a", 24)]


@in_loop
async def test_producers_are_let_in_again_as_soon_as_rows_of_a_blocked_batch_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SINK_BLOCKED_SECONDS", 0.2)
    real, failing, finish = participant.staged_batches, True, asyncio.Event()

    async def unreadable(*arguments: Any) -> AsyncIterator[Any]:
        if failing:
            raise DiskFailed("a sector cannot be read")
        async for batch in real(*arguments):
            yield batch
            if batch.base_offset >= 3:
                await finish.wait()

    monkeypatch.setattr(participant, "staged_batches", unreadable)
    async with started(tmp_path) as broker:
        sinks = broker.door.sinks
        writing = asyncio.ensure_future(Job(broker).write(0, {TOPIC: rows_of("a", 9)}))
        await until(lambda: sinks.blocked(KEY) is not None)
        failing = False
        await until(lambda: sinks.blocked(KEY) is None)
        assert not writing.done()
        await publish(broker, TOPIC, "between")
        finish.set()
        assert await writing is Verdict.NEW
        assert sorted(await seen(broker)) == sorted(["between", *rows_of("a", 9)])


@in_loop
async def test_what_is_written_elsewhere_does_not_hide_that_a_part_of_the_batch_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SINK_BLOCKED_SECONDS", 0.2)
    real, finish = participant.staged_batches, asyncio.Event()

    async def unreadable(staged: Topic, refs: Any, skipped: int) -> AsyncIterator[Any]:
        if len(refs) == 1 and not finish.is_set():
            raise DiskFailed("a sector cannot be read")
        async for batch in real(staged, refs, skipped):
            await until(lambda: finish.is_set() or sinks.blocked(KEY) is not None)
            yield batch

    monkeypatch.setattr(participant, "staged_batches", unreadable)
    async with started(tmp_path) as broker:
        sinks = broker.door.sinks
        writing = asyncio.ensure_future(Job(broker).write(0, {TOPIC: rows_of("a", 9), OTHER: rows_of("b", 1)}))
        target = await topic_of(broker, TOPIC)
        await until(lambda: target.ledger.written_end == 9)
        assert sinks.blocked(KEY) is not None
        finish.set()
        assert await writing is Verdict.NEW
        assert sinks.blocked(KEY) is None


@in_loop
@pytest.mark.parametrize("abandon", [False, True])
async def test_nothing_is_forgotten_once_the_operator_has_left_though_the_batch_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abandon: bool
) -> None:
    monkeypatch.setattr(module, "SINK_BLOCKED_SECONDS", 0.2)
    real, failing = participant.staged_batches, True

    async def unreadable(*arguments: Any) -> AsyncIterator[Any]:
        async for batch in real(*arguments):
            if failing:
                raise DiskFailed("a sector cannot be read")
            yield batch

    monkeypatch.setattr(participant, "staged_batches", unreadable)
    async with started(tmp_path) as broker:
        sinks, job = broker.door.sinks, Job(broker)
        decision = await job.decide({TOPIC: await job.stage(rows_of("a", 4))})
        writing = asyncio.ensure_future(job.commit(0, decision))
        await until(lambda: sinks.blocked(KEY) is not None)
        forgetting = asyncio.ensure_future(sinks.forget(ANONYMOUS, KEY, abandon=abandon))
        await asyncio.sleep(0)  # it waits for its turn now
        forgetting.cancel()
        await asyncio.wait([forgetting])
        failing = False
        assert await writing is Verdict.NEW
        assert await job.commit(0, decision) is Verdict.DONE  # behind whoever was in line
        assert await seen(broker) == rows_of("a", 4)


@in_loop
async def test_a_batch_that_is_not_blocked_cannot_be_abandoned(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: rows_of("a", 4)})
        await broker.door.sinks.forget(ANONYMOUS, KEY, abandon=True)
        assert await seen(broker) == rows_of("a", 4)
        assert broker.door.sinks.listed() == []


# -- the end of records ------------------------------------------------------------------------------------------------


def record(query: str, time: int, *, committed: bool = True) -> SinkRecord:
    return SinkRecord(SinkKey(query, TOPIC), Once.STREAM, "run", 1, "", 1, committed, time=time)


def test_a_writer_is_remembered_for_ninety_days_after_its_last_batch() -> None:
    records = [record("old", 1), record("unfinished", 1, committed=False), record("later", 5 * DAY)]
    assert overdue(records, 90 * DAY + 1) == []
    assert [each.key.query for each in overdue(records, 90 * DAY + 2)] == ["old"]


def test_a_writer_whose_last_time_is_not_known_counts_as_old() -> None:
    assert [each.key.query for each in overdue([record("unknown", 0), record("known", 1)], 90 * DAY + 1)] == ["unknown"]


def test_at_the_limit_there_is_room_for_one_more_as_soon_as_one_is_a_week_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SINKS_MAX", 3)
    known = [record("1", 1), record("2", 2), record("undone", 1, committed=False)]
    assert overdue(known[1:], 8 * DAY) == []
    assert [each.key.query for each in overdue(known, 8 * DAY)] == ["1"]


def test_where_there_are_too_many_the_oldest_go_after_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SINKS_MAX", 2)
    records = [record(str(day), day * DAY) for day in (3, 1, 2, 4)]
    assert [each.key.query for each in overdue(records, 8 * DAY + 1)] == ["1"]
    assert [each.key.query for each in overdue(records, 30 * DAY)] == ["1", "2", "3"]


def limit_sinks(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for place in (module, records, core):
        monkeypatch.setattr(place, "SINKS_MAX", most)


def let_all_be_old(monkeypatch: pytest.MonkeyPatch) -> None:
    for age in ("SINK_KEPT_SECONDS", "SINK_KEPT_SECONDS_MIN"):
        monkeypatch.setattr(core, age, -1)


@in_loop
async def test_old_records_go_by_themselves_and_one_writer_too_many_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_sinks(monkeypatch, 2)
    async with started(tmp_path) as broker:
        for number in range(2):
            await Job(broker, key=SinkKey(f"query-{number}", TOPIC, str(number))).write(0, {TOPIC: ["x"]})
        with pytest.raises(TooManySinks):
            await Job(broker, key=SinkKey("one more", TOPIC, "c")).write(0, {TOPIC: ["y"]})
        assert await Job(broker, key=SinkKey("query-0", TOPIC, "0")).write(1, {TOPIC: ["z"]}) is Verdict.NEW
        await until(lambda: not broker.door.sinks._rolling)
        let_all_be_old(monkeypatch)
        trusted = broker.door.clock.trusted
        monkeypatch.setattr(broker.door.clock, "trusted", lambda: False)  # it jumped: nobody knows what is old
        with pytest.raises(TooManySinks):
            await Job(broker, key=SinkKey("one more", TOPIC, "c")).write(0, {TOPIC: ["y"]})
        monkeypatch.setattr(broker.door.clock, "trusted", trusted)
        assert await Job(broker, key=SinkKey("one more", TOPIC, "c")).write(0, {TOPIC: ["y"]}) is Verdict.NEW
        assert [each.key.query for each in broker.door.sinks.listed()] == ["one more"]
        await until(lambda: not broker.door.sinks._rolling)
        await broker.door.sinks.tidy()
        assert broker.door.sinks.listed() == []


@in_loop
async def test_writers_that_come_at_once_are_no_more_than_may_be_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_sinks(monkeypatch, 3)
    async with started(tmp_path) as broker:
        jobs = [Job(broker, key=SinkKey(f"query-{number}", TOPIC, str(number))) for number in range(6)]
        decisions = [await job.decide({TOPIC: await job.stage(["x"])}) for job in jobs]
        commits = [job.commit(0, decision) for job, decision in zip(jobs, decisions, strict=True)]
        answers = await asyncio.gather(*commits, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, TooManySinks)]
        assert (answers.count(Verdict.NEW), len(refused)) == (3, 3)
        assert len(broker.door.sinks.listed()) == 3
        await until(lambda: not broker.door.sinks._rolling)
        let_all_be_old(monkeypatch)
        again = zip(jobs, decisions, answers, strict=True)
        late = [job.commit(0, decision) for job, decision, answer in again if answer in refused]
        assert await asyncio.gather(*late) == [Verdict.NEW] * 3
        assert len(broker.door.sinks.listed()) == 3
