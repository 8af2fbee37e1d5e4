"""The storage node on disk: checks who may append, logs to the journal, answers when it is durable, and reads back.

Owned by one event loop. After a failed write or sync it discards its memory and recovers, with every ledger closed;
meanwhile reads continue from what was durable.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from pydanube.base.counting import Histogram
from pydanube.base.durability import Durability
from pydanube.base.errors import (
    ArgumentInvalid,
    BatchInvalid,
    DanubeError,
    DiskFull,
    EntryConflict,
    LedgerAway,
    LedgerDamaged,
    LedgerFenced,
    NodeBusy,
    NodeClosed,
    NodeDirectoryInvalid,
)
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGERS_A_TURN, OFFSET_MAX, READ_BYTES_MAX, READS_WAITING_MAX, RESERVE_OFFSETS
from pydanube.journal.group import EntryKind
from pydanube.journal.ledger_table import BUFFERED, NOTHING_REFUSED, OPEN, Control, Ledger
from pydanube.journal.scan import Damage
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import LedgerStatus
from pydanube.storage.futures import refused
from pydanube.storage.node.entries import EntryReader
from pydanube.storage.node.files import FileCache, StoredFile
from pydanube.storage.node.journal import ActiveFile, Journal
from pydanube.storage.node.keeper import Keeper
from pydanube.storage.node.node_file import JOURNAL, NodeFile, identify
from pydanube.storage.node.roll import Roller
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.node.start import Recovered, recover
from pydanube.storage.node.state import Ballast, NodeDisks, NodeState
from pydanube.storage.node.status import DURABILITY_CODES, status_of
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Batches = list[Batch]
Statuses = list[LedgerStatus]
LedgerIds = list[LedgerId]
Written = list[tuple[StoredFile, int]]  # files, and how far each is written


class DiskNode:
    """A `StorageNode` on one or more directories, opened with `DiskNode.open`."""

    def __init__(self, disks: NodeDisks, recovered: Recovered) -> None:
        self.commits = Histogram()  # seconds that each synced group of the journal took
        self.guard, self.pinned = disks.guard, disks.pinned
        self._disks = disks
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Task[object], None] = {}
        self._closed = False
        self._reads = 0  # in progress or waiting
        self._entries = EntryReader(disks)
        self._short = False
        self._take_over(recovered)

    @classmethod
    async def open(
        cls,
        directories: Sequence[Disk],
        settings: NodeSettings,
        randomness: Randomness,
        *,
        journal: Disk | None = None,
        identity: NodeIdentity | None = None,
    ) -> DiskNode:
        """Starts a node on its data directories; the journal is in the first one unless it has a disk of its own.

        With `identity`, only the node with that identity is started or created.
        """
        if not directories:
            raise NodeDirectoryInvalid("a storage node needs at least one data directory")
        journal = journal or directories[0]
        locked: list[Disk] = []
        try:
            belongings, data = await identify(journal, directories, randomness, locked, identity)
            recovered = await recover(journal, data, belongings, settings, randomness)
        except BaseException:
            for disk in locked:
                await disk.unlock()
            raise
        return cls(NodeDisks(journal, data, belongings, settings, randomness), recovered)

    def _take_over(self, recovered: Recovered) -> None:
        settings = self._disks.settings
        cache = FileCache(settings.index_cache_bytes)
        self._state = state = NodeState(self._disks, recovered.table, recovered.files, cache, recovered.damage)
        state.short = self._short
        self._roller = roller = Roller(state, lambda: self._keeper.wake())
        self._journal = journal = Journal(
            recovered.active, settings, roll=self._roll, failed=self._broken, commits=self.commits
        )
        self._entries.take_over(state, journal)
        self._keeper = keeper = Keeper(state, lambda: journal.active, journal.submit)
        self._background = [self._task(self._prepare(roller, journal))]
        self._keeping = self._task(keeper.run())
        keeper.wake()

    # -- the storage node port ---------------------------------------------------------------------------------------

    @property
    def identity(self) -> NodeIdentity:
        return self._disks.identity

    in_order = True

    @property
    def boots(self) -> int:
        """How often this node has started: the durable boot epoch."""
        return self._disks.belongings.node.boots

    @property
    def damage(self) -> list[Damage]:
        """What the last start found damaged."""
        return self._state.damage

    @property
    def ledgers(self) -> int:
        """How many ledgers it keeps."""
        return len(self._state.table)

    @property
    def groups_written(self) -> int:
        """Group commits of the current journal since the node started or last recovered."""
        return self._journal.groups_written

    def create(self, ledger: LedgerId, epoch: Epoch, durability: Durability) -> Future[None]:
        if self._roller.disk_full and self._journal.full:
            return refused(DiskFull("no room for another ledger"))
        return self._control(lambda: self._state.table.decide_create(ledger, epoch, DURABILITY_CODES[durability]))

    def append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> Future[None]:
        found = self._state.table.find(ledger)
        bad = not batch.epoch or not NO_OFFSET <= confirmed <= OFFSET_MAX
        if found is None or bad or not found.admits(epoch) or self._closed:
            return refused(self._why_not(ledger, epoch, batch, confirmed))
        first = batch.base_offset
        if first <= found.queued:
            return self._task(self._append_again(found, epoch, batch, confirmed))
        journal = self._journal
        room = journal.has_room(batch.size)
        if not (room and found.refused == NOTHING_REFUSED) and not found.takes(first, room=room):
            return refused(NodeBusy("too many bytes are waiting for the journal"))
        last = found.queued = first + batch.count - 1
        if confirmed > found.confirmed:
            found.confirmed = confirmed
        if found.durability == BUFFERED and found.state == OPEN:
            self._reserve(found, last)
            return journal.append(found, batch, confirmed, sync=False)
        return journal.append(found, batch, confirmed, sync=True)

    def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> Future[Batches]:
        if self._closed:
            return refused(NodeClosed("the storage node is closed"))
        if self._reads >= READS_WAITING_MAX:
            return refused(NodeBusy(f"{self._reads} reads are in progress or waiting"))
        self._reads += 1
        reading = self._task(self._entries.read(ledger, offset, max(1, min(bytes_max, READ_BYTES_MAX))))
        reading.add_done_callback(self._read_done)
        return reading

    def _read_done(self, _: Future[Batches]) -> None:
        self._reads -= 1

    def find_next(self, ledger: LedgerId, offset: int) -> Future[int]:
        if self._closed:
            return refused(NodeClosed("the storage node is closed"))
        return self._task(self._entries.find_next(ledger, offset))

    def find_intact(self, ledger: LedgerId, offset: int) -> Future[int]:
        if self._closed:
            return refused(NodeClosed("the storage node is closed"))
        return self._task(self._entries.find_intact(ledger, offset))

    def fence(self, ledger: LedgerId, epoch: Epoch) -> Future[LedgerStatus]:
        return self._task(self._fence(ledger, epoch))

    def seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> Future[None]:
        return self._control(lambda: self._state.table.decide_seal(ledger, epoch, last))

    def delete(self, ledger: LedgerId) -> Future[None]:
        return asyncio.shield(self._task(self._delete(ledger)))  # once decided, it is always completed

    def list(self) -> Future[Statuses]:
        if self._closed:
            return refused(NodeClosed("the storage node is closed"))
        return self._loop.create_task(self._list())

    async def _list(self) -> Statuses:
        """Lists in slices, because there may be very many ledgers and other tasks need their turns."""
        found: Statuses = []
        for number, ledger in enumerate(tuple(self._state.table), 1):
            found.append(self._status(ledger))
            if not number % LEDGERS_A_TURN:
                await asyncio.sleep(0)
        return found

    # -- for the operator --------------------------------------------------------------------------------------------

    async def reconcile_with_catalog(self, known: frozenset[LedgerId], next_ledger: LedgerId) -> LedgerIds:
        """Durably marks the ledgers that the catalogue does not know, and returns them. It never deletes them.

        The catalogue assigns numbers from `next_ledger` on. A node that has lost part of its journal creates only such
        ledgers, because it cannot have known them before.
        """
        self._state.table.born_later = next_ledger
        changes = [
            Control(EntryKind.QUARANTINE, ledger.id, int(ledger.id not in known))
            for ledger in self._state.table
            if ledger.quarantined != (ledger.id not in known)
        ]
        if changes:
            await self._control(lambda: changes)
        strangers = sorted(ledger.id for ledger in self._state.table if ledger.quarantined)
        if strangers:
            log.error("%d ledgers are unknown to the catalogue and were set aside: %s", len(strangers), strangers[:20])
        return strangers

    async def room(self) -> int:
        """Bytes that the journal can still take: free space on its disk, and space reserved in files."""
        free = await self._disks.journal.free_bytes()
        state, size = self._state, self._disks.settings.file_bytes
        files = len(state.recycled) + self._roller.has_spare
        owed = 0 if state.ballast is Ballast.HELD else size // 2  # the ballast is restored before the next file
        return max(0, free + files * size + self._journal.room - owed)

    def make_room(self, short: bool) -> None:
        """While room is short, files are also copied out if most of their data is still needed."""
        self._short = self._state.short = short
        self._keeper.wake()

    async def close(self) -> None:
        """Accepts no new work, makes everything queued durable, closes the files and unlocks the directories."""
        if self._closed:
            return
        self._closed = self._entries.closed = True
        await self._stop_keeping()
        try:
            await self._journal.flush()
        except DanubeError as error:
            log.error("the journal could not be flushed: %s", error)
        self._journal.stop()
        while self._tasks:  # a recovery that was in progress starts new ones at its end
            self._keeper.stop()
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._journal.stop()
        await self._disks.belongings.settle()
        await self._roller.close()
        for file in self._state.files.values():
            if file.handle is not None:
                await file.handle.close()
        for disk in dict.fromkeys([self._disks.journal, *self._disks.data.values()]):
            await disk.unlock()

    # -- control records ---------------------------------------------------------------------------------------------

    def _control(self, decide: Callable[[], Sequence[Control]]) -> Future[None]:
        """Decide, apply, log; the answer is released when the log is durable."""
        if self._closed:
            return refused(NodeClosed("the storage node is closed"))
        if self._journal.failure is not None:
            return refused(self._journal.failure)
        if self._journal.crowded:
            return refused(NodeBusy("too many groups are waiting for the journal"))
        try:
            records = decide()
        except DanubeError as error:
            return refused(error)
        for record in records:
            self._state.table.replay(record)
        return self._journal.submit(records)

    async def _fence(self, ledger: LedgerId, epoch: Epoch) -> LedgerStatus:
        state = self._state
        if state.table.find(ledger) is None and self._roller.disk_full and self._journal.full:
            raise DiskFull("no room for another ledger")  # the remaining room is for deletions, which free more
        await self._control(lambda: state.table.decide_fence(ledger, epoch))
        return self._status(state.table.get(ledger))

    def _status(self, ledger: Ledger) -> LedgerStatus:
        runs = self._journal.active.index.ledgers.get(ledger.id)
        return status_of(ledger, 0 if runs is None else runs.bytes, self._state.table.unknown)

    async def _delete(self, ledger: LedgerId) -> None:
        state, journal = self._state, self._journal
        found = state.table.find(ledger)
        await self._control(lambda: state.table.decide_delete(ledger))
        if found is None:
            return
        state.release(found)
        runs = journal.active.index.ledgers.pop(ledger, None)
        if runs is not None:
            journal.active.file.live -= runs.bytes
        self._keeper.wake()

    def _reserve(self, ledger: Ledger, last: int) -> None:
        """Durably records which offsets a buffered ledger may have used, before it acknowledges any of them."""
        if last >= ledger.reserved:
            record = Control(EntryKind.RESERVE, ledger.id, last + RESERVE_OFFSETS)
            self._state.table.replay(record)
            self._journal.note(record)

    # -- appends that need a closer look -------------------------------------------------------------------------------

    def _why_not(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> DanubeError:
        if self._closed:
            return NodeClosed("the storage node is closed")
        if not batch.epoch:
            return BatchInvalid("the batch has no stamp")
        if not NO_OFFSET <= confirmed <= OFFSET_MAX:
            return ArgumentInvalid(f"{confirmed} is not a valid confirmed offset")
        try:
            found = self._state.table.get(ledger)
        except DanubeError as error:
            return error
        if found.away:
            return LedgerAway(f"ledger {ledger} is read-only: a data directory is missing")
        if found.incomplete and found.state == OPEN:
            return LedgerDamaged(f"ledger {ledger} is read-only: a part of it is damaged")
        return LedgerFenced(f"ledger {ledger} is closed for epoch {epoch}")

    async def _append_again(self, ledger: Ledger, epoch: Epoch, batch: Batch, confirmed: int) -> None:
        """Handles an append at or below the highest offset: the same batch again, or one that arrives late."""
        first, last = batch.base_offset, batch.last_offset
        found = await self._entries.find(ledger, first, last)
        queued = self._journal.find_queued(ledger.id, first, last)
        if found is not None:
            held = await self._entries.read_file(*found, ledger, first, 1)
            same = bool(held) and (held[0].base_offset, held[0].crc) == (first, batch.crc)
        else:
            same = queued is None or queued == (first, batch.crc)
        if not same:
            raise EntryConflict(f"ledger {ledger.id} has another batch within offsets {first} to {last}")
        if found is None and queued is None:
            if self._state.table.find(ledger.id) is not ledger or not ledger.admits(epoch):
                raise self._why_not(ledger.id, epoch, batch, confirmed)  # it was fenced, sealed or deleted meanwhile
            if not self._journal.has_room(batch.size):
                raise NodeBusy("too many bytes are waiting for the journal")
            ledger.confirmed = max(confirmed, ledger.confirmed)
            lazy = ledger.durability == BUFFERED and ledger.state == OPEN  # what recovery writes again must be synced
            await self._journal.append(ledger, batch, confirmed, sync=not lazy)
        elif found is None:
            await self._journal.after_appends()

    # -- copying from outside ------------------------------------------------------------------------------------------

    def unpin(self, generations: Sequence[int]) -> None:
        """Allows these files to be removed again: they have been copied."""
        for generation in generations:
            self.pinned.generations.pop(generation, None)
        self._keeper.wake()

    def written(self) -> tuple[NodeFile, Written] | None:
        """All files and how far each is written, as a crash now would leave them; None while files change."""
        active, node, files = self._journal.active, self._disks.belongings.node, self._state.files
        newest = max([generation for generation, slot in node.files.items() if slot == JOURNAL], default=None)
        if self._journal.failure is not None or newest != active.file.generation or not node.files.keys() <= set(files):
            return None
        found = [files[generation] for generation in node.files]
        return node, [(file, active.position if file is active.file else file.length) for file in found]

    # -- rolling, failing, tasks ---------------------------------------------------------------------------------------

    def _roll(self, room: int) -> Task[ActiveFile]:
        return self._task(self._roll_over(self._journal, self._roller, room))

    async def _roll_over(self, journal: Journal, roller: Roller, room: int) -> ActiveFile:
        old = journal.active
        new = await roller.roll(old, room)
        journal.has_spare = roller.has_spare
        self._background = [task for task in self._background if not task.done()]
        self._background.append(self._task(self._after_roll(journal, roller, old, new)))
        return new

    async def _after_roll(self, journal: Journal, roller: Roller, old: ActiveFile, new: ActiveFile) -> None:
        await roller.store_index(old)
        self._keeper.wake()
        await self._prepare(roller, journal)

    async def _prepare(self, roller: Roller, journal: Journal) -> None:
        await roller.prepare()
        journal.has_spare = True

    def _broken(self, error: DanubeError) -> None:
        log.error("the journal failed; its ledgers are closed and the node restarts: %s", error)
        if not self._closed:
            self._task(self._start_over())

    async def _start_over(self) -> None:
        """Abandons the file where it was last synced, and rebuilds memory from what is durable (§7)."""
        old, active = self._state, self._journal.active
        for task in self._background:
            task.cancel()
        await self._stop_keeping()
        await self._disks.belongings.settle()
        while not self._closed:
            try:
                await self._roller.close()
                recovered = await recover(
                    self._disks.journal, self._disks.data, self._disks.belongings, self._disks.settings,
                    self._disks.randomness,
                    cut=(active.file.generation, active.synced_end),
                )  # fmt: skip
            except DanubeError as error:
                log.error("the node cannot restart yet: %s", error)
                await asyncio.sleep(self._disks.settings.retry_seconds)
                continue
            for file in old.files.values():
                file.gone = True
                old.cache.forget(file)
            if not recovered.table.forgetful:
                recovered.table.born_later = old.table.born_later
            self._take_over(recovered)
            return

    async def _stop_keeping(self) -> None:
        self._keeper.stop()
        await asyncio.wait([self._keeping])

    def _task(self, work: Coroutine[object, object, Result]) -> Task[Result]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task
