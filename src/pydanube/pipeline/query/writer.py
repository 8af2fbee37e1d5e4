"""`format("danube_tables")` writes all rows of a pipeline's batch to all of its targets in one pass.

`write` runs in executors, at least once for each task; `commit` runs on the driver at the end. A task with few rows
passes them to the driver, which stages those of all such tasks together. Dead letters are committed first, then the
targets in their order. Each target remembers the batch, so if a commit is interrupted anywhere, the next attempt
completes the rest and repeats nothing. `abort` has nothing to do.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pydanube.base.errors import OptionInvalid, SchemaMismatch
from pydanube.base.limits import TASK_ROWS_BYTES
from pydanube.pipeline.spec.columns import DEAD
from pydanube.pipeline.spec.plan import Plan, target_of
from pydanube.pipeline.targets.mark import Mark, dead_letters
from pydanube.pipeline.targets.target import CHANGE, Stager, Target, with_change
from pydanube.spark.committing import BATCH, QUERY, run_of, source_end
from pydanube.spark.durable import sync_checkpoint
from pydanube.spark.error_help import with_help
from pydanube.spark.sink import TaskWriter, of_one_write

if TYPE_CHECKING:
    import pyarrow as pa

DEAD_DDL = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, event_time TIMESTAMP, key BINARY, "
    "attributes MAP<STRING,STRING>, value BINARY, error STRING, rule STRING"
)
PREPARED_SECONDS = 30.0  # a target counts as prepared: Spark creates two writers for every batch
PREPARED_MAX = 100
BATCH_DIGITS_MAX = 18
_UNTAKEN = re.compile(r"(?<![\w`])(variant|void|geometry|geography|time\(\d\))(?![\w`:])")  # as Spark spells them
_IDENTITY = ("query", "run", "batch")  # which write it is; over Connect, within foreachBatch, Spark does not say
_OPTIONS = {"plan", "checkpointlocation", "queryname", *_IDENTITY}  # Spark itself sets the query's name


_prepared: dict[tuple[str, str, bool, bool], float] = {}  # until when, in this process; a commit always checks again


@dataclass
class Staged(WriterCommitMessage):
    """What a task passes to the driver: a part for each target, or the rows themselves if they are few."""

    mark: Mark
    parts: list[Any] | None
    dead: Any = None
    rows: bytes = b""  # in Arrow's format, if there are no parts
    letters: bytes = b""


class _Writer(TaskWriter):
    """Copied to every task."""

    def __init__(
        self,
        plan: Plan,
        schema: pa.Schema,
        *,
        dead: bool,
        change: bool,
        replace: bool,
        checkpoint: str | None,
        identity: tuple[str, str, int] | None = None,
    ) -> None:
        self._plan = plan
        self._targets = [target_of(spec) for spec in plan.targets]
        self._letters = target_of(plan.dead_letters) if plan.dead_letters is not None and dead else None
        self._schema = schema  # of rows that fit, as tables store them
        self._rows_schema = with_change(schema) if change else schema  # as rows arrive
        self._letter_schema = letter_schema()
        self._replace = replace
        self._checkpoint = checkpoint
        self._identity = identity

    def prepare(self) -> None:
        """On the driver, before there is any row: refuses what cannot be written."""
        key = (self._plan.to_json(), str(self._schema), self._replace, self._letters is None)
        if time.monotonic() < _prepared.get(key, 0.0):
            return
        for spec, target in zip(self._plan.targets, self._targets, strict=True):
            if self._replace and spec.get("upsert"):
                raise OptionInvalid(
                    f"{target.label}: upsert cannot be combined with complete mode, which writes everything again"
                )
        self._check_apart()
        missing = [(target, schema) for target, schema, replace in self._all() if target.check(schema, replace=replace)]
        for target, schema in missing:
            target.prepare(schema)
        if len(_prepared) >= PREPARED_MAX:
            _prepared.clear()
        _prepared[key] = time.monotonic() + PREPARED_SECONDS

    def _all(self) -> list[tuple[Target, pa.Schema, bool]]:
        found = [(target, self._schema, self._replace) for target in self._targets]
        return [*found, (self._letters, self._letter_schema, False)] if self._letters is not None else found

    def _check_apart(self) -> None:
        known: set[str] = set()
        for target, _, _ in self._all():
            if target.identity in known:
                raise OptionInvalid(
                    f"{target.label} is written to twice by one pipeline; only the first write would count"
                )
            known.add(target.identity)

    def stage(self, rows: Iterator[pa.RecordBatch], property_of: Callable[[str], str | None], partition: int) -> Staged:
        mark = mark_of(self._plan.pipeline, property_of, self._identity)
        few: list[tuple[pa.RecordBatch, pa.RecordBatch | None]] = []
        room = TASK_ROWS_BYTES
        divided = map(self._divided, rows)
        for each in divided:
            few.append(each)
            room -= each[0].nbytes + (0 if each[1] is None else each[1].nbytes)
            if room < 0:
                return self._staged(mark, partition, chain(few, divided))
        good, bad = [each for each, _ in few if len(each)], [each for _, each in few if each is not None]
        return Staged(mark, None, rows=packed(good, self._rows_schema), letters=packed(bad, self._letter_schema))

    def _staged(
        self, mark: Mark, task: int, rows: Iterable[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]
    ) -> Staged:
        """Stages rows that fit with all targets, and the others with that of dead letters."""
        name = f"{mark.batch}-{task}-{uuid4().hex}"
        stagers: list[Stager] = []
        try:
            letters = None
            if self._letters is not None:
                letters = self._letters.open(dead_letters(mark), self._letter_schema, name)
                stagers.append(letters)
            for target in self._targets:
                schema = self._rows_schema if target.takes_changes else self._schema
                stagers.append(target.open(mark, schema, name))
            mains = stagers[letters is not None :]
            for good, bad in rows:
                if good is not None and len(good):
                    self._add(mains, good)
                if letters is not None and bad is not None:
                    letters.add(bad)
            dead = letters.finish() if letters is not None else None
            return Staged(mark, [stager.finish() for stager in mains], dead)
        except BaseException:
            for stager in stagers:
                stager.drop()
            raise

    def _add(self, stagers: Sequence[Stager], rows: pa.RecordBatch) -> None:
        plain = rows.drop_columns([CHANGE]) if CHANGE in rows.schema.names else rows
        for target, stager in zip(self._targets, stagers, strict=True):
            stager.add(rows if target.takes_changes else plain)

    def _all_staged(self, messages: Sequence[Staged]) -> list[Staged]:
        """Stages the rows of tasks that had few: one file for neighbouring tasks, in their order, not one for each."""
        found: list[Staged] = []
        for few, run in groupby(messages, lambda each: each.parts is None):
            if not few:
                found += run
                continue
            tasks = list(run)
            rows = [(each, None) for task in tasks for each in unpacked(task.rows)]
            letters = [(None, each) for task in tasks for each in unpacked(task.letters)]
            if rows or letters:
                found.append(self._staged(tasks[0].mark, len(found), chain(rows, letters)))
        return found

    def _divided(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """The rows that fit, and dead letters for the others, if there are any."""
        import pyarrow.compute as pc

        bad = None
        if DEAD in rows.schema.names:
            wrong = rows.column(rows.schema.names.index(DEAD))
            rows = rows.drop_columns([DEAD])
            if wrong.null_count < len(wrong):
                bad = _letters_of(wrong.drop_null(), self._plan.pipeline, self._letter_schema)
                rows = rows.filter(pc.is_null(wrong))
        if not rows.schema.equals(self._rows_schema):
            rows = rows.select(self._rows_schema.names).cast(self._rows_schema)  # `_change` may be anywhere
        return rows, bad

    def commit_all(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        tasks = of_one_write(messages, Staged, lambda each: each.mark)
        if not tasks:
            return
        staged, mark, replaces = self._all_staged(tasks), tasks[0].mark, self._plan.replaces
        mark = dataclasses.replace(mark, source=source_end(self._checkpoint, mark.batch))
        if self._letters is not None:
            parts = [each.dead for each in staged if each.dead is not None]
            self._letters.commit(dead_letters(mark), self._letter_schema, parts, replace=False, replaces=replaces)
        for number, target in enumerate(self._targets):
            parts = [each.parts[number] for each in staged if each.parts and each.parts[number] is not None]
            target.commit(mark, self._schema, parts, replace=self._replace, replaces=replaces)


class TablesBatchWriter(_Writer, DataSourceArrowWriter):
    """Within foreachBatch, for a batch of the query."""


class TablesStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`writeStream.format("danube_tables")`. Spark creates one for each task and each commit."""


