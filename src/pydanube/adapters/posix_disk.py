"""The disk port on a real directory: a few threads make the system calls, with one hop to a thread per operation.

No layer above this one has threads. A file is closed only when no operation is in progress on it, so that a late write
can never hit a descriptor that was reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from asyncio import Future
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from pydanube.adapters.file_names import LOCK_NAME, check_file_name
from pydanube.adapters.syncing import sync_path
from pydanube.base.errors import DanubeError, DirectoryInUse, DiskFailed, DiskFull, FileMissing
from pydanube.ports.disk import DiskFile

PARTS_PER_CALL_MAX = 1000  # below IOV_MAX, 1024 on Linux
LOCK_TEXT_BYTES_MAX = 1000  # read from the lock file to name the holder
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
CANNOT_RESERVE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class PosixFile:
    """An open file. Its descriptor is closed after `close` was called and the last operation has finished."""

    def __init__(self, disk: PosixDisk, name: str, descriptor: int) -> None:
        self._disk = disk
        self.name = name
        self._descriptor = descriptor
        self._under_way = 0
        self._closed: Future[None] | None = None

    def write(self, position: int, parts: Sequence[bytes], *, sync: bool) -> Future[None]:
        return self._submit("write", _write, position, tuple(parts), sync)

    def sync(self) -> Future[None]:
        return self._submit("sync", os.fdatasync)

    def read(self, position: int, length: int) -> Future[bytes]:
        return self._submit("read", _read, position, length)

    def size(self) -> Future[int]:
        return self._submit("size", _size)

    def close(self) -> Future[None]:
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            self._close_when_idle()
        return asyncio.shield(self._closed)

    def _submit(self, what: str, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._closed is not None:
            raise ValueError(f"{self.name} is closed")
        future = self._disk.submit(what, self.name, function, self._descriptor, *arguments, finished=self._finished)
        self._under_way += 1
        return future

    def _finished(self) -> None:
        self._under_way -= 1
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._closed is not None and self._under_way == 0:
            self._disk.submit("close", self.name, os.close, self._descriptor, future=self._closed)


class PosixDisk:
    """One directory. `close` ends its threads when the last operation has finished."""

    def __init__(self, path: str | os.PathLike[str], loop_threads: int = 4) -> None:
        self.name = self._path = os.fspath(path)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # a hop takes 70 µs; with an executor, 200
        self._threads = [Thread(target=self._serve, name="danube-disk", daemon=True) for _ in range(loop_threads)]
        self._closed = False
        for thread in self._threads:
            thread.start()
        self._lock: int | None = None

    def make(self) -> Future[None]:
        return self.submit("make", "the directory", _make, self._path)

    def sync_parent(self) -> Future[None]:
        return self.submit("sync", "the directory above", _sync_parents, self._path)

    def lock(self, owner: str) -> Future[None]:
        return self.submit("lock", LOCK_NAME, self._take_lock, owner)

    def unlock(self) -> Future[None]:
        return self.submit("unlock", LOCK_NAME, self._release_lock)

    def create(self, name: str, *, reserve: int = 0) -> Future[DiskFile]:
        check_file_name(name)
        return self.submit(
            "create", name, _create, self._at(name), reserve, made=lambda number: self._file(name, number)
        )

    def open(self, name: str) -> Future[DiskFile]:
        check_file_name(name)
        return self.submit(
            "open", name, os.open, self._at(name), os.O_RDWR, made=lambda number: self._file(name, number)
        )

    def list(self) -> Future[list[str]]:
        return self.submit("list", "the directory", _list, self._path)

    def rename(self, old: str, new: str) -> Future[None]:
        check_file_name(old)
        check_file_name(new)
        return self.submit("rename", old, os.replace, self._at(old), self._at(new))

    def remove(self, name: str) -> Future[None]:
        check_file_name(name)
        return self.submit("remove", name, os.unlink, self._at(name))

    def sync_directory(self) -> Future[None]:
        return self.submit("sync", "the directory", sync_path, self._path)

    def free_bytes(self) -> Future[int]:
        return self.submit("measure", "the directory", _free_bytes, self._path)

    def close(self) -> None:
        """Waits for operations in progress, releases the lock and ends the threads."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._release_lock()

    def _serve(self) -> None:
        """One thread: works until the disk is closed."""
        while (work := self._work.get()) is not None:
            work()

    def submit(
        self,
        what: str,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        finished: Callable[[], None] | None = None,
        made: Callable[[int], PosixFile] | None = None,
        future: Future[Any] | None = None,
    ) -> Future[Any]:
        """Calls the function in a thread. Then, on the loop, `finished` is called even if the result is no longer
        awaited, and `made` turns a new descriptor into a file."""
        loop = asyncio.get_running_loop()
        result: Future[Any] = loop.create_future() if future is None else future

        def deliver(value: Any, error: Exception | None) -> None:
            if finished is not None:
                finished()
            if result.done():  # it was cancelled, but the operation has happened
                if made is not None and error is None:
                    os.close(value)
            elif error is not None:
                result.set_exception(error)
            else:
                result.set_result(value if made is None else made(value))

        def work() -> None:
            value: Any = None
            raised: Exception | None = None
            try:
                value = function(*arguments)
            except OSError as error:
                raised = _translated(error, what, name, self._path)
            except Exception as error:
                raised = error
            with contextlib.suppress(RuntimeError):  # the loop was closed before its last operations finished
                loop.call_soon_threadsafe(deliver, value, raised)

        if self._closed:
            raise RuntimeError(f"the disk at {self._path} is closed")
        self._work.put(work)
        return result

    def _file(self, name: str, descriptor: int) -> PosixFile:
        return PosixFile(self, name, descriptor)

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _take_lock(self, owner: str) -> None:
        descriptor = os.open(self._at(LOCK_NAME), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sign(descriptor, f"{owner}, process {os.getpid()}\n".encode())
        except BlockingIOError:
            holder = os.pread(descriptor, LOCK_TEXT_BYTES_MAX, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise DirectoryInUse(f"{self._path} is in use by {holder or 'another process'}") from None
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = descriptor

    def _release_lock(self) -> None:
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)  # releases the lock; the file stays, as removing it would race with the next owner


def _sign(descriptor: int, text: bytes) -> None:
    """Writes who holds the lock into its file. A full disk is ignored: the lock itself needs no space."""
    try:
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    except OSError as error:
        if error.errno not in FULL:
            raise
        os.ftruncate(descriptor, 0)  # it still names the previous holder


def _translated(error: OSError, what: str, name: str, path: str) -> DanubeError:
    text = f"{what} {name} in {path}: {error.strerror or error}"
    if error.errno in FULL:
        return DiskFull(text)
    if error.errno == errno.ENOENT:
        return FileMissing(text)
    return DiskFailed(text)


def _create(path: str, reserve: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if reserve:
            _reserve(descriptor, reserve)
    except BaseException:
        os.close(descriptor)
        os.unlink(path)
        raise
    return descriptor


def _reserve(descriptor: int, length: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, length)
    except OSError as error:
        if error.errno not in CANNOT_RESERVE:
            raise
        os.ftruncate(descriptor, length)


def _write(descriptor: int, position: int, parts: Sequence[bytes], sync: bool) -> None:
    for first in range(0, len(parts), PARTS_PER_CALL_MAX):
        some = parts[first : first + PARTS_PER_CALL_MAX]
        wanted = sum(map(len, some))
        written = os.pwritev(descriptor, some, position)
        if written < wanted:  # rare: the disk is nearly full, or a signal interrupted the call
            _write_rest(descriptor, position + written, b"".join(some)[written:])
        position += wanted
    if sync:
        os.fdatasync(descriptor)


def _write_rest(descriptor: int, position: int, data: bytes) -> None:
    while data:
        written = os.pwritev(descriptor, [data], position)
        if written <= 0:
            raise OSError(errno.EIO, "nothing was written")
        data = data[written:]
        position += written


def _read(descriptor: int, position: int, length: int) -> bytes:
    found = os.pread(descriptor, length, position)
    if len(found) == length or not found:
        return found
    parts, total = [found], len(found)
    while total < length and (found := os.pread(descriptor, length - total, position + total)):
        parts.append(found)
        total += len(found)
    return b"".join(parts)


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size


def _list(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_file() and entry.name != LOCK_NAME)


def _make(path: str) -> None:
    os.makedirs(path, exist_ok=True)


def _sync_parents(path: str) -> None:
    """Syncs all parents up to the mount point: an earlier process may have created any of them and ended before its
    sync."""
    above = os.path.realpath(path)
    while not os.path.ismount(above):
        above = os.path.dirname(above)
        try:
            sync_path(above)
        except PermissionError:  # a directory that we may not read was not created by us
            return


def _free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
