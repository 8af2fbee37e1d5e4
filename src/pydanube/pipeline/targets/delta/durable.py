"""Makes a Delta table in a folder survive a power failure: deltalake itself does not sync its files.

A commit counts when everything it wrote is on disk: data files, log entries, checkpoints, and their folders
(`sync_commit`). Only then is the batch acknowledged, and are replaced files deleted, as well as expired log entries
(`delete_expired`): deltalake itself would delete those as soon as the checkpoint that replaces them is written
(`hooks_for`).

deltalake writes a log entry before the files that it names can be synced, so a power failure may leave a torn entry. It
was never acknowledged, and is moved aside before the table is opened again (`repair_log`). In object storage, an object
is complete as soon as it exists.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable, PostCommitHookProperties

from pydanube.adapters.syncing import sync_path
from pydanube.base.errors import TargetFailed
from pydanube.pipeline.targets.files.folders import LocalFolder, folder_at, make_folders

log = logging.getLogger(__name__)
ENTRIES = 100  # that a new process checks: as many as there are between two checkpoints
TABLES_MAX = 1_000  # that a process remembers
TORN = "_danube/torn"  # where torn entries are moved to; readers ignore it
HINT = "_last_checkpoint"
_ENTRY = re.compile(r"(?P<version>\d{20})\.json")
_BATCH = re.compile(r"danube/[^/]+")  # the app transaction of a batch
_PARQUET = b"PAR1"

_synced: dict[tuple[Path, str], int] = {}
_repaired: set[Path] = set()


# -- after a commit ----------------------------------------------------------------------------------------------------


def hooks_for(uri: str) -> PostCommitHookProperties | None:
    """The hooks for every commit: in a folder, it must not delete log entries."""
    return PostCommitHookProperties(cleanup_expired_logs=False) if isinstance(folder_at(uri), LocalFolder) else None


def sync_commit(root: Path, table: str, version: int) -> bool:
    """Syncs the commit `version` of the table with this id, and everything before it. Returns whether that includes the
    last checkpoint.

    Raises `TargetFailed` if a file of the commit is missing, and `OSError` if it cannot be synced.
    """
    known = _synced.get((root, table), -1)
    if known >= version:
        return False
    first = max(known + 1, version - ENTRIES + 1)
    logs = root / "_delta_log"
    live = _live(logs, range(first, version + 1))
    if not _entry_path(logs, version).exists():
        raise TargetFailed(f"{root}: the log entry of version {version}, which was just committed, is gone")
    folders = {root}
    for path, (number, _) in live.items():
        try:
            sync_path(root / path)
        except FileNotFoundError:
            if number == version:
                raise TargetFailed(f"{root}: a file that was just committed is gone: {path}") from None
            continue  # of an older commit: another writer has removed it since
        folders |= {root / each for each in Path(path).parents}
    for folder in sorted(folders, reverse=True):
        sync_path(folder)
    checkpoint = _checkpoint(logs, first, version)
    entries = [_entry_path(logs, each) for each in range(first, version + 1)]
    for file in (*entries, *checkpoint):  # after the files that they name
        with suppress(FileNotFoundError):  # an old one, deleted by another writer; that of `version` exists
            sync_path(file)
    sync_path(logs)
    if len(_synced) >= TABLES_MAX:
        _synced.clear()
    _synced[root, table] = version
    return bool(checkpoint)


def _checkpoint(logs: Path, first: int, last: int) -> list[Path]:
    """The files of the last checkpoint, if it is of one of these versions, and the hint that names it.

    The folder is listed only if there is one, because it may have a file for every commit of a month.
    """
    found = _hinted(logs / HINT)
    if found is None or not first <= found <= last:
        return []
    return [*sorted(logs.glob(f"{found:020d}.checkpoint*")), logs / HINT]


def delete_expired(table: DeltaTable, version: int) -> None:
    """Deletes entries before the last checkpoint, which is on disk like all of `version`, if the table allows it."""
    if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
        table.load_as_version(version)  # newer checkpoints of other writers may not be on disk
        table.cleanup_metadata()


# -- before a table is opened ------------------------------------------------------------------------------------------


def repair_log(root: Path) -> None:
    """Once in a process: moves aside what a power failure tore, none of which was acknowledged.

    Raises `TargetFailed`, and changes nothing, if what is torn was acknowledged, or if no table would be left.
    """
    if root in _repaired:
        return
    logs = root / "_delta_log"
    if not logs.is_dir():
        return
    versions = sorted(int(match["version"]) for file in logs.iterdir() if (match := _ENTRY.fullmatch(file.name)))
    latest = versions[-ENTRIES:]
    torn = _first_torn(root, logs, latest)
    if torn is not None and _is_before_start(_entry_path(logs, latest[-1])):
        version, file = torn
        if _was_acknowledged(logs, latest, version):
            raise TargetFailed(
                f"{file}: the file is damaged, but not by a power failure during its commit: later batches were "
                "committed after it was synced. Restore it from where the table was copied, or from a backup; nothing "
                "was changed"
            )
        if version and not _has_base(logs, versions[0], version):
            raise TargetFailed(
                f"{file}: the file is damaged, and the log has no earlier version to return to. Restore it from a "
                "backup; nothing was changed"
            )
        _move_aside(root, logs, [each for each in latest if each >= version])
    _repair_checkpoints(logs, versions)
    if len(_repaired) >= TABLES_MAX:
        _repaired.clear()
    _repaired.add(root)


def _repair_checkpoints(logs: Path, versions: list[int]) -> None:
    """Deletes torn checkpoints, which prevent the table from being opened, if the entries they repeat still exist."""
    deleted = False
    for file in sorted(logs.glob("*.checkpoint*.parquet")):
        if _is_before_start(file) and not _is_complete_parquet(file) and _has_base(logs, min(versions, default=0)):
            log.warning("%s: a checkpoint of the table was torn by a power failure; removing it", file)
            file.unlink(missing_ok=True)
            deleted = True
    hint = logs / HINT
    if hint.exists() and _is_before_start(hint) and (deleted or not _names_a_checkpoint(logs, hint)):
        hint.unlink(missing_ok=True)
        deleted = True
    if deleted:
        sync_path(logs)


def _has_base(logs: Path, oldest: int, before: int | None = None) -> bool:
    """Whether entries start with the first one, or with a complete checkpoint; if given, one `before` a version."""
    return oldest == 0 or any(
        oldest - 1 <= int(file.name[:20]) and (before is None or int(file.name[:20]) < before)
        for file in logs.glob(f"{'[0-9]' * 20}.checkpoint*.parquet")
        if _is_complete_parquet(file)
    )


def _is_complete_parquet(file: Path) -> bool:
    with file.open("rb") as content:
        size = content.seek(0, os.SEEK_END)
        content.seek(max(0, size - len(_PARQUET)))
        return size > len(_PARQUET) and content.read() == _PARQUET


def _names_a_checkpoint(logs: Path, hint: Path) -> bool:
    version = _hinted(hint)
    return version is not None and any(logs.glob(f"{version:020d}.checkpoint*"))


def _hinted(hint: Path) -> int | None:
    """The version of the last checkpoint; None if there is none, or if it cannot be read."""
    try:
        return int(json.loads(hint.read_bytes())["version"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _first_torn(root: Path, logs: Path, versions: list[int]) -> tuple[int, Path] | None:
    """The first commit that is torn, and the file: its entry cannot be read, or a data file is shorter than it says.

    Earlier commits are searched again, because they need files again that a commit which is moved aside had removed.
    """
    first = None
    while (found := _torn(root, logs, versions)) is not None:
        first = found
        versions = [each for each in versions if each < found[0]]
    return first


def _torn(root: Path, logs: Path, versions: list[int]) -> tuple[int, Path] | None:
    found = [(version, entry) for version in versions if _is_torn(entry := _entry_path(logs, version))]
    for path, (version, size) in _live(logs, versions).items():
        with suppress(FileNotFoundError):  # files exist before their entry, so another program has removed it
            if (root / path).stat().st_size < size:
                found.append((version, root / path))
    return min(found, default=None)


def _was_acknowledged(logs: Path, versions: list[int], torn: int) -> bool:
    """Whether a pipeline has continued after the torn commit: before its next batch, everything up to its last one is
    synced.

    The commit of another writer or pipeline may be torn while the one after it is not. An entry that cannot be read may
    belong to any writer: it counts as the batch of a pipeline that has a batch missing there.
    """
    last: dict[str, tuple[int, int]] = {}
    unreadable = False
    for version in versions:
        entry = _entry_path(logs, version)
        unreadable = unreadable or (version >= torn and _is_torn(entry))
        for pipeline, batch in _batches(entry):
            at, before = last.get(pipeline, (-1, -1))
            if batch > before and (at >= torn or (unreadable and batch > before + 1)):
                return True
            last[pipeline] = version, batch
    return False


def _batches(entry: Path) -> Iterator[tuple[str, int]]:
    """The pipelines and batches of this commit."""
    for action in _actions(entry):
        if isinstance(found := action.get("txn"), dict) and _BATCH.fullmatch(str(found.get("appId"))):
            yield str(found["appId"]), int(found["version"])


def _is_torn(entry: Path) -> bool:
    try:
        lines = [json.loads(each) for each in entry.read_bytes().splitlines()]
    except ValueError:
        return True
    return not lines


def _is_before_start(file: Path) -> bool:
    """Whether it was written before the machine started. Newer files cannot have been torn by a power failure."""
    return file.stat().st_mtime < _booted()


def _booted() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0


def _move_aside(root: Path, logs: Path, versions: list[int]) -> None:
    """Moves the newest first, and checkpoints before their entries, so that an interruption leaves a valid table."""
    for folder in make_folders(root / TORN):
        sync_path(folder)
    hinted = _hinted(logs / HINT)
    if hinted is not None and hinted >= versions[0]:
        (logs / HINT).unlink(missing_ok=True)
        sync_path(logs)
    for version in reversed(versions):
        entry = _entry_path(logs, version)
        log.warning("%s: a power failure tore this commit before it was acknowledged; moving it to %s", entry, TORN)
        for file in logs.glob(f"*{version:020d}.*"):  # checkpoints, and checksums of other writers
            if file != entry:
                file.unlink(missing_ok=True)
        sync_path(logs)
        os.replace(entry, root / TORN / f"{entry.name}-{time.time_ns()}")
        sync_path(root / TORN)
        sync_path(logs)


# -- entries -----------------------------------------------------------------------------------------------------------


def _entry_path(logs: Path, version: int) -> Path:
    return logs / f"{version:020d}.json"


def _live(logs: Path, versions: range | list[int]) -> dict[str, tuple[int, int]]:
    """The files that these commits added and none of them removed, with their commit and size."""
    found: dict[str, tuple[int, int]] = {}
    for version in versions:
        for action in _actions(_entry_path(logs, version)):
            if isinstance(added := action.get("add"), dict):
                path = unquote(str(added["path"]))
                if not path.startswith("/") and "://" not in path:  # otherwise it belongs to a table that was cloned
                    found[path] = version, int(added["size"])
            elif isinstance(removed := action.get("remove"), dict):
                found.pop(unquote(str(removed["path"])), None)
    return found


def _actions(entry: Path) -> Iterator[dict[str, Any]]:
    """Empty if the entry does not exist, or cannot be read."""
    try:
        lines = entry.read_bytes().splitlines()
        yield from [found for each in lines if isinstance(found := json.loads(each), dict)]
    except (FileNotFoundError, ValueError):
        return
