"""Jobs that write exactly once: a batch is there wholly or not at all, in one piece, and never twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.door_world import caller, served
from broker.sink_world import KEY, OTHER, TOPIC, Crash, Job, message, rows_of, seen, started
from pydanube.access.principals import ANONYMOUS
from pydanube.base.errors import (
    DiskFull,
    OffsetNotConfirmed,
    RequestInvalid,
    SinkConflict,
    SinkExpired,
    TopicBusy,
    TopicNotFound,
)
from pydanube.broker.commit import sinks as module
from pydanube.broker.commit.sinks import Sinks, staging_topic
from pydanube.broker.topic.served import Receipt
from pydanube.broker.topic.topic import Topic
from pydanube.operations.topics import DeleteTopic
from pydanube.topic.sinks import Once, SinkKey, Verdict
from pydanube.wire.batch import Batch
from tier.broker_world import in_loop, opened, read_all, topic_of
from waiting import until


@in_loop
async def test_a_batch_is_there_when_it_is_committed_in_the_order_it_was_staged(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        job = Job(broker)
        assert await job.write(0, {TOPIC: rows_of("a", 10), OTHER: rows_of("o", 4)}) is Verdict.NEW
        assert await job.write(1, {TOPIC: rows_of("b", 5)}) is Verdict.NEW
        assert await seen(broker) == rows_of("a", 10) + rows_of("b", 5)
        assert await seen(broker, OTHER) == rows_of("o", 4)


@in_loop
async def test_a_batch_without_rows_is_a_batch(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        assert await Job(broker).write(0, {}) is Verdict.NEW
        assert await Job(broker, "run-2").write(0, {}) is Verdict.DONE


@in_loop
async def test_a_repeated_batch_adds_nothing_even_if_its_rows_fell_differently(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: rows_of("a", 10)}, source='{"t": 5}')
        again = Job(broker, "run-2")
        assert await again.write(0, {OTHER: rows_of("x", 7)}, source='{ "t":5 }') is Verdict.DONE
        assert await seen(broker) == rows_of("a", 10)
        with pytest.raises(TopicNotFound):
            await served(broker.door, OTHER)
        assert await again.write(1, {TOPIC: rows_of("b", 1)}) is Verdict.NEW


@in_loop
async def test_the_same_commit_may_be_asked_for_again(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        job = Job(broker)
        decision = await job.decide({TOPIC: await job.stage(rows_of("a", 4))})
        assert await job.commit(0, decision) is Verdict.NEW
        assert await job.commit(0, decision) is Verdict.DONE
        assert await seen(broker) == rows_of("a", 4)


@in_loop
async def test_two_writes_of_one_batch_need_names_of_their_own(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: ["a"]})
        with pytest.raises(SinkConflict, match="writeName"):
            await Job(broker).write(0, {TOPIC: ["b"]})
        named = Job(broker, key=SinkKey("query", TOPIC, "second"))
        assert await named.write(0, {TOPIC: ["b"]}) is Verdict.NEW
        assert await seen(broker) == ["a", "b"]


@in_loop
async def test_a_checkpoint_that_was_copied_or_wiped_is_named_with_both_runs(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        job = Job(broker)
        await job.write(0, {TOPIC: ["a"]}, source='[{"1": 10}]')
        await job.write(1, {TOPIC: ["b"]}, source='[{"1": 20}]')
        with pytest.raises(SinkConflict, match=r"run-2.*run-1"):
            await Job(broker, "run-2").write(0, {TOPIC: ["a"]}, source='[{"1": 10}]')
        with pytest.raises(SinkConflict, match=r"25.*run-2.*20.*run-1"):
            await Job(broker, "run-2").write(1, {TOPIC: ["b"]}, source='[{"1": 25}]')
        wiped = Job(broker, "run-3", SinkKey("another query", TOPIC))
        with pytest.raises(SinkConflict, match=r"run-3.*query.*run-1"):
            await wiped.write(0, {TOPIC: ["a"]}, source='[{"1": 15}]')
        further = Job(broker, "run-4", SinkKey("another query", TOPIC))
        assert await further.write(0, {TOPIC: ["c"]}, source='[{"1": 30}]') is Verdict.NEW
        assert await seen(broker) == ["a", "b", "c"]


@in_loop
async def test_versions_of_an_application_rise_and_older_ones_are_done(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        job = Job(broker)
        assert await job.write(7, {TOPIC: ["a"]}, once=Once.VERSION) is Verdict.NEW
        assert await job.write(7, {TOPIC: ["a"]}, once=Once.VERSION) is Verdict.DONE
        assert await job.write(3, {TOPIC: ["a"]}, once=Once.VERSION) is Verdict.DONE
        assert await job.write(8, {TOPIC: ["b"]}, once=Once.VERSION) is Verdict.NEW
        assert await seen(broker) == ["a", "b"]


@in_loop
async def test_a_plain_write_leaves_nothing_behind(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: ["a"]}, once=Once.PLAIN)
        await until(lambda: not broker.door.sinks._rolling)
        assert broker.door.sinks.listed() == []
        with pytest.raises(TopicNotFound):
            await served(broker.door, staging_topic(KEY))
        assert await seen(broker) == ["a"]


@in_loop
async def test_what_was_staged_with_a_producer_is_written_without_it(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        job = Job(broker)
        name, _ = await broker.door.sinks.begin(KEY)
        staged = await topic_of(broker, name)
        session = await staged.attach("worker")
        receipt = staged.publish(message("a", session.producer), session.epoch)
        await receipt.confirmed
        await job.commit(0, await job.decide({TOPIC: [[receipt.offset, receipt.offset]]}))
        [row] = await read_all(await topic_of(broker, TOPIC))
        assert (row.payload, row.producer, row.sequence) == (b"a", 0, 1)  # the number of the row


@in_loop
async def test_bad_decisions_decide_nothing(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        job = Job(broker)
        refs = await job.stage(["a"])
        for parts in ({TOPIC: [[5, 999]]}, {TOPIC: [[2**40, 2**40]]}):
            with pytest.raises(SinkExpired):
                await job.commit(0, await job.decide(parts))
        with pytest.raises(RequestInvalid):
            await job.commit(0, refs[0][0])
        with pytest.raises(SinkExpired):
            await job.commit(0, 10_000)
        for parts in ({TOPIC: [[3, 1]]}, {TOPIC: [["0", 1]]}, {TOPIC: [[0]]}):
            with pytest.raises(RequestInvalid):
                await job.commit(0, await job.decide(parts))  # type: ignore[arg-type]
        assert broker.door.sinks.listed() == []
        topic = await topic_of(broker, TOPIC)
        await topic.publish(message("still open")).confirmed


# -- others at the same time -------------------------------------------------------------------------------------------


@in_loop
async def test_producers_go_on_beside_a_batch_and_nobody_sees_a_part_of_it(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        topic = await topic_of(broker, TOPIC)
        broker.door.sinks.own.window_bytes = 1
        ends: set[int] = set()
        published = 0
        stopped = False

        async def publish(name: str) -> None:
            nonlocal published
            session = await topic.attach(name)
            sequence = 0
            while not stopped:
                ends.add(topic.ledger.confirmed_end)
                await topic.publish(message("p", session.producer, sequence), session.epoch).confirmed
                sequence += 1
                published += 1

        publishing = [asyncio.create_task(publish(f"producer-{number}")) for number in range(3)]
        job = Job(broker)
        for batch in range(5):
            await job.write(batch, {TOPIC: rows_of(f"{batch}/", 30)})
        stopped = True
        await asyncio.gather(*publishing)
        found = await seen(broker)
        between = 0
        for batch in range(5):
            first, last = found.index(f"{batch}/0"), found.index(f"{batch}/29")
            there = found[first : last + 1]
            assert [row for row in there if row != "p"] == rows_of(f"{batch}/", 30)
            assert not ends & set(range(first + 1, last + 1)), "somebody saw a part"
            between += there.count("p")
        assert between
        assert found.count("p") == published


@in_loop
async def test_a_message_without_a_producer_cannot_pass_for_a_row_of_a_job(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        topic = await topic_of(broker, TOPIC)
        await topic.publish(message("odd", sequence=7)).confirmed
        [row] = await read_all(topic)
        assert (row.producer, row.sequence) == (0, 0)


@in_loop
async def test_two_jobs_that_write_to_the_same_topics_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        jobs = [Job(broker, key=SinkKey(f"query-{number}", "*")) for number in range(4)]
        rows = [{TOPIC: rows_of(f"{number}/", 9), OTHER: rows_of(f"{number}/", 9)} for number in range(4)]
        async with asyncio.timeout(20):
            await asyncio.gather(*(job.write(0, each) for job, each in zip(jobs, rows, strict=True)))
        for topic in (TOPIC, OTHER):
            found = await seen(broker, topic)
            assert sorted(found) == sorted(row for each in rows for row in each[topic])
            assert all(found[at : at + 9] == rows_of(found[at][:2], 9) for at in range(0, 36, 9))


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 1, 2, 3])
@in_loop
async def test_a_batch_that_was_decided_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """`written` batches of its rows are there when the broker dies, of four in each of two topics."""
    real = Topic.append_rows
    left = written

    def dying(topic: Topic, batch: Batch) -> Receipt:
        nonlocal left
        if not left:
            raise Crash
        left -= 1
        return real(topic, batch)

    rows = {TOPIC: rows_of("a", 10), OTHER: rows_of("o", 10)}
    async with started(tmp_path) as broker:
        await (await topic_of(broker, TOPIC)).publish(message("before")).confirmed
        with monkeypatch.context() as patch:
            patch.setattr(Topic, "append_rows", dying)
            with pytest.raises(Crash):
                await Job(broker).write(0, rows)
        topic = await topic_of(broker, TOPIC)
        assert topic.ledger.confirmed_end == 1
        assert await seen(broker) == ["before"]
    async with opened(tmp_path, None) as broker:
        topic = await topic_of(broker, TOPIC)
        assert await seen(broker) == ["before"], "hidden until all of it is there"
        await topic.publish(message("between")).confirmed
        if topic.ledger.stream.confirmed > 0:
            with pytest.raises(OffsetNotConfirmed):
                await topic.ledger.read(1)
        with pytest.raises(TopicBusy):
            await caller(broker.door).carry_out(DeleteTopic(staging_topic(KEY)))
        broker.door.reopen()
        assert await Job(broker, "run-2").write(0, {TOPIC: ["x"]}) is Verdict.DONE
        found = await seen(broker)
        assert found.count("between") == 1
        assert [row for row in found if row != "between"] == ["before", *rows[TOPIC]]
        assert await seen(broker, OTHER) == rows[OTHER]
        await topic.publish(message("after")).confirmed
    async with started(tmp_path) as broker:
        assert await seen(broker) == [*found, "after"]


@in_loop
async def test_a_decision_whose_answer_was_lost_is_done_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker:
        job = Job(broker)
        decision = await job.decide({TOPIC: await job.stage(rows_of("a", 10))})
        asking = asyncio.create_task(job.commit(0, decision))
        while not broker.door.sinks._undone:  # noqa: ASYNC110 - it does not tell, it is asked
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await job.commit(0, decision) is Verdict.DONE
        assert await seen(broker) == rows_of("a", 10)


@in_loop
async def test_a_topic_that_was_deleted_takes_its_rows_along_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(Topic, "append_rows", lambda *_: (_ for _ in ()).throw(Crash))
            with pytest.raises(Crash):
                await Job(broker).write(0, {TOPIC: ["a"], OTHER: ["o"]})
    async with opened(tmp_path, None) as broker:
        await caller(broker.door).carry_out(DeleteTopic(TOPIC))
        broker.door.reopen()
        assert await Job(broker, "run-2").write(1, {OTHER: ["p"]}) is Verdict.NEW
        assert await seen(broker, OTHER) == ["o", "p"]


@in_loop
async def test_a_write_that_fails_meanwhile_is_repeated_until_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Topic.append_rows
    failures = 2

    def failing(topic: Topic, batch: Batch) -> Receipt:
        nonlocal failures
        receipt = real(topic, batch)
        if failures:
            failures -= 1
            raise DiskFull("planted, after it was appended")
        return receipt

    monkeypatch.setattr(Topic, "append_rows", failing)
    async with started(tmp_path) as broker:
        assert await Job(broker).write(0, {TOPIC: rows_of("a", 10)}) is Verdict.NEW
        assert await seen(broker) == rows_of("a", 10)


@in_loop
async def test_staged_rows_that_are_committed_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAGED_BYTES_MAX", 1_000)
    async with started(tmp_path) as broker:
        job = Job(broker)
        for batch in range(20):
            await job.write(batch, {TOPIC: rows_of(f"{batch}/", 10)})
        staged = await topic_of(broker, staging_topic(KEY))
        assert staged.ledger.stream.bytes < 20_000
        assert len(await seen(broker)) == 200


def test_the_sinks_of_a_broker_are_listed_and_can_be_forgotten(tmp_path: Path) -> None:
    async def life() -> None:
        async with started(tmp_path) as broker:
            sinks: Sinks = broker.door.sinks
            await Job(broker).write(5, {TOPIC: ["a"]})
            assert [(each.key, each.batch) for each in sinks.listed()] == [(KEY, 5)]
            await sinks.forget(ANONYMOUS, KEY)
            assert sinks.listed() == []
            assert await Job(broker).write(0, {TOPIC: ["b"]}) is Verdict.NEW

    asyncio.run(life())


@in_loop
async def test_a_job_that_began_and_staged_nothing_leaves_no_topic_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [SinkKey(f"nightly-{number}", TOPIC) for number in range(2 * module.STAGING_A_TURN)]
    async with started(tmp_path) as broker:
        sinks, door = broker.door.sinks, broker.door
        for key in (*keys, KEY):
            await sinks.begin(key)
        await topic_of(broker, staging_topic(keys[0]))  # one of them was opened, the others never were
        await sinks.tidy()
        assert len(door.directory.topics("system")) == len(keys) + 1, "its rows may still come"
        await sinks.begin(KEY)
        assert (KEY.digest in sinks._unwritten, keys[0].digest in sinks._unwritten) == (False, True)
        ended: list[str] = []
        producer = await caller(door).open_producer(staging_topic(KEY), lambda error: ended.append(error.code))
        monkeypatch.setattr(module, "STAGED_SECONDS", 0)
        await sinks.tidy()
        assert [str(record.name) for record in door.directory.topics("system")] == [staging_topic(KEY)]
        assert not ended
        producer.close(lost=False)
        await sinks.tidy()
        assert door.directory.topics("system") == []
        await sinks.tidy()
        assert sinks._unwritten == {}


@in_loop
async def test_a_dropped_record_is_not_kept_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(tmp_path) as broker:
        records = broker.door.sinks._records
        transact = records.store.transact

        async def listed_meanwhile(*arguments: Any, **named: Any) -> int:
            records.listed()  # by another writer, or somebody who looks
            return await transact(*arguments, **named)

        monkeypatch.setattr(records.store, "transact", listed_meanwhile)
        await Job(broker).write(0, {TOPIC: ["a"]}, once=Once.PLAIN)
        await until(lambda: not broker.door.sinks._rolling)
        assert (records.listed(), records._decoded) == ([], {})


@in_loop
async def test_what_was_staged_and_never_decided_leaves_no_topic_behind(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        sinks = broker.door.sinks
        await Job(broker).stage(["a"])
        kept = Job(broker, key=SinkKey("kept", TOPIC))
        await kept.write(0, {TOPIC: ["b"]})
        await sinks.tidy()
        assert await topic_of(broker, staging_topic(KEY)), "its rows may still be decided"
        for key in (KEY, SinkKey("kept", TOPIC)):
            await (await topic_of(broker, staging_topic(key))).truncate()  # as retention does it in time
        await sinks.tidy()
        with pytest.raises(TopicNotFound):
            await served(broker.door, staging_topic(KEY))
        assert await kept.write(1, {TOPIC: ["c"]}) is Verdict.NEW
