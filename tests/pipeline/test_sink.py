"""The sink driven as Spark drives it: copied to tasks and to every commit, cut short between any two targets."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import types
from pyspark.sql.datasource import WriterCommitMessage

from pydanube.base.errors import OptionInvalid, SchemaMismatch, SinkExpired
from pydanube.base.limits import TASK_ROWS_BYTES
from pydanube.pipeline.query import writer as sink
from pydanube.pipeline.query.writer import (
    DEAD_DDL,
    TablesBatchWriter,
    TablesSink,
    TablesStreamWriter,
    arrow_schema,
    letter_schema,
)
from pydanube.pipeline.spec.plan import Plan
from pydanube.pipeline.targets.delta.target import DeltaTarget

PROPERTIES = {
    "sql.streaming.queryId": "query-1",
    "streaming.sql.batchId": "0",
    "spark.jobGroup.id": "7d444840-9dc0-11d1-b245-5ffdce74fad2",
}
KINDS = {
    "BIGINT": types.LongType(),
    "INT": types.IntegerType(),
    "STRING": types.StringType(),
    "BINARY": types.BinaryType(),
    "TIMESTAMP": types.TimestampType(),
    "INTS": types.ArrayType(types.IntegerType()),
    "INTERVAL": types.DayTimeIntervalType(),
    "MAP<STRING,STRING>": types.MapType(types.StringType(), types.StringType()),
}


def columns(ddl: str, *more: types.StructField) -> types.StructType:
    """Without Spark, which would want a session to read a schema."""
    pairs = (each.split() for each in ddl.split(", "))
    return types.StructType([*(types.StructField(name, KINDS[kind]) for name, kind in pairs), *more])


SCHEMA = columns("id BIGINT", types.StructField("_dead", columns(DEAD_DDL)))


class CutShort(BaseException):
    """The process died here."""


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = ["one", "two"]
        self.dead: dict[str, Any] | None = {"kind": "delta", "uri": str(folder / "dead")}

    @property
    def plan(self) -> str:
        targets = tuple({"kind": "delta", "uri": str(self.folder / name)} for name in self.names)
        return Plan("numbers", targets, dead_letters=self.dead).to_json()

    def writer(self, schema: types.StructType = SCHEMA, **options: str) -> TablesStreamWriter:
        made = TablesSink(options={"plan": self.plan, **options}).streamWriter(schema, False)
        return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]

    def staged(self, *tasks: range, batch: int = 0, query: str = "query-1") -> list[WriterCommitMessage | None]:
        told = PROPERTIES | {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
        return [
            pickle.loads(pickle.dumps(self.writer().stage(iter([some(task)]), told.get, at)))
            for at, task in enumerate(tasks)
        ]

    def commit(self, messages: list[WriterCommitMessage | None], batch: int = 0) -> None:
        self.writer().commit(messages, batch)

    def ids(self, name: str) -> list[int]:
        found = DeltaTable(self.folder / name).to_pyarrow_table().to_pylist()
        return sorted(each["id"] if "id" in each else each["offset"] for each in found)


def some(numbers: range) -> pa.RecordBatch:
    """Every fifth is dead."""
    kinds = pa.struct(list(letter_schema())[:-1])
    dead = [
        {"topic": "t", "partition": 0, "offset": number, "key": None, "value": b"v", "error": "odd"}
        if number % 5 == 0
        else None
        for number in numbers
    ]
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), pa.array(dead, kinds)], names=["id", "_dead"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def files(world: World, name: str) -> list[str]:
    return DeltaTable(world.folder / name).file_uris()


def test_few_rows_of_many_tasks_are_one_file(world: World) -> None:
    messages = world.staged(*(range(at, at + 3) for at in range(0, 300, 3)), range(0))
    assert not list(world.folder.rglob("*.parquet"))  # nothing that a crash could leave behind
    world.commit(messages)
    assert [len(files(world, name)) for name in ("one", "two", "dead")] == [1, 1, 1]
    assert world.ids("one") == [number for number in range(300) if number % 5]
    assert world.ids("dead") == list(range(0, 300, 5))
    world.commit(world.staged(range(300)))  # again, divided otherwise
    assert len(world.ids("one")) == 240


def test_tasks_with_many_rows_write_their_own_files_and_keep_their_place(world: World) -> None:
    large = TASK_ROWS_BYTES // 8 + 1
    messages = world.staged(range(1, 4), range(10), range(10, large + 10), range(large + 10, large + 20))
    assert [each.parts is None for each in messages if isinstance(each, sink.Staged)] == [True, True, False, True]
    world.names = ["one"]
    staged = world.writer()._all_staged([each for each in messages if isinstance(each, sink.Staged)])
    assert [sum(file.rows for file in each.parts[0]) for each in staged if each.parts] == [3 + 8, large * 4 // 5, 8]


def test_rows_are_divided(world: World) -> None:
    world.commit(world.staged(range(7), range(7, 12)))
    assert world.ids("one") == world.ids("two") == [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert world.ids("dead") == [0, 5, 10]
    [first, *_] = DeltaTable(world.folder / "dead").to_pyarrow_table().to_pylist()
    assert first["pipeline"] == "numbers"


@pytest.mark.parametrize("committed", [0, 1, 2, 3])
def test_a_commit_that_is_cut_short_is_completed_by_another_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch, committed: int
) -> None:
    """Spark stages the batch again, in other tasks, and asks again; some targets have their part already."""
    world.commit(world.staged(range(3)))
    real = DeltaTarget.commit
    left = iter(range(committed))

    def cut(self: DeltaTarget, *given: Any, **named: Any) -> Any:
        if next(left, None) is None:
            raise CutShort
        return real(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTarget, "commit", cut)
        with pytest.raises(CutShort) if committed < 3 else does_not_raise():
            world.commit(world.staged(range(3, 8), range(8, 11), batch=1), 1)
    world.writer().abort([None], 1)
    world.commit(world.staged(range(3, 4), range(4, 11), batch=1), 1)
    world.commit(world.staged(range(11, 13), batch=2), 2)
    assert world.ids("one") == world.ids("two") == [number for number in range(13) if number % 5]
    assert world.ids("dead") == [0, 5, 10]


def does_not_raise() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_targets_are_prepared_once_in_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark makes writers again for every batch."""
    asked: list[str] = []
    monkeypatch.setattr(DeltaTarget, "prepare", lambda self, schema: asked.append(self.label))
    world.writer()
    world.writer()
    assert len(asked) == 3
    world.names.append("three")
    world.writer()
    assert len(asked) == 7
    monkeypatch.setattr(sink.time, "monotonic", lambda: 1e12)
    world.writer()
    assert len(asked) == 11


