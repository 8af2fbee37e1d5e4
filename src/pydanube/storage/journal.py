"""The one journal of a node: as many appends as wait become one group, one write, one sync. Group commit, no timer.

It owns the file being written and the queue in front of it. It knows nothing of who may append (that is `node`), and it
never retries a write or a sync: a failure fails every waiter and is handed to the node, which starts over by recovery.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydanube.base.errors import DanubeError, DiskFull, NodeBusy, NodeClosed
from pydanube.base.ids import LedgerId
from pydanube.base.limits import BLOCK_BYTES, GROUP_BYTES_TARGET, GROUP_ENTRIES_MAX
from pydanube.ledger.group import GroupKind, Kind, encode_group, group_length, iter_entries, pack_entry
from pydanube.ledger.index import FileIndex
from pydanube.ledger.table import Control, Ledger
from pydanube.ports.disk import DiskFile
from pydanube.storage.files import StoredFile
from pydanube.storage.settings import NodeSettings
from pydanube.wire.batch import Batch

CONTROL_ROOM_PART = 8  # the last 1/8 of a file is for control records while there is no spare file


@dataclass(slots=True)
class Pending:
    """A group that is being filled, queued or written."""

    directory: list[bytes] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    body_bytes: int = 0
    waiters: list[Future[None]] = field(default_factory=list)
    runs: dict[LedgerId, list[list[int]]] = field(default_factory=dict)  # [first, last, confirmed, bytes] each
    ledgers: dict[LedgerId, Ledger | None] = field(default_factory=dict)
    sync: bool = False
    kind: GroupKind = GroupKind.ENTRIES

    @property
    def length(self) -> int:
        return group_length(len(self.directory), len(self.ledgers), self.body_bytes)


@dataclass(slots=True)
class ActiveFile:
    """The file being written."""

    file: StoredFile
    handle: DiskFile
    index: FileIndex
    position: int
    capacity: int  # bytes set aside for it
    number: int  # of the last group written
    synced_number: int
    synced_end: int  # where the last synced group ends


class Journal:
    """Submits groups to the active file, one at a time, in order."""

    def __init__(
        self,
        active: ActiveFile,
        settings: NodeSettings,
        *,
        roll: Callable[[int], Task[ActiveFile]],
        failed: Callable[[DanubeError], None],
    ) -> None:
        self.active = active
        self._settings = settings
        self._roll = roll
        self._report_failure = failed
        self._loop = asyncio.get_running_loop()
        self._filling = Pending()
        self._queue: deque[Pending] = deque()
        self._writing: Pending | None = None
        self._queued_bytes = 0
        self._scheduled = False
        self._mark_timer: asyncio.TimerHandle | None = None
        self._last_activity = 0.0
        self._unsynced_since: float | None = None
        self._covered = True  # the last group is a mark or the checkpoint
        self.has_spare = False
        self.failure: DanubeError | None = None
        self.groups_written = 0
        self.bytes_written = 0

    # -- submitting --------------------------------------------------------------------------------------------------

    def append(self, ledger: Ledger, batch: Batch, confirmed: int, *, sync: bool) -> Future[None]:
        """Queues one batch; the future is done when its group is as durable as `sync` says."""
        size = batch.size
        if self.failure is not None:
            return self._refused(self.failure)
        if self._queued_bytes + size > self._settings.pending_bytes_max:
            return self._refused(NodeBusy(f"{self._queued_bytes} bytes wait for the journal"))
        group = self._filling
        if group.body_bytes >= GROUP_BYTES_TARGET or len(group.directory) >= GROUP_ENTRIES_MAX:
            group = self._next_group()
        first = batch.base_offset
        last = first + batch.count - 1
        key = ledger.id
        group.directory.append(pack_entry(key, first, confirmed, size, batch.count, batch.crc, 1))
        group.body.append(batch.stamp)
        group.body.append(batch.content)
        group.body_bytes += size
        self._queued_bytes += size
        runs = group.runs.get(key)
        if runs is None:
            group.runs[key] = [[first, last, confirmed, size]]
            group.ledgers[key] = ledger  # also over the None of a control record
        else:
            run = runs[-1]
            if first == run[1] + 1:
                run[1] = last
                run[2] = max(confirmed, run[2])
                run[3] += size
            else:
                runs.append([first, last, confirmed, size])
        if sync:
            group.sync = True
        return self._wait(group)

    def submit(self, controls: Sequence[Control]) -> Future[None]:
        """Queues control records; with none, the future is a barrier behind everything queued so far."""
        if self.failure is not None:
            return self._refused(self.failure)
        group = self._filling
        for kind, ledger, a, b in controls:
            if len(group.directory) >= GROUP_ENTRIES_MAX:
                group.sync = True
                group = self._next_group()
            group.directory.append(pack_entry(ledger, a, b, 0, 0, 0, kind))
            group.ledgers.setdefault(ledger, None)
        if not controls and not group.directory and self._writing is None and not self._queue:
            done: Future[None] = self._loop.create_future()
            done.set_result(None)
            return done
        group.sync = True
        return self._wait(group)

    def note(self, record: Control) -> None:
        """A control record that must be durable before the append that follows it is acknowledged."""
        if len(self._filling.directory) >= GROUP_ENTRIES_MAX:
            self._next_group()
        self._filling.directory.append(pack_entry(record.ledger, record.a, record.b, 0, 0, 0, record.kind))
        self._filling.ledgers.setdefault(record.ledger, None)
        self._filling.sync = True

    @property
    def full(self) -> bool:
        """No spare file, and the active one has room for control records only."""
        limit = self.active.capacity - self.active.capacity // CONTROL_ROOM_PART
        return not self.has_spare and self.active.position + 2 * BLOCK_BYTES > limit

    def find_queued(self, ledger: LedgerId, offset: int) -> int | None:
        """The checksum of a batch at `offset` that is on its way, for a writer that sends it again."""
        groups = (
            [*self._queue, self._filling] if self._writing is None else [self._writing, *self._queue, self._filling]
        )
        for group in groups:
            for entry_ledger, a, _, _, _, crc, kind in iter_entries(b"".join(group.directory)):
                if kind == Kind.APPEND and entry_ledger == ledger and a == offset:
                    return int(crc)
        return None

    def _wait(self, group: Pending) -> Future[None]:
        waiter: Future[None] = self._loop.create_future()
        group.waiters.append(waiter)
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

    def _refused(self, error: DanubeError) -> Future[None]:
        refused: Future[None] = self._loop.create_future()
        refused.set_exception(error)
        return refused

    # -- writing -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Takes the oldest group and writes it; called when nothing is being written."""
        self._scheduled = False
        if self._writing is not None or self.failure is not None:
            return
        if self._queue:
            group = self._queue.popleft()
        elif self._filling.directory or self._filling.waiters:
            group, self._filling = self._filling, Pending()
        else:
            self._idle()
            return
        self._writing = group
        if not group.directory and group.kind is not GroupKind.MARK:
            self._resolve(group)  # a barrier alone: everything before it is written
            return
        if self._fits(group):
            self._write(group)
        elif group.body_bytes and not self.has_spare:
            self._fail_group(group, DiskFull("no room for another journal file"))
        else:
            self._roll(group.length).add_done_callback(self._rolled)

    def _fits(self, group: Pending) -> bool:
        end = self.active.position + group.length + BLOCK_BYTES  # the last block is for the closing mark
        limit = self.active.capacity
        if group.body_bytes and not self.has_spare:
            limit -= limit // CONTROL_ROOM_PART
        return end <= limit

    def _rolled(self, task: Task[ActiveFile]) -> None:
        group = self._writing
        if self.failure is not None or group is None:
            return
        error = task.exception()
        if error is not None:
            if isinstance(error, DiskFull):
                self._fail_group(group, error)
            else:
                self.fail(error if isinstance(error, DanubeError) else DanubeError(str(error)))
            return
        self.active = task.result()
        self._unsynced_since = None
        self._write(group)

    def _write(self, group: Pending) -> None:
        active = self.active
        number = active.number + 1
        parts, length = encode_group(
            active.file.salt, number, active.synced_number, group.directory, group.body, group.body_bytes, group.ledgers,
            group.kind,
        )  # fmt: skip
        sync = self._must_sync(group)
        self.groups_written += 1
        self.bytes_written += length
        written = active.handle.write(active.position, parts, sync=sync)
        written.add_done_callback(lambda done: self._written(done, group, number, length, sync))

    def _must_sync(self, group: Pending) -> bool:
        """Sync before ack: entries that are promised to be on disk, or buffered ones that have waited long enough."""
        waited = self._unsynced_since
        return group.sync or (waited is not None and self._loop.time() - waited >= self._settings.buffered_sync_seconds)

    def _written(self, done: Future[None], group: Pending, number: int, length: int, sync: bool) -> None:
        if self.failure is not None:
            done.exception()
            return
        error = done.exception()
        if error is not None:
            self.fail(error if isinstance(error, DanubeError) else DanubeError(str(error)))
            return
        active = self.active
        block = active.position // BLOCK_BYTES
        active.position += length
        active.number = number
        if sync:
            active.synced_number, active.synced_end = number, active.position
            self._unsynced_since = None
        elif self._unsynced_since is None:
            self._unsynced_since = self._loop.time()
        self._covered = group.kind is GroupKind.MARK
        self._index(group, block)
        self._resolve(group)

    def _index(self, group: Pending, block: int) -> None:
        add, file = self.active.index.add, self.active.file
        for key, runs in group.runs.items():
            ledger = group.ledgers[key]
            if ledger is None or ledger.deleted:
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
        for waiter in group.waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._queue or self._filling.waiters:
            self._flush()
        else:
            self._idle()

    # -- idle and end ------------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        """Nothing waits: after a while one mark group covers the last group, so that later damage to it is noticed."""
        if self._mark_timer is None and self.failure is None and not self._covered:
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
        """Everything queued so far is durable when this returns, and covered by a mark."""
        if self.failure is not None:
            raise self.failure
        if self._filling.waiters:
            self._next_group()
        mark = Pending(sync=True, kind=GroupKind.MARK)
        self._queue.append(mark)
        await self._wait(mark)

    def stop(self) -> None:
        """No more of this journal: fails what waits."""
        self.fail(NodeClosed("the storage node is closed"), report=False)

    def fail(self, error: DanubeError, *, report: bool = True) -> None:
        """A write or sync failed: nothing that waits is acknowledged, and nothing is written here any more."""
        if self.failure is not None:
            return
        self.failure = error
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        groups = [group for group in (self._writing, *self._queue, self._filling) if group is not None]
        self._writing, self._filling = None, Pending()
        self._queue.clear()
        self._queued_bytes = 0
        for group in groups:
            _refuse(group, error)
        if report:
            self._report_failure(error)

    def _fail_group(self, group: Pending, error: DanubeError) -> None:
        """Refuses one group that was never written; its ledgers have a gap now, so they are closed."""
        self._writing = None
        self._queued_bytes -= group.body_bytes
        for ledger in group.ledgers.values():
            if ledger is not None:
                ledger.close()
        _refuse(group, error)
        if self._queue or self._filling.waiters:
            self._loop.call_soon(self._flush)


def _refuse(group: Pending, error: DanubeError) -> None:
    for waiter in group.waiters:
        if not waiter.done():
            waiter.set_exception(error)
