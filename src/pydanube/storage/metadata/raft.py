"""The durable metadata store of a node: it drives consensus, and replays what that has committed.

The order is that of the core: a group of entries is on disk before it counts, and it is replayed, and answered, once it
is committed. A node that is the only voter commits what is on its own disk. A write that fails there is void:
transactions that waited for it are refused, and the next one begins a new file with a snapshot of what is committed.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task, TimerHandle
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from pydanube.base.errors import DanubeError, MetadataClosed
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import MARK_IDLE_SECONDS, METADATA_LOG_BYTES, METADATA_WAITING_BYTES_MAX
from pydanube.metadata.log import LogContent, LogHeader
from pydanube.metadata.records import Record, decode, encode
from pydanube.metadata.snapshot import SnapshotHead
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.raft.entries import Entry, EntryKind, Member, Members, Point
from pydanube.raft.log import Log
from pydanube.raft.node import Raft, Work
from pydanube.raft.settings import RaftSettings
from pydanube.raft.state import Hard
from pydanube.storage.futures import cancel_all
from pydanube.storage.metadata.log_file import LogFile, Snapshot, Successor, Write
from pydanube.storage.metadata.store import StateStore
from pydanube.storage.node.node_file import NodeFile

log = logging.getLogger(__name__)
FAILURES_TOLD_SECONDS = 5.0  # between two log lines while a disk keeps failing
PREPARE_AGAIN_SECONDS = 10.0  # after the next file could not be begun, while the present one has room
SETTINGS = RaftSettings(uncommitted_bytes_max=METADATA_WAITING_BYTES_MAX)


class _Waiting(NamedTuple):
    """A record that is in the log and not replayed yet."""

    record: Record
    replayed: Future[None]


Approval = Callable[["RaftMetadata"], Awaitable[None]]


async def _approved(_: RaftMetadata) -> None:
    """Approves any content."""


class RaftMetadata(StateStore):
    """A `MetadataStore` in a directory of its own. Call `open` first."""

    def __init__(
        self, file: LogFile, found: LogContent | None, randomness: Randomness, mark_idle_seconds: float
    ) -> None:
        super().__init__(holder=file.identity)
        self._file = file
        self._mark_idle_seconds = mark_idle_seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waiting] = {}  # by index
        self._candidates: list[Future[None]] = []  # callers that wait until this node leads
        self._writer: Task[None] | None = None
        self._mark_timer: TimerHandle | None = None
        self._mark_due = False
        self._preparing: Task[Successor] | None = None  # the next file
        self._prepare_after = 0.0  # until then it is begun only if the present file is full
        self._needed_from: int | None = None  # its snapshot's index: entries after it are kept
        self._quiet_until = 0.0  # until then no failure is logged
        hard, entries, start = Hard(), [], Point()
        members = Members.of([Member(file.identity)])
        if found is not None:
            hard, entries, start, members = found.hard, found.entries, found.header.start, found.snapshot.head.members
            self._state.load(start.index, found.snapshot.rows, found.snapshot.head.sessions)
        now = self._loop.time()
        self._raft = Raft(file.identity, hard, Log(start, entries), members, SETTINGS, randomness.below, now)
        self._replay_committed()

    # -- opening and closing -------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        disk: Disk,
        randomness: Randomness,
        *,
        log_bytes: int = METADATA_LOG_BYTES,
        mark_idle_seconds: float = MARK_IDLE_SECONDS,
        approve: Approval | None = None,
    ) -> RaftMetadata:
        """Locks the directory, or creates it; `MetadataDamaged` or `NodeDirectoryInvalid` if it cannot be trusted.

        `approve` sees the content before anything is created or written, and raises if the start must not continue.
        """
        file, found = await LogFile.open(disk, randomness, log_bytes)
        try:
            store = cls(file, found, randomness, mark_idle_seconds)
            await (approve or _approved)(store)
            await file.begin()
            if found is None:
                await file.succeed(await file.prepare(store._snapshot()), Write(store._raft.hard, 0))
        except BaseException:
            await file.release()
            raise
        await store._begin()
        return store

    async def _begin(self) -> None:
        """Takes the lead, and ends the sessions that this node had when it ended. A full disk prevents neither reading
        nor trying again later."""
        ended = self._state.sessions(self._holder)
        try:
            await self._ready()
            for session in ended:
                await self._end(session)
        except DanubeError as error:
            log.warning("the metadata log cannot be written to yet: %s", error)
            for session in ended:
                self._expire(session)

    @property
    def disk(self) -> Disk:
        return self._file.disk

    @property
    def cluster(self) -> str:
        """32 hexadecimal digits that never change."""
        return self._file.cluster.hex()

    @property
    def identity(self) -> NodeIdentity:
        return self._file.identity

    @property
    def term(self) -> int:
        """Rises with every start, and after every failure of the log."""
        return self._raft.hard.term

    @property
    def chain(self) -> Point:
        """How far the log is replayed, with the hash of everything up to there."""
        point = self._raft.log.point(self._raft.log.applied)
        assert point is not None
        return point

    def written(self) -> tuple[NodeFile, LogHeader, int] | None:
        """The live file and how far it is durable; None while another file replaces it."""
        return self._file.written()

    async def close(self) -> None:
        """Accepts no new work; when this returns, everything that was accepted is durable or refused."""
        if self._closed:
            return
        self._stop_serving()
        self._answer_candidates(MetadataClosed("the metadata store is closed"))
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        await self._drain()
        if not self._file.covered:
            self._mark()
            await self._drain()
        if self._preparing is not None:
            await cancel_all([self._preparing])
            if not self._preparing.cancelled() and self._preparing.exception() is None:
                await self._file.discard(self._preparing.result())
        await self._file.close()

    async def _drain(self) -> None:
        while self._writer is not None:
            await asyncio.wait([self._writer])

    # -- proposals -----------------------------------------------------------------------------------------------------

    async def _ready(self) -> None:
        while not self._raft.is_serving:
            elected = self._loop.create_future()
            self._candidates.append(elected)
            self._raft.campaign(self._loop.time())
            self._wake()
            await elected

    async def _log(self, record: Record) -> int:
        index = self._raft.propose(self._loop.time(), [encode(record)]).index
        self._state.expect(record, index)
        replayed: Future[None] = self._loop.create_future()
        self._waiting[index] = _Waiting(record, replayed)
        self._wake()
        await asyncio.shield(replayed)  # others may wait for it after this caller has given up
        return index

    async def _wait_for(self, revision: int) -> None:
        found = self._waiting.get(revision)
        if found is not None:
            await asyncio.shield(found.replayed)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        """Writes groups until nothing waits, each after the previous one is durable."""
        work: Work | None = None
        try:
            while (work := self._raft.take()) is not None or self._mark_due:
                await self._write(work)
                if work is not None:
                    self._raft.written(self._loop.time())
                    self._replay_committed()
                    self._answer_candidates(None)
        except Exception as error:
            self._fail(work, error if isinstance(error, DanubeError) else DanubeError(repr(error)))
        finally:
            self._writer = None
        self._idle()

    async def _write(self, work: Work | None) -> None:
        """Without work, writes a mark."""
        raft, file, self._mark_due = self._raft, self._file, False
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
            if self._file.needs_successor and self._loop.time() >= self._prepare_after:
                self._prepare(early=True)
            return False
        if not self._preparing.done():
            return False
        if self._preparing.exception() is None:
            return True
        self._preparing = self._needed_from = None
        self._prepare_after = self._loop.time() + PREPARE_AGAIN_SECONDS
        return False

    def _prepare(self, entries: Sequence[Entry] = (), *, early: bool = False) -> Task[Successor]:
        snapshot = self._snapshot()
        self._needed_from = snapshot.point.index
        self._preparing = self._loop.create_task(self._file.prepare(snapshot, entries, early=early))
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
                await self._file.discard(successor)
                successor = await self._prepare(entries)
                entries = log.after(successor.point.index, last=log.handed)
            await self._file.succeed(successor, Write(hard, committed, None, entries))
        finally:
            self._preparing = self._needed_from = None

    def _snapshot(self) -> Snapshot:
        state = self._state.freeze()
        return Snapshot(self.chain, SnapshotHead(self._raft.members_at(state.revision), state.sessions), state)

    def _fail(self, work: Work | None, error: DanubeError) -> None:
        """Refuses everything that waits, because it builds on what failed."""
        now = self._loop.time()
        if now >= self._quiet_until:  # every retry fails the same way
            log.error("the metadata log failed and continues in a new file: %s", error)
            self._quiet_until = now + FAILURES_TOLD_SECONDS
        self._file.abandon()
        if work is None:  # only a mark is lost
            if self._waiting:
                self._loop.call_soon(self._wake)
            return
        self._raft.not_written(now)
        self._state.forget_expected()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.replayed.done():
                each.replayed.set_exception(error)
        self._answer_candidates(error)

    def _answer_candidates(self, error: DanubeError | None) -> None:
        if error is None and not self._raft.is_serving:
            return
        candidates, self._candidates = self._candidates, []
        for elected in candidates:
            if not elected.done():
                elected.set_result(None) if error is None else elected.set_exception(error)

    def _replay_committed(self) -> None:
        """Replays what is committed, and answers those who wait for it."""
        raft = self._raft
        for entry in raft.log.after(raft.log.applied, last=raft.appliable):
            waiting = self._waiting.pop(entry.index, None)
            if waiting is not None:
                record: Record | None = waiting.record
            else:
                record = decode(entry.data) if entry.kind == EntryKind.DATA else None
            self._replay(entry.index, record)
            raft.log.applied = entry.index
            if waiting is not None and not waiting.replayed.done():
                waiting.replayed.set_result(None)
        raft.forget(raft.log.applied if self._needed_from is None else self._needed_from)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Writes a mark after a while, which covers the last group, so that its loss would be noticed."""
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        if not self._file.covered and not self._closed:
            self._mark_timer = self._loop.call_later(self._mark_idle_seconds, self._mark)

    def _mark(self) -> None:
        self._mark_due = True
        self._wake()