Kind = TypeVar("Kind", bound=_Writer)


class TablesSink(DataSource):
    """`format("danube_tables")` of `df.writeStream`, and of `df.write` within foreachBatch.

    Spark asks for a writer when it plans a batch. By then the batch's offsets are in the checkpoint, which is synced
    before anything is written, so that the batch can be repeated after a power failure.
    """

    @classmethod
    def name(cls) -> str:
        return "danube_tables"

    @with_help
    def schema(self) -> str:
        raise OptionInvalid("danube_tables can only be written to, by pipelines; read a table at its own location")

    def writer(self, schema: StructType, overwrite: bool) -> TablesBatchWriter:
        return self._prepared(TablesBatchWriter, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TablesStreamWriter:
        return self._prepared(TablesStreamWriter, schema, overwrite)

    @with_help
    def _prepared(self, kind: type[Kind], schema: StructType, overwrite: bool) -> Kind:
        sync_checkpoint(self.options.get("checkpointLocation"))
        writer = kind(*_given(self.options, schema), **_arguments(self.options, schema, overwrite))
        writer.prepare()
        return writer


def mark_of(
    pipeline: str, property_of: Callable[[str], str | None], identity: tuple[str, str, int] | None = None
) -> Mark:
    """The batch that is written, from the properties of Spark's job or as given."""
    if identity is not None:
        return Mark(pipeline, *identity)
    query, batch = property_of(QUERY), property_of(BATCH)
    if query is None or batch is None:
        raise OptionInvalid(
            "danube_tables works only in streams and in foreachBatch: no batch of a query is being written"
        )
    return Mark(pipeline, query, run_of(property_of), int(batch))


def packed(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """The rows as a stream of Arrow; empty if there are none."""
    import pyarrow as pa

    if not batches:
        return b""
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, schema) as stream:
        for each in batches:
            stream.write_batch(each)
    found: bytes = output.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> list[pa.RecordBatch]:
    import pyarrow as pa

    return list(pa.ipc.open_stream(data)) if data else []


def letter_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("event_time", pa.timestamp("us", tz="UTC")),
            ("key", pa.binary()),
            ("attributes", pa.map_(pa.string(), pa.string())),
            ("value", pa.binary()),
            ("error", pa.string()),
            ("rule", pa.string()),
            ("pipeline", pa.string()),
        ]
    )


