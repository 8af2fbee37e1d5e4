"""One directory of flat files, with operations that are submitted now and completed later.

A call submits the operation at once and returns a future of its completion; buffers are immutable. Operations that are
not awaited one after the other may complete in any order. A crash keeps the bytes covered by a completed sync of their
file, and the creations, renames and removals covered by a completed `sync_directory`. Anything else may survive, wholly
or in parts, or not at all. Errors are `DiskFull`, `DiskFailed` and `FileMissing`; after a failed write or sync, nothing
is known about the bytes involved.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from typing import Protocol


class DiskFile(Protocol):
    @property
    def name(self) -> str: ...

    def write(self, position: int, parts: Sequence[bytes], *, sync: bool) -> Future[None]:
        """Writes the parts one after the other from `position`; with `sync` they are durable on completion."""

    def sync(self) -> Future[None]:
        """Makes every completed write of this file durable."""

    def read(self, position: int, length: int) -> Future[bytes]:
        """At most `length` bytes, fewer only at the end of the file."""

    def size(self) -> Future[int]: ...

    def close(self) -> Future[None]: ...


class Disk(Protocol):
    @property
    def name(self) -> str:
        """The path of the directory, for messages."""

    def make(self) -> Future[None]:
        """Creates the directory and its parents if they do not exist. Other operations on a missing directory raise
        `FileMissing`. Until `sync_parent` has completed, a crash may remove it again, with everything in it."""

    def sync_parent(self) -> Future[None]:
        """Makes the directory and its parents durable under their names, whichever process created them."""

    def lock(self, owner: str) -> Future[None]:
        """Locks the directory for this process until it ends, or raises `DirectoryInUse`."""

    def unlock(self) -> Future[None]: ...

    def create(self, name: str, *, reserve: int = 0) -> Future[DiskFile]:
        """Creates a file, which must not exist yet, with `reserve` bytes of space allocated, which read as zeros."""

    def open(self, name: str) -> Future[DiskFile]: ...

    def list(self) -> Future[list[str]]:
        """Names of all files, sorted."""

    def rename(self, old: str, new: str) -> Future[None]:
        """Atomic; replaces `new` if it exists."""

    def remove(self, name: str) -> Future[None]: ...

    def sync_directory(self) -> Future[None]: ...

    def free_bytes(self) -> Future[int]: ...
