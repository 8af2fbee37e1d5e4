"""A file appears under its name whole, once, and durably: written elsewhere first, then linked to its name.

opendal has half of each: a file made only if absent is seen while it grows, and one that is written elsewhere first
replaces what came meanwhile. A hard link does both. All of it blocks: call it in a thread.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from pydanube.adapters.syncing import sync_path
from pydanube.base.limits import MIB

PIECE_BYTES = 1 * MIB
LEFT_OVER_SECONDS = 24 * 3_600.0  # no upload takes so long; what is older was left by a process that died


def place(unfinished: Path, name: Path, root: Path) -> None:
    """Raises `FileExistsError` if the name is taken. The file's bytes are on disk already; its name is, afterwards."""
    made = _make_folders(name.parent, root)
    os.link(unfinished, name)
    for folder in (name.parent, *made):
        sync_path(folder)
    unfinished.unlink(missing_ok=True)


def write_gently(unfinished: Path, data: bytes) -> None:
    """On disk when it returns, piece by piece: whoever syncs a little on the same disk waits for one piece at most."""
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view[:PIECE_BYTES]) :]
            os.fdatasync(handle)
    finally:
        os.close(handle)


def remove_left_overs(folder: Path, now: float | None = None) -> None:
    """Of processes that died while they wrote."""
    oldest = (time.time() if now is None else now) - LEFT_OVER_SECONDS
    try:
        files = [Path(entry.path) for entry in os.scandir(folder) if entry.stat().st_mtime < oldest]
    except FileNotFoundError:
        return
    for file in files:
        file.unlink(missing_ok=True)


def _make_folders(folder: Path, root: Path) -> list[Path]:
    """Also the folders that hold the new ones, up to the root: their names must be durable too."""
    holders: list[Path] = []
    missing = folder
    while missing != root and not missing.is_dir():
        holders.append(missing.parent)
        missing = missing.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # not the name itself is taken, but that of a folder on the way
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None
    return holders
