"""A task's rows as Parquet files: divided by partition columns, closed at a size, with statistics for Delta.

No table lists these files until the driver commits them. Their names are unique to the attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pydanube.base.errors import SchemaMismatch
from pydanube.base.limits import TABLE_FILE_BYTES
from pydanube.pipeline.targets.files.folders import Folder, folder_at
from pydanube.pipeline.targets.files.partitioned import HELD_BYTES, Part, PartitionedFiles, Values, divided
from pydanube.pipeline.targets.statistics import file_statistics

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_PATH_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "\"#%'*/:=?\\{[]^<>|`}")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """`path` is relative to the folder. `stats` is None unless it was asked for."""

    path: str
    size: int
    rows: int
    values: tuple[tuple[str, str | None], ...] = ()
    stats: dict[str, Any] | None = None


class ParquetFiles(PartitionedFiles[WrittenFile]):
    """`below` is the subfolder for the files. With `stats`, they get statistics for Delta, which has the values of
    partitions in its log."""

    def __init__(
        self,
        uri: str,
        schema: pa.Schema,
        task: str,
        partition_by: Sequence[str] = (),
        *,
        below: str = "",
        stats: bool = False,
        file_bytes: int = TABLE_FILE_BYTES,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        rest = pa.schema([each for each in schema if each.name not in partition_by])
        super().__init__(rest, partition_by, file_bytes, held_bytes)
        self._uri = uri
        self._task = task
        self._below = below
        self._stats = stats
        self._folder: Folder | None = None

    def _opened_folder(self) -> Folder:
        if self._folder is None:
            self._folder = folder_at(self._uri)
        return self._folder

    def _divided(self, rows: pa.RecordBatch) -> list[tuple[Values, pa.RecordBatch]]:
        found = divided(rows, self._partition_by, lambda value: text_of(value.as_py()))
        return [(values, some.drop_columns(list(self._partition_by))) for values, some in found]

    def _open(self, part: Part) -> None:
        step = plain_step if self._stats else hive_step
        steps = [step(name, value) for name, value in zip(self._partition_by, part.values, strict=True)]
        name = f"part-{self._task}-{len(self._begun)}.snappy.parquet"
        part.path = "/".join([*([self._below] if self._below else []), *steps, name])
        self._begun.append(part.path)
        part.output = self._opened_folder().create(part.path)
        part.writer = pq.ParquetWriter(
            part.output,
            self._schema,
            compression="snappy",
            coerce_timestamps="us",
            use_dictionary=_dictionary_columns(self._schema),
            store_schema=False,
        )

    def _written(self, part: Part, rows: pa.Table) -> None:
        part.nan.update(_with_nan(rows, part.nan))

    def _described(self, part: Part, metadata: Any, size: int) -> WrittenFile:
        values = tuple(zip(self._partition_by, part.values, strict=True))
        stats = file_statistics(metadata, self._schema, part.nan) if self._stats else None
        return WrittenFile(part.path, size, metadata.num_rows, values, stats)

    def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with suppress(Exception):
                self._opened_folder().delete(path)


def _dictionary_columns(schema: pa.Schema) -> list[str] | bool:
    """Bytes of keys and payloads hardly repeat, so a dictionary costs more than it saves."""
    simple = [each.name for each in schema if not pa.types.is_binary(each.type)]
    return simple if len(simple) < len(schema) else True


def _with_nan(rows: pa.Table, known: set[str]) -> list[str]:
    return [
        each.name
        for each in rows.schema
        if each.name not in known
        and pa.types.is_floating(each.type)
        and pc.any(pc.is_nan(rows.column(each.name))).as_py()
    ]


# -- partitions --------------------------------------------------------------------------------------------------------


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises `SchemaMismatch`."""
    for name in partition_by:
        if name not in schema.names:
            raise SchemaMismatch(f"partition_by names {name[:100]}, which is not a column of the rows")
        kind = schema.field(name).type
        simple = (
            pa.types.is_string(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_date(kind)
            or pa.types.is_timestamp(kind)
        )
        if not simple:
            raise SchemaMismatch(f"a table cannot be partitioned by {name[:100]}, which is {kind}: cast it")
    if partition_by and len(partition_by) >= len(schema):
        raise SchemaMismatch("partition_by names all columns; the files need at least one")


def text_of(value: Any) -> str | None:
    """The value of a partition as Delta and Hive write it. An empty text is null."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            if value.tzinfo is None:
                return value.isoformat(sep=" ")
            # With Z, because readers take a time without it as local.
            return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        case date():
            return value.isoformat()
        case _:
            return str(value)


def escaped(text: str) -> str:
    """A step of a path, in which special characters are escaped as Hive does it. Letters beyond ASCII are kept."""
    return "".join(
        each if each in _PATH_SAFE or ord(each) > 0x7F or each == " " else f"%{ord(each):02X}" for each in text
    )


def hive_step(name: str, value: str | None) -> str:
    """Readers of folders take the value from this step."""
    return f"{escaped(name)}={NO_VALUE if value is None else escaped(value)}"


def plain_step(name: str, value: str | None) -> str:
    """Readers of tables take the value from the log, but some take it from here. All understand this spelling."""
    return f"{quote(name, safe='')}={NO_VALUE if value is None else quote(value, safe='')}"
