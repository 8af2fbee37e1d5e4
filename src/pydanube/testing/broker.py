"""A real broker for tests, in its own thread, so that it works with and without an event loop in the test.

It writes to a real directory, by default a temporary one, and starts in about forty milliseconds. A test can restart
it, crash it and fill its disk; its address and its data stay.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread
from typing import TypeVar

from pydanube.adapters.objects_url import parse_objects_url
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.ids import LedgerId
from pydanube.base.limits import MIB
from pydanube.broker.standalone import ObjectsSettings
from pydanube.storage.node.settings import NodeSettings
from pydanube.testing.clock import VirtualClock
from pydanube.testing.faults import DiskFaults, use_up

# Small files, because tests write little, and a short wait for a disk that has room again.
NODE = NodeSettings(file_bytes=4 * MIB, retry_seconds=0.02)
PATIENCE_SECONDS = 30.0  # for the broker to start, stop or answer
ACCEPTING_TURNS = 5  # turns of the loop, enough for an accepted socket to become a connection
CANCELLATIONS_MAX = 20  # rounds of cancelling tasks of a crashed broker: a task may start another as it ends
Result = TypeVar("Result")


class BrokerRun:
    """One run of a broker, on its own event loop, which a crash can abandon as if the process were killed."""

    def __init__(self, settings: StandaloneSettings, faults: DiskFaults, clock: VirtualClock | None) -> None:
        self.server = Server(settings, clock=clock)
        self.faults = faults
        self._clock = clock
        self._fillers: list[LedgerId] = []
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="danube-broker", daemon=True)
        self._thread.start()
        try:
            self._do(self.server.start())
        except BaseException:
            self._end()
            raise
        if clock is not None:
            clock.watch(self._time_moved)

    def stop(self) -> None:
        self.free_disk()  # a clean stop has to write
        self._leave(self._stop())

    async def _stop(self) -> None:
        await self.server.stop()
        await self._hang_up()

    def crash(self) -> None:
        self._leave(self._die())

    async def _die(self) -> None:
        self.faults.crashed = True
        for connection in list(self.server._listener.connections):
            connection.abort()
        # So far in one turn of the loop: nothing is sent or written any more. The rest only cleans up this process.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        await self.server._listener.stop()
        await self._hang_up()
        for _ in range(CANCELLATIONS_MAX):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)
        await self.faults.clean_up()

    async def _hang_up(self) -> None:
        """Closes connections that were accepted while the listener was closing, as the end of a process would."""
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        for connection in list(self.server._listener.connections):
            connection.abort()
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)

    def fill_disk(self, *, reserve: bool) -> None:
        if not self.faults.full:
            self.faults.full = True
            self._do(self.server._broker.door.room.look())
        if reserve and not self._fillers:
            self._fillers = self._do(use_up(self.server._broker._node))

    def free_disk(self) -> None:
        if self.faults.full:
            self.faults.full = False
            self._do(self._free())

    async def _free(self) -> None:
        fillers, self._fillers = self._fillers, []
        for ledger in fillers:
            await self.server._broker._node.delete(ledger)
        await self.server._broker.door.room.look()

    def _leave(self, ending: Coroutine[object, object, None]) -> None:
        if self._clock is not None:
            self._clock.unwatch(self._time_moved)
        try:
            self._do(ending)
        finally:
            self._end()

    def _do(self, work: Coroutine[object, object, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):  # started by the last tasks that ended; they will never run
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        self._loop.close()

    def _time_moved(self) -> None:  # called in any thread
        self._loop.call_soon_threadsafe(self.server.time_moved)


class BrokerBeside:
    """A broker under test, controlled by plain calls. Clients connect to `url`, which stays the same."""

    def __init__(self, data_dir: Path, port: int, clock: VirtualClock | None, objects: str | None = None) -> None:
        self.data_dir = data_dir
        self._port = port
        self._clock = clock
        self._objects = None if objects is None else ObjectsSettings(parse_objects_url(objects, {}, os.environ))
        self._start()
        self.url = self._run.server.url
        self.address = self._run.server.address

    def _start(self) -> None:
        faults = DiskFaults()
        settings = StandaloneSettings(
            self.data_dir, port=self._port, node=NODE, disk=faults.disk, objects=self._objects
        )
        self._run = BrokerRun(settings, faults, self._clock)
        _, self._port = self._run.server.address

    def restart(self) -> None:
        """Stops the broker cleanly and starts it. Clients reconnect automatically. A full disk has room again."""
        self._run.stop()
        self._start()

    def crash(self) -> None:
        """Ends the broker like `kill -9` and starts it: it stops writing and sending at once, without a goodbye."""
        self._run.crash()
        self._start()

    def fill_disk(self, *, reserve: bool = False) -> None:
        """Fills the disk: messages are refused with a retriable error; reading and acknowledging continue.

        With `reserve`, the space that the broker reserves for acks is used up too, so acks fail as well.
        """
        self._run.fill_disk(reserve=reserve)

    def free_disk(self) -> None:
        """Makes room on the disk again. The broker notices it automatically."""
        self._run.free_disk()

    def stop(self) -> None:
        """Stops the broker for good."""
        self._run.stop()


class RunningBroker:
    """A broker under test, for tests with an event loop."""

    def __init__(self, beside: BrokerBeside) -> None:
        self._beside = beside
        self.url = beside.url
        self.address = beside.address
        self.data_dir = beside.data_dir

    async def restart(self) -> None:
        await asyncio.to_thread(self._beside.restart)

    async def crash(self) -> None:
        await asyncio.to_thread(self._beside.crash)

    async def fill_disk(self, *, reserve: bool = False) -> None:
        await asyncio.to_thread(self._beside.fill_disk, reserve=reserve)

    async def free_disk(self) -> None:
        await asyncio.to_thread(self._beside.free_disk)


@contextmanager
def broker_beside(
    data_dir: Path | None = None, *, port: int = 0, clock: VirtualClock | None = None, objects: str | None = None
) -> Iterator[BrokerBeside]:
    """Runs a broker while the block runs.

    With a `VirtualClock`, the test decides when delays, timeouts and times to live pass. `objects` is the URL of its
    object storage, such as file:///folder; by default it has none.
    """
    with tempfile.TemporaryDirectory(prefix="danube-") as temporary:
        beside = BrokerBeside(data_dir or Path(temporary), port, clock, objects)
        try:
            yield beside
        finally:
            beside.stop()


@contextmanager
def broker_thread(
    data_dir: Path | None = None, *, clock: VirtualClock | None = None, objects: str | None = None
) -> Iterator[str]:
    """Like `broker_beside`, for tests that need only the URL."""
    with broker_beside(data_dir, clock=clock, objects=objects) as beside:
        yield beside.url


@asynccontextmanager
async def broker(
    data_dir: Path | None = None, *, port: int = 0, clock: VirtualClock | None = None, objects: str | None = None
) -> AsyncIterator[RunningBroker]:
    """Like `broker_beside`, for tests with an event loop, which keeps running while the broker starts and stops."""
    block = broker_beside(data_dir, port=port, clock=clock, objects=objects)
    running = RunningBroker(await asyncio.to_thread(block.__enter__))
    try:
        yield running
    finally:
        await asyncio.to_thread(block.__exit__, None, None, None)