def _letters_of(wrong: pa.StructArray, pipeline: str, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [*wrong.flatten(), pa.repeat(pa.scalar(pipeline), len(wrong))]
    columns = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _given(options: Mapping[str, str], schema: StructType) -> tuple[Plan, pa.Schema]:
    for name in options:
        if name.lower() not in _OPTIONS:
            raise OptionInvalid(f"danube_tables has no option {name[:100]!r}; it has plan and checkpointLocation")
    if "plan" not in options:
        raise OptionInvalid("danube_tables needs the option plan: it says whose rows these are and where they go")
    plan = Plan.from_json(options["plan"])
    if DEAD in schema.names:
        if schema.names[-1] != DEAD or plan.dead_letters is None:
            raise OptionInvalid(f"the column {DEAD} must be the last one, and needs dead_letters in the plan")
        kind = schema.fields[-1].dataType
        if not isinstance(kind, StructType) or kind.names != letter_schema().names[:-1]:
            raise OptionInvalid(f"the column {DEAD} must be a STRUCT of {DEAD_DDL}")
    return plan, arrow_schema(StructType([field for field in schema.fields if field.name not in (CHANGE, DEAD)]))


def _arguments(options: Mapping[str, str], schema: StructType, overwrite: bool) -> dict[str, Any]:
    return {
        "dead": DEAD in schema.names,
        "change": CHANGE in schema.names,
        "replace": overwrite,
        "checkpoint": options.get("checkpointLocation"),
        "identity": _identity(options),
    }


def _identity(options: Mapping[str, str]) -> tuple[str, str, int] | None:
    given = [options.get(name) for name in _IDENTITY]
    if given == [None] * len(_IDENTITY):
        return None
    query, run, batch = given
    if not query or not run or not batch or not batch.isdecimal() or len(batch) > BATCH_DIGITS_MAX:
        raise OptionInvalid("query, run and batch must be given together: whose batch this is, and its number")
    return query, run, int(batch)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of rows as targets get them: every column may be null, and times are in UTC."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    if not schema.fields:
        raise SchemaMismatch("the rows have no columns")
    folded = [name.casefold() for name in schema.names]
    for name in schema.names:
        if folded.count(name.casefold()) > 1:
            raise SchemaMismatch(f"the column {name[:100]} is given twice")
    for field in schema.fields:
        if odd := _UNTAKEN.search(field.dataType.simpleString()):
            raise SchemaMismatch(
                f"the column {field.name[:100]} is or contains {odd[0].upper()}, which no target supports"
            )
    try:
        found = to_arrow_schema(schema, timezone="UTC")
    except (PySparkException, TypeError) as error:
        raise SchemaMismatch(f"a column has a type that no target supports: {str(error)[:200]}") from None
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in found])


def _nullable(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _nullable(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    return kind