def test_abort_touches_nothing(world: World) -> None:
    messages = world.staged(range(3))
    world.commit(messages)
    world.writer().abort(messages, 0)
    assert world.ids("one") == [1, 2]


def test_a_task_that_fails_leaves_no_files(world: World) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield some(range(6))
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        world.writer().stage(failing(), PROPERTIES.get, 0)
    assert list(world.folder.rglob("*.parquet")) == []


def test_a_task_that_hands_over_nothing_is_not_passed_over(world: World) -> None:
    with pytest.raises(SinkExpired):
        world.commit([*world.staged(range(3)), None])
    assert world.ids("one") == []


def test_times_of_another_zone_and_types_of_another_width_are_made_ours(world: World) -> None:
    world.names, world.dead = ["one"], None
    writer = world.writer(columns("at TIMESTAMP, text STRING, list INTS"))
    kinds = {"at": pa.timestamp("us", tz="Europe/Berlin"), "text": pa.large_string(), "list": pa.list_(pa.int32())}
    rows = pa.RecordBatch.from_pylist([{"at": 1_000_000, "text": "x", "list": [1]}], schema=pa.schema(kinds.items()))
    writer.commit([writer.stage(iter([rows]), PROPERTIES.get, 0)], 0)
    [found] = DeltaTable(world.folder / "one").to_pyarrow_table().to_pylist()
    assert (found["at"].timestamp(), found["text"], found["list"]) == (1.0, "x", [1])


def test_where_the_input_ends_is_remembered(world: World, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text('v1\n{}\n{"t": 7}')
    writer = world.writer(checkpointLocation=f"file://{tmp_path}/checkpoint")
    writer.commit(world.staged(range(3)), 0)
    [told] = DeltaTable(world.folder / "one").history(1)
    assert told["danube"]["source"] == '[{"t":7}]'


def test_a_write_outside_of_a_stream_is_refused(world: World) -> None:
    writer = TablesSink(options={"plan": world.plan}).writer(SCHEMA, False)
    assert isinstance(writer, TablesBatchWriter)
    with pytest.raises(OptionInvalid, match="no batch of a query"):
        writer.stage(iter([]), lambda _: None, 0)


def test_a_write_may_say_itself_whose_batch_it_is(world: World) -> None:
    told = {"query": "q", "run": "r", "batch": "7"}
    writer = TablesSink(options={"plan": world.plan, **told}).writer(SCHEMA, False)
    mark = writer.stage(iter([]), lambda _: None, 0).mark
    assert (mark.query, mark.run, mark.batch) == ("q", "r", 7)
    for wrong in ({"query": "q"}, told | {"batch": "-1"}, told | {"batch": "9" * 5_000}, told | {"run": ""}):
        with pytest.raises(OptionInvalid, match="must be given together"):
            TablesSink(options={"plan": world.plan, **wrong}).writer(SCHEMA, False)


def test_what_a_sink_is_not_told(world: World) -> None:
    for options, named in (
        ({}, "needs the option plan"),
        ({"plan": "x"}, "not valid JSON"),
        ({"plan": world.plan, "path": "/x"}, "no option 'path'"),
    ):
        with pytest.raises(OptionInvalid, match=named):
            TablesSink(options=options).streamWriter(SCHEMA, False)
    for schema, named in (
        (columns("_dead INT, id BIGINT"), "must be the last one"),
        (columns("id BIGINT, _dead INT"), "must be a STRUCT of"),
    ):
        with pytest.raises(OptionInvalid, match=named):
            world.writer(schema)
    with pytest.raises(SchemaMismatch, match="twice"):
        world.writer(columns("id BIGINT, ID BIGINT"))
    with pytest.raises(SchemaMismatch, match="which Delta tables do not support"):
        world.writer(columns("took INTERVAL"))
    for odd in (types.VariantType(), types.NullType(), types.ArrayType(types.VariantType()), types.TimeType()):
        with pytest.raises(SchemaMismatch, match="the column a is or contains"):
            world.writer(types.StructType([types.StructField("a", odd)]))
    named_so = types.StructType([types.StructField("void", types.LongType())])
    assert arrow_schema(types.StructType([types.StructField("variant", named_so)])).names == ["variant"]
    with pytest.raises(OptionInvalid, match="can only be written to"):
        TablesSink(options={}).schema()
    world.names.append("one")
    with pytest.raises(OptionInvalid, match="one is written to twice"):
        world.writer()
    assert list(world.folder.iterdir()) == []
