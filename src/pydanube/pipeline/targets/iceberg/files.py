"""A task's rows as data files of an Iceberg table, with its columns, types and ids, each file for one partition.

No table lists these files until the driver commits them. Their names are unique to the attempt, and do not contain the
values of the partition, which an Iceberg table has in its manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import compute_statistics_plan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import LocationProvider
from pyiceberg.typedef import Record

from pydanube.base.errors import SchemaMismatch
from pydanube.base.limits import TABLE_FILE_BYTES
from pydanube.pipeline.targets.files.partitioned import HELD_BYTES, Part, PartitionedFiles, Values, divided
from pydanube.pipeline.targets.iceberg.metrics import metrics
from pydanube.pipeline.targets.iceberg.types import file_schema

Columns = tuple[tuple[int, str, str], ...]  # ids, types and names


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file, and the state of the table that it was written for."""

    path: str
    size: int
    partition: tuple[Any, ...]
    metrics: dict[str, Any]
    table: str  # its uuid
    spec: int
    columns: Columns

    @property
    def rows(self) -> int:
        return int(self.metrics["record_count"])

    def data_file(self) -> DataFile:
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*self.partition),
            file_size_in_bytes=self.size,
            sort_order_id=None,  # the rows have no order that the table knows
            spec_id=self.spec,
            equality_ids=None,
            key_metadata=None,
            **self.metrics,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """What a task needs to know about the table."""

    table: str
    label: str
    schema: Schema  # the columns of the table that are also in the rows
    arrow: pa.Schema
    spec: int
    partition_by: tuple[str, ...]  # the source columns of its partition fields, in their order
    properties: dict[str, str]
    locations: LocationProvider
    io: FileIO

    @classmethod
    def of(cls, table: Table, rows: pa.Schema, label: str) -> Layout:
        schema, arrow = file_schema(table.schema(), rows)
        sources = tuple(table.schema().find_field(each.source_id).name for each in table.spec().fields)
        spec, locations = table.spec().spec_id, table.location_provider()
        uuid = str(table.metadata.table_uuid)
        return cls(uuid, label, schema, arrow, spec, sources, table.properties, locations, table.io)

    @property
    def columns(self) -> Columns:
        return columns_of(self.schema)

    def conform(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with exactly the table's types. Raises `SchemaMismatch` for a value that does not fit."""
        columns = []
        for each in self.arrow:
            column = rows.column(each.name)
            if not each.nullable and column.null_count:
                raise SchemaMismatch(f"{self.label} requires {each.name} in every row, but a row has none")
            try:
                columns.append(column if column.type == each.type else column.cast(each.type))
            except pa.ArrowException as error:
                raise SchemaMismatch(f"the column {each.name} does not fit into {self.label}: {error}") from None
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def columns_of(schema: Schema) -> Columns:
    return tuple((each.field_id, str(each.field_type), each.name) for each in schema.fields)


class IcebergFiles(PartitionedFiles[StagedFile]):
    """Writes a task's files. Raises `SchemaMismatch`, and any error of the table's storage."""

    def __init__(
        self, layout: Layout, task: str, *, file_bytes: int = TABLE_FILE_BYTES, held_bytes: int = HELD_BYTES
    ) -> None:
        super().__init__(layout.arrow, layout.partition_by, file_bytes, held_bytes)
        self._layout = layout
        self._task = task

    def _divided(self, rows: pa.RecordBatch) -> list[tuple[Values, pa.RecordBatch]]:
        return divided(self._layout.conform(rows), self._partition_by, plain)

    def _open(self, part: Part) -> None:
        part.path = self._layout.locations.new_data_location(f"{self._task}-{len(self._begun)}.parquet")
        self._begun.append(part.path)
        part.output = self._layout.io.new_output(part.path).create(overwrite=True)
        part.writer = pq.ParquetWriter(
            part.output,
            self._schema,
            compression="zstd",
            coerce_timestamps="us",
            store_decimal_as_integer=True,
            store_schema=False,
        )

    def _described(self, part: Part, metadata: Any, size: int) -> StagedFile:
        layout = self._layout
        leaves = list(compute_statistics_plan(layout.schema, layout.properties).values())
        described = metrics(metadata, leaves)
        return StagedFile(part.path, size, part.values, described, layout.table, layout.spec, layout.columns)

    def _delete(self, paths: Sequence[str]) -> None:
        remove(self._layout.io, paths)


def remove(io: FileIO, paths: Sequence[str]) -> None:
    """Deletes files; ignores failures, because files that no table lists do no harm."""
    for path in paths:
        with suppress(Exception):
            io.delete(path)


def plain(value: pa.Scalar) -> Any:
    """The value for a manifest: times and dates are numbers, even outside Python's range."""
    if pa.types.is_timestamp(value.type) or pa.types.is_date(value.type):
        return value.value
    return value.as_py()
