"""Segments in processes of their own: the port that brokers use. It does not need Arrow itself.

One process writes and another reads, so that readers that catch up do not wait for uploads. When a process dies, its
calls fail, and it is restarted after growing pauses. Nothing here takes long, because data is sent in pieces.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio import Future, Semaphore, Task
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydanube.base.errors import DanubeError, ObjectsFailed, ObjectsRefused, TierBusy
from pydanube.stream.delta_table import Folded, TableListing
from pydanube.stream.segments import Segment, SegmentPlan
from pydanube.tier.frames import (
    FrameKind,
    Packing,
    StreamBroken,
    batch_pieces,
    from_listing,
    from_plan,
    from_segment,
    listing_pieces,
    to_folded,
    to_segment,
)
from pydanube.tier.limits import (
    BUSY_BYTES_MAX,
    CALLS_WAITING_MAX,
    CHUNK_BYTES,
    OTHERS_AT_ONCE,
    READS_AT_ONCE,
    REST_BYTES_MAX,
    RESTART,
    STEADY_SECONDS,
    TABLES_AT_ONCE,
    WRITES_AT_ONCE,
)
from pydanube.tier.worker_process import Call, WorkerProcess
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)

OPENER = "pydanube.tier.worker:open_objects"


class CallLimit:
    """Limits how many calls run at a time and how many may wait; refuses further calls."""

    def __init__(self, at_once: int, waiting_max: int) -> None:
        self._free = Semaphore(at_once)
        self._waiting_max = waiting_max
        self.waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn. `TierBusy` if too many are already waiting."""
        if self._free.locked() and self.waiting >= self._waiting_max:
            raise TierBusy(f"{self.waiting} calls are waiting for the cold tier")
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._free.release()


