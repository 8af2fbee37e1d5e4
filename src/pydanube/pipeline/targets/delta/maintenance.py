"""Small files of a Delta table are merged, and files that it took out long ago are deleted.

Merging changes no row: its commit says so (`dataChange: false`), and streams that read the table pass over it. The
library's own OPTIMIZE is not used: of two that run at the same time both go through, and every row is there twice.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from pydanube.base.errors import TargetFailed
from pydanube.pipeline.targets.delta.durable import hooks_for
from pydanube.pipeline.targets.files.folders import folder_at
from pydanube.pipeline.targets.files.parquet_files import ParquetFiles, WrittenFile, text_of
from pydanube.pipeline.targets.maintenance import Maintenance, groups

HOUR_SECONDS = 3_600
VACUUM_SECONDS = 24 * HOUR_SECONDS
VACUUMED = "danube.vacuumed"  # the app transaction that says when, in seconds; no pipeline has that name
READ_ROWS = 64 * 1024

Values = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as the table lists it. `logged` is its path in the log, where it is quoted."""

    logged: str
    size: int
    values: Values

    @property
    def path(self) -> str:
        return unquote(self.logged)


def maintain(
    uri: str,
    open_table: Callable[[], DeltaTable | None],
    wanted: Maintenance,
    settle: Callable[[DeltaTable, int], None],
) -> None:
    """Raises whatever the table's storage does; what was not committed is taken away. `settle` is told each version
    that was made, to have it on disk.
    """
    if wanted.compact and (table := open_table()) is not None and _mergeable(table):
        listed = listed_files(table)
        for group in groups(listed, lambda each: each.values, lambda each: each.size):
            table = open_table() or table
            if not _merge(uri, table, group):
                return
            settle(table, table.version() + 1)
    if wanted.expire_seconds is not None and (table := open_table()) is not None:
        _vacuum(uri, table, wanted.expire_seconds)
        settle(table, table.version())


def _mergeable(table: DeltaTable) -> bool:
    """Rows that a deletion vector hides would come back."""
    protocol = table.protocol()
    return "deletionVectors" not in {*(protocol.writer_features or ()), *(protocol.reader_features or ())}


def listed_files(table: DeltaTable) -> list[ListedFile]:
    columns = table.metadata().partition_columns
    found: Any = pa.table(table.get_add_actions(flatten=True))
    names = ["path", "size_bytes", *(f"partition.{name}" for name in columns)]
    return [
        ListedFile(row["path"], row["size_bytes"], tuple((name, text_of(row[f"partition.{name}"])) for name in columns))
        for row in found.select(names).to_pylist()
    ]


def _merge(uri: str, table: DeltaTable, group: Sequence[ListedFile]) -> bool:
    """Whether it went through: if others were faster, nobody knows which of these files are still there."""
    listed = {each.logged for each in listed_files(table)}
    if not listed.issuperset(each.logged for each in group):
        return False
    values = group[0].values
    schema = pa.schema(table.schema().to_arrow())
    rest = pa.schema([field for field in schema if field.name not in dict(values)])
    files = ParquetFiles(uri, rest, f"merged-{uuid4().hex}", stats=True, below=_folder_of(group[0]))
    try:
        rows = sum(_copied(uri, each, rest, files) for each in group)
        written = files.finish() or []
        if sum(file.rows for file in written) != rows:
            raise TargetFailed(f"{rows} rows were to be merged, but a different number was written")
    except BaseException:
        files.drop()
        raise
    try:
        _commit(uri, table, group, written, values)
    except CommitFailedError:  # after any other error the commit may be there, and the new files with it
        files.drop()
        return False
    return True


def _folder_of(file: ListedFile) -> str:
    return file.path.rpartition("/")[0]


def _copied(uri: str, file: ListedFile, schema: pa.Schema, files: ParquetFiles) -> int:
    content = folder_at(uri).read(file.path)
    if content is None:
        raise TargetFailed(f"a file of the table is gone: {file.path}")
    rows = 0
    for each in pq.ParquetFile(io.BytesIO(content)).iter_batches(READ_ROWS):
        files.add(_conformed(each, schema))
        rows += len(each)
    return rows


def _conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """With the columns that the table has now: those that came later are null. Raises if a value does not fit."""
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _commit(uri: str, table: DeltaTable, old: Sequence[ListedFile], new: Sequence[WrittenFile], values: Values) -> None:
    now = time.time_ns() // 1_000_000
    partition: Mapping[str, str | None] = dict(values)
    adds = [
        AddAction(each.path, each.size, dict(partition), now, False, json.dumps(each.stats, allow_nan=False))
        for each in new
    ]
    removes = [RemoveAction(each.path, False, now, each.size, dict(partition)) for each in old]
    table.create_write_transaction(
        [*adds, *removes],
        mode="append",
        schema=table.schema(),
        partition_by=list(partition),
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=hooks_for(uri),
    )


def _vacuum(uri: str, table: DeltaTable, expire_seconds: int) -> None:
    """Once a day, whoever does it. Only files that the log names as taken out: it never looks for others."""
    now = int(time.time())
    if now - (table.transaction_version(VACUUMED) or 0) < VACUUM_SECONDS:
        return
    table.vacuum(
        retention_hours=-(-expire_seconds // HOUR_SECONDS),
        dry_run=False,
        enforce_retention_duration=False,
        commit_properties=CommitProperties(max_commit_retries=0, app_transactions=[Transaction(VACUUMED, now)]),
        post_commithook_properties=hooks_for(uri),
        full=False,
    )
