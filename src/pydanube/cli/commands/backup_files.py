"""A backup on disk: files, and a manifest with the checksum of each, which is written last. Needs no broker.

A directory without a manifest is not a backup. A restore writes the metadata last, because no broker starts without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydanube.adapters.replacing import replacing
from pydanube.adapters.syncing import sync_path
from pydanube.base.errors import ArgumentInvalid, BackupInvalid, DiskFailed, DiskFull
from pydanube.base.limits import MIB
from pydanube.operations import backups
from pydanube.operations.operation import read

MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 64 * MIB  # enough for several hundred thousand files
FORMAT = 1
CHUNK_BYTES = 1 * MIB
_NAME = re.compile(r"(metadata|node)/[a-z0-9][a-z0-9.-]{0,100}", re.ASCII)
_UNFINISHED = "metadata.restoring"
Progress = Callable[[int], None]


class BackupFile(backups.BackupFile):
    """A file as the broker names and measures it: `bytes` of content, padded with zeros to `size` when restored."""

    sha256: str


def require_empty(directory: Path) -> None:
    """Creates the directory if it does not exist. Raises if it is not empty."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = next(directory.iterdir(), None)
    except OSError as error:
        raise ArgumentInvalid(f"{directory}: {error.strerror}") from None
    if found is not None:
        raise ArgumentInvalid(f"{directory} is not empty: it has {found.name}; choose another directory, or empty it")


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Raises `DiskFull` or `DiskFailed` instead of `OSError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (28, 122):  # ENOSPC, EDQUOT
            raise DiskFull(f"{where}: {error.strerror}") from None
        raise DiskFailed(f"{error.filename or where}: {error.strerror}") from None


class Writer:
    """Writes one file of a backup or of a restored directory. `done` makes it durable and returns its checksum."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._file: IO[bytes] = path.open("xb")
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)

    def done(self, size: int | None = None) -> str:
        """Returns the checksum. With `size`, the file is padded with zeros to that many bytes."""
        if size is not None:
            self._file.truncate(size)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def abandon(self) -> None:
        self._file.close()


# -- the manifest ------------------------------------------------------------------------------------------------------


def write_manifest(directory: Path, facts: Mapping[str, Any], files: list[BackupFile]) -> None:
    """Writes the manifest, after all files are durable. This makes the directory a backup."""
    for folder in {file.name.partition("/")[0] for file in files}:
        sync_path(directory / folder)
    body: dict[str, Any] = {"format": FORMAT, **facts, "files": [file.to_fields() for file in files]}
    with replacing(directory / MANIFEST) as file:
        file.write(json.dumps(body | {"sha256": _digest(body)}, indent=1).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_path(directory)


def read_manifest(directory: Path) -> tuple[dict[str, Any], list[BackupFile]]:
    path = directory / MANIFEST
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(MANIFEST_BYTES_MAX))
        claimed = body.pop("sha256")
        known = body["format"] == FORMAT
        files = [read(BackupFile, each, ValueError) for each in body["files"]]
    except FileNotFoundError:
        why = "the backup was not finished" if directory.is_dir() else "the directory does not exist"
        raise BackupInvalid(f"{directory} is not a backup: {MANIFEST} is missing, because {why}") from None
    except OSError as error:
        raise BackupInvalid(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackupInvalid(f"{path} is damaged") from None
    if not known:
        raise BackupInvalid(f"{path} has format {body['format']!r:.20}, but this version reads format {FORMAT}")
    if claimed != _digest(body) or not all(_NAME.fullmatch(file.name) for file in files):
        raise BackupInvalid(f"{path} is damaged")
    return body, files


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# -- checking and restoring --------------------------------------------------------------------------------------------


def problems(directory: Path, files: list[BackupFile], progress: Progress) -> Iterator[str]:
    """Yields what is wrong with the backup, file by file."""
    listed = {file.name for file in files} | {MANIFEST}
    for file in files:
        wrong = _check(directory / file.name, file, progress)
        if wrong is not None:
            yield f"{file.name}: {wrong}"
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_dir() and name not in listed:
            yield f"{name}: it does not belong to this backup"


def _check(path: Path, file: BackupFile, progress: Progress) -> str | None:
    digest, length = hashlib.sha256(), 0
    try:
        for data in chunks(path):
            digest.update(data)
            length += len(data)
            progress(len(data))
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if length != file.bytes:
        return f"it has {length} bytes, not {file.bytes}"
    return None if digest.hexdigest() == file.sha256 else "its checksum is wrong"


def chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as source:
        while data := source.read(CHUNK_BYTES):
            yield data


def restore(directory: Path, files: list[BackupFile], target: Path, progress: Progress) -> None:
    """Restores a backup into an empty directory: the node's own file first, the metadata last.

    The metadata gets its final name when it is complete, so no broker starts on the result of an interrupted restore.
    """
    first = sorted(files, key=lambda file: (not file.name.startswith("node/"), file.name != "node/node"))
    with disk_errors(target):
        for file in first:
            folder, _, name = file.name.partition("/")
            _restore(
                directory / file.name, file, target / (_UNFINISHED if folder == "metadata" else folder) / name, progress
            )
        for folder in ("node", _UNFINISHED):
            sync_path(target / folder)
        (target / _UNFINISHED).rename(target / "metadata")
        sync_path(target)
        sync_path(target.absolute().parent)


def _restore(source: Path, file: BackupFile, path: Path, progress: Progress) -> None:
    writer = Writer(path)
    try:
        for data in chunks(source):
            writer.write(data)
            progress(len(data))
        if writer.done(file.size) != file.sha256:
            raise BackupInvalid(f"{source}: its checksum is wrong")
    finally:
        writer.abandon()
