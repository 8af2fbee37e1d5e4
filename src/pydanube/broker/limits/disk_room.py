"""Free disk space. When less than a reserve is free, publishing is refused, so that acks and deletions, which free
space, still work. This module also warns when the storage node comes near the number of ledgers that it can keep.

Each batch is subtracted from the last measurement, which is repeated every few seconds. The module owns no disk, and
decides nothing about messages that are already stored.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import Task
from collections.abc import Awaitable, Callable

from pydanube.base.errors import DanubeError, DiskFull
from pydanube.base.limits import (
    JOURNAL_FILE_BYTES_MIN,
    METADATA_LOG_BYTES,
    MIB,
    NODE_LEDGERS_MAX,
    NODE_LEDGERS_RESERVED,
    NODE_LEDGERS_WARN,
    ROOM_CHECK_SECONDS,
    ROOM_RESERVE_FILES,
    ROOM_RESERVE_METADATA_BYTES,
)
from pydanube.base.units import shown_bytes
from pydanube.storage.futures import cancel_all
from pydanube.storage.guard import Guard

log = logging.getLogger(__name__)
REGAINED_PART = 8  # publishing resumes when an eighth of the reserve is free on top of it, to avoid flapping


def reserve_of(file_bytes: int, chosen: int | None = None) -> int:
    """The bytes to keep free: what the operator chose, or a multiple of the size of a journal file.

    It is never less than acks and deletions need.
    """
    if chosen is None:
        return ROOM_RESERVE_FILES * file_bytes + ROOM_RESERVE_METADATA_BYTES
    least = file_bytes + ROOM_RESERVE_METADATA_BYTES // 2
    if chosen < least:
        log.warning("journal.reserve_bytes is %d, but a journal file and a metadata file need %d", chosen, least)
    return max(chosen, least)


def check_new(free_bytes: int, directory: str, file_bytes: int, chosen: int | None = None) -> None:
    """Raises `DiskFull` if a new broker would have no room for messages; the error says how much it needs.

    It is not called for a broker with data, which starts on a full disk too, so that its messages can be acknowledged.
    """
    fixed = file_bytes // 2 + METADATA_LOG_BYTES  # the ballast, and the first file of the metadata
    reserve = reserve_of(file_bytes, chosen)
    needed = reserve + reserve // REGAINED_PART + fixed
    if free_bytes >= needed:
        return
    message = f"a new broker needs {shown_bytes(needed)} of free disk, and {directory} has {shown_bytes(free_bytes)}"
    left = free_bytes - METADATA_LOG_BYTES - ROOM_RESERVE_METADATA_BYTES * 9 // 8
    fitting = 8 * left // (9 * ROOM_RESERVE_FILES + 4) // MIB * MIB  # solves the above for the file size
    if chosen is None and fitting >= JOURNAL_FILE_BYTES_MIN:
        message += f"; with --journal-file-bytes {fitting} it would fit"
    raise DiskFull(message)


async def _unlimited() -> int:
    return sys.maxsize


class DiskRoom:
    """The free disk space of a broker. Until `start` is called, nothing is refused."""

    def __init__(
        self,
        reserve_bytes: int = 0,
        measure: Callable[[], Awaitable[int]] = _unlimited,
        changed: Callable[[bool], None] | None = None,
        ledgers: Callable[[], int] = lambda: 0,
    ) -> None:
        self.reserve_bytes = reserve_bytes
        self.bytes = sys.maxsize  # free at the last measurement
        self.guard = Guard("measuring the free disk space")
        self.short = False  # publishing is refused now
        self._left = sys.maxsize  # bytes that may be published before the next measurement
        self.ledgers = ledgers  # the number that the storage node keeps
        self._ledgers_warned = False  # so that the warning is logged once
        self._measure = measure
        self._changed = changed  # called when publishing is refused, and when it resumes
        self._looking: Task[None] | None = None

    async def start(self) -> None:
        """Measures once, and then regularly in the background."""
        if self.reserve_bytes:
            await self.look()
            self._looking = asyncio.get_running_loop().create_task(self._look_regularly())

    async def close(self) -> None:
        await cancel_all([self._looking])

    def admit(self, size: int) -> None:
        """Raises `DiskFull` if a batch of this size may not be published."""
        if self.short or size > self._left:
            raise DiskFull(
                f"{shown_bytes(self.bytes)} are free on the disk, "
                f"and {shown_bytes(self.reserve_bytes)} are reserved for acks and deletions"
            )
        self._left -= size

    async def look(self) -> None:
        """Measures the free space. The new number accounts for what was published since the last one."""
        self._check_ledgers()
        try:
            self.bytes = await self._measure()
        except DanubeError as error:
            log.warning("could not measure the free disk space: %s", error)
            return
        self._left = self.bytes - self.reserve_bytes
        if self.short:
            self._left -= self.reserve_bytes // REGAINED_PART
        short = self._left < 0
        if short != self.short:
            self.short = short
            self._report()

    def _check_ledgers(self) -> None:
        """Warns once, long before the limit is reached, and again only after the number has fallen."""
        count = self.ledgers()
        if count >= NODE_LEDGERS_WARN and not self._ledgers_warned:
            log.warning(
                "the broker has %d ledgers; at %d it stops accepting messages. Delete unused topics, shorten "
                "retention, or look for abandoned subscriptions (`danube doctor`)",
                count,
                NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED,
            )
            self._ledgers_warned = True
        elif count < NODE_LEDGERS_WARN - NODE_LEDGERS_RESERVED:
            self._ledgers_warned = False

    def _report(self) -> None:
        if self.short:
            log.warning(
                "the disk is nearly full; publishing is refused until there is room again: %s are free, and %s are "
                "reserved for acks and deletions (journal.reserve_bytes, by default based on journal.file_bytes)",
                shown_bytes(self.bytes),
                shown_bytes(self.reserve_bytes),
            )
        else:
            log.warning("the disk has room again (%s free): publishing resumes", shown_bytes(self.bytes))
        if self._changed is not None:
            self._changed(self.short)

    async def _look_regularly(self) -> None:
        while True:
            await asyncio.sleep(ROOM_CHECK_SECONDS)
            await self.guard.over(self.look())
