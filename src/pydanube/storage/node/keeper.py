"""Frees journal files: removes unneeded ones at once; of others, first copies out the little that is needed, slowly.

The order matters: the copy is synced and named, its ledgers durably record it, and only then is the source removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from pydanube.base.errors import DanubeError, DiskFull, LedgerDamaged, NodeClosed
from pydanube.base.limits import BLOCK_BYTES, GROUP_BYTES_TARGET, GROUP_ENTRIES_TARGET
from pydanube.base.retry import Backoff
from pydanube.journal.group import (
    GROUP_HEADER_BYTES,
    NO_PREVIOUS,
    SOURCES_MAX,
    Entry,
    EntryKind,
    FileHeader,
    decode_directory,
    decode_group_head,
    encode_file_header,
)
from pydanube.journal.index import FileIndex
from pydanube.journal.ledger_table import Control
from pydanube.journal.scan import Damage
from pydanube.ports.disk import Disk
from pydanube.storage.node.bad_blocks import AroundBadBlocks, Readable
from pydanube.storage.node.files import StoredFile, file_name, index_name, store_index, try_remove
from pydanube.storage.node.journal import ActiveFile
from pydanube.storage.node.new_file import copy_group
from pydanube.storage.node.state import BALLAST, Ballast, NodeState

log = logging.getLogger(__name__)
RECYCLED_FILES_MAX = 2  # journal files kept to be overwritten
SMALL_FILES_MAX = 8  # this many nearly empty files are merged into one
COPY_BELOW_WHEN_FULL = 0.75  # freeing a quarter of a file is worth the copy when there is no room for another
PAUSE_SECONDS_MAX = 60.0  # between attempts to copy to a disk that is full or fails
Log = Callable[[list[Control]], Awaitable[None]]


@dataclass(slots=True)
class Copy:
    """A file being written with the entries that data directory `slot` takes from the sources."""

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
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._source: StoredFile | None = None  # being copied
        self._at_once = SOURCES_MAX  # files to copy at a time; fewer on a full disk
        self._failures = 0  # failed copies in a row
        self._not_before = 0.0

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Ends `run` soon, between two steps: a file must not be renamed or removed while the node starts over."""
        self._stopped.set()
        self._wake.set()

    async def run(self) -> None:
        while not self._stopped.is_set():
            await self._wake.wait()
            self._wake.clear()
            if not await self._state.disks.guard.over(self._round()):
                self._wake.set()

    async def _round(self) -> None:
        for file in self._closed():
            if self._stopped.is_set():
                return
            async with self._state.disks.pinned.changing:
                if not file.needed(self._state.table) and not self._pinned(file):
                    await self.remove(file)
        if self._stopped.is_set():
            return
        async with self._state.disks.pinned.changing:
            sources = self._worth_copying() if self._loop.time() >= self._not_before else []
            if sources:
                await self._copy_or_wait(sources)
                self._wake.set()

    def _closed(self) -> list[StoredFile]:
        active = self._active().file
        files = self._state.files.values()
        return [
            file for file in files if file is not active and file.closed and not file.gone and not self._pinned(file)
        ]

    def _pinned(self, file: StoredFile) -> bool:
        return file.generation in self._state.disks.pinned.generations

    def _worth_copying(self) -> list[StoredFile]:
        """Files of which little is still needed, many small ones, or the oldest of a journal over its budget."""
        settings = self._state.disks.settings
        table = self._state.table
        closed = [file for file in self._closed() if not file.damage and file.needed(table)]  # damaged files stay
        below = COPY_BELOW_WHEN_FULL if self._state.full or self._state.short else settings.copy_below
        sparse = [file for file in closed if file.live < file.total * below]
        if sparse:
            return sorted(sparse, key=lambda file: file.live)[: self._at_once]
        small = [file for file in closed if file.live < settings.file_bytes * settings.copy_below]
        if len(small) >= SMALL_FILES_MAX:
            return sorted(small, key=lambda file: file.live)[: max(self._at_once, 2)]
        journal = [file for file in closed if not file.kept]
        budget = settings.journal_bytes_max
        if budget is not None and sum(file.length for file in journal) > budget:
            return [min(journal, key=lambda file: file.generation)]
        return []

    async def remove(self, file: StoredFile) -> None:
        """Removes a file whose ledgers have all been deleted or copied, durably."""
        file.gone = True
        self._state.files.pop(file.generation, None)
        try:
            await self._state.disks.belongings.change(drop=[file.generation])
        except DanubeError as error:  # a listed file must exist, so removing it is tried again later
            log.warning("%s could not be removed yet: %s", file.name, error)
            file.gone = False
            self._state.files[file.generation] = file
            self._loop.call_later(PAUSE_SECONDS_MAX, self.wake)
            return
        try:
            await try_remove(file.disk, index_name(file.generation))
            if self._reusable(file):
                await self._recycle(file)
            else:
                await file.disk.remove(file.name)
                await file.disk.sync_directory()
        except DanubeError as error:
            log.warning("%s could not be removed: %s", file.name, error)
        self._state.cache.forget(file)

    def _reusable(self, file: StoredFile) -> bool:
        """Whether it is a journal file of the usual size without readers: overwriting it is faster than a new file."""
        state = self._state
        usual = not file.kept and file.disk is state.disks.journal and file.capacity == state.disks.settings.file_bytes
        return usual and file.readers == 0 and len(state.recycled) < RECYCLED_FILES_MAX

    async def _recycle(self, file: StoredFile) -> None:
        """Makes the new name durable before the file is overwritten. Old groups left in it have another salt."""
        name = f"recycled-{file.generation:016x}.tmp"
        await file.disk.rename(file.name, name)
        await file.disk.sync_directory()
        self._state.recycled.append(name)

    # -- copying out -------------------------------------------------------------------------------------------------

    async def _copy_or_wait(self, sources: list[StoredFile]) -> None:
        copies: dict[int, Copy] = {}
        try:
            await self._copy_out(sources, copies)
            self._failures, self._at_once = 0, SOURCES_MAX
            self._return_ballast()
        except asyncio.CancelledError:
            for copy in copies.values():
                await copy.active.handle.close()
            raise
        except Exception as error:
            if isinstance(error, DanubeError):
                await self._failed(sources, error)
            for copy in copies.values():
                await copy.active.handle.close()
            await self._discard(copies)
            if not isinstance(error, DanubeError):
                raise

    async def _discard(self, copies: dict[int, Copy]) -> None:
        """Removes unfinished copies; if they cannot be taken off the list, the next start removes them."""
        try:
            await self._state.disks.belongings.change(drop=[copy.active.file.generation for copy in copies.values()])
        except DanubeError as error:
            log.warning("could not delete unfinished copies: %s", error)
            return
        for copy in copies.values():
            for name in (index_name(copy.active.file.generation), copy.active.handle.name, copy.active.file.name):
                await try_remove(copy.disk, name)

    async def _failed(self, sources: list[StoredFile], error: DanubeError) -> None:
        """Handles a failed copy. A damaged file stays. On a full disk, fewer files are tried, then one with the room of
        the ballast, and everything again later."""
        if isinstance(error, LedgerDamaged) and self._source is not None:
            self._source.damage.append(Damage(self._source.generation, 0, self._source.length, None))
            log.error("%s is kept because part of it is damaged: %s", self._source.name, error)
        elif isinstance(error, DiskFull) and len(sources) > 1:
            self._at_once = len(sources) // 2
        elif isinstance(error, DiskFull) and self._state.ballast is Ballast.HELD:
            self._state.ballast = Ballast.LENT
            await try_remove(self._state.disks.journal, BALLAST)
        else:
            self._return_ballast()
            self._failures += 1
            pause = Backoff(self._state.disks.settings.retry_seconds, PAUSE_SECONDS_MAX).after(self._failures)
            self._not_before = self._loop.time() + pause
            self._loop.call_later(pause, self.wake)
            if not self._stopped.is_set():
                log.warning("could not copy the live data of %d files yet: %s", len(sources), error)

    def _return_ballast(self) -> None:
        """Marks the ballast as gone; the next file that is set aside restores it."""
        if self._state.ballast is Ballast.LENT:
            self._state.ballast = Ballast.GONE

    async def _copy_out(self, sources: list[StoredFile], copies: dict[int, Copy]) -> None:
        """Copies the live entries of the sources into one file for each data directory that takes some of them."""
        state = self._state
        slots = sorted(state.disks.data)
        for source in sources:
            self._source = source
            handle, _ = await state.cache.open(source)
            content = AroundBadBlocks(source.disk, handle)
            try:
                async for entry in _entries(content, source):
                    if state.table.find(entry.ledger) is None:
                        continue
                    slot = slots[entry.ledger % len(slots)]
                    if slot not in copies:
                        copies[slot] = await self._begin(slot, sources)
                    await self._add(copies[slot], content, entry)
                for copy in copies.values():
                    await self._write(copy, content)
            finally:
                state.cache.done(source)
        for copy in copies.values():
            await self._seal_copy(copy.disk, copy.active)
            await store_index(copy.active.file, copy.active.index, copy.active.position)
        await self._switch(sources, copies)

    async def _begin(self, slot: int, sources: list[StoredFile]) -> Copy:
        disks = self._state.disks
        disk = disks.data[slot]
        generation = self._state.take_generation()
        salt = int.from_bytes(disks.randomness.bytes(8), "little")
        name = file_name(generation, kept=True)
        handle = await disk.create(name + ".tmp")
        taken = tuple(source.generation for source in sources)
        node = disks.belongings.node
        header = FileHeader(generation, salt, node.identity, NO_PREVIOUS, 0, False, taken, boots=node.boots)
        try:
            await handle.write(0, [encode_file_header(header)], sync=False)
        except BaseException:
            await handle.close()
            raise
        index = FileIndex()
        file = StoredFile(disk, generation, salt, name, kept=True, handle=handle, index=index)
        return Copy(slot, disk, ActiveFile(file, handle, index, BLOCK_BYTES, 0, 0, 0, BLOCK_BYTES))

    async def _add(self, copy: Copy, source: Readable, entry: Entry) -> None:
        if copy.size + entry.length > GROUP_BYTES_TARGET or len(copy.entries) >= GROUP_ENTRIES_TARGET:
            await self._write(copy, source)
        copy.entries.append(entry)
        copy.size += entry.length

    async def _write(self, copy: Copy, source: Readable) -> None:
        if copy.entries:
            written = await copy_group(source, copy.active, copy.entries, self._state.table)
            copy.entries, copy.size = [], 0
            await self._rest(written / self._state.disks.settings.copy_bytes_per_second)

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return
        raise NodeClosed("the node is stopping or restarting")

    async def _seal_copy(self, disk: Disk, active: ActiveFile) -> None:
        """Completes the copy and makes it durable under its final name; only then may the source be removed."""
        await active.write_mark()
        await disk.rename(active.file.name + ".tmp", active.file.name)
        await disk.sync_directory()

    async def _switch(self, sources: list[StoredFile], copies: dict[int, Copy]) -> None:
        """From here on readers find the copies. The sources are removed when the ledgers' homes are durable."""
        state = self._state
        homes = [
            Control(EntryKind.KEPT, ledger, copy.slot)
            for copy in copies.values()
            for ledger in copy.active.index.ledgers
        ]
        for record in homes:
            state.table.replay(record)
        await self._log(homes)
        added = {copy.active.file.generation: copy.slot for copy in copies.values()}
        await state.disks.belongings.change(add=added, drop=[source.generation for source in sources])
        for copy in copies.values():
            file = copy.active.file
            file.length, file.live, file.closed = copy.active.position, 0, True
            for summary in copy.active.index.summaries():
                ledger = state.table.find(summary.ledger)
                if ledger is not None:
                    file.live += summary.bytes
                    ledger.add_extent(file.generation, summary.first, summary.last, summary.bytes)
            state.files[file.generation] = file
            state.cache.adopt(file)
        gone = {source.generation for source in sources}
        for ledger in state.table:
            ledger.drop_extents(gone)
        for source in sources:
            source.live = 0
            await self.remove(source)


async def _entries(handle: Readable, source: StoredFile) -> AsyncIterator[Entry]:
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
            if entry.kind == EntryKind.APPEND:
                yield entry
        position += head.length
