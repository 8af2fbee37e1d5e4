"""Merges small files of a Delta table, and deletes files that were removed from it long ago.

Merging changes no row. Its commit says so (`dataChange: false`), and streams that read the table skip it. The library's
own OPTIMIZE is not used: if two run at the same time, both succeed, and every row is in the table twice.
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
VACUUMED = "danube.vacuumed"  # the app transaction with the time, in seconds; no pipeline can have this name
READ_ROWS = 64 * 1024

Values = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as the table lists it. `logged` is its path in the log, which is quoted."""

    logged: str
    size: int
    values: Values

    @property
    def path(self) -> str:
        return unquote(self.logged)


def maintain(
    uri: str, open_table: Callable[[], DeltaTable | None], wanted: Maintenance, sync: Callable[[DeltaTable, int], None]
) -> None:
    """Raises whatever the table's storage raises; files that were not committed are deleted. `sync` is called with each
    new version.
    """
    if wanted.compact and (table := open_table()) is not None and _mergeable(table):
        listed = listed_files(table)
        for group in groups(listed, lambda each: each.values, lambda each: each.size):
            table = open_table() or table
            if not _merge(uri, table, group):
                return
            sync(table, table.version() + 1)
    if wanted.expire_seconds is not None and (table := open_table()) is not None:
        _vacuum(uri, table, wanted.expire_seconds)
        sync(table, table.version())


def _mergeable(table: DeltaTable) -> bool:
    """False if the table has deletion vectors: merging would restore rows that they hide."""
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
    """Returns whether it succeeded. If another writer was faster, these files may no longer be in the table."""
    listed = {each.logged for each in listed_files(table)}
    if not listed.issuperset(each.logged for each in group):
        return False
    values = group[0].values
    schema = pa.schema(table.schema().to_arrow())
    rest = pa.schema([field for field in schema if field.name not in dict(values)])
    files = ParquetFiles(uri, rest, f"merged-{uuid4().hex}", stats=True, below=group[0].path.rpartition("/")[0])
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
    except CommitFailedError:  # after any other error, the commit and its files may exist
        files.drop()
        return False
    return True


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
    """The rows with the current columns of the table; newer ones are null. Raises if a value does not fit."""
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
    """Once a day, by any of the pipelines. Deletes only files that the log lists as removed."""
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
