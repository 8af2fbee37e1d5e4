"""One backup at a time: a snapshot of the storage that a client copies piece by piece, at a rate that disturbs no one.

A client that stops asking is taken to be gone. When the disk runs short of room, the backup ends, because publishers
need the room of the files that it keeps from being removed.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Sequence

from pydanube.base.errors import BackupEnded, BackupRunning, DiskFull, RequestInvalid
from pydanube.base.limits import BACKUP_CHUNK_BYTES_MAX, BACKUP_SILENCE_SECONDS
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.snapshot import Snapshot, SnapshotFile, take_snapshot


class Backups:
    """Owned by the broker's loop."""

    def __init__(self, metadata: RaftMetadata, node: DiskNode, room: DiskRoom, bytes_per_second: int) -> None:
        self._metadata = metadata
        self._node = node
        self._room = room
        self._bytes_per_second = bytes_per_second
        self._number = 0  # of the last backup
        self._beginning = False
        self._snapshot: Snapshot | None = None
        self._files: dict[str, SnapshotFile] = {}
        self._copied: SnapshotFile | None = None  # the file that was last read to its end
        self._silence: TimerHandle | None = None
        self._free_at = 0.0  # when the next piece may be read

    @property
    def node(self) -> str:
        return self._node.identity

    async def begin(self) -> tuple[int, Snapshot]:
        if self._snapshot is not None or self._beginning:
            raise BackupRunning("another backup is in progress")
        self._check_room()
        self._beginning = True
        try:
            self._snapshot = await take_snapshot(self._metadata, self._node)
        finally:
            self._beginning = False
        self._number += 1
        self._copied = None
        self._files = {file.name: file for file in self._snapshot.files}
        self._heard()
        return self._number, self._snapshot

    def files(self, number: int, after: str, limit: int) -> Sequence[SnapshotFile]:
        """The files after the one named `after`, in the order in which to copy them."""
        snapshot = self._get(number)
        names = list(self._files)
        first = names.index(after) + 1 if after in self._files else 0
        return snapshot.files[first : first + limit]

    async def read(self, number: int, name: str, offset: int, length: int) -> bytes:
        """Reads a piece of a file. A file that was read to its end is released only with the next read of another one,
        because the last answer may have been lost."""
        snapshot, file = self._get(number), self._files.get(name)
        if file is None:
            raise RequestInvalid(f"the backup has no file {name[:100]!r}")
        if not 0 <= offset < file.length or not 0 < length <= BACKUP_CHUNK_BYTES_MAX:
            raise RequestInvalid(f"{name} has {file.length} bytes; read up to {BACKUP_CHUNK_BYTES_MAX} at a time")
        self._check_room()
        length = min(length, file.length - offset)
        await self._wait_turn(length)
        if file.content is not None:
            data = file.content[offset : offset + length]
        else:
            data = await (await file.open()).read(offset, length)
        if len(data) < length:
            raise BackupEnded(f"{name} is shorter than it was")
        self._get(number)
        self._heard()
        if self._copied not in (None, file):
            snapshot.release(self._copied)
        self._copied = file if offset + length == file.length and file.generation is not None else None
        return data

    def end(self, number: int) -> None:
        self._get(number)
        self.close()

    def close(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def _get(self, number: int) -> Snapshot:
        if self._snapshot is None or number != self._number:
            raise BackupEnded(f"backup {number} has ended")
        return self._snapshot

    def _check_room(self) -> None:
        if self._room.short:
            self.close()
            raise DiskFull("the broker's disk is nearly full, and a backup would keep files that could be deleted")

    def _heard(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(BACKUP_SILENCE_SECONDS, self.close)

    async def _wait_turn(self, length: int) -> None:
        now = asyncio.get_running_loop().time()
        begin, self._free_at = self._free_at, max(now, self._free_at) + length / self._bytes_per_second
        if begin > now:
            await asyncio.sleep(begin - now)
