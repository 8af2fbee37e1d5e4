"""One directory of flat files, as submit and complete.

A call submits the operation at once and returns a future of its completion; buffers are immutable. Operations that are
not awaited in order may complete in any order. A crash keeps bytes covered by a completed sync of their file, and
creations, renames and removals covered by a completed `sync_directory`. Everything else may be there, wholly or in
parts, or not. Errors are `DiskFull`, `DiskFailed` and `FileMissing`; after a failed write or sync nothing is known
about the bytes concerned.
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
        ...

    def sync(self) -> Future[None]:
        """Makes every completed write of this file durable."""
        ...

    def read(self, position: int, length: int) -> Future[bytes]:
        """At most `length` bytes, fewer only at the end of the file."""
        ...

    def size(self) -> Future[int]: ...

    def close(self) -> Future[None]: ...


class Disk(Protocol):
    @property
    def name(self) -> str:
        """Of the directory, for people."""
        ...

    def make(self) -> Future[None]:
        """Makes the directory, and those above it, unless it is there. Whatever else is asked of one that is not there
        is `FileMissing`. A crash may take it away again, with all that is in it, until `sync_parent` is complete."""
        ...

    def sync_parent(self) -> Future[None]:
        """The directory is durable under its name, whoever made it, and so are those above it."""
        ...

    def lock(self, owner: str) -> Future[None]:
        """Takes the directory for this process until it ends, or raises `DirectoryInUse`."""
        ...

    def unlock(self) -> Future[None]: ...

    def create(self, name: str, *, reserve: int = 0) -> Future[DiskFile]:
        """A new file that must not exist, with `reserve` bytes of room set aside, which read as zeros."""
        ...

    def open(self, name: str) -> Future[DiskFile]: ...

    def list(self) -> Future[list[str]]:
        """Names of all files, sorted."""
        ...

    def rename(self, old: str, new: str) -> Future[None]:
        """Atomic; replaces `new` if it exists."""
        ...

    def remove(self, name: str) -> Future[None]: ...

    def sync_directory(self) -> Future[None]: ...

    def free_bytes(self) -> Future[int]: ...
