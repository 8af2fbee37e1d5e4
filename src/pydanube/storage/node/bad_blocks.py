"""Reads a file around blocks that its disk cannot read, so that a bad sector costs only what is stored in it.

Unreadable bytes are replaced by bytes that fail every checksum, and so count as damage like any other. This is done
only while the disk can read something else: a disk that fails altogether may come back with everything on it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Protocol

from pydanube.base.errors import DanubeError, DiskFailed
from pydanube.base.limits import BLOCK_BYTES
from pydanube.ports.disk import Disk, DiskFile

log = logging.getLogger(__name__)
NODE_FILE = "node"  # in every directory of a node; small, and written in place
UNREADABLE = b"\xa5"


class Readable(Protocol):
    def read(self, position: int, length: int) -> Awaitable[bytes]: ...


class AroundBadBlocks:
    """Reads of one file. `bad` has the positions of the blocks that could not be read so far."""

    def __init__(self, disk: Disk, handle: DiskFile) -> None:
        self.bad: set[int] = set()
        self._disk = disk
        self._handle = handle

    async def read(self, position: int, length: int) -> bytes:
        """Like the file's own `read`; raises `DiskFailed` if the disk cannot read anything else either."""
        try:
            return await self._handle.read(position, length)
        except DiskFailed as error:
            data, bad = await read_block_by_block(self._handle, position, length)
            if bad:
                await self._check_disk(error)
                self.bad.update(bad)
                log.error("%s: %d bytes at %d cannot be read: %s", self._handle.name, BLOCK_BYTES, min(bad), error)
            return data

    async def _check_disk(self, error: DiskFailed) -> None:
        try:
            other = await self._disk.open(NODE_FILE)
            try:
                await other.read(0, BLOCK_BYTES)
            finally:
                other.close()
        except DanubeError:
            raise error from None


async def read_block_by_block(handle: DiskFile, position: int, length: int) -> tuple[bytes, list[int]]:
    """The bytes, with a filler in place of blocks that cannot be read, and the positions of those blocks."""
    parts: list[bytes] = []
    bad: list[int] = []
    end = position + length
    while position < end:
        wanted = min(end, (position // BLOCK_BYTES + 1) * BLOCK_BYTES) - position
        try:
            part = await handle.read(position, wanted)
        except DiskFailed:
            bad.append(position // BLOCK_BYTES * BLOCK_BYTES)
            part = UNREADABLE * wanted
        parts.append(part)
        if len(part) < wanted:
            break  # the end of the file
        position += wanted
    return b"".join(parts), bad
