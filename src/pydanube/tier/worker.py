"""The process of the cold tier: `python -m pydanube.tier.worker FD PARENT`, started only by a broker.

It learns over the socket FD where objects are, does what it is asked, and exits when the socket or its parent ends. It
exits without cleaning up: libraries of object storage may hang or abort then, and nothing here needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from asyncio import Queue, Task
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import Any

from pydanube.adapters.threads import ThreadOffload
from pydanube.base.errors import DanubeError, ObjectsFailed, ObjectsRefused, SegmentDamaged
from pydanube.base.limits import KIB, MIB, SMALL_OBJECT_BYTES_MAX
from pydanube.ports.objects import Objects
from pydanube.stream.delta_table import Folded, TableListing
from pydanube.tier.frames import (
    BatchReader,
    Frame,
    FrameKind,
    FrameStream,
    Packing,
    StreamBroken,
    batch_pieces,
    from_error,
    from_segment,
    to_listing,
    to_plan,
    to_segment,
)
from pydanube.tier.limits import CHUNK_BYTES, NICENESS, WINDOW_BYTES
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LOG_CHARACTERS_MAX = 4 * KIB
_LOGS_WAITING_BYTES_MAX = 1 * MIB  # beyond that, log lines are dropped
_TAKEN_BYTES = WINDOW_BYTES // 2  # of complete batches that wait; below that, more data is requested


_HEAVY = ("write", "merge", "verify")


def give_back_memory() -> None:
    """Returns free memory to the system: otherwise a process would keep the most that a segment ever needed."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # of the GNU C library
        ctypes.CDLL(None).malloc_trim(0)


def open_objects(scheme: str, options: dict[str, str], shown: str) -> Objects:
    from pydanube.adapters.objects_url import ObjectsLocation
    from pydanube.adapters.opendal_objects import OpendalObjects

    return OpendalObjects(ObjectsLocation(scheme, options, shown))


class Incoming:
    """Data of one call as it arrives; taking it gives credit for more."""

    def __init__(self, credit: Callable[[int], None]) -> None:
        self._credit = credit
        self._reader = BatchReader()
        self._queue: Queue[Batch | bytes | None] = Queue()  # bounded by credit
        self._waiting = 0  # bytes in the queue
        self._owed = 0  # bytes that arrived and were not credited yet

    def came(self, piece: bytes, *, batches: bool) -> None:
        self._owed += len(piece)
        if batches:
            for stamp, content in self._reader.feed(piece):
                self._waiting += len(stamp) + len(content)
                self._queue.put_nowait(Batch.from_parts(stamp, content))
        else:
            self._waiting += len(piece)
            self._queue.put_nowait(piece)
        self._settle()

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def batches(self) -> AsyncIterator[Batch]:
        while (batch := await self._queue.get()) is not None:
            assert isinstance(batch, Batch)
            self._taken(batch.size)
            yield batch

    async def data(self) -> bytes:
        found = bytearray()
        while (piece := await self._queue.get()) is not None:
            assert isinstance(piece, bytes)
            self._taken(len(piece))
            found += piece
            if len(found) > SMALL_OBJECT_BYTES_MAX:
                raise SegmentDamaged(f"a small object has more than {SMALL_OBJECT_BYTES_MAX} bytes")
        return bytes(found)

    def _taken(self, size: int) -> None:
        self._waiting -= size
        self._settle()

    def _settle(self) -> None:
        if self._owed and self._waiting <= _TAKEN_BYTES:
            self._credit(self._owed)
            self._owed = 0


