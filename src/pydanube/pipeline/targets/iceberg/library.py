"""Parts of the Iceberg library that do less work for each commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import RemoveSnapshotsUpdate, update_table_metadata
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT


class LeanTransaction(Transaction):
    """The library computes the metadata each time it is used, about fifteen times in a commit, with a copy of every
    snapshot. Here it is computed once for each change.
    """

    _computed: tuple[TableMetadata, tuple[object, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        if self._computed is None or self._computed[0] is not base or self._computed[1] is not updates:
            self._computed = base, updates, update_table_metadata(base, updates)
        return self._computed[2]

    def expire(self, snapshots: Sequence[Snapshot]) -> None:
        if snapshots:
            ids = [each.snapshot_id for each in snapshots]
            self._apply((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}),))

    def replacing(self, io: FileIO, properties: dict[str, str]) -> LeanOverwrite:
        return self._changing(LeanOverwrite, io, properties)

    def merging(self, io: FileIO, properties: dict[str, str]) -> LeanReplace:
        return self._changing(LeanReplace, io, properties)

    def _changing(self, kind: type[Update], io: FileIO, properties: dict[str, str]) -> Update:
        return kind(
            operation=Operation.OVERWRITE, transaction=self, io=io, commit_uuid=uuid4(), snapshot_properties=properties
        )


class LeanOverwrite(_OverwriteFiles, _MergeAppendFiles):
    """The library's class does not merge manifests, although the table asks for it, keeps those that list only files
    which older snapshots removed, and reads all of them for every commit.
    """

    def _existing_manifests(self) -> list[ManifestFile]:
        return [each for each in super()._existing_manifests() if each.has_added_files() or each.has_existing_files()]


class LeanReplace(LeanOverwrite):
    """Replaces files by others with the same rows: the operation `replace`, which the library cannot summarize."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        found = super()._summary(snapshot_properties)
        return Summary(operation=Operation.REPLACE, **found.additional_properties)


Update = TypeVar("Update", bound=LeanOverwrite)


def without_retries(table: Table) -> None:
    """Turns off retries for this commit: the library would repeat it without checking what other writers did."""
    own = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": own})
