"""What all local metadata stores have in common: reads, decisions, watches, sessions; and the store in memory.

Stores differ in how a decided transaction becomes durable: `_log` does that, and then calls `_happened`, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from asyncio import Future, Task, TimerHandle
from collections.abc import Sequence
from dataclasses import dataclass

from pydanube.base.errors import (
    DanubeError,
    MetadataClosed,
    MetadataConflict,
    MetadataFull,
    MetadataInvalid,
    SessionExpired,
)
from pydanube.base.limits import METADATA_OPERATIONS_MAX, SESSION_SECONDS_MAX, SESSIONS_MAX, WATCHES_MAX
from pydanube.metadata.records import NO_SESSION, Check, Entry, RequestedChange, Transaction
from pydanube.metadata.state import Changed, MetadataState
from pydanube.metadata.watch import WatchQueue

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.5  # before deleting the keys of an ended session is tried again, if the log failed
TERM_SHIFT = 32  # a session's number starts with the term in which it was opened, so it is never used twice


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


class LocalStore(ABC):
    """A `MetadataStore` of this process alone. Subclasses add how transactions become durable."""

    def __init__(self) -> None:
        self._state = MetadataState()
        self._watches: dict[StoreWatch, None] = {}
        self._sessions: dict[int, _Session] = {}
        self._session_count = 0
        self._endings: dict[Task[None], None] = {}
        self._closed = False

    @abstractmethod
    def _term(self) -> int:
        """Rises with every start."""

    @abstractmethod
    async def _log(self, transaction: Transaction) -> None:
        """Returns when the transaction is durable and `_happened` was called with it."""

    def _happened(self, transaction: Transaction) -> None:
        changed = self._state.replay(transaction.revision, transaction.changes)
        for watch in self._watches:
            if watch.queue.offer(changed):
                watch.wake()

    # -- the port ------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._state.revision

    def get(self, key: str) -> Entry | None:
        return self._state.get(key)

    def scan(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[tuple[str, Entry]]:
        return self._state.scan(prefix, after=after, limit=limit)

    def count(self, prefix: str) -> int:
        return self._state.count(prefix)

    async def transact(
        self,
        checks: Sequence[Check],
        changes: Sequence[RequestedChange],
        *,
        session: int = NO_SESSION,
        reserve: bool = False,
        empty: str = "",
    ) -> int:
        if self._closed:
            raise MetadataClosed("the metadata store is closed")
        if session != NO_SESSION and session not in self._sessions:
            raise SessionExpired(f"session {session}")
        transaction = self._state.decide(checks, changes, session, reserve=reserve, empty=empty)
        await self._log(transaction)
        return transaction.revision

    def watch(self, prefix: str) -> StoreWatch:
        if self._closed:
            raise MetadataClosed("the metadata store is closed")
        if len(self._watches) >= WATCHES_MAX:
            raise MetadataFull(f"{WATCHES_MAX} watches are already open")
        return StoreWatch(WatchQueue(prefix), self._watches)

    async def open_session(self, seconds: float) -> int:
        if self._closed:
            raise MetadataClosed("the metadata store is closed")
        if not 0 < seconds <= SESSION_SECONDS_MAX:
            raise MetadataInvalid(f"a session can last up to {SESSION_SECONDS_MAX:.0f} seconds, not {seconds}")
        if len(self._sessions) >= SESSIONS_MAX:
            raise MetadataFull(f"{SESSIONS_MAX} sessions are already open")
        self._session_count += 1
        session = (self._term() << TERM_SHIFT) + self._session_count
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
        await self._delete_bound(session)

    async def close(self) -> None:
        self._stop_serving()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _timer(self, session: int, seconds: float) -> TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._expire, session)

    def _expire(self, session: int) -> None:
        self._sessions.pop(session, None)
        task = asyncio.get_running_loop().create_task(self._delete_until_done(session))
        self._endings[task] = None
        task.add_done_callback(lambda done: self._endings.pop(done, None))

    async def _delete_until_done(self, session: int) -> None:
        while not self._closed:
            try:
                await self._delete_bound(session)
            except DanubeError as error:
                log.warning("could not delete the keys of session %d yet: %s", session, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _delete_bound(self, session: int) -> None:
        """Deletes all keys of the session, including those that were being written when it ended."""
        while True:
            await self.transact((), ())  # waits for whatever was decided before
            bound = self._state.bound(session)[: METADATA_OPERATIONS_MAX // 2]
            if not bound:
                return
            held = [(key, entry.version) for key in bound if (entry := self._state.get(key)) is not None]
            with contextlib.suppress(MetadataConflict):  # another client has just written one of them
                await self.transact(held, [(key, None) for key, _ in held])

    def _stop_serving(self) -> None:
        self._closed = True
        for session in self._sessions.values():
            session.timer.cancel()
        self._sessions.clear()
        for task in self._endings:
            task.cancel()
        for watch in list(self._watches):
            watch.close()


class MemoryMetadata(LocalStore):
    """Keeps everything in memory: for tests, and for brokers that store nothing."""

    def _term(self) -> int:
        return 1

    async def _log(self, transaction: Transaction) -> None:
        self._happened(transaction)
