"""A process of the cold tier as its broker sees it: started, configured, called, and ended.

It learns where objects are over a private socket, never on a command line. When the socket ends, all calls in progress
fail, and may be repeated.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
import subprocess
import sys
from asyncio import Event, Future, Task
from collections.abc import Callable, Mapping
from typing import Any

from pydanube.base.errors import DanubeError, ObjectsFailed
from pydanube.tier.frames import BatchReader, Frame, FrameKind, FrameStream, StreamBroken, to_error
from pydanube.tier.limits import CLOSE_SECONDS, START_SECONDS, WINDOW_BYTES
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)

# One allocator for everything, and few arenas, so that freed memory can be returned to the system.
_MEMORY = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}


class Call:
    """One call in progress: what it has returned, and how much may be sent."""

    def __init__(self, number: int, *, batches: bool) -> None:
        self.number = number
        self.result: Future[Any] = asyncio.get_running_loop().create_future()
        self.batches: list[Batch] = []
        self.data = bytearray()
        self._reader = BatchReader() if batches else None
        self._flying = 0
        self._news = Event()  # credit, or the end

    async def room(self, size: int) -> bool:
        """Waits until `size` more bytes may be sent; false if the call is over."""
        while not self.result.done() and self._flying and self._flying + size > WINDOW_BYTES:
            self._news.clear()
            await self._news.wait()
        self._flying += size
        return not self.result.done()

    def credited(self, size: int) -> None:
        self._flying -= size
        self._news.set()

    def came(self, piece: bytes) -> None:
        if self._reader is None:
            self.data += piece
        else:
            self.batches += [Batch.verified(*parts) for parts in self._reader.feed(piece)]

    def finish(self, value: object) -> None:
        if not self.result.done():
            self.result.set_result(value)
        self._news.set()

    def fail(self, error: DanubeError) -> None:
        if not self.result.done():
            self.result.set_exception(error)
            self.result.exception()  # the caller may be gone
        self._news.set()


class WorkerProcess:
    """A process that is ready. `serve` runs until it ends."""

    def __init__(self, process: subprocess.Popen[bytes], link: FrameStream) -> None:
        self._process = process
        self.link = link
        self._calls: dict[int, Call] = {}
        self._numbers = 0
        self._over = Event()
        self._memory: int | None = None  # a descriptor of what the system says about its memory
        self.leaving = False  # it has grown too large, and gets no more work
        self.retired = 0  # bytes of memory that it used when it was retired, if it was

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that it uses; 0 if that is unknown, or it has ended."""
        try:
            if self._memory is None and not self._over.is_set():
                self._memory = os.open(f"/proc/{self.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._memory or -1, 100, 0).split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            return 0

    def retire(self) -> None:
        """Ends an idle process, so that the next one starts with little memory."""
        self.retired = self.resident_bytes
        self._over.set()
        self.link.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, hello: Mapping[str, Any]) -> WorkerProcess:
        """Starts a process; raises `ObjectsFailed` if it does not become ready, or the error that it reports."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # out of descriptors, for now
            raise ObjectsFailed(f"a process of the cold tier cannot be started: {error}") from None
        with theirs:
            command = [sys.executable, "-P", "-m", "pydanube.tier.worker", str(theirs.fileno()), str(os.getpid())]
            try:
                process = subprocess.Popen(  # noqa: ASYNC220  # a millisecond; a thread's child would die with it
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, **_MEMORY},
                )
            except OSError as error:
                ours.close()
                raise ObjectsFailed(f"a process of the cold tier cannot be started: {error}") from None
        worker = cls(process, await FrameStream.over(ours))
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker._greet(hello)
        except BaseException as error:
            await worker.end()
            if isinstance(error, StreamBroken | TimeoutError):
                raise ObjectsFailed(f"a process of the cold tier did not start: {error}") from None
            raise
        return worker

    async def _greet(self, hello: Mapping[str, Any]) -> None:
        self.link.send_json(FrameKind.HELLO, 0, dict(hello))
        while True:
            frame = await self.link.receive()
            if frame.kind is FrameKind.READY:
                return
            self._take(frame)

    async def serve(self, lost: Callable[[], None]) -> None:
        """Receives its frames until it ends or sends an invalid one; then calls `lost`, and every call fails."""
        why = "its process ended"
        try:
            while True:
                self._take(await self.link.receive())
        except (StreamBroken, DanubeError, ValueError) as error:
            why = str(error)
        finally:
            lost()
            self._over.set()
            for call in list(self._calls.values()):
                call.fail(ObjectsFailed(f"the cold tier stopped responding: {why}"))
            await self.end()

    def open(self, operation: str, arguments: Mapping[str, Any], *, batches: bool = False) -> Call:
        self._numbers += 1
        call = Call(self._numbers, batches=batches)
        if self._over.is_set():
            call.fail(ObjectsFailed("the process of the cold tier has ended"))
            return call
        self.link.send_json(FrameKind.CALL, call.number, {"operation": operation, **arguments})
        self._calls[call.number] = call
        return call

    def close(self, call: Call) -> None:
        """Closes a call that no one waits for any longer."""
        if self._calls.pop(call.number, None) and not call.result.done():
            self.link.send(FrameKind.CANCEL, call.number)

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.LOG:
            level, name, text = json.loads(frame.body)
            logging.getLogger(str(name)).log(int(level), "%s", text)
            return
        if frame.kind is FrameKind.ERROR and not frame.call:
            raise to_error(json.loads(frame.body))
        call = self._calls.get(frame.call)
        if call is None:
            return  # it was given up meanwhile
        if frame.kind is FrameKind.DATA:
            try:
                call.came(frame.body)
            except DanubeError as error:
                raise StreamBroken(f"it sent something that is not a batch: {error}") from None
        elif frame.kind is FrameKind.CREDIT:
            call.credited(int.from_bytes(frame.body, "little"))
        elif frame.kind is FrameKind.RESULT:
            call.finish(json.loads(frame.body))
        elif frame.kind is FrameKind.ERROR:
            call.fail(to_error(json.loads(frame.body)))

    async def end(self) -> None:
        """Lets the process exit; kills it if it does not, for example because a call to object storage hangs."""
        self._over.set()
        self.link.close()
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None
        wait: Task[int] = asyncio.create_task(asyncio.to_thread(self._process.wait))
        done, _ = await asyncio.wait([wait], timeout=CLOSE_SECONDS)
        if not done:
            self._process.kill()
            await wait

    async def lost(self) -> None:
        """Waits until its end has been noticed."""
        await self._over.wait()

    @property
    def code(self) -> int | None:
        return self._process.returncode
