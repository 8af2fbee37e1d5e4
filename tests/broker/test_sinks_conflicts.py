"""Jobs that come with what was written before, under another name or in other pieces: an error, never a silent loss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.door_world import caller, served
from broker.sink_world import KEY, TOPIC, Job, message, rows_of, seen, started
from pydanube.access.principals import ANONYMOUS
from pydanube.base.errors import MetadataDamaged, RequestInvalid, SinkConflict
from pydanube.broker.standalone import Broker
from pydanube.metadata.tables import SINKS
from pydanube.operations.topics import CreateTopic, DeleteTopic
from pydanube.topic.sinks import Once, Part, Repeat, SinkKey, SinkRecord, Verdict
from pydanube.wire.batch import build
from tier.broker_world import in_loop, topic_of


def end(*next: int, began: Sequence[int]) -> str:
    offsets: dict[str, Any] = {str(number): offset for number, offset in enumerate(next)}
    return json.dumps([{"/default/in": {"id": 7, **offsets, "began": list(began)}}])


def other(broker: Broker, query: str = "other", run: str = "run-9") -> Job:
    return Job(broker, run, SinkKey(query, TOPIC))


# -- a checkpoint that was wiped ---------------------------------------------------------------------------------------


@in_loop
async def test_a_wiped_checkpoint_is_noticed_though_more_has_come_since(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: ["a"]}, source=end(100, began=[0]))
        for wiped in (end(110, began=[0]), end(110, 5, began=[0, 0]), end(101, began=[99])):
            with pytest.raises(SinkConflict, match=r"other.*run-9.*query.*run-1.*wiped.*writeName.*danube sink forget"):
                await other(broker).write(0, {TOPIC: ["a", "b"]}, source=wiped)
        assert await other(broker).write(0, {TOPIC: ["b"]}, source=end(110, began=[100])) is Verdict.NEW
        assert await seen(broker) == ["a", "b"]


@in_loop
async def test_a_wiped_checkpoint_is_noticed_when_the_first_rows_come_later(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(4, {TOPIC: ["a"]}, source=end(100, began=[0]))
        with pytest.raises(SinkConflict, match="wiped"):
            await other(broker).write(3, {TOPIC: ["a"]}, source=end(400, began=[0]))


@in_loop
async def test_a_writer_that_was_forgotten_may_begin_anew(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: ["a"]}, source=end(100, began=[0]))
        await broker.door.sinks.forget(ANONYMOUS, KEY)
        assert await other(broker).write(0, {TOPIC: ["a"]}, source=end(110, began=[0])) is Verdict.NEW


@in_loop
async def test_ends_that_are_too_long_to_be_kept_are_still_told_apart(tmp_path: Path) -> None:
    many = range(20_000)
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: ["a"]}, source=end(*many, began=many))
        with pytest.raises(SinkConflict, match="copied"):
            await Job(broker, "run-2").write(0, {TOPIC: ["b"]}, source=end(*range(1, 20_001), began=many))
        assert await Job(broker, "run-3").write(0, {TOPIC: ["a"]}, source=end(*many, began=many)) is Verdict.DONE


# -- two writes of one batch -------------------------------------------------------------------------------------------


@in_loop
async def test_a_second_write_is_not_lost_when_the_first_is_repeated(tmp_path: Path) -> None:
    """The first run died between the two. Whoever repeats the batch is told, however often."""
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: ["a"]}, source='{"t": 5}')
        for run in ("run-2", "run-3"):
            job = Job(broker, run)
            first = await job.decide({TOPIC: await job.stage(["a"])})
            assert await job.commit(0, first) is Verdict.DONE
            assert await job.commit(0, first) is Verdict.DONE, "only the answer was lost"
            with pytest.raises(SinkConflict, match="writeName"):
                await job.write(0, {TOPIC: ["b"]})
        assert await seen(broker) == ["a"]


@in_loop
async def test_who_has_repeated_a_batch_is_known_after_a_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {TOPIC: ["a"]})
        assert await Job(broker, "run-2").write(0, {TOPIC: ["a"]}) is Verdict.DONE
    async with started(tmp_path) as broker:
        with pytest.raises(SinkConflict, match="writeName"):
            await Job(broker, "run-2").write(0, {TOPIC: ["b"]})
        assert await Job(broker, "run-2").write(1, {TOPIC: ["c"]}) is Verdict.NEW


@in_loop
async def test_the_same_version_of_an_application_is_done_however_often(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        for number, expected in enumerate((Verdict.NEW, Verdict.DONE, Verdict.DONE)):
            assert await Job(broker, "").write(1, {TOPIC: [str(number)]}, once=Once.VERSION) is expected


# -- a topic that goes -------------------------------------------------------------------------------------------------


@in_loop
async def test_a_topic_that_was_made_again_knows_nothing_of_what_the_old_one_had(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(3, {TOPIC: ["a"]}, source=end(100, began=[0]))
        await caller(broker.door).carry_out(DeleteTopic(TOPIC))
        await caller(broker.door).carry_out(CreateTopic(TOPIC))
        assert await other(broker).write(0, {TOPIC: ["b"]}, source=end(110, began=[0])) is Verdict.NEW
        assert await Job(broker, "run-2").write(0, {TOPIC: ["c"]}) is Verdict.NEW
        assert await Job(broker, "run-3").write(0, {TOPIC: ["c"]}) is Verdict.DONE
        await caller(broker.door).carry_out(DeleteTopic(TOPIC))
        assert await Job(broker, "run-4").write(0, {TOPIC: ["d"]}) is Verdict.NEW, "made again by the write"
        assert await seen(broker) == ["d"]


@in_loop
async def test_a_first_batch_without_rows_is_remembered_though_there_is_no_topic_yet(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await Job(broker).write(0, {})
        assert await Job(broker, "run-2").write(0, {}) is Verdict.DONE
        assert await Job(broker, "run-2").write(1, {TOPIC: rows_of("a", 2)}) is Verdict.NEW


# -- records and requests ----------------------------------------------------------------------------------------------


OLDER = {
    "query": "query",
    "target": TOPIC,
    "name": "",
    "once": "stream",
    "run": "run-1",
    "batch": 4,
    "source": '[{"/default/in":{"0":100,"id":7}}]',
    "decision": 12,
    "committed": True,
    "parts": [],
}


@in_loop
async def test_a_record_of_an_older_version_still_counts(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        await caller(broker.door).carry_out(CreateTopic(TOPIC))
        store = broker.door.sinks._records.store
        await store.transact([], [(SINKS.prefix + KEY.digest, json.dumps(OLDER).encode())])
        with pytest.raises(SinkConflict, match="wiped"):
            await other(broker).write(0, {TOPIC: ["a"]}, source=end(110, began=[0]))
        assert await Job(broker, "run-2").write(4, {TOPIC: ["a"]}) is Verdict.DONE
        [record] = broker.door.sinks.listed()
        assert [each.run for each in record.repeats] == ["run-2"]
        assert await Job(broker, "run-2").write(5, {TOPIC: ["b"]}) is Verdict.NEW
        assert await seen(broker) == ["b"]


def test_a_record_is_read_as_it_was_written() -> None:
    record = SinkRecord(KEY, Once.STREAM, "r", 3, "s", 9, True, topic=7, repeats=(Repeat("r2", 11),))
    assert SinkRecord.decode(record.encode()) == record
    with pytest.raises(MetadataDamaged):
        SinkRecord.decode(json.dumps(OLDER | {"repeats": [["r"]]}).encode())


@in_loop
async def test_what_belongs_to_the_broker_is_not_written_to(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        with pytest.raises(RequestInvalid, match="namespace system"):
            await Job(broker).write(0, {"/system/mine": ["a"]})
        with pytest.raises(RequestInvalid, match="run"):
            await Job(broker, "r" * 5_000).write(0, {TOPIC: ["a"]})
        assert broker.door.sinks.listed() == []


@in_loop
async def test_a_decision_of_a_version_that_named_offsets_is_continued_there(tmp_path: Path) -> None:
    """A crash has cut it off: three of its rows are written, and others have published behind them."""
    async with started(tmp_path) as broker:
        job = Job(broker)
        decision = await job.decide({TOPIC: await job.stage(rows_of("a", 5))})
        topic = await topic_of(broker, TOPIC)
        await topic.publish(message("before")).confirmed
        await topic.append_rows(build([b"a0", b"a1", b"a2"], publish_time=1).anonymous(1)).confirmed
        await topic.publish(message("between")).confirmed
        opened = await served(broker.door, TOPIC)
        unfinished = {"decision": decision, "committed": False, "parts": [[TOPIC, opened.record.id, 1, 5]]}
        store = broker.door.sinks._records.store
        await store.transact([], [(SINKS.prefix + KEY.digest, json.dumps(OLDER | unfinished).encode())])
    async with started(tmp_path) as broker:
        assert await Job(broker, "run-2").write(4, {TOPIC: ["x"]}) is Verdict.DONE
        assert await seen(broker) == ["before", "a0", "a1", "a2", "between", "a3", "a4"]


@in_loop
async def test_a_decision_names_what_was_staged_and_no_offsets_of_partitions(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        record = SinkRecord(KEY, Once.STREAM, "r", 3, "s", 9, parts=(Part(TOPIC, 3, 5),))
        assert json.loads(record.encode())["parts"] == [[TOPIC, 3, 5]]
        assert SinkRecord.decode(record.encode()) == record
        found: list[bytes] = []
        real = broker.door.sinks._records.keep

        async def put(stored: SinkRecord, version: int) -> None:
            found.append(stored.encode())
            await real(stored, version)

        broker.door.sinks._records.keep = put  # type: ignore[method-assign]
        await (await topic_of(broker, TOPIC)).publish(message("before")).confirmed
        await Job(broker).write(0, {TOPIC: rows_of("a", 5)})
        [part] = json.loads(found[0])["parts"]
        assert (part[0], part[2:]) == (TOPIC, [5])
