"""The change from one journal file to the next: a spare file set aside in advance, a closing mark, a checkpoint, and
a new name.

As long as there is a spare file, the disk cannot become full in the middle of a write of the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pydanube.base.errors import DanubeError, DiskFailed, DiskFull
from pydanube.journal.group import CHECKPOINTS
from pydanube.ports.disk import DiskFile
from pydanube.storage.node.files import store_index, try_remove
from pydanube.storage.node.journal import ActiveFile
from pydanube.storage.node.new_file import bytes_needed, write_new_file
from pydanube.storage.node.node_file import JOURNAL
from pydanube.storage.node.state import BALLAST, Ballast, NodeState

log = logging.getLogger(__name__)


class Roller:
    """Owns the spare file."""

    def __init__(self, state: NodeState, full: Callable[[], None]) -> None:
        self._state = state
        self._report_full = full
        self._spare: DiskFile | None = None
        self._tried = asyncio.Event()  # set once it is known whether a spare file can be created
        self._preparing = asyncio.Lock()
        self._names = 0  # names used so far: no file may get the name of one that is about to become a journal file

    @property
    def has_spare(self) -> bool:
        return self._spare is not None

    @property
    def disk_full(self) -> bool:
        return self._spare is None and self._tried.is_set()

    async def prepare(self) -> None:
        """Sets a file aside, and keeps trying while the disk is full."""
        warned = False
        try:
            async with self._preparing:
                while self._spare is None:
                    try:
                        self._spare = await self._make_spare()
                    except DanubeError as error:
                        if not warned:
                            size = self._state.disks.settings.file_bytes
                            log.warning(
                                "no room for the next journal file, appends will be refused: %s. It needs %d bytes "
                                "(journal.file_bytes); on a small disk choose a smaller size",
                                error,
                                size,
                            )
                        warned = self._state.full = True
                        self._tried.set()
                        self._report_full()
                        await asyncio.sleep(self._state.disks.settings.retry_seconds)
        finally:
            self._tried.set()
        self._state.full = False
        if warned:
            log.warning("the disk has room for journal files again")

    async def _make_spare(self) -> DiskFile:
        """Uses a recycled file if there is one: its blocks are already allocated, so a sync has less to do."""
        disks, recycled = self._state.disks, self._state.recycled
        await disks.belongings.reserve()
        if self._state.ballast is Ballast.GONE:
            await try_remove(disks.journal, BALLAST)
            (await disks.journal.create(BALLAST, reserve=disks.settings.file_bytes // 2)).close()
            self._state.ballast = Ballast.HELD
        if recycled:
            return await disks.journal.open(recycled.pop())
        return await disks.journal.create(self._name(), reserve=disks.settings.file_bytes)

    def _name(self) -> str:
        self._names += 1
        return f"spare-{self._names:016x}.tmp"

    async def roll(self, active: ActiveFile, room: int) -> ActiveFile:
        """Closes `active` and returns the file that follows it, with room for a group of `room` bytes.

        `DiskFull` means that nothing has changed; after any other error the journal must not continue.
        """
        state = self._state
        disks = state.disks
        spare = await self._take(bytes_needed(state.table, room))
        old = active.file
        try:
            try:
                await self._close(active)
            except BaseException:
                await spare[0].close()
                raise
            new = await write_new_file(
                disks.journal, disks.belongings.node, disks.settings, disks.randomness, state.table,
                state.take_generation(), None, spare=spare, previous=(old.generation, active.position), room=room,
            )  # fmt: skip
            await disks.belongings.change(add={new.file.generation: JOURNAL})
        except DiskFull as error:
            raise DiskFailed(f"the space that was set aside is not available: {error}") from error
        old.length = active.position
        for summary in active.index.summaries():
            ledger = state.table.find(summary.ledger)
            if ledger is not None:
                ledger.add_extent(old.generation, summary.first, summary.last, summary.bytes)
            else:
                old.live -= summary.bytes  # it was deleted, but the record of that is in the new file
        old.closed = True
        state.files[new.file.generation] = new.file
        return new

    async def _take(self, needed: int) -> tuple[DiskFile, int]:
        """A file set aside and its size: the spare file, or a new one for a larger group."""
        disks = self._state.disks
        if needed > disks.settings.file_bytes:
            return await disks.journal.create(self._name(), reserve=needed), needed
        await self._tried.wait()  # one may be under construction: a slow disk is not a full one
        spare, self._spare = self._spare, None
        if spare is None:
            raise DiskFull("no room for another journal file")
        self._tried.clear()
        return spare, disks.settings.file_bytes

    async def store_index(self, active: ActiveFile) -> None:
        """Writes the closed file's index to disk, so that memory can drop it. Called after the roll is complete."""
        await store_index(active.file, active.index, active.position)
        if not active.file.gone:
            self._state.cache.adopt(active.file)

    async def _close(self, active: ActiveFile) -> None:
        """Syncs everything in the file and writes a mark that says so."""
        if active.covered and active.number > CHECKPOINTS:
            return
        if active.synced_number < active.number:
            await active.handle.sync()
            active.synced_number, active.synced_end = active.number, active.position
        await active.write_mark()
        active.synced_number, active.synced_end, active.covered = active.number, active.position, True

    async def close(self) -> None:
        if self._spare is not None:
            await self._spare.close()
            await try_remove(self._state.disks.journal, self._spare.name)
            self._spare = None
