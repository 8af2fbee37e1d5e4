"""Object storage through opendal: one class for every service that it supports.

Owns timeouts, retries, the number of concurrent calls, and the translation of errors. No text that it returns contains
a credential: opendal's own errors, which can contain signed URLs, are never passed on.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import opendal
from opendal import exceptions, layers

from pydanube.adapters.objects_url import ObjectsLocation
from pydanube.adapters.placed_files import place as place_file
from pydanube.adapters.placed_files import remove_left_overs, write_gently
from pydanube.base.errors import DanubeError, ObjectExists, ObjectMissing, ObjectsFailed, ObjectsRefused, TierBusy
from pydanube.base.limits import MIB

CALLS_MAX = 16  # at a time
CALLS_WAITING_MAX = 1_000  # for their turn; beyond that, TierBusy
CONTROL_SECONDS = 20.0  # for one attempt of a stat, a delete or one page of a list
DATA_SECONDS = 60.0  # for one attempt of a read or write: the largest segment at 5 MB/s
CALL_SECONDS = 150.0  # for a call with all its retries
LIST_SECONDS = 600.0  # for a list, which may have a thousand pages
RETRIES_MAX = 3
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 2.0
KEY_BYTES_MAX = 900  # with the prefix of the location, below the 1,024 of S3
KEY_STEP_BYTES_MAX = 255  # each part of a key between slashes may become a file name
READ_BYTES_MAX = 512 * MIB  # in one call
LISTED_MAX = 1_000_000  # keys in one answer
CLOSE_SECONDS = 1.0  # for calls in progress
LINGER_SECONDS = 0.1  # after the last call: see `_Exit`
UNFINISHED = ".danube-unfinished"  # the folder of files being written, at the root of the location

_TRIES_AGAIN = frozenset({"redis", "memcached"})  # they retry themselves: their pool tries to connect for ten seconds
_TEXT_CHARACTERS_MAX = 300
_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|ContainerBeingDeleted|FilesystemNotFound|bucket does not exist", re.IGNORECASE
)
_LOGIN = re.compile(r"NOAUTH|WRONGPASS|NOPERM|invalid password|authentication failed|access denied", re.IGNORECASE)
_URL = re.compile(r"(?<![a-z0-9+.-])[a-z0-9+.-]+://[^\s\"',)}\]]*", re.IGNORECASE)
_ERRORS: tuple[type[Exception], ...] = tuple(  # all of them: they have no base of their own
    kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
_REFUSED = (
    exceptions.PermissionDenied,
    exceptions.ConfigInvalid,
    exceptions.Unsupported,
    exceptions.IsADirectory,
    exceptions.NotADirectory,
)


class OpendalObjects:
    """The `Objects` port for one location. It belongs to one event loop."""

    def __init__(self, location: ObjectsLocation, call_seconds: float = CALL_SECONDS) -> None:
        """Raises `ObjectsRefused` if opendal rejects the options; most services are contacted with the first call."""
        self._location = location
        self._call_seconds = call_seconds
        self._secrets = sorted(location.secrets(), key=len, reverse=True)
        self._folder = Path(location.options["root"]) if location.scheme == "fs" else None
        try:
            operator = opendal.AsyncOperator(location.scheme, **location.options)
        except _ERRORS as error:
            raise self._typed(error, "open", location.shown) from None
        operator = operator.layer(layers.TimeoutLayer(CONTROL_SECONDS, DATA_SECONDS))
        if location.scheme not in _TRIES_AGAIN:
            operator = operator.layer(layers.RetryLayer(RETRIES_MAX, 2.0, True, RETRY_SECONDS_MAX, RETRY_SECONDS_MIN))
        self._operator = operator
        self._capability = operator.capability()
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._calls = 0  # in progress or waiting
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._swept = False  # leftovers of other processes have been removed, or the service never has any
        _Exit.prepare()

    def __repr__(self) -> str:
        return f"OpendalObjects({self._location.shown})"

    @property
    def creates_atomically(self) -> bool:
        """Whether the service lets only one of several concurrent creators succeed. If not, the last one wins."""
        return self._folder is not None or self._capability.write_with_if_not_exists

    @property
    def can_list(self) -> bool:
        return self._capability.list

    async def create(self, key: str, data: bytes) -> None:
        _check_key(key)
        async with self._call("create", key):
            if self._folder is not None:
                await self._place_file(self._folder, key, data)
            elif self._capability.write_with_if_not_exists:
                await self._operator.write(key, data, if_not_exists=True)
            elif await self._operator.exists(key):
                raise ObjectExists(f"object {key} already exists")
            else:
                await self._operator.write(key, data)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        _check_key(key)
        if start < 0 or (length is not None and not 0 <= length <= READ_BYTES_MAX):
            raise ObjectsRefused(
                f"cannot read {length} bytes from {start} on: one read covers 0 to {READ_BYTES_MAX} bytes"
            )
        async with self._call("read", key):
            if length:
                try:
                    return bytes(await self._operator.read(key, offset=start, size=length))
                except (exceptions.RangeNotSatisfied, exceptions.Unexpected):
                    # Services report a range beyond the end in many ways, even one that begins before the end.
                    size = await self._size(key)
                    if start + length <= size:
                        raise
            else:
                size = await self._size(key)
            end = size if length is None else min(size, start + length)
            if end - start > READ_BYTES_MAX:
                raise ObjectsRefused(f"the object {key} has {size} bytes, more than the {READ_BYTES_MAX} of one read")
            if end <= start:
                return b""
            return bytes(await self._operator.read(key, offset=start, size=end - start))

    async def size(self, key: str) -> int:
        _check_key(key)
        async with self._call("size", key):
            return await self._size(key)

    async def list(self, prefix: str) -> list[str]:
        if prefix:
            _check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/") and prefix:
            raise ObjectsRefused(f"the prefix {prefix!r} does not end with a slash")
        if not self.can_list:
            raise ObjectsRefused(f"object storage of {self._location.scheme} cannot list objects")
        async with self._call("list", prefix, LIST_SECONDS):
            found: list[str] = []
            async for entry in await self._operator.list(prefix or "/", recursive=True):
                path = entry.path
                if path.endswith("/") or not path.startswith(prefix) or path.startswith(f"{UNFINISHED}/"):
                    continue
                found.append(path)
                if len(found) > LISTED_MAX:
                    raise ObjectsRefused(f"more than {LISTED_MAX} objects exist under {prefix}")
        return sorted(found)

    async def delete(self, key: str) -> None:
        _check_key(key)
        async with self._call("delete", key):
            await self._operator.delete(key)

    async def close(self) -> None:
        """Waits briefly for calls in progress. Afterwards the process may end."""
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            pass  # the calls have timeouts of their own
        await asyncio.sleep(_Exit.left())

    async def _size(self, key: str) -> int:
        try:
            return int((await self._operator.stat(key)).content_length)
        except exceptions.NotFound:
            # The answer has no body that could tell a missing bucket from a missing object, so the object is read.
            await self._operator.read(key, offset=0, size=1)
            raise

    async def _place_file(self, folder: Path, key: str, data: bytes) -> None:
        if not self._swept:
            await asyncio.to_thread(remove_left_overs, folder / UNFINISHED)
            self._swept = True
        unfinished = f"{UNFINISHED}/{uuid.uuid4().hex}"
        try:
            await asyncio.to_thread(write_gently, folder / unfinished, data)
            await asyncio.to_thread(place_file, folder / unfinished, folder / key, folder)
        except BaseException:
            (folder / unfinished).unlink(missing_ok=True)
            raise

    @asynccontextmanager
    async def _call(self, operation: str, key: str, seconds: float | None = None) -> AsyncIterator[None]:
        """Waits for a turn, and turns every failure into a typed error."""
        seconds = seconds or self._call_seconds
        if self._closed:
            raise ObjectsFailed(f"{operation} of {key}: object storage is closed")
        if self._calls >= CALLS_MAX + CALLS_WAITING_MAX:
            raise TierBusy(f"{operation} of {key}: {self._calls} calls to object storage are already in progress")
        self._calls += 1
        self._idle.clear()
        try:
            async with self._turns, asyncio.timeout(seconds):
                yield
        except DanubeError:
            raise
        except TimeoutError:
            raise ObjectsFailed(f"{operation} of {key}: no answer within {seconds:g} s") from None
        except _ERRORS as error:
            raise self._typed(error, operation, key) from None
        except OSError as error:
            raise _of_system(error, operation, key) from None
        finally:
            _Exit.called()
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    def _typed(self, error: Exception, operation: str, key: str) -> DanubeError:
        text = self._scrubbed(str(error))
        if isinstance(error, exceptions.ConditionNotMatch | exceptions.AlreadyExists) and operation == "create":
            return ObjectExists(f"object {key} already exists")
        if isinstance(error, exceptions.NotFound) and not _NO_BUCKET.search(text):
            return ObjectMissing(f"object {key} does not exist")
        kind = type(error).__name__
        refused = isinstance(error, (*_REFUSED, exceptions.NotFound)) or _LOGIN.search(text)
        return (ObjectsRefused if refused else ObjectsFailed)(
            f"{operation} of {key}: {kind}" + (f": {text}" if text else "")
        )

    def _scrubbed(self, text: str) -> str:
        """Only the message, without the context, which contains URLs and headers."""
        message, _, rest = text.partition("\n\nContext:")
        source = rest.partition("\n\nBacktrace:")[0].partition("\n\nSource:")[2]
        message = " ".join(f"{message.partition(' => ')[2]} {source}".split())
        for secret in self._secrets:
            message = message.replace(secret, "***")
        return _URL.sub("(a URL)", message)[:_TEXT_CHARACTERS_MAX]


def _of_system(error: OSError, operation: str, key: str) -> DanubeError:
    """The typed error for a system call that places a file under its name."""
    if error.errno == errno.EEXIST and operation == "create":
        return ObjectExists(f"object {key} already exists")
    text = f"{operation} of {key}: {error.strerror}"
    passing = {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ENOENT,
        errno.ESTALE,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
    }
    if error.errno in passing:
        return ObjectsFailed(text)
    if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
        text += " (the filesystem must support hard links)"
    return ObjectsRefused(text)


def _check_key(key: str) -> None:
    steps = key.split("/")
    valid = (
        all(steps)
        and all(step not in (".", "..") and len(step.encode()) <= KEY_STEP_BYTES_MAX for step in steps)
        and steps[0] != UNFINISHED
        and len(key.encode()) <= KEY_BYTES_MAX
        and key == key.strip()
        and key.isprintable()
        and "\\" not in key
    )
    if not valid:
        raise ObjectsRefused(f"{key[:100]!r} is not a valid object key")


class _Exit:
    """Lets the process exit cleanly.

    A thread of opendal still uses the interpreter for a moment after its last answer has arrived. If the interpreter
    exits within that moment, the process aborts. So the exit waits until the last answer is old enough.
    """

    _last: ClassVar[float] = 0.0
    _prepared: ClassVar[bool] = False

    @classmethod
    def prepare(cls) -> None:
        if not cls._prepared:
            cls._prepared = True
            atexit.register(lambda: time.sleep(cls.left()))

    @classmethod
    def called(cls) -> None:
        cls._last = time.monotonic()

    @classmethod
    def left(cls) -> float:
        return max(0.0, cls._last + LINGER_SECONDS - time.monotonic())
