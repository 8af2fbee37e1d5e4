"""Creates a file under its name completely, only once, and durably: it is written elsewhere, then linked to its name.

opendal can do only half of this: a file that is created only if absent is visible while it grows, and one that is
written elsewhere first replaces a file created in the meantime. A hard link does both. Every function blocks, so call
them in a thread.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from pydanube.adapters.syncing import sync_path
from pydanube.base.limits import MIB

PIECE_BYTES = 1 * MIB
LEFT_OVER_SECONDS = 24 * 3_600.0  # no upload takes this long; anything older was left by a process that died


def place(unfinished: Path, name: Path, root: Path) -> None:
    """Links the file to its name, durably; its bytes are already on disk. `FileExistsError` if the name is taken."""
    made = _make_folders(name.parent, root)
    os.link(unfinished, name)
    for folder in (name.parent, *made):
        sync_path(folder)
    unfinished.unlink(missing_ok=True)


def write_gently(unfinished: Path, data: bytes) -> None:
    """Writes and syncs piece by piece, so that other syncs on the same disk wait for one piece at most."""
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
    """Removes files left by processes that died while writing."""
    oldest = (time.time() if now is None else now) - LEFT_OVER_SECONDS
    try:
        files = [Path(entry.path) for entry in os.scandir(folder) if entry.stat().st_mtime < oldest]
    except FileNotFoundError:
        return
    for file in files:
        file.unlink(missing_ok=True)


def _make_folders(folder: Path, root: Path) -> list[Path]:
    """Creates the folders, and returns those to sync, up to the root: the names of the folders must be durable too."""
    holders: list[Path] = []
    missing = folder
    while missing != root and not missing.is_dir():
        holders.append(missing.parent)
        missing = missing.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file has the name of one of the folders
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None
    return holders