class Server:
    """Serves the calls of the broker, each in a task."""

    def __init__(self, link: FrameStream) -> None:
        self._link = link
        self._incoming: dict[int, Incoming] = {}
        self._takes_batches: set[int] = set()
        self._tasks: dict[int, Task[None]] = {}
        self._operations: dict[str, Callable[[int, dict[str, Any]], Awaitable[object]]] = {
            "write": self._write,
            "merge": self._merge,
            "verify": self._verify,
            "read": self._read,
            "create": self._create,
            "load": self._load,
            "follow_table": self._follow_table,
            "list": self._list,
            "delete": self._delete,
        }

    async def run(self) -> None:
        """Serves until the socket ends."""
        hello = await self._link.receive()
        if hello.kind is not FrameKind.HELLO:
            raise StreamBroken("the first frame is not HELLO")
        try:
            self._segments = _open(json.loads(hello.body))
        except DanubeError as error:
            self._link.send_json(FrameKind.ERROR, 0, from_error(error))
            await self._link.drain()
            return
        self._link.send(FrameKind.READY, 0)
        while True:
            self._take(await self._link.receive())

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.CALL:
            self._call(frame.call, json.loads(frame.body))
        elif frame.kind is FrameKind.CANCEL and frame.call in self._tasks:
            self._tasks[frame.call].cancel()
        elif frame.kind in (FrameKind.DATA, FrameKind.END) and (incoming := self._incoming.get(frame.call)):
            if frame.kind is FrameKind.END:
                incoming.end()
                return
            try:
                incoming.came(frame.body, batches=frame.call in self._takes_batches)
            except DanubeError as error:
                self._answer(frame.call, error)
                self._tasks[frame.call].cancel()

    def _call(self, number: int, arguments: dict[str, Any]) -> None:
        operation = arguments.pop("operation")
        if operation in ("write", "create", "follow_table"):
            self._incoming[number] = Incoming(lambda size: self._credit(number, size))
        if operation == "write":
            self._takes_batches.add(number)
        task = self._tasks[number] = asyncio.create_task(self._do(number, operation, arguments))
        task.add_done_callback(lambda _: self._forget(number, operation))  # also called for a task that never began

    async def _do(self, number: int, operation: str, arguments: dict[str, Any]) -> None:
        try:
            result = await self._operations[operation](number, arguments)
            self._link.send_json(FrameKind.RESULT, number, result)
        except StreamBroken:
            return
        except DanubeError as error:
            self._answer(number, error)
        except Exception as error:  # other calls continue
            log.exception("%s failed", operation)
            self._answer(number, ObjectsFailed(f"{operation}: {type(error).__name__}"))

    def _forget(self, number: int, operation: str) -> None:
        self._incoming.pop(number, None)
        self._takes_batches.discard(number)
        self._tasks.pop(number, None)
        if operation in _HEAVY:
            give_back_memory()

    def _answer(self, number: int, error: DanubeError) -> None:
        self._link.send_json(FrameKind.ERROR, number, from_error(error))

    def _credit(self, number: int, size: int) -> None:
        self._link.send(FrameKind.CREDIT, number, size.to_bytes(8, "little"))

    # -- operations --------------------------------------------------------------------------------------------------

    async def _write(self, number: int, asked: dict[str, Any]) -> object:
        batches = self._incoming[number].batches()
        return from_segment(await self._segments.write(asked["key"], to_plan(asked["plan"]), asked["stream"], batches))

    async def _merge(self, _: int, asked: dict[str, Any]) -> object:
        sources = [(key, to_segment(segment)) for key, segment in asked["sources"]]
        return from_segment(await self._segments.merge(asked["key"], to_plan(asked["plan"]), asked["stream"], sources))

    async def _verify(self, _: int, asked: dict[str, Any]) -> object:
        return await self._segments.verify(asked["key"], to_segment(asked["segment"]))

    async def _read(self, number: int, asked: dict[str, Any]) -> object:
        segment = to_segment(asked["segment"])
        packing = Packing()
        for batch in await self._segments.read(asked["key"], segment, asked["offset"], asked["bytes_max"]):
            for piece in batch_pieces(batch):
                if pieces := packing.add(piece):
                    await self._send(number, *pieces)
        await self._send(number, *packing.rest())
        return None

    async def _create(self, number: int, asked: dict[str, Any]) -> object:
        return await self._segments.create(asked["key"], await self._incoming[number].data())

    async def _load(self, number: int, asked: dict[str, Any]) -> object:
        await self._send_all(number, await self._segments.load(asked["key"]))
        return None

    async def _follow_table(self, number: int, asked: dict[str, Any]) -> object:
        return await self._segments.follow_table(to_listing(asked, await self._incoming[number].data()))

    async def _list(self, number: int, asked: dict[str, Any]) -> object:
        await self._send_all(number, json.dumps(await self._segments.list(asked["prefix"])).encode())
        return None

    async def _delete(self, _: int, asked: dict[str, Any]) -> object:
        return await self._segments.delete(asked["key"])

    async def _send_all(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), CHUNK_BYTES):
            await self._send(number, data[start : start + CHUNK_BYTES])

    async def _send(self, number: int, *pieces: bytes) -> None:
        self._link.send(FrameKind.DATA, number, *pieces)
        await self._link.drain()


def _open(hello: dict[str, Any]) -> Any:
    """The segments in this process. `ObjectsRefused` if a required package is not installed."""
    module, _, name = str(hello["opener"]).partition(":")
    try:
        import pyarrow

        from pydanube.tier.direct import DirectSegments

        pyarrow.set_cpu_count(1)
        objects = getattr(import_module(module), name)(hello["scheme"], hello["options"], hello["shown"])
    except ImportError as error:
        raise ObjectsRefused(f"{error.name} is not installed: pip install 'pydanube[objects]'") from None
    tables = _Tables(hello["scheme"], hello["options"], hello["shown"])
    return DirectSegments(objects, ThreadOffload(), follow_table=tables.follow)


class _Tables:
    """Tables at this location, in a thread of their own, because their library blocks on object storage."""

    def __init__(self, scheme: str, options: dict[str, str], shown: str) -> None:
        from pydanube.adapters.objects_url import ObjectsLocation

        self._location = ObjectsLocation(scheme, options, shown)
        self._offload = ThreadOffload(1)

    async def follow(self, listing: TableListing) -> tuple[Folded, ...]:
        return await self._offload.run(self._follow, listing)

    def _follow(self, listing: TableListing) -> tuple[Folded, ...]:
        from pydanube.adapters.objects_url import delta_options

        found = delta_options(self._location)
        if found is None:
            raise ObjectsRefused(f"tables cannot be created at {self._location.shown}")
        try:
            from pydanube.tier.delta import DeltaTables
        except ImportError as error:
            raise ObjectsRefused(f"{error.name} is not installed: pip install 'pydanube[delta]'") from None
        return DeltaTables(*found, self._location.secrets()).follow(listing)


class _LinkLog(logging.Handler):
    """Sends log lines to the broker, which writes them to its own log."""

    def __init__(self, link: FrameStream, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._link = link
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        line = [record.levelno, record.name, self.format(record)[:_LOG_CHARACTERS_MAX]]
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._send, line)

    def _send(self, line: list[object]) -> None:
        if self._link.waiting_bytes < _LOGS_WAITING_BYTES_MAX:
            self._link.send_json(FrameKind.LOG, 0, line)


async def _serve(end: socket.socket) -> None:
    link = await FrameStream.over(end)
    logging.getLogger().addHandler(_LinkLog(link, asyncio.get_running_loop()))
    with contextlib.suppress(StreamBroken):
        await Server(link).run()
    os._exit(0)


def _die_with(parent: int) -> None:
    """Makes this process end with the broker, even if that is killed while this process is busy."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    _die_with(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the broker decides when to stop
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(socket.socket(fileno=int(sys.argv[1]))))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed: it passes data to the socket without copies."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
