"""The one journal of a node: all appends that wait become one group, one write and one sync. Group commit, no timer.

It owns the file being written and the queue in front of it. It does not know who may append (`DiskNode` decides that).
It never retries a write or a sync: a failure fails all waiting requests, and is reported to the node, which recovers.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydanube.base.counting import Histogram
from pydanube.base.errors import DanubeError, DiskFull, NodeClosed
from pydanube.base.ids import NO_OFFSET, LedgerId
from pydanube.base.limits import (
    BLOCK_BYTES,
    GROUP_BYTES_TARGET,
    GROUP_ENTRIES_MAX,
    GROUP_ENTRIES_TARGET,
    GROUPS_WAITING_MAX,
)
from pydanube.journal.group import NOBODY, GroupKind, Names, encode_group, group_length, pack_entry
from pydanube.journal.index import FileIndex
from pydanube.journal.ledger_table import Control, Ledger
from pydanube.ports.disk import DiskFile
from pydanube.storage.futures import Confirmations, danube_error, refused
from pydanube.storage.node.files import StoredFile
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch

CONTROL_ROOM_PART = 8  # while there is no spare file, the last eighth of a file is for control records only


@dataclass(slots=True)
class Packed:
    """The appends of a group in the form of the file, built for all of them at once just before the write."""

    directory: list[bytes] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    runs: dict[LedgerId, list[list[int]]] = field(default_factory=dict)  # [first, last, confirmed, bytes] each
    ledgers: dict[LedgerId, Ledger] = field(default_factory=dict)


@dataclass(slots=True)
class Pending:
    """A group that is being filled, queued or written. If the disk is full, its appends may be refused separately."""

    appends: list[tuple[Ledger, Batch, int]] = field(default_factory=list)  # with the last confirmed offset
    body_bytes: int = 0
    waiters: list[Future[None]] = field(default_factory=list)
    controls: list[bytes] = field(default_factory=list)  # as directory entries
    control_ledgers: dict[LedgerId, None] = field(default_factory=dict)
    control_waiters: list[Future[None]] = field(default_factory=list)
    sync: bool = False
    kind: GroupKind = GroupKind.ENTRIES
    packed: Packed = field(default_factory=Packed)

    @property
    def entries(self) -> int:
        return len(self.appends) + len(self.controls)

    @property
    def names(self) -> Names:
        lasts = {ledger: max([last for _, last, _, _ in runs]) for ledger, runs in self.packed.runs.items()}
        return {**dict.fromkeys(self.control_ledgers, NO_OFFSET), **lasts}

    def length(self, prior: Names | None) -> int:
        """Bytes of the packed group, if it follows a group with the names `prior`."""
        names = self.control_ledgers.keys() | self.packed.runs.keys()
        return group_length(self.entries, len(names) + len(prior or ()), self.body_bytes)

    @property
    def waited_for(self) -> bool:
        return bool(self.waiters or self.control_waiters)

    def pack(self) -> None:
        packed = self.packed = Packed()
        directory, body, runs, ledgers = packed.directory, packed.body, packed.runs, packed.ledgers
        for ledger, batch, confirmed in self.appends:
            key, first, count, size = ledger.id, batch.base_offset, batch.count, batch.size
            directory.append(pack_entry(key, first, confirmed, size, count, batch.crc, 1))
            body.append(batch.stamp)
            body.append(batch.content)
            if key not in runs:
                runs[key] = [[first, first + count - 1, confirmed, size]]
                ledgers[key] = ledger
                continue
            run = runs[key][-1]
            if first == run[1] + 1:
                run[1] += count
                run[3] += size
                if confirmed > run[2]:
                    run[2] = confirmed
            else:
                runs[key].append([first, first + count - 1, confirmed, size])

    def refuse_appends(self, error: DanubeError) -> None:
        """Takes the appends out of the group, and closes their ledgers, because they leave gaps."""
        for ledger, _, _ in self.appends:
            ledger.close()
        _refuse(self.waiters, error)
        self.appends.clear()
        self.waiters.clear()
        self.packed = Packed()
        self.body_bytes = 0


@dataclass(slots=True)
class ActiveFile:
    """The file being written."""

    file: StoredFile
    handle: DiskFile
    index: FileIndex
    position: int
    capacity: int  # bytes reserved for it
    number: int  # of the last group written
    synced_number: int
    synced_end: int  # where the last synced group ends
    covered: bool = False  # the last group is a mark, or the checkpoint, which needs none
    prior: Names | None = None  # names of the last group, which the next one repeats, if it has only one block

    def wrote(self, number: int, length: int, names: Names) -> None:
        """Notes that the file has one more group."""
        self.number = number
        self.position += length
        self.prior = names if length == BLOCK_BYTES else None

    async def write_mark(self) -> None:
        """Ends the file with a mark that says that everything before it is on disk."""
        number = self.number + 1
        parts, length = encode_group(self.file.salt, number, self.number, [], [], 0, NOBODY, GroupKind.MARK, self.prior)
        await self.handle.write(self.position, parts, sync=True)
        self.wrote(number, length, NOBODY)


class Journal:
    """Submits groups to the active file, one at a time, in order."""

    def __init__(
        self,
        active: ActiveFile,
        settings: NodeSettings,
        *,
        roll: Callable[[int], Task[ActiveFile]],
        failed: Callable[[DanubeError], None],
        commits: Histogram | None = None,
    ) -> None:
        self.active = active
        self._commits = commits or Histogram()  # how many seconds each group took to reach the disk
        self._settings = settings
        self._roll = roll
        self._report_failure = failed
        self._loop = asyncio.get_running_loop()
        self._create_future: Callable[[], Future[None]] = self._loop.create_future
        self._filling = Pending()
        self._queue: deque[Pending] = deque()
        self._writing: Pending | None = None
        self._confirmations = Confirmations(self._loop)  # of groups that are written
        self._queued_bytes = 0
        self._scheduled = False
        self._mark_timer: asyncio.TimerHandle | None = None
        self._last_activity = 0.0
        self._unsynced_since: float | None = None
        self.has_spare = False
        self.failure: DanubeError | None = None
        self.groups_written = 0
        self._idle()  # what recovery wrote again needs a mark too

    # -- submitting --------------------------------------------------------------------------------------------------

    def append(self, ledger: Ledger, batch: Batch, confirmed: int, *, sync: bool) -> Future[None]:
        """Queues one batch; the future is done when its group is as durable as `sync` says."""
        if self.failure is not None:
            return refused(self.failure)
        group = self._filling
        if group.body_bytes >= GROUP_BYTES_TARGET or len(group.appends) + len(group.controls) >= GROUP_ENTRIES_TARGET:
            group = self._next_group()
        group.appends.append((ledger, batch, confirmed))
        group.body_bytes += batch.size
        self._queued_bytes += batch.size
        if sync:
            group.sync = True
        waiter = self._create_future()
        group.waiters.append(waiter)
        if self._writing is None and not self._scheduled:
            self._schedule()
        return waiter

    def has_room(self, size: int) -> bool:
        """Whether an append of that size may be queued; the node asks before it accepts one."""
        return self._queued_bytes + size <= self._settings.pending_bytes_max

    @property
    def room(self) -> int:
        """Bytes left in the active file after everything queued."""
        return max(0, self.active.capacity - self.active.position - self._queued_bytes)

    @property
    def crowded(self) -> bool:
        """Whether so much is waiting that not even control records should be added."""
        return len(self._queue) >= GROUPS_WAITING_MAX

    def submit(self, controls: Sequence[Control]) -> Future[None]:
        """Queues control records; with none, the future is a barrier after those queued so far."""
        if self.failure is not None:
            return refused(self.failure)
        for record in controls:
            self.note(record)
        return self._wait(self._filling.control_waiters)

    def note(self, record: Control) -> None:
        """Queues a control record that must be durable before anything after it is acknowledged."""
        group = self._filling
        if group.entries >= GROUP_ENTRIES_MAX:
            group = self._next_group()
        group.controls.append(pack_entry(record.ledger, record.a, record.b, 0, 0, 0, record.kind))
        group.control_ledgers[record.ledger] = None
        group.sync = True

    def after_appends(self) -> Future[None]:
        """A barrier after all appends queued so far, for an append that is repeated."""
        if self.failure is not None:
            return refused(self.failure)
        return self._wait(self._filling.waiters)

    @property
    def full(self) -> bool:
        """Whether there is no spare file, and the active one has room for control records only."""
        limit = self.active.capacity - self.active.capacity // CONTROL_ROOM_PART
        return not self.has_spare and self.active.position + 2 * BLOCK_BYTES > limit

    def find_queued(self, ledger: LedgerId, first: int, last: int) -> tuple[int, int] | None:
        """Base offset and checksum of a queued batch that overlaps [first, last], for an append that is repeated."""
        groups = (
            [*self._queue, self._filling] if self._writing is None else [self._writing, *self._queue, self._filling]
        )
        for group in groups:
            for entry_ledger, batch, _ in group.appends:
                if entry_ledger.id == ledger and batch.base_offset <= last and first <= batch.last_offset:
                    return batch.base_offset, batch.crc
        return None

    def _wait(self, waiters: list[Future[None]]) -> Future[None]:
        waiter = self._create_future()
        waiters.append(waiter)
        if self._writing is None and not self._scheduled:
            self._schedule()
        return waiter

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._flush)

    def _next_group(self) -> Pending:
        self._queue.append(self._filling)
        self._filling = Pending()
        return self._filling

    # -- writing -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Takes the oldest group and writes it; called when nothing is being written."""
        self._scheduled = False
        if self._writing is not None or self.failure is not None:
            return
        if self._queue:
            group = self._queue.popleft()
        elif self._filling.entries or self._filling.waited_for:
            group, self._filling = self._filling, Pending()
        else:
            self._idle()
            return
        self._writing = group
        group.pack()
        self._write_or_roll(group)

    def _write_or_roll(self, group: Pending) -> None:
        if not group.entries and group.kind is not GroupKind.MARK:
            self._resolve(group)  # it has only barriers: everything before them is already written
        elif self._fits(group):
            self._write(group)
        else:
            self._roll(group.length(None)).add_done_callback(self._rolled)

    def _fits(self, group: Pending) -> bool:
        if group.kind is GroupKind.MARK:  # the last block is kept for it
            return self.active.position + group.length(self.active.prior) <= self.active.capacity
        limit = self.active.capacity
        if group.body_bytes and not self.has_spare:
            limit -= limit // CONTROL_ROOM_PART
        return self.active.position + group.length(self.active.prior) + BLOCK_BYTES <= limit

    def _refuse_appends(self, error: DanubeError) -> None:
        """Called when the disk is full: refuses all appends, including those that wait, because later ones must not
        overtake them.

        Control records still have room. If they were refused too, memory would hold changes that no file has.
        """
        self._confirmations.finish()
        for group in (self._writing, *self._queue, self._filling):
            if group is not None:
                group.refuse_appends(error)
        self._queued_bytes = 0

    def _rolled(self, task: Task[ActiveFile]) -> None:
        group = self._writing
        if self.failure is not None or group is None:
            return
        error = task.exception()
        if isinstance(error, DiskFull) and group.body_bytes:
            self._refuse_appends(error)
            self._write_or_roll(group)
            return
        if error is not None:
            self.fail(danube_error(error))
            return
        self.active = task.result()
        self._unsynced_since = None
        self._write(group)

    def _write(self, group: Pending) -> None:
        active = self.active
        if group.kind is GroupKind.MARK and active.synced_number < active.number:
            active.handle.sync().add_done_callback(lambda done: self._synced(done, group))
            return
        number, names = active.number + 1, group.names
        parts, length = encode_group(
            active.file.salt, number, active.synced_number, group.controls + group.packed.directory, group.packed.body,
            group.body_bytes, names, group.kind, active.prior,
        )  # fmt: skip
        sync = self._must_sync(group)
        self.groups_written += 1
        began = self._loop.time()
        written = active.handle.write(active.position, parts, sync=sync)
        written.add_done_callback(lambda done: self._written(done, group, number, length, names, sync, began))

    def _synced(self, done: Future[None], mark: Pending) -> None:
        """Called when buffered groups are on disk, so that the mark after them may say so."""
        error = done.exception()
        if self.failure is not None:
            return
        if error is not None:
            self.fail(danube_error(error))
            return
        active = self.active
        active.synced_number, active.synced_end, self._unsynced_since = active.number, active.position, None
        self._write(mark)

    def _must_sync(self, group: Pending) -> bool:
        """Whether to sync before the ack: entries promised to be on disk, or buffered ones that have waited enough."""
        waited = self._unsynced_since
        return group.sync or (waited is not None and self._loop.time() - waited >= self._settings.buffered_sync_seconds)

    def _written(
        self, done: Future[None], group: Pending, number: int, length: int, names: Names, sync: bool, began: float
    ) -> None:
        if self.failure is not None:
            done.exception()
            return
        error = done.exception()
        if error is not None:
            self.fail(danube_error(error))
            return
        active = self.active
        block = active.position // BLOCK_BYTES
        active.wrote(number, length, names)
        if sync:
            self._commits.observe(self._loop.time() - began)
            active.synced_number, active.synced_end = number, active.position
            self._unsynced_since = None
        elif self._unsynced_since is None:
            self._unsynced_since = self._loop.time()
        active.covered = group.kind is GroupKind.MARK
        self._index(group, block)
        self._resolve(group)

    def _index(self, group: Pending, block: int) -> None:
        add, file = self.active.index.add, self.active.file
        for key, runs in group.packed.runs.items():
            ledger = group.packed.ledgers[key]
            if ledger.deleted:
                continue
            for first, last, confirmed, size in runs:
                add(key, first, last, block, confirmed, size)
                file.live += size
                if last > ledger.held:
                    ledger.held = last
        file.total += group.body_bytes

    def _resolve(self, group: Pending) -> None:
        self._writing = None
        self._queued_bytes -= group.body_bytes
        self._last_activity = self._loop.time()
        self._confirmations.add(group.waiters)
        self._confirmations.add(group.control_waiters)
        if self._queue or self._filling.waited_for:
            self._flush()
        else:
            self._idle()

    # -- idle and end ------------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Called when nothing waits: after a while, writes a mark that covers the last group, so that later damage is
        noticed."""
        if self._mark_timer is None and self.failure is None and not self.active.covered:
            self._mark_timer = self._loop.call_later(self._settings.mark_idle_seconds, self._mark)

    def _mark(self) -> None:
        self._mark_timer = None
        if self.failure is not None or self._writing is not None or self.active.file.gone:
            return
        if self._loop.time() - self._last_activity < self._settings.mark_idle_seconds:
            self._idle()
        else:
            self._queue.append(Pending(sync=True, kind=GroupKind.MARK))
            self._schedule()

    async def flush(self) -> None:
        """Makes everything queued so far durable, and covers it with a mark."""
        if self.failure is not None:
            raise self.failure
        if self._filling.waited_for:
            self._next_group()
        mark = Pending(sync=True, kind=GroupKind.MARK)
        self._queue.append(mark)
        await self._wait(mark.waiters)

    def stop(self) -> None:
        """Ends this journal, and fails everything that waits."""
        self.fail(NodeClosed("the storage node is closed"), report=False)

    def fail(self, error: DanubeError, *, report: bool = True) -> None:
        """Called after a failed write or sync: nothing that waits is acknowledged, and nothing more is written here."""
        if self.failure is not None:
            return
        self.failure = error
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        groups = [group for group in (self._writing, *self._queue, self._filling) if group is not None]
        self._writing, self._filling = None, Pending()
        self._queue.clear()
        self._queued_bytes = 0
        self._confirmations.finish()
        for group in groups:
            _refuse(group.waiters, error)
            _refuse(group.control_waiters, error)
        if report:
            self._report_failure(error)


def _refuse(waiters: list[Future[None]], error: DanubeError) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
