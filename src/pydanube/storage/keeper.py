"""Frees journal files: those nobody needs go at once, those few need are copied out first, slowly.

The order is the promise: the copy is synced and named, the ledgers know of it durably, and only then the source goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from pydanube.base.errors import DanubeError, LedgerDamaged
from pydanube.base.limits import BLOCK_BYTES, GROUP_BYTES_TARGET, GROUP_ENTRIES_MAX
from pydanube.ledger.group import (
    GROUP_HEADER_BYTES,
    Entry,
    FileHeader,
    Kind,
    decode_directory,
    decode_group_head,
    encode_file_header,
)
from pydanube.ledger.index import FileIndex
from pydanube.ledger.table import Control
from pydanube.ports.disk import Disk, DiskFile
from pydanube.storage.files import StoredFile, file_name, index_name, store_index, try_remove
from pydanube.storage.journal import ActiveFile
from pydanube.storage.start import copy_group
from pydanube.storage.state import NodeState

log = logging.getLogger(__name__)
Log = Callable[[list[Control]], Awaitable[None]]


@dataclass(slots=True)
class Copy:
    """One file being written with what `slot` takes over from a source."""

    slot: int
    disk: Disk
    active: ActiveFile
    entries: list[Entry] = field(default_factory=list)  # of the next group
    size: int = 0


class Keeper:
    """Runs in one task of the node; `wake` tells it that something may have become free."""

    def __init__(self, state: NodeState, active: Callable[[], ActiveFile], log_controls: Log) -> None:
        self._state = state
        self._active = active
        self._log = log_controls
        self._wake = asyncio.Event()
        self._given_up: dict[int, str] = {}  # files that could not be copied: they stay, and why

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for file in self._closed():
                if file.live <= 0:
                    await self.remove(file)
            source = self._worth_copying()
            if source is not None:
                await self._copy_or_give_up(source)
                self._wake.set()

    def _closed(self) -> list[StoredFile]:
        active = self._active().file.generation
        return [file for file in self._state.files.values() if file.generation < active and not file.gone]

    def _worth_copying(self) -> StoredFile | None:
        settings = self._state.disks.settings
        closed = [file for file in self._closed() if file.generation not in self._given_up]
        for file in closed:
            if file.live < file.total * settings.copy_below:
                return file
        if settings.journal_bytes_max is not None:
            journal = [file for file in closed if not file.kept]
            if sum(file.length for file in journal) > settings.journal_bytes_max:
                return min(journal, key=lambda file: file.generation)
        return None

    async def remove(self, file: StoredFile) -> None:
        """Nobody needs it: its ledgers are deleted or copied, durably."""
        file.gone = True
        self._state.files.pop(file.generation, None)
        try:
            await file.disk.remove(file.name)
            await try_remove(file.disk, index_name(file.generation))
            await file.disk.sync_directory()
        except DanubeError as error:
            log.warning("%s could not be removed: %s", file.name, error)
        self._state.cache.forget(file)

    # -- copying out -------------------------------------------------------------------------------------------------

    async def _copy_or_give_up(self, source: StoredFile) -> None:
        copies: dict[int, Copy] = {}
        try:
            await self._copy_out(source, copies)
        except DanubeError as error:
            self._given_up[source.generation] = str(error)
            log.error("%s stays where it is, for it could not be copied out: %s", source.name, error)
            for copy in copies.values():
                self._state.files.pop(copy.active.file.generation, None)
                await copy.active.handle.close()
                await try_remove(copy.disk, copy.active.handle.name)
                await try_remove(copy.disk, copy.active.file.name)

    async def _copy_out(self, source: StoredFile, copies: dict[int, Copy]) -> None:
        """The live entries of `source`, into one file per data directory that takes some of them."""
        state = self._state
        slots = sorted(state.disks.data)
        handle, _ = await state.cache.open(source)
        try:
            async for entry in _entries(handle, source):
                if state.table.find(entry.ledger) is None:
                    continue
                slot = slots[entry.ledger % len(slots)]
                if slot not in copies:
                    copies[slot] = await self._begin(slot, source)
                await self._add(copies[slot], handle, entry)
            for copy in copies.values():
                await self._write(copy, handle)
                await self._seal_copy(copy.disk, copy.active)
        finally:
            state.cache.done(source)
        for copy in copies.values():
            await store_index(copy.disk, copy.active.file.generation, copy.active.index, copy.active.position)
        await self._switch(source, copies)

    async def _begin(self, slot: int, source: StoredFile) -> Copy:
        disks = self._state.disks
        disk = disks.data[slot]
        generation = self._state.next_generation()
        salt = int.from_bytes(disks.randomness.bytes(8), "little")
        name = file_name(generation, kept=True)
        index = FileIndex()
        file = StoredFile(disk, generation, salt, name, kept=True, index=index)
        self._state.files[generation] = file  # takes the number; holds nothing that anybody looks for yet
        handle = file.handle = await disk.create(name + ".tmp")
        header = FileHeader(generation, salt, disks.identity, source.generation, 0, False)
        await handle.write(0, [encode_file_header(header)], sync=False)
        return Copy(slot, disk, ActiveFile(file, handle, index, BLOCK_BYTES, 0, 0, 0, BLOCK_BYTES))

    async def _add(self, copy: Copy, handle: DiskFile, entry: Entry) -> None:
        if copy.size + entry.length > GROUP_BYTES_TARGET or len(copy.entries) >= GROUP_ENTRIES_MAX:
            await self._write(copy, handle)
        copy.entries.append(entry)
        copy.size += entry.length

    async def _write(self, copy: Copy, handle: DiskFile) -> None:
        if copy.entries:
            written = await copy_group(handle, copy.active, copy.entries, self._state.table)
            copy.entries, copy.size = [], 0
            await asyncio.sleep(written / self._state.disks.settings.copy_bytes_per_second)

    async def _seal_copy(self, disk: Disk, active: ActiveFile) -> None:
        """Durable under its final name: only now may the source go."""
        await active.handle.sync()
        await disk.rename(active.file.name + ".tmp", active.file.name)
        await disk.sync_directory()

    async def _switch(self, source: StoredFile, copies: dict[int, Copy]) -> None:
        """Readers find the copies from here on; the source goes when the ledgers' homes are durable."""
        state = self._state
        homes = [
            Control(Kind.KEPT, ledger, copy.slot) for copy in copies.values() for ledger in copy.active.index.ledgers
        ]
        for at in range(0, len(homes), GROUP_ENTRIES_MAX):
            for record in homes[at : at + GROUP_ENTRIES_MAX]:
                state.table.replay(record)
            await self._log(homes[at : at + GROUP_ENTRIES_MAX])
        for copy in copies.values():
            file = copy.active.file
            file.length = copy.active.position
            file.live = 0
            for summary in copy.active.index.summaries():
                ledger = state.table.find(summary.ledger)
                if ledger is not None:
                    file.live += summary.bytes
                    ledger.add_extent(file.generation, summary.first, summary.last, summary.bytes)
            state.cache.adopt(file)
        for ledger in state.table:
            ledger.drop_extent(source.generation)
        source.live = 0
        await self.remove(source)


async def _entries(handle: DiskFile, source: StoredFile) -> AsyncIterator[Entry]:
    """Every batch entry of a closed file, in the order it was written."""
    position = BLOCK_BYTES
    while position < source.length:
        head = decode_group_head(await handle.read(position, GROUP_HEADER_BYTES), source.salt)
        if head is None:
            raise LedgerDamaged(f"{source.name}: the group at {position} is damaged")
        entries = decode_directory(
            head, position, await handle.read(position + GROUP_HEADER_BYTES, head.directory_bytes)
        )
        if entries is None:
            raise LedgerDamaged(f"{source.name}: the directory at {position} is damaged")
        for entry in entries:
            if entry.kind == Kind.APPEND:
                yield entry
        position += head.length