class SegmentProcess:
    """`Segments` in one process."""

    def __init__(
        self,
        scheme: str,
        options: Mapping[str, str],
        shown: str,
        *,
        opener: str = OPENER,
        rest_bytes_max: int = REST_BYTES_MAX,
        busy_bytes_max: int = BUSY_BYTES_MAX,
    ) -> None:
        self._busy_bytes_max = sys.maxsize if scheme == "memory" else busy_bytes_max
        self._rest_bytes_max = sys.maxsize if scheme == "memory" else rest_bytes_max  # its objects would be lost
        self._hello = {"scheme": scheme, "options": dict(options), "shown": shown, "opener": opener}
        self._writes = CallLimit(WRITES_AT_ONCE, CALLS_WAITING_MAX)
        self._reads = CallLimit(READS_AT_ONCE, CALLS_WAITING_MAX)
        self._others = CallLimit(OTHERS_AT_ONCE, CALLS_WAITING_MAX)
        self._tables = CallLimit(TABLES_AT_ONCE, CALLS_WAITING_MAX)
        self._worker: Future[WorkerProcess] | None = None  # the running process, or the wait for it
        self._keeper: Task[None] | None = None
        self._closed = False

    # -- the port ----------------------------------------------------------------------------------------------------

    async def write(self, key: str, plan: SegmentPlan, stream: str, batches: AsyncIterator[Batch]) -> Segment:
        arguments = {"key": key, "plan": from_plan(plan), "stream": stream}
        async with self._writes.turn(), self._calling("write", arguments) as (worker, call):
            await _send_batches(worker, call, batches)
            return to_segment(await call.result)

    async def merge(self, key: str, plan: SegmentPlan, stream: str, sources: Sequence[tuple[str, Segment]]) -> Segment:
        named = [[source, from_segment(segment)] for source, segment in sources]
        arguments = {"key": key, "plan": from_plan(plan), "stream": stream, "sources": named}
        async with self._writes.turn(), self._calling("merge", arguments) as (_, call):
            return to_segment(await call.result)

    async def verify(self, key: str, segment: Segment) -> None:
        arguments = {"key": key, "segment": from_segment(segment)}
        async with self._writes.turn(), self._calling("verify", arguments) as (_, call):
            await call.result

    async def read(self, key: str, segment: Segment, offset: int, bytes_max: int) -> list[Batch]:
        arguments = {"key": key, "segment": from_segment(segment), "offset": offset, "bytes_max": bytes_max}
        async with self._reads.turn(), self._calling("read", arguments, batches=True) as (_, call):
            await call.result
            return call.batches

    async def create(self, key: str, data: bytes) -> None:
        async with self._others.turn(), self._calling("create", {"key": key}) as (worker, call):
            for start in range(0, len(data), CHUNK_BYTES):
                if not await _send(worker, call, data[start : start + CHUNK_BYTES]):
                    break
            worker.link.send(FrameKind.END, call.number)
            await call.result

    async def load(self, key: str) -> bytes:
        async with self._others.turn(), self._calling("load", {"key": key}) as (_, call):
            await call.result
            return bytes(call.data)

    async def follow_table(self, listing: TableListing) -> tuple[Folded, ...]:
        async with self._tables.turn(), self._calling("follow_table", from_listing(listing)) as (worker, call):
            for piece in listing_pieces(listing):
                if not await _send(worker, call, piece):
                    break
            worker.link.send(FrameKind.END, call.number)
            return to_folded(await call.result)

    async def list(self, prefix: str) -> list[str]:
        async with self._others.turn(), self._calling("list", {"prefix": prefix}) as (_, call):
            await call.result
            return [str(key) for key in json.loads(call.data)]

    async def delete(self, key: str) -> None:
        async with self._others.turn(), self._calling("delete", {"key": key}) as (_, call):
            await call.result

    def processes(self) -> tuple[int, ...]:
        """The id of the process, while it is running."""
        worker = self._worker
        return (worker.result().pid,) if worker is not None and worker.done() and not worker.exception() else ()

    async def close(self) -> None:
        """Ends the process within a second, even if it hangs. Calls in progress may be repeated."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    # -- the process -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _calling(
        self, operation: str, arguments: Mapping[str, Any], *, batches: bool = False
    ) -> AsyncIterator[tuple[WorkerProcess, Call]]:
        worker = await self._up()
        try:
            call = worker.open(operation, arguments, batches=batches)
        except StreamBroken as error:
            raise ObjectsRefused(f"the cold tier received too many requests: {error}") from None
        try:
            yield worker, call
        except StreamBroken as error:
            await worker.lost()  # so that the next call goes to the next process
            raise ObjectsFailed(f"the cold tier stopped responding: {error}") from None
        finally:
            worker.close(call)
            self._replace_if_grown(worker)

    def _replace_if_grown(self, worker: WorkerProcess) -> None:
        """Replaces a process that has grown too large: at once if it is idle; otherwise it gets no more work first."""
        resident = worker.resident_bytes
        if resident > (self._busy_bytes_max if worker.busy else self._rest_bytes_max):
            worker.leaving = True
            self._lost()  # later calls wait for the next process
        if worker.leaving and not worker.busy and not worker.retired:
            worker.retire()

    async def _up(self) -> WorkerProcess:
        """Waits for the process. If its start failed, all callers that waited for it get the error."""
        if self._closed:
            raise ObjectsFailed("the cold tier is closed")
        if self._keeper is None or self._keeper.done():  # only an unforeseen error ends it
            self._lost()
            self._keeper = asyncio.create_task(self._keep())
        assert self._worker is not None
        return await asyncio.shield(self._worker)

    async def _keep(self) -> None:
        """Starts the process, and restarts it when it has ended."""
        loop = asyncio.get_running_loop()
        failures = 0
        worker: WorkerProcess | None = None
        try:
            while True:
                started = loop.time()
                try:
                    worker = await WorkerProcess.start(self._hello)
                except DanubeError as error:
                    log.warning("The cold tier at %s is not running: %s", self._hello["shown"], error)
                    self._announce(error)
                else:
                    self._announce(worker)
                    await worker.serve(self._lost)
                    if worker.retired:
                        log.info("A process of the cold tier has grown to %d bytes; replacing it.", worker.retired)
                        failures = 0
                        continue
                    log.warning("A process of the cold tier exited with %s; restarting it.", worker.code)
                failures = 0 if loop.time() - started > STEADY_SECONDS else failures + 1
                await asyncio.sleep(RESTART.after(failures + 1))
        finally:
            if worker is not None:
                await worker.end()
            self._announce(ObjectsFailed("the cold tier is closed"))

    def _lost(self) -> None:
        """The process is gone: later calls wait for the next one."""
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_future()

    def _announce(self, news: WorkerProcess | DanubeError) -> None:
        """Tells all waiting callers; after an error, later callers wait for the next start."""
        waiting = self._worker
        assert waiting is not None
        if waiting.done():
            return
        if isinstance(news, WorkerProcess):
            waiting.set_result(news)
            return
        waiting.set_exception(news)
        waiting.exception()  # marks it as retrieved: perhaps no one waits
        self._lost()


async def _send(worker: WorkerProcess, call: Call, *pieces: bytes) -> bool:
    """Sends a call; false if it has already failed."""
    if not await call.room(sum(map(len, pieces))):
        return False
    worker.link.send(FrameKind.DATA, call.number, *pieces)
    await worker.link.drain()
    return True


async def _send_batches(worker: WorkerProcess, call: Call, batches: AsyncIterator[Batch]) -> None:
    """Sends batches as fast as the process takes them."""
    packing = Packing()
    async for batch in batches:
        for piece in batch_pieces(batch):
            pieces = packing.add(piece)
            if pieces and not await _send(worker, call, *pieces):
                return
    if pieces := packing.rest():
        await _send(worker, call, *pieces)
    worker.link.send(FrameKind.END, call.number)


class SegmentProcesses:
    """`Segments` in two processes: one writes objects, the other reads them. They are started by the first call."""

    def __init__(self, scheme: str, options: Mapping[str, str], shown: str, *, opener: str = OPENER) -> None:
        self._writer = SegmentProcess(scheme, options, shown, opener=opener)
        # Objects in memory belong to one process.
        self._reader = self._writer if scheme == "memory" else SegmentProcess(scheme, options, shown, opener=opener)
        self.write, self.merge, self.verify = self._writer.write, self._writer.merge, self._writer.verify
        self.create, self.delete = self._writer.create, self._writer.delete
        self.follow_table = self._writer.follow_table
        self.read, self.load, self.list = self._reader.read, self._reader.load, self._reader.list

    def processes(self) -> tuple[int, ...]:
        """The ids of the running processes, the writing one first."""
        reading = () if self._reader is self._writer else self._reader.processes()
        return self._writer.processes() + reading

    async def close(self) -> None:
        await asyncio.gather(self._writer.close(), self._reader.close())
