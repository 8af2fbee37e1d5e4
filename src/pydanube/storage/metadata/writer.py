"""Writes the log of one node: what consensus hands out, one group after the other, and in a new file when one is full.

It also puts a snapshot that the leader has sent in place of the whole log. While it writes nothing else happens to the
file, so what is said to be durable is.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task, TimerHandle
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pydanube.base.errors import DanubeError
from pydanube.metadata.snapshot import Row, SnapshotHead
from pydanube.metadata.state import MetadataState
from pydanube.raft.entries import Entry, Point
from pydanube.raft.node import Raft, Work
from pydanube.raft.state import Hard
from pydanube.storage.futures import cancel_all
from pydanube.storage.metadata.log_file import LogFile, Snapshot, Successor, Write

log = logging.getLogger(__name__)
FAILURES_TOLD_SECONDS = 5.0  # between two log lines while a disk keeps failing
PREPARE_AGAIN_SECONDS = 10.0  # after the next file could not be begun, while the present one has room
RETRY_SECONDS = 0.5  # after a failed write, unless someone asks for it sooner


class ReceivedSnapshot(NamedTuple):
    """What the leader of a term has sent."""

    sender: str
    term: int
    point: Point
    head: SnapshotHead
    rows: list[Row]


class WriterHost(Protocol):
    """Who is told."""

    def on_written(self, work: Work) -> None: ...

    def on_failed(self, work: Work, error: DanubeError) -> None: ...

    def on_installed(self, received: ReceivedSnapshot) -> None:
        """The log on disk begins with this snapshot now, and has nothing else."""


class LogWriter:
    """Owned by one node. `wake` it when there may be something to write."""

    def __init__(
        self, file: LogFile, raft: Raft, host: WriterHost, snapshot: Callable[[], Snapshot], mark_idle_seconds: float
    ) -> None:
        self.file = file
        self.needed_from: int | None = None  # the index of the next file's snapshot: entries after it are kept
        self.began: float | None = None  # when the write that is under way began
        self.is_installing = False  # consensus must wait meanwhile
        self._raft = raft
        self._host = host
        self._snapshot = snapshot
        self._mark_idle_seconds = mark_idle_seconds
        self._loop = asyncio.get_running_loop()
        self._task: Task[None] | None = None
        self._mark_timer: TimerHandle | None = None
        self._mark_due = False
        self._preparing: Task[Successor] | None = None  # the next file
        self._prepare_after = 0.0  # until then it is begun only if the present file is full
        self._received: ReceivedSnapshot | None = None
        self._retry: TimerHandle | None = None  # after a failed write
        self._quiet_until = 0.0  # until then no failure is logged
        self._closed = False

    # -- its host's calls ----------------------------------------------------------------------------------------------

    def wake(self, *, at_once: bool = False) -> None:
        """`at_once`: someone waits, although the last write has just failed."""
        if at_once and self._retry is not None:
            self._end_pause()
        if self._task is None and self._retry is None:
            self._task = self._loop.create_task(self._write_all())

    def install(self, received: ReceivedSnapshot) -> None:
        """Puts the snapshot in place of the log, if this node still needs it by then."""
        self._received = received
        self.wake()

    async def close(self) -> None:
        """When this returns, everything that consensus has handed out is durable, or has failed."""
        self._closed = True
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        await self._drain()
        if not self.file.covered:
            self._mark()
            await self._drain()
        self._end_pause()
        await self._drop_successor()
        await self.file.close()

    async def _drain(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        """Writes until nothing waits, each group after the previous one is durable."""
        work: Work | None = None
        try:
            while True:
                if self._received is not None:
                    work = None
                    await self._install(self._received)
                elif (work := self._raft.take()) is not None or self._mark_due:
                    self.began = self._loop.time()
                    await self._write(work)
                    self.began = None
                    if work is not None:
                        self._host.on_written(work)
                else:
                    break
        except Exception as error:
            self._fail(work, error if isinstance(error, DanubeError) else DanubeError(repr(error)))
        finally:
            self._task = self.began = None
        self._idle()

    async def _write(self, work: Work | None) -> None:
        """Without work, writes a mark."""
        raft, file, self._mark_due = self._raft, self.file, False
        if work is None:
            if not file.covered:
                await file.append(Write(raft.hard, raft.log.applied), mark=True)
            return
        last = work.entries[-1].index if work.entries else raft.log.durable
        committed = min(raft.log.committed, last)
        if file.has_room(work.entries) and not self._is_prepared():
            await file.append(Write(work.hard, committed, work.cut, work.entries))
        else:
            await self._continue(work.hard, committed)

    def _is_prepared(self) -> bool:
        """Whether the next file is complete. Begins it in time, and again later if that failed."""
        if self._preparing is None:
            if self.file.needs_successor and self._loop.time() >= self._prepare_after:
                self._prepare(early=True)
            return False
        if not self._preparing.done():
            return False
        if self._preparing.exception() is None:
            return True
        self._preparing = self.needed_from = None
        self._prepare_after = self._loop.time() + PREPARE_AGAIN_SECONDS
        return False

    def _prepare(self, entries: Sequence[Entry] = (), *, early: bool = False) -> Task[Successor]:
        snapshot = self._snapshot()
        self.needed_from = snapshot.point.index
        self._preparing = self._loop.create_task(self.file.prepare(snapshot, entries, early=early))
        return self._preparing

    async def _continue(self, hard: Hard, committed: int) -> None:
        """Continues in the next file."""
        log = self._raft.log
        preparing = self._preparing
        if preparing is None or (preparing.done() and preparing.exception() is not None):
            preparing = self._prepare(log.after(log.applied, last=log.handed))
        try:
            await asyncio.wait([preparing])
            successor = preparing.result()
            entries = log.after(successor.point.index, last=log.handed)
            if not successor.has_room(entries):  # it was begun before they came
                await self.file.discard(successor)
                successor = await self._prepare(entries)
                entries = log.after(successor.point.index, last=log.handed)
            await self.file.succeed(successor, Write(hard, committed, None, entries))
        finally:
            self._preparing = self.needed_from = None

    async def _drop_successor(self) -> None:
        preparing, self._preparing, self.needed_from = self._preparing, None, None
        if preparing is not None:
            await cancel_all([preparing])
            if not preparing.cancelled() and preparing.exception() is None:
                await self.file.discard(preparing.result())

    def _fail(self, work: Work | None, error: DanubeError) -> None:
        now = self._loop.time()
        if now >= self._quiet_until:  # every retry fails the same way
            log.error("the metadata log failed and continues in a new file: %s", error)
            self._quiet_until = now + FAILURES_TOLD_SECONDS
        self.file.abandon()
        if work is None:  # only a mark is lost
            self._loop.call_soon(self.wake)
            return
        if not self._closed:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)
        self._host.on_failed(work, error)

    def _try_again(self) -> None:
        self._retry = None
        self.wake()

    def _end_pause(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # -- a snapshot of the leader --------------------------------------------------------------------------------------

    async def _install(self, received: ReceivedSnapshot) -> None:
        self._received = None
        try:
            await self._drop_successor()
            state = MetadataState()
            state.load(received.point.index, received.rows, received.head.sessions)
            successor = await self.file.prepare(Snapshot(received.point, received.head, state.freeze()))
            self.is_installing = True
            if not self._raft.needs(received.term, received.point):
                await self.file.discard(successor)
                return
            try:
                await self.file.succeed(successor, Write(self._raft.hard, received.point.index))
            except BaseException:
                self.file.abandon()
                raise
            self._host.on_installed(received)
        except DanubeError as error:
            log.warning("a snapshot of the metadata could not be stored: %s", error)
        finally:
            self.is_installing = False

    # -- marks ---------------------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Writes a mark after a while, which covers the last group, so that its loss would be noticed."""
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        if not self.file.covered and not self._closed:
            self._mark_timer = self._loop.call_later(self._mark_idle_seconds, self._mark)

    def _mark(self) -> None:
        self._mark_due = True
        self.wake()
