"""Old snapshots of an Iceberg table: which of them a commit expires, and the files that are not needed after it.

Every commit reads and writes all snapshots that the table still has, so a table that gets one for each batch must
expire them. This is done only for tables whose properties ask for it; those that pipelines create do. Snapshots of a
branch or a tag stay. Files are deleted after the commit that expired their last snapshot; if that is interrupted, they
do no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_int

from pydanube.pipeline.targets.iceberg.files import remove

SNAPSHOTS_MAX = "danube.history.max-snapshots"  # the snapshots of a table with this property expire
AGE_MAX_MS = "history.expire.max-snapshot-age-ms"
KEPT_MIN = "history.expire.min-snapshots-to-keep"
DAY_MS = 24 * 60 * 60 * 1000
EXPIRY_PROPERTIES = {SNAPSHOTS_MAX: "100", AGE_MAX_MS: str(DAY_MS), KEPT_MIN: "10"}
EXPIRED_MAX = 100  # snapshots that one commit expires; the rest follow with the next commits
READERS_MS = 10 * 60 * 1000  # that readers get for data files which a snapshot removed from the table
_MANIFEST = re.compile(r"(?P<stem>.*-m)(?P<number>\d{1,2})\.avro")  # as this library names them, from 0 on


def due(metadata: TableMetadata, now_ms: int, expire_seconds: int | None = None) -> list[Snapshot]:
    """The snapshots that this commit expires, oldest first. `expire_seconds` is for tables without a property."""
    most = property_as_int(metadata.properties, SNAPSHOTS_MAX)
    if most is None and expire_seconds is None:
        return []
    chain = _chain(metadata)
    age_ms = DAY_MS if expire_seconds is None else expire_seconds * 1000
    oldest_ms = now_ms - (property_as_int(metadata.properties, AGE_MAX_MS, age_ms) or 0)
    if most is None:
        most = len(chain) + 1
    fewest = property_as_int(metadata.properties, KEPT_MIN, 1) or 1
    if len(chain) + 1 > most:
        most -= most // 5  # several at once, because each time the manifests of the next snapshot are read
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    found: list[Snapshot] = []
    for number, each in enumerate(chain[: EXPIRED_MAX + len(named)]):
        left = len(chain) - number  # without this one, and with the new one
        if left < fewest or (left < most and each.timestamp_ms >= oldest_ms):
            break
        if _removed_files(each) and each.timestamp_ms > now_ms - READERS_MS:
            break
        if each.snapshot_id not in named:
            found.append(each)
    return found[:EXPIRED_MAX]


def clean(io: FileIO, before: TableMetadata, gone: Sequence[Snapshot]) -> None:
    """After the commit that expired them: deletes what only they needed, as far as possible."""
    if gone:
        with suppress(Exception):  # the batch is committed; tools that remove orphan files find the rest
            remove(io, sorted(_unneeded(io, before, gone)))


def _unneeded(io: FileIO, before: TableMetadata, gone: Sequence[Snapshot]) -> set[str]:
    ended = {each.snapshot_id for each in gone}
    chain = _chain(before)
    last = max(number for number, each in enumerate(chain) if each.snapshot_id in ended)
    following = {each.snapshot_id for each in chain[last + 1 :]}
    others = [each for each in before.snapshots if each.snapshot_id not in ended | following]
    needed: set[ManifestFile] = set(_manifests(io, [*chain[last + 1 : last + 2], *others]))
    paths: set[str] = set()
    for each in gone:
        manifests = each.manifests(io)
        paths |= {each.manifest_list} | {one.manifest_path for one in manifests if one not in needed}
        own = [one for one in manifests if one.added_snapshot_id == each.snapshot_id]
        paths |= _merged_at_once(own)
        if _removed_files(each):
            paths |= _removed_by(io, each, own)
    if others:
        paths -= {entry.data_file.file_path for one in _manifests(io, others) for entry in one.fetch_manifest_entry(io)}
    return paths


def _chain(metadata: TableMetadata) -> list[Snapshot]:
    """The snapshots of the table's main branch, oldest first."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    found: list[Snapshot] = []
    at = metadata.current_snapshot_id
    while at is not None and at in by_id:
        found.append(by_id.pop(at))
        at = found[-1].parent_snapshot_id
    return found[::-1]


def _removed_files(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    if summary is None:
        return True
    return any(int(summary[name] or 0) for name in ("deleted-data-files", "removed-delete-files"))


def _manifests(io: FileIO, snapshots: Iterable[Snapshot]) -> set[ManifestFile]:
    return {manifest for each in snapshots for manifest in each.manifests(io)}


def _removed_by(io: FileIO, snapshot: Snapshot, own: Iterable[ManifestFile]) -> set[str]:
    """The data files that it removed from the table, which no later snapshot has."""
    return {
        entry.data_file.file_path
        for manifest in own
        if manifest.deleted_files_count is None or manifest.deleted_files_count
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id
    }


def _merged_at_once(own: Sequence[ManifestFile]) -> set[str]:
    """The manifests that a commit wrote and merged into another one at once, which the library leaves behind."""
    listed = {each.manifest_path for each in own}
    found: set[str] = set()
    for path in listed:
        if name := _MANIFEST.fullmatch(path):
            found |= {f"{name['stem']}{number}.avro" for number in range(int(name["number"]))}
    return found - listed
