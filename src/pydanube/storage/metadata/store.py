"""What all metadata stores have in common: reads, decisions, watches, sessions; and the store in memory.

Stores differ in how a decided record becomes durable: `_log` does that, and calls `_replay` for all of them in order.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import Future, Task, TimerHandle
from collections.abc import Sequence
from dataclasses import dataclass

from pydanube.base.errors import (
    DanubeError,
    MetadataClosed,
    MetadataFull,
    SessionExpired,
)
from pydanube.base.limits import WATCHES_MAX
from pydanube.metadata.records import NO_SESSION, Check, Record, Repeat, RequestedChange
from pydanube.metadata.state import Changed, MetadataState
from pydanube.metadata.watch import WatchQueue

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.5  # before the end of a session is tried again, if the log failed


class StoreWatch:
    """A queue of changes for one reader, which waits for them."""

    def __init__(self, queue: WatchQueue, watches: dict[StoreWatch, None]) -> None:
        self.queue = queue
        self._watches = watches
        self._waiter: Future[None] | None = None
        self._closed = False
        watches[self] = None

    def __aiter__(self) -> StoreWatch:
        return self

    async def __anext__(self) -> Changed:
        while True:
            change = self.queue.take()
            if change is not None:
                return change
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Ends the watch; changes that are already queued can still be read."""
        self._closed = True
        self._watches.pop(self, None)
        self.wake()


@dataclass(slots=True)
class _Session:
    seconds: float
    timer: TimerHandle


class StateStore(ABC):
    """A `MetadataStore` with its state in memory. Subclasses add how records become durable."""

    def __init__(self, holder: str = "") -> None:
        """`holder` is the node that sessions belong to."""
        state = self._state = MetadataState()
        self.get, self.scan, self.count = state.get, state.scan, state.count
        self._holder = holder
        self._watches: dict[StoreWatch, None] = {}
        self._sessions: dict[int, _Session] = {}
        self._endings: dict[Task[None], None] = {}
        self._closed = False

    @abstractmethod
    async def _ready(self) -> None:
        """Returns when decisions can be made here."""

    @abstractmethod
    async def _log(self, record: Record) -> int:
        """Makes a decided record durable; returns its revision when reads show it. Whatever has been decided must be
        expected before this waits for anything."""

    @abstractmethod
    async def _wait_for(self, revision: int) -> None:
        """Returns when reads show the revision, which has been expected."""

    def _replay(self, revision: int, record: Record | None) -> None:
        changed = self._state.replay(revision, record)
        if changed:
            for watch in self._watches:
                if watch.queue.offer(changed):
                    watch.wake()

    # -- the port ------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._state.revision

    async def transact(
        self,
        checks: Sequence[Check],
        changes: Sequence[RequestedChange],
        *,
        session: int = NO_SESSION,
        reserve: bool = False,
        empty: str = "",
        repeat: Repeat | None = None,
    ) -> int:
        await self._get_ready()
        if repeat is not None and (known := self._state.answer(repeat)) is not None:
            await self._wait_for(known)
            return known
        return await self._log(
            self._state.decide(checks, changes, session, reserve=reserve, empty=empty, repeat=repeat)
        )

    async def _get_ready(self) -> None:
        if self._closed:
            raise MetadataClosed("the metadata store is closed")
        await self._ready()

    async def barrier(self) -> None:
        await self._get_ready()
        await self._wait_for(self._state.expected)

    def watch(self, prefix: str) -> StoreWatch:
        if self._closed:
            raise MetadataClosed("the metadata store is closed")
        if len(self._watches) >= WATCHES_MAX:
            raise MetadataFull(f"{WATCHES_MAX} watches are already open")
        return StoreWatch(WatchQueue(prefix), self._watches)

    async def open_session(self, seconds: float) -> int:
        await self._get_ready()
        session = await self._log(self._state.decide_session(seconds, self._holder))
        if self._closed:
            raise MetadataClosed("the metadata store is closed")
        self._sessions[session] = _Session(seconds, self._timer(session, seconds))
        return session

    async def keep_alive(self, session: int) -> None:
        found = self._sessions.get(session)
        if found is None:
            raise SessionExpired(f"session {session}")
        found.timer.cancel()
        found.timer = self._timer(session, found.seconds)

    async def close_session(self, session: int) -> None:
        found = self._sessions.pop(session, None)
        if found is not None:
            found.timer.cancel()
        await self._end(session)

    async def close(self) -> None:
        self._stop_serving()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _timer(self, session: int, seconds: float) -> TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._expire, session)

    def _expire(self, session: int) -> None:
        self._sessions.pop(session, None)
        task = asyncio.get_running_loop().create_task(self._end_until_done(session))
        self._endings[task] = None
        task.add_done_callback(lambda done: self._endings.pop(done, None))

    async def _end_until_done(self, session: int) -> None:
        while not self._closed:
            try:
                await self._end(session)
            except DanubeError as error:
                log.warning("could not end session %d yet: %s", session, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _end(self, session: int) -> None:
        """Ends the session; returns when its keys are deleted."""
        await self._get_ready()
        record = self._state.decide_end(session)
        if record is not None:
            await self._log(record)
        else:
            await self.barrier()

    def _stop_serving(self) -> None:
        self._closed = True
        for session in self._sessions.values():
            session.timer.cancel()
        self._sessions.clear()
        for task in self._endings:
            task.cancel()
        for watch in list(self._watches):
            watch.close()


class MemoryMetadata(StateStore):
    """Keeps everything in memory: for tests, and for brokers that store nothing."""

    async def _ready(self) -> None:
        """Always."""

    async def _log(self, record: Record) -> int:
        revision = self._state.revision + 1
        self._state.expect(record, revision)
        self._replay(revision, record)
        return revision

    async def _wait_for(self, revision: int) -> None:
        """Nothing is ever under way."""
