"""An Iceberg table as a target: tasks write its data files, and the driver lists them, with the batch's mark.

A commit is valid for one snapshot of the table, whose mark was checked, and fails if another writer was faster; then
the table is loaded and checked again. The same is done if it is not known whether a commit succeeded: the mark in the
table tells. The library's own retries are off, because they would add files without this check.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_bool

from pydanube.base.errors import TargetFailed, TargetRefused
from pydanube.pipeline.targets.iceberg.expiry import clean, due
from pydanube.pipeline.targets.iceberg.files import IcebergFiles, Layout, StagedFile, columns_of, remove
from pydanube.pipeline.targets.iceberg.library import LeanTransaction, without_retries
from pydanube.pipeline.targets.iceberg.maintenance import maintain
from pydanube.pipeline.targets.iceberg.table import (
    TableAddress,
    check_columns,
    check_features,
    check_table,
    prepare_table,
    typed,
)
from pydanube.pipeline.targets.iceberg.upsert import DELETES, FileChanges, all_files, upserted
from pydanube.pipeline.targets.maintenance import attempt, is_due
from pydanube.pipeline.targets.mark import Mark, Verdict, judge
from pydanube.pipeline.targets.target import CHANGE, COMMITS_MAX, TransactionalTarget, pause, with_change, with_nulls

DOUBTS_MAX = 3  # attempts with an unknown outcome
FILES_MAX = 100_000  # of one batch
SOURCE_CHARACTERS_MAX = 1_000  # that a table remembers; a longer text is replaced by its hash
LAYOUT_SECONDS = 300.0  # that a worker assumes the table to be unchanged; the driver checks it
LAYOUTS_MAX = 16

_layouts: dict[tuple[Any, ...], tuple[float, Layout]] = {}


@dataclass(frozen=True)
class IcebergTarget(TransactionalTarget):
    address: TableAddress

    @property
    def label(self) -> str:
        return self.address.label

    @property
    def identity(self) -> str:
        return self.address.identity

    def check(self, schema: pa.Schema, *, replace: bool = False) -> bool:
        with self.address.typed_errors():
            return check_table(self.address, schema, self)

    def prepare(self, schema: pa.Schema) -> None:
        self.check(schema)
        with self.address.typed_errors():
            prepare_table(self.address, schema, self)

    def open(self, mark: Mark, schema: pa.Schema, task: str) -> _TypedStager:
        with self.address.typed_errors():
            return _TypedStager(self.address, IcebergFiles(self._layout(mark, schema), task))

    def _layout(self, mark: Mark, schema: pa.Schema) -> Layout:
        """The layout of the table. A worker stages many batches, and need not load the table for each."""
        key, now = (self.address, mark.run, schema), time.monotonic()
        found = _layouts.get(key)
        if found is None or not mark.run or now - found[0] > LAYOUT_SECONDS:
            if len(_layouts) >= LAYOUTS_MAX:
                _layouts.clear()
            table = self.address.load()
            rows = pa.schema([field for field in schema if field.name != CHANGE])
            check_columns(table, rows, self.label)
            layout = Layout.of(table, rows, self.label)
            if CHANGE in schema.names:  # the driver needs this column, but the table never gets these files
                layout = replace(layout, arrow=with_change(with_nulls(layout.arrow)))
            found = _layouts[key] = now, layout
        return found[1]

    def commit(
        self,
        mark: Mark,
        schema: pa.Schema,
        parts: Sequence[list[StagedFile]],
        *,
        replace: bool,
        replaces: tuple[str, ...] = (),
    ) -> Verdict:
        files = [file for part in parts if part for file in part]
        if len(files) > FILES_MAX:
            raise TargetRefused(f"{self.label}: a batch has more than {FILES_MAX} files")
        if replace and self.keys:
            raise TargetRefused(f"{self.label}: upserts cannot be combined with complete mode")
        with self.address.typed_errors():
            return self._commit(mark, files, replaces, replace=replace)

    def remembered(self, now: Mark) -> Mark | None:
        with self.address.typed_errors():
            try:
                return remembered(self.address.load(), now)
            except TargetRefused:  # the table does not exist
                return None

    def _commit(self, mark: Mark, files: list[StagedFile], replaces: tuple[str, ...], *, replace: bool) -> Verdict:
        now = replace_source(mark)
        doubts: list[Exception] = []
        for tries in range(COMMITS_MAX):
            pause(tries)
            table = self.address.load()
            last = remembered(table, now)
            if judge(last, now, replaces) is Verdict.DONE:
                return Verdict.NEW if doubts and last == now else Verdict.DONE
            if len(doubts) >= DOUBTS_MAX:
                raise doubts[-1]
            check_features(table, self.label, self.keys)
            _check_same(table, files, self.label, by_name=bool(self.keys))
            change = self._change(table, files, replace=replace)
            if not change:
                remove(table.io, change.unused)
                return Verdict.NEW  # nothing to remember: the next batch is newer in any case
            before = table.metadata
            try:
                gone = _commit_once(table, now, change, self.maintenance.expire_seconds)
            except CommitFailedException:
                remove(table.io, change.written)
                continue
            except Exception as error:
                if not isinstance(typed(error, self.address), TargetFailed):
                    raise
                doubts.append(error)  # it may have succeeded, so none of its files is deleted
                continue
            remove(table.io, change.unused)
            clean(table.io, before, gone)
            if self.maintenance and is_due(None if last is None else last.batch, mark.batch):
                attempt(self.label, lambda: maintain(self.address, self.maintenance))
            return Verdict.NEW
        raise TargetFailed(f"{self.label}: the table was changed by others {COMMITS_MAX} times in the meantime")

    def _change(self, table: Table, files: list[StagedFile], *, replace: bool) -> FileChanges:
        if self.keys and files:
            return upserted(table, files, self.keys, self.sequence_by, self.label)
        return FileChanges(files, all_files(table) if replace else [])


class _TypedStager:
    """A `Stager` that raises only errors of Danube."""

    def __init__(self, address: TableAddress, files: IcebergFiles) -> None:
        self._address = address
        self._files = files

    def add(self, rows: pa.RecordBatch) -> None:
        with self._address.typed_errors():
            self._files.add(rows)

    def finish(self) -> list[StagedFile] | None:
        with self._address.typed_errors():
            return self._files.finish()

    def drop(self) -> None:
        self._files.drop()


def _commit_once(table: Table, mark: Mark, change: FileChanges, expire_seconds: int | None) -> list[Snapshot]:
    """Commits everything or nothing, and only if the table is unchanged. Returns the snapshots that it expired."""
    without_retries(table)
    gone = due(table.metadata, time.time_ns() // 1_000_000, expire_seconds)
    transaction = LeanTransaction(table)
    deletes = {} if change.deletes is None else {DELETES: change.deletes}
    transaction.set_properties(properties_of(mark) | deletes)
    if change.adds or change.removes:
        _add_snapshot(table, transaction, mark, change)
    transaction.expire(gone)
    transaction.commit_transaction()
    return gone


def _add_snapshot(table: Table, transaction: LeanTransaction, mark: Mark, change: FileChanges) -> None:
    summary = {"danube.pipeline": mark.pipeline, "danube.batch": str(mark.batch)}
    update = transaction.update_snapshot(snapshot_properties=summary)
    merges = property_as_bool(table.metadata.properties, TableProperties.MANIFEST_MERGE_ENABLED, False)
    append = update.merge_append if merges else update.fast_append
    with transaction.replacing(table.io, summary) if change.removes else append() as snapshot:
        for file in change.adds:
            snapshot.append_data_file(file.data_file())
        for removed in change.removes:
            snapshot.delete_data_file(removed)
        if change.removes:
            snapshot.delete_by_predicate(AlwaysTrue())  # so that the manifests of all partitions are searched


def _check_same(table: Table, files: Sequence[StagedFile], label: str, *, by_name: bool) -> None:
    """Checks that the table is still as it was when the tasks wrote for it; otherwise the batch is repeated. Columns
    are identified by id, whatever they are called now; with `by_name`, also by name.
    """
    parts = 3 if by_name else 2
    columns = {each[:parts] for each in columns_of(table.schema())}
    needed = {each.field_id for each in table.schema().fields if each.required}
    for file in files:
        same = file.table == str(table.metadata.table_uuid) and file.spec == table.spec().spec_id
        own = {each[:parts] for each in file.columns}
        if not same or not own <= columns or not needed <= {each[0] for each in file.columns}:
            raise TargetFailed(f"{label} was changed while a batch was written for it")


# -- what the table remembers ------------------------------------------------------------------------------------------


def properties_of(mark: Mark) -> dict[str, str]:
    values = {"batch": str(mark.batch), "query": mark.query, "run": mark.run, "source": mark.source}
    return {f"danube.{mark.key}.{name}": text for name, text in values.items()}


def remembered(table: Table, now: Mark) -> Mark | None:
    query, run, batch, source = (
        table.properties.get(f"danube.{now.key}.{name}") for name in ("query", "run", "batch", "source")
    )
    if batch is None:
        return None
    if not batch.isdecimal():
        raise TargetRefused(
            f"the property danube.{now.key}.batch of {'.'.join(table.name())} is not a number: {batch[:60]}"
        )
    return Mark(now.pipeline, query or "", run or "", int(batch), source or "", now.dead)


def replace_source(mark: Mark) -> Mark:
    """The mark as a table remembers it."""
    if len(mark.source) <= SOURCE_CHARACTERS_MAX:
        return mark
    return replace(mark, source=f"sha256:{hashlib.sha256(mark.source.encode()).hexdigest()}")
