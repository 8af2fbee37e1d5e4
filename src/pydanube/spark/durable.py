"""Makes Spark's checkpoint survive a power failure: Spark renames its files and never syncs them.

Tables are synced when they are committed, and messages are released when they are processed. So everything that a batch
needs to be repeated is synced before it writes anything (`sync_checkpoint`), and after a power failure all unsynced
files are deleted (`repair_checkpoint`). Then the last batch is repeated, and targets that already have it ignore it.
This is only for folders; other storage is durable by itself.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydanube.adapters.syncing import sync_path
from pydanube.spark.committing import local_checkpoint

log = logging.getLogger(__name__)
MARK = "danube-synced.json"
MARK_BYTES_MAX = 10_000_000
CLOCK_NANOSECONDS = 50_000_000  # the clock of file times is coarser
BY_TIME = ("state", "sources")  # folders where only the times of files tell what is new
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # changes with every start of the machine


class SyncedState(NamedTuple):
    """What is certainly on disk of a checkpoint."""

    planned: int = -1  # the offsets of batches up to this one
    done: int = -1  # the commits of batches up to this one, and their state
    until: int = 0  # and everything written before this time, in nanoseconds since 1970
    boot: str = ""
    recent: tuple[str, ...] = ()  # newer files that are on disk nevertheless


def sync_checkpoint(checkpoint: str | None) -> None:
    """Syncs what is new in a checkpoint. Must be called before a batch is written, and before messages are released."""
    path = local_checkpoint(checkpoint)
    if path is None or not (path / "offsets").is_dir():
        return
    known = _mark(path) or SyncedState()
    planned, done = (max(batch_numbers(path / each), default=-1) for each in ("offsets", "commits"))
    if (planned, done) == (known.planned, known.done):
        return
    until = time.time_ns() - CLOCK_NANOSECONDS
    folders = {path}
    recent: list[str] = []
    for file in _written(path, known):
        _sync(file)
        folders.add(file.parent)
        if file.relative_to(path).parts[0] in BY_TIME and _is_newer(file, until):
            recent.append(str(file.relative_to(path)))
    for folder in sorted(folders):
        _sync(folder)
    _write(path, SyncedState(planned, done, until, _boot(), tuple(recent)))


def repair_checkpoint(checkpoint: str) -> list[int]:
    """Before a query starts: deletes files that a power failure may have left incomplete. Returns the batches whose
    commit was deleted: they are repeated, unchanged.
    """
    path = local_checkpoint(checkpoint)
    if path is None or not path.is_dir():
        return []
    known = _mark(path)
    if known is None:
        if _is_torn(path / "metadata"):  # so nothing was ever written to a target
            shutil.rmtree(path)
        return []
    if known.boot and known.boot == _boot():
        return []
    again = [number for number in batch_numbers(path / "commits") if number > known.done]
    for folder, last in (("offsets", known.planned), ("commits", known.done)):
        for number in batch_numbers(path / folder):
            if number > last:
                for name in (str(number), f".{number}.crc"):
                    (path / folder / name).unlink(missing_ok=True)
    if _is_newer(path / MARK, known.until):
        log.warning(
            "the checkpoint %s was copied without the times of its files, so %s are not checked for files damaged by "
            "a power failure; use `cp -a` or `rsync -a`, which keep the times",
            path,
            " and ".join(BY_TIME),
        )
        return sorted(again)
    for file in _below(path, BY_TIME):
        if _is_newer(file, known.until) and str(file.relative_to(path)) not in known.recent:
            file.unlink()
    return sorted(again)


def _written(path: Path, known: SyncedState) -> Iterator[Path]:
    """The files written since, with their checksums, without which Hadoop does not read them."""
    for folder, last in (("offsets", known.planned), ("commits", known.done)):
        for number in batch_numbers(path / folder):
            if number > last:
                yield from (each for name in (str(number), f".{number}.crc") if (each := path / folder / name).exists())
    if known.planned < 0:
        yield from (each for name in ("metadata", ".metadata.crc") if (each := path / name).exists())
    yield from (file for file in _below(path, BY_TIME) if _is_newer(file, known.until))


def _is_newer(file: Path, until: int) -> bool:
    try:
        return file.stat().st_mtime_ns > until
    except FileNotFoundError:  # a temporary file, renamed meanwhile
        return False


def _below(path: Path, folders: Sequence[str]) -> Iterator[Path]:
    for folder in folders:
        for root, _, names in os.walk(path / folder):
            yield from (Path(root) / name for name in names)


def batch_numbers(
    folder: Path, absent: tuple[type[OSError], ...] = (FileNotFoundError, NotADirectoryError)
) -> list[int]:
    """The batches that have a file in a folder of a checkpoint, in any order; none after an error of `absent`."""
    try:
        return [int(each.name) for each in folder.iterdir() if each.name.isdecimal()]
    except absent:
        return []


def _is_torn(file: Path) -> bool:
    try:
        return "id" not in json.loads(file.read_bytes()[:MARK_BYTES_MAX])
    except FileNotFoundError:
        return False
    except (ValueError, TypeError):
        return True


def _mark(path: Path) -> SyncedState | None:
    try:
        found = json.loads((path / MARK).read_bytes()[:MARK_BYTES_MAX])
        recent = tuple(map(str, found["recent"]))
        return SyncedState(int(found["planned"]), int(found["done"]), int(found["until"]), str(found["boot"]), recent)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, mark: SyncedState) -> None:
    temporary = path / f".{MARK}-{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(mark._asdict(), file)
        file.flush()
        os.utime(file.fileno(), ns=(mark.until, mark.until))  # so that a copy without file times is recognized
        os.fsync(file.fileno())
    os.replace(temporary, path / MARK)
    _sync(path)


def _sync(path: Path) -> None:
    with suppress(FileNotFoundError):  # deleted by Spark meanwhile, so not needed
        sync_path(path)


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
