"""Finds the entries of a disk node and reads them back: from the file being written, closed files, or their copies.

It marks a ledger as damaged when a part of it turns out to be unreadable. It never decides who may read.
"""

from __future__ import annotations

import asyncio
import logging

from pydanube.base.errors import DiskFailed, EntryMissing, LedgerAway, LedgerDamaged
from pydanube.base.ids import LedgerId
from pydanube.base.limits import OFFSET_MAX, READS_AT_ONCE_MAX
from pydanube.journal.ledger_table import SEALED, Ledger
from pydanube.ports.disk import Disk
from pydanube.storage.node.bad_blocks import AroundBadBlocks
from pydanube.storage.node.files import StoredFile, find_intact, read_entries
from pydanube.storage.node.journal import Journal
from pydanube.storage.node.state import NodeDisks, NodeState
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)


class EntryReader:
    """Reads the entries of one node, which calls `take_over` when it starts and after each recovery."""

    _state: NodeState
    _journal: Journal

    def __init__(self, disks: NodeDisks) -> None:
        self.closed = False
        self._disks = disks
        self._turns = asyncio.Semaphore(READS_AT_ONCE_MAX)

    def take_over(self, state: NodeState, journal: Journal) -> None:
        self._state = state
        self._journal = journal

    async def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> list[Batch]:
        async with self._turns:  # each holds at most one answer in memory
            found = self._state.table.get(ledger)
            if found.state == SEALED and offset > found.sealed:
                raise EntryMissing(f"ledger {ledger} ends at {found.sealed}, before {offset}")
            batches = await self._read_from(found, offset, bytes_max)
            if found.state == SEALED:
                batches = [batch for batch in batches if batch.last_offset <= found.sealed]
        if not batches:
            raise EntryMissing(f"ledger {ledger} ends at {found.sealed}, in the middle of the batch at {offset}")
        return batches

    async def _read_from(self, ledger: Ledger, offset: int, bytes_max: int) -> list[Batch]:
        found = await self.find(ledger, offset, offset)
        if found is not None:
            batches = await self.read_file(*found, ledger, offset, bytes_max)
            if batches:
                return batches
            self._found_damaged(ledger, f"ledger {ledger.id}: the index and the group with offset {offset} disagree")
        if ledger.away:
            raise LedgerAway(f"ledger {ledger.id}: offset {offset} may be in a data directory that is missing")
        if ledger.may_have_lost(offset):
            raise LedgerDamaged(f"ledger {ledger.id}: offset {offset} may be in a part that cannot be read")
        raise EntryMissing(f"ledger {ledger.id} has no entry with offset {offset} here")

    async def find_next(self, ledger: LedgerId, offset: int) -> int:
        found = self._state.table.get(ledger)
        first = await self._next_run(found, offset)
        if found.may_have_lost(offset):
            raise LedgerDamaged(f"ledger {ledger}: what follows offset {offset} may be in a part that cannot be read")
        if first is None or (found.state == SEALED and first > found.sealed):
            raise EntryMissing(f"ledger {ledger} has no entry at or after offset {offset} here")
        return first

    async def _next_run(self, found: Ledger, offset: int) -> int | None:
        """The start of the next run of offsets at or after `offset`, according to the indexes."""
        state, ledger = self._state, found.id
        firsts: dict[int, int | None] = {}  # by file; looks again after each await, as `find` does
        while left := [generation for generation in found.files_at(offset, OFFSET_MAX) if generation not in firsts]:
            firsts[left[0]] = None
            file = state.files.get(left[0])
            if file is not None:
                _, index = await state.cache.open(file)
                firsts[left[0]] = index.next_first(ledger, offset)
                state.cache.done(file)
        newest = self._journal.active.index.next_first(ledger, offset)
        return min([first for first in (newest, *firsts.values()) if first is not None], default=None)

    async def find_intact(self, ledger: LedgerId, offset: int) -> int:
        """Tries the entries that the indexes name one by one, and whole groups where a directory is lost."""
        found = self._state.table.get(ledger)
        while found.state != SEALED or offset <= found.sealed:
            entry = await self.find(found, offset, offset)
            if entry is None:
                following = await self._next_run(found, offset)
                if following is None:
                    break
                offset = following
                continue
            file, block = entry
            async with self._turns:
                intact, following = await self._intact_from(file, block, found, offset)
            if intact:
                return following
            offset = max(following, offset + 1)
        raise EntryMissing(f"ledger {ledger} has no intact entry at or after offset {offset} here")

    async def _intact_from(self, file: StoredFile, block: int, ledger: Ledger, offset: int) -> tuple[bool, int]:
        """The first intact entry at or after `offset` in a group that `find` found; or the offset after the group."""
        assert file.handle is not None
        assert file.index is not None
        try:
            return await find_intact(AroundBadBlocks(file.disk, file.handle), file.salt, block, ledger.id, offset)
        except LedgerDamaged:
            return False, file.index.behind(ledger.id, offset)
        finally:
            self._state.cache.done(file)

    async def find(self, ledger: Ledger, first: int, last: int) -> tuple[StoredFile, int] | None:
        """The file and the block of an entry within the offsets; the file stays open for `read_file`.

        Looks again after each await, because entries move: into a closed file by a roll, and into a kept one when they
        are copied out. If it finds none, there was none at that moment.
        """
        state = self._state
        tried: set[int] = set()
        while True:
            active = self._journal.active
            block = active.index.find(ledger.id, first, last)
            if block is not None:
                active.file.readers += 1
                return active.file, block
            left = [generation for generation in ledger.files_at(first, last) if generation not in tried]
            if not left:
                return None
            tried.add(left[0])
            file = state.files.get(left[0])
            if file is None:
                continue
            _, index = await state.cache.open(file)
            block = index.find(ledger.id, first, last)
            if block is not None:
                return file, block
            state.cache.done(file)
            if file.may_have_lost(ledger.id):
                self._found_damaged(ledger, f"ledger {ledger.id}: a part of {file.name} is damaged")

    async def read_file(self, file: StoredFile, block: int, ledger: Ledger, offset: int, bytes_max: int) -> list[Batch]:
        """Reads what `find` found, and releases the file."""
        assert file.handle is not None
        active = self._journal.active
        end = active.position if file is active.file else file.length
        try:
            content = AroundBadBlocks(file.disk, file.handle)
            return await read_entries(content, file.salt, block, end, ledger.id, offset, bytes_max)
        except LedgerDamaged as error:
            self._found_damaged(ledger, str(error))
            raise
        except DiskFailed:
            if file.kept:
                self._lose_disk(file.disk)
            raise
        finally:
            self._state.cache.done(file)

    def _found_damaged(self, ledger: Ledger, what: str) -> None:
        """Marks the ledger in memory only: the damage is found again by the next read or the scan of a start."""
        if ledger.lost_through < ledger.queued and not self.closed:
            log.error("%s", what)
            ledger.lose(ledger.queued)

    def _lose_disk(self, disk: Disk) -> None:
        """A data directory failed. Ledgers with data on it take no more appends, and cannot tell what is missing there;
        the others continue."""
        for slot, held in self._disks.data.items():
            if held is disk:
                for ledger in self._state.table:
                    if ledger.homes >> slot & 1:
                        ledger.close()
                        ledger.lose(ledger.queued)  # nothing above that was ever stored, so it can be recovered
