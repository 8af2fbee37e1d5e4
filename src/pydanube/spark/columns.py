"""The columns of a topic as Spark sees them, and Arrow batches with those that are requested.

Payloads and keys are the buffers that the broker sent. Values that many messages share are made once and sliced. Spark
shows `payload` as `value` and `append_time` as `timestamp`, as its users expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import ColumnInvalid
from pydanube.wire.arrow import to_record_batch
from pydanube.wire.batch import Batch
from pydanube.wire.columns import ColumnKind
from pydanube.wire.decode import decode_constant

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "event_time": "timestamp",
    "key": "binary",
    "value": "binary",
}
ATTRIBUTES = {"attributes": "map<string,string>"}
META = {
    "producer": "bigint",
    "sequence": "bigint",
    "schema_id": "bigint",
    "schema_version": "int",
    "publish_time": "timestamp",
}
WATERMARK = {"watermark": "timestamp"}  # of the batch; only for a query that names its checkpoint
ALL = DEFAULT | ATTRIBUTES | META
STORED = {  # by their names in a batch
    "event_time": "event_time",
    "key": "key",
    "value": "payload",
    "attributes": "attributes",
    "schema_id": "schema_id",
    "schema_version": "schema_version",
    "publish_time": "publish_time",
}
IN_SEGMENTS = STORED | {  # by their names in a segment, which has a value in every row
    "offset": "offset",
    "timestamp": "append_time",
    "producer": "producer",
    "sequence": "sequence",
}
TYPE_CHARS_MAX = 100  # of a type, in an error
CONSTANT_ROWS_MIN = 4_096  # of a value that all rows share, made at a time


def ddl(*, attributes: bool, meta: bool, decoded: dict[str, str] | None = None, watermark: bool = False) -> str:
    """The default schema of a read. `decoded` are the columns that payloads are decoded into."""
    shown = DEFAULT | (decoded or {}) | (ATTRIBUTES if attributes else {}) | (META if meta else {})
    shown |= WATERMARK if watermark else {}
    return ", ".join(f"`{name}` {kind}" for name, kind in shown.items())


def check_schema(fields: Iterable[tuple[str, str]], decoded: dict[str, str] | None = None) -> tuple[str, ...]:
    """The names of the requested columns, which are given by name and type."""
    there = ALL | (decoded or {})
    names: list[str] = []
    for name, kind in fields:
        if name not in there:
            nearest = get_close_matches(name, there, 1, 0.0)
            raise ColumnInvalid(f"a topic has no column {name[:100]!r}; did you mean {nearest[0]}?")
        if kind != there[name]:
            raise ColumnInvalid(f"the column {name} must be {_type(there[name])}, not {_type(kind)}")
        if name in names:
            raise ColumnInvalid(f"the column {name} is given twice")
        names.append(name)
    if not names:
        raise ColumnInvalid("a schema must have at least one column")
    return tuple(names)


def _type(kind: str) -> str:
    """The type for an error. Names of fields keep their case."""
    return kind[:TYPE_CHARS_MAX] if kind.startswith("struct") else kind[:TYPE_CHARS_MAX].upper()


class Columns:
    """Makes Arrow batches with some columns. Belongs to one task."""

    def __init__(self, names: Sequence[str], watermark: int | None = None) -> None:
        """`watermark` is the value of that column, in microseconds."""
        import pyarrow as pa

        time = pa.timestamp("us", tz="UTC")
        kinds = {
            "string": pa.string(),
            "int": pa.int32(),
            "bigint": pa.int64(),
            "timestamp": time,
            "binary": pa.binary(),
            "map<string,string>": pa.map_(pa.string(), pa.string()),
        }
        self._types = {name: kinds[(ALL | WATERMARK)[name]] for name in names}
        self._watermark = watermark
        self.schema = pa.schema(list(self._types.items()))
        self._stored = [name for name in names if name in STORED]
        self.in_segments = sorted({"offset"} | {IN_SEGMENTS[name] for name in names if name in IN_SEGMENTS})
        self._constants: dict[str, tuple[Any, pa.Array]] = {}

    def batch(self, content: Batch, topic: str, partition: int, first: int, last: int) -> pa.RecordBatch:
        """The messages `first` to `last` of a batch."""
        import pyarrow as pa

        at, count = first - content.base_offset, last - first + 1
        stored = self._stored_columns(content) if self._stored else {}
        implied = {
            "topic": topic,
            "partition": partition,
            "timestamp": content.append_time,
            "producer": content.producer_id,
            "publish_time": content.publish_time,
            "watermark": self._watermark,
        }
        arrays: list[pa.Array] = []
        for name, kind in self._types.items():
            if name == "offset":
                arrays.append(_count_from(first, count))
            elif name == "sequence":
                arrays.append(_count_from(content.first_sequence + at, count))
            elif isinstance(found := stored.get(name), pa.Array):
                arrays.append(found if count == content.count else found.slice(at, count))
            else:
                arrays.append(self._repeat(name, kind, implied.get(name) if found is None else found, count))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def rows(self, found: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """A batch of rows that have the columns `in_segments`."""
        import pyarrow as pa

        implied = {"topic": topic, "partition": partition, "watermark": self._watermark}
        arrays: list[pa.Array] = []
        for name, kind in self._types.items():
            if name in implied:
                arrays.append(self._repeat(name, kind, implied[name], len(found)))
            else:
                array = found.column(IN_SEGMENTS[name])
                arrays.append(array if array.type == kind else array.cast(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _stored_columns(self, content: Batch) -> dict[str, Any]:
        """For each column an array, or one value if all messages of the batch have the same."""
        record = to_record_batch(content)
        names = record.schema.names
        found: dict[str, Any] = {
            name: record.column(names.index(STORED[name])) for name in self._stored if STORED[name] in names
        }
        plain = content.plain_section()
        for column, where in plain.fixed.items():
            if where.kind == ColumnKind.CONSTANT:
                found[column.name.lower()] = decode_constant(plain, where)
        return found

    def _repeat(self, name: str, kind: pa.DataType, value: Any, count: int) -> pa.Array:
        import pyarrow as pa

        known, array = self._constants.get(name, (None, None))
        if array is None or known != value or len(array) < count:
            rows = max(count, CONSTANT_ROWS_MIN)
            array = pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)
            self._constants[name] = (value, array)
        return array if len(array) == count else array.slice(0, count)


def _count_from(first: int, count: int) -> pa.Array:
    import numpy as np  # comes with Spark's own Arrow path
    import pyarrow as pa

    return pa.array(np.arange(first, first + count, dtype=np.int64))
