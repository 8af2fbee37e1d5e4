"""What all metadata stores have in common: reads, decisions, watches, sessions; and the store in memory.

Stores differ in where an operation is carried out, and in how a decided record becomes durable: `_log` does that, and
calls `_replay` for all of them in order.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Sequence

from pydanube.base.errors import DanubeError, MetadataClosed, MetadataFull, NotLeader, SessionExpired
from pydanube.base.limits import WATCHES_MAX
from pydanube.metadata.operations import Barrier, EndSession, KeepAlive, OpenSession, Operation, Transact
from pydanube.metadata.records import (
    NO_SESSION,
    Check,
    Record,
    Repeat,
    RequestedChange,
    SessionEnded,
    SessionOpened,
)
from pydanube.metadata.state import Changed, MetadataState
from pydanube.metadata.watch import WatchQueue
from pydanube.storage.metadata.sessions import SessionTimers

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.5  # before the end of a session is tried again, if it cannot be logged


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


class StateStore(ABC):
    """A `MetadataStore` with its state in memory. Subclasses add how records become durable."""

    def __init__(self, holder: str = "") -> None:
        """`holder` is the node that sessions belong to."""
        state = self._state = MetadataState()
        self.get, self.scan, self.count = state.get, state.scan, state.count
        self._holder = holder
        self._watches: dict[StoreWatch, None] = {}
        self._timers: SessionTimers | None = None  # while ends of sessions are decided here
        self._closed = False

    @abstractmethod
    async def _ask(self, operation: Operation) -> int:
        """Has the operation carried out, here or elsewhere; returns its revision when reads show that."""

    @abstractmethod
    def _log(self, record: Record) -> Future[int]:
        """Makes a decided record durable, and expects it at once. Done with its revision when reads show it."""

    @abstractmethod
    async def _reached(self, revision: int) -> int:
        """Returns the revision when reads show it; it has been expected."""

    @abstractmethod
    async def _confirm(self) -> int:
        """The revision that reads must show to miss nothing that was durable before the call; proves that decisions
        were still made here after the call."""

    def _replay(self, revision: int, record: Record | None) -> None:
        self._show(self._state.replay(revision, record))
        if self._timers is not None:
            if isinstance(record, SessionOpened):
                self._timers.renew(revision, record.seconds)
            elif isinstance(record, SessionEnded):
                self._timers.drop(record.session)

    def _show(self, changed: list[Changed]) -> None:
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
        return await self._ask(Transact(tuple(checks), tuple(changes), session, reserve, empty, repeat))

    async def barrier(self) -> int:
        return await self._ask(Barrier())

    def watch(self, prefix: str) -> StoreWatch:
        self._check_open()
        if len(self._watches) >= WATCHES_MAX:
            raise MetadataFull(f"{WATCHES_MAX} watches are already open")
        return StoreWatch(WatchQueue(prefix), self._watches)

    async def open_session(self, seconds: float) -> int:
        session = await self._ask(OpenSession(seconds))
        self._check_open()
        return session

    async def keep_alive(self, session: int) -> None:
        await self._ask(KeepAlive(session))

    async def close_session(self, session: int) -> None:
        await self._ask(EndSession(session))

    async def close(self) -> None:
        self._stop_serving()

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosed("the metadata store is closed")

    def _stop_serving(self) -> None:
        self._closed = True
        self._stop_timers()
        for watch in list(self._watches):
            watch.close()

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, operation: Operation, holder: str) -> int:
        """Decides here what the holder asks for."""
        state = self._state
        match operation:
            case Transact(checks, changes, session, reserve, empty, repeat):
                if repeat is not None and (known := state.answer(repeat)) is not None:
                    return await self._reached(known)
                decided = state.decide(checks, changes, session, reserve=reserve, empty=empty, repeat=repeat)
                return await self._logged(decided)
            case OpenSession(seconds):
                return await self._logged(state.decide_session(seconds, holder))
            case KeepAlive(session):
                return await self._keep_alive(session)
            case EndSession(session):
                record = state.decide_end(session)
                return await (self._behind_barrier() if record is None else self._logged(record))
            case Barrier():
                return await self._behind_barrier()
        raise NotImplementedError(operation)

    async def _logged(self, record: Record) -> int:
        return await asyncio.shield(self._log(record))  # others may wait for it after this caller has given up

    async def _behind_barrier(self) -> int:
        """What is decided here and not durable yet may have been the reason of a refusal, so it is waited for too."""
        expected = self._state.expected
        return max(await self._confirm(), await self._reached(expected))

    async def _keep_alive(self, session: int) -> int:
        """The session is renewed only if no other node can have ended it when this was asked for, and is not ending."""
        timers = self._timers
        self._check_session(session)
        revision = await self._confirm()
        if self._timers is not timers or timers is None:
            raise NotLeader("another node has taken the lead meanwhile")
        timers.renew(session, self._check_session(session))
        return revision

    def _check_session(self, session: int) -> float:
        seconds = self._state.session_seconds(session)
        if seconds is None or self._state.is_ending(session):
            raise SessionExpired(f"session {session}")
        return seconds

    # -- the ends of sessions ------------------------------------------------------------------------------------------

    def _start_timers(self) -> None:
        """Decisions are made here from now on."""
        sessions = {session: self._state.session_seconds(session) or 0.0 for session in self._state.sessions()}
        self._timers = SessionTimers(sessions, self._expire)

    def _stop_timers(self) -> None:
        if self._timers is not None:
            self._timers.stop()
            self._timers = None

    def _expire(self, session: int) -> None:
        record = self._state.decide_end(session)
        if record is None:
            return
        try:
            self._log(record).add_done_callback(_ignore)
        except DanubeError as error:
            log.warning("could not end session %d yet: %s", session, error)
            if self._timers is not None:
                self._timers.renew(session, RETRY_SECONDS)


def _ignore(logged: Future[int]) -> None:
    """If the end was not logged, the next leader decides it again."""
    if not logged.cancelled():
        logged.exception()


class MemoryMetadata(StateStore):
    """Keeps everything in memory: for tests, and for brokers that store nothing."""

    async def _ask(self, operation: Operation) -> int:
        self._check_open()
        if self._timers is None:
            self._start_timers()
        return await self._carry_out(operation, self._holder)

    def _log(self, record: Record) -> Future[int]:
        revision = self._state.revision + 1
        self._state.expect(record, revision)
        self._replay(revision, record)
        logged: Future[int] = asyncio.get_running_loop().create_future()
        logged.set_result(revision)
        return logged

    async def _reached(self, revision: int) -> int:
        return revision

    async def reach(self, revision: int) -> int:
        return revision

    async def _confirm(self) -> int:
        return self._state.revision
