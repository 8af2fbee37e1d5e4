"""Merges small data files of an Iceberg table, in a snapshot that says that no row has changed.

A table with delete files is left to the tools that wrote them, because the rows they hide depend on when a file was
added.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table

from pydanube.base.errors import TargetFailed
from pydanube.pipeline.targets.iceberg.expiry import clean, due
from pydanube.pipeline.targets.iceberg.files import IcebergFiles, Layout, StagedFile, remove
from pydanube.pipeline.targets.iceberg.library import LeanTransaction, without_retries
from pydanube.pipeline.targets.iceberg.table import TableAddress, check_features
from pydanube.pipeline.targets.iceberg.upsert import all_files, scanned
from pydanube.pipeline.targets.maintenance import Maintenance, groups


def maintain(address: TableAddress, wanted: Maintenance) -> None:
    """Raises any error of the catalog and the storage. All commits expire snapshots, those of batches and these."""
    if not wanted.compact:
        return
    table = address.load()
    check_features(table, address.label, ())
    if not _mergeable(table):
        return
    spec = table.spec().spec_id
    files = [each for each in all_files(table) if each.spec_id == spec]
    for group in groups(files, lambda each: each.partition, lambda each: int(each.file_size_in_bytes)):
        if not _merge(table, group, address.label, wanted):
            return
        table = address.load()


def _mergeable(table: Table) -> bool:
    snapshot = table.current_snapshot()
    return snapshot is not None and all(each.content == ManifestContent.DATA for each in snapshot.manifests(table.io))


def _merge(table: Table, group: Sequence[DataFile], label: str, wanted: Maintenance) -> bool:
    """Returns whether it succeeded. If another writer was faster, these files may no longer be in the table."""
    listed = {each.file_path for each in all_files(table)}
    if not listed.issuperset(each.file_path for each in group):
        return False
    new = _rewritten(table, group, label)
    try:
        _commit(table, group, new, wanted)
    except (CommitFailedException, ValidationException):  # after any other error, the commit and its files may exist
        remove(table.io, [each.path for each in new])
        return False
    return True


def _rewritten(table: Table, group: Sequence[DataFile], label: str) -> list[StagedFile]:
    names = [field.name for field in table.schema().fields]
    files: IcebergFiles | None = None
    try:
        for each in group:
            rows = scanned(table, FileScanTask(each), names)
            files = files or IcebergFiles(Layout.of(table, rows.schema, label), f"merged-{uuid4().hex}")
            for some in rows.to_batches():
                files.add(some)
        assert files is not None
        found = files.finish() or []
        if sum(each.rows for each in found) != sum(each.record_count for each in group):
            raise TargetFailed(f"{label}: the number of merged rows differs from what the table lists")
    except BaseException:
        if files is not None:
            files.drop()
        raise
    return found


def _commit(table: Table, old: Sequence[DataFile], new: Sequence[StagedFile], wanted: Maintenance) -> None:
    without_retries(table)
    before = table.metadata
    gone = due(before, time.time_ns() // 1_000_000, wanted.expire_seconds)
    transaction = LeanTransaction(table)
    with transaction.merging(table.io, {"danube.maintenance": "compact"}) as snapshot:
        for file in new:
            snapshot.append_data_file(file.data_file())
        for each in old:
            snapshot.delete_data_file(each)
        snapshot.delete_by_predicate(AlwaysTrue())  # so that the manifests of all partitions are searched
    transaction.expire(gone)
    transaction.commit_transaction()
    clean(table.io, before, gone)
