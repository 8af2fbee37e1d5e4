"""Upserts into an Iceberg table: which files are replaced, and by which.

Files with a key of the batch are rewritten without it. The batch's own files are used as they are, unless some of their
rows do not count. Nothing here is visible until it is committed.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table

from pydanube.base.errors import TargetRefused
from pydanube.base.limits import MIB
from pydanube.pipeline.targets.deletes import packed, remember, unpacked
from pydanube.pipeline.targets.iceberg.files import IcebergFiles, Layout, StagedFile, remove
from pydanube.pipeline.targets.target import CHANGE, with_change, with_nulls
from pydanube.pipeline.targets.upsert import Numbers, matched, newest_rows, split_deleted

BATCH_BYTES_MAX = 512 * MIB  # of an upsert, in files; the driver holds it in memory
DELETES = "danube.deletes"  # the property that records deleted rows
_IN_MAX = 200  # values that readers compare with statistics one by one


@dataclass(slots=True)
class FileChanges:
    """What a commit changes in the list of files."""

    adds: list[StagedFile]
    removes: list[DataFile] = field(default_factory=list)
    written: list[str] = field(default_factory=list)  # only for this commit; not needed if it fails
    unused: list[str] = field(default_factory=list)  # staged, but not needed if it succeeds
    deletes: str | None = None  # the new record of deleted rows, if it changes

    def __bool__(self) -> bool:
        return bool(self.adds or self.removes or self.deletes is not None)


def all_files(table: Table) -> list[DataFile]:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    manifests = [each for each in snapshot.manifests(table.io) if each.content == ManifestContent.DATA]
    return [entry.data_file for each in manifests for entry in each.fetch_manifest_entry(table.io)]


def upserted(
    table: Table, files: Sequence[StagedFile], keys: Sequence[str], sequence_by: str | None, label: str
) -> FileChanges:
    """Raises `RowInvalid`, `TargetRefused`."""
    if sum(file.size for file in files) > BATCH_BYTES_MAX:
        raise TargetRefused(
            f"{label}: a batch to upsert has more than {BATCH_BYTES_MAX // MIB} MiB; lower max_records of the source"
        )
    staged = pa.concat_tables([_read(table, file) for file in files])
    layout = Layout.of(table, staged.schema, label)
    positioned = CHANGE in staged.column_names
    staged = staged.cast(with_change(with_nulls(layout.arrow)) if positioned else layout.arrow)
    change = FileChanges(list(files))
    newest = newest_rows(staged, keys, sequence_by, label)
    text = table.properties.get(DELETES)
    if sequence_by is not None and (positioned or text is not None):
        known = None if text is None else unpacked(b64decode(text), label)
        newest, remembered = remember(known, newest, keys, sequence_by, label)
        if remembered is not None:
            change.deletes = b64encode(packed(remembered)).decode()
    rows, deleted = split_deleted(newest)
    columns = [*keys, *([sequence_by] if sequence_by else [])]
    try:
        written = ~deleted.to_numpy()
        for task in table.scan(row_filter=_around(rows, keys), selected_fields=tuple(columns)).plan_files():
            gone, lost = matched(scanned(table, task, columns), rows, keys, sequence_by)
            written[lost] = False
            if len(gone):
                _rewrite(table, task, gone, label, change)
        if positioned or not written.all() or len(rows) < len(staged):
            change.unused = [file.path for file in files]
            change.adds = [each for each in change.adds if each.path not in change.unused]
            _write(layout, rows.filter(pa.array(written)), change)
    except BaseException:
        remove(table.io, change.written)
        raise
    return change


def _read(table: Table, file: StagedFile) -> pa.Table:
    with table.io.new_input(file.path).open() as source:
        return pq.read_table(source, partitioning=None)


def _around(rows: pa.Table, keys: Sequence[str]) -> BooleanExpression:
    """A condition that holds at least for all rows with these keys."""
    found: BooleanExpression = AlwaysTrue()
    for name in keys:
        try:
            values = pc.unique(rows.column(name)).to_pylist()
            if len(values) <= _IN_MAX:
                found = And(found, In(term=Reference(name), values={literal(each) for each in values}))
            else:
                low, high = literal(min(values)), literal(max(values))
                found = And(found, GreaterThanOrEqual(term=Reference(name), value=low))
                found = And(found, LessThanOrEqual(term=Reference(name), value=high))
        except (OverflowError, TypeError, ValueError):
            continue  # outside Python's range of dates
    return found


def scanned(table: Table, task: FileScanTask, columns: Sequence[str]) -> pa.Table:
    """The rows of one file, without deleted ones, always in the same order."""
    schema = table.schema().select(*columns)
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    return scan.to_table([task]).select(list(columns))


def _rewrite(table: Table, task: FileScanTask, gone: Numbers, label: str, change: FileChanges) -> None:
    old = scanned(table, task, [field.name for field in table.schema().fields])
    stays = np.ones(len(old), bool)
    stays[gone] = False
    change.removes.append(task.file)
    _write(Layout.of(table, old.schema, label), old.filter(pa.array(stays)), change)


def _write(layout: Layout, rows: pa.Table, change: FileChanges) -> None:
    files = IcebergFiles(layout, f"upsert-{uuid4().hex}")
    try:
        for each in rows.to_batches():
            files.add(each)
        done = files.finish() or []
    except BaseException:
        files.drop()
        raise
    change.adds += done
    change.written += [file.path for file in done]
