"""Room on the disk: below a reserve nothing is published, so that what makes room goes on, acknowledging and deleting.
It also says when the storage node comes near the number of ledgers that it can keep.

It is asked once for each batch and counts down; how much there really is it looks up now and then. It owns no disk and
decides nothing about messages that are stored.
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
    ROOM_LOOK_SECONDS,
    ROOM_RESERVE_FILES,
    ROOM_RESERVE_METADATA_BYTES,
)
from pydanube.base.units import shown_bytes
from pydanube.storage.guard import Guard

log = logging.getLogger(__name__)
REGAINED_PART = 8  # publishing goes on when this part of the reserve is free on top of it: not for every block


def reserve_of(file_bytes: int, chosen: int | None = None) -> int:
    """What is kept, by the size of a journal file unless an operator says otherwise; never less than makes room."""
    if chosen is None:
        return ROOM_RESERVE_FILES * file_bytes + ROOM_RESERVE_METADATA_BYTES
    least = file_bytes + ROOM_RESERVE_METADATA_BYTES // 2
    if chosen < least:
        log.warning("journal.reserve_bytes is %d, but a journal file and a metadata file need %d", chosen, least)
    return max(chosen, least)


def check_new(free_bytes: int, place: str, file_bytes: int, chosen: int | None = None) -> None:
    """A new broker would have room for messages, or `DiskFull` says how much it needs and what would fit.

    One that has been here before starts also on a full disk: whoever acknowledges must find it.
    """
    aside = file_bytes // 2 + METADATA_LOG_BYTES  # the ballast, and the first file of the metadata
    reserve = reserve_of(file_bytes, chosen)
    needed = reserve + reserve // REGAINED_PART + aside
    if free_bytes >= needed:
        return
    message = f"a new broker needs {shown_bytes(needed)} of free disk, and {place} has {shown_bytes(free_bytes)}"
    left = free_bytes - METADATA_LOG_BYTES - ROOM_RESERVE_METADATA_BYTES * 9 // 8
    fitting = 8 * left // (9 * ROOM_RESERVE_FILES + 4) // MIB * MIB  # the same for files of another size
    if chosen is None and fitting >= JOURNAL_FILE_BYTES_MIN:
        message += f"; with --journal-file-bytes {fitting} it would fit"
    raise DiskFull(message)


async def _plenty() -> int:
    return sys.maxsize


class Room:
    """One for a broker. Until `start` there is plenty."""

    def __init__(
        self,
        reserve_bytes: int = 0,
        measure: Callable[[], Awaitable[int]] = _plenty,
        changed: Callable[[bool], None] | None = None,
        ledgers: Callable[[], int] = lambda: 0,
    ) -> None:
        self.reserve_bytes = reserve_bytes
        self.bytes = sys.maxsize  # that there were at the last look
        self.guard = Guard("measuring the free disk space")
        self.short = False  # nothing is published now
        self._left = sys.maxsize  # that may still be published until the next look
        self.ledgers = ledgers  # how many the storage node keeps
        self._crowded = False  # it was reported that they are many
        self._measure = measure
        self._tell_changed = changed
        self._looking: Task[None] | None = None

    async def start(self) -> None:
        """The first look, and from now on others in the background."""
        if self.reserve_bytes:
            await self.look()
            self._looking = asyncio.get_running_loop().create_task(self._look_on())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def admit(self, size: int) -> None:
        """A batch of that size may be published, or `DiskFull`."""
        if self.short or size > self._left:
            raise DiskFull(
                f"{shown_bytes(self.bytes)} are free on the disk, "
                f"and {shown_bytes(self.reserve_bytes)} are reserved for acks and deletions"
            )
        self._left -= size

    async def look(self) -> None:
        """How much there is. What was published since the last look is in it, or on its way and counted."""
        self._count_ledgers()
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

    def _count_ledgers(self) -> None:
        """Their number is reported once, long before it is reached; and again after it has fallen."""
        there = self.ledgers()
        if there >= NODE_LEDGERS_WARN and not self._crowded:
            log.warning(
                "the broker has %d ledgers; at %d it stops accepting messages. Delete unused topics, shorten "
                "retention, or look for abandoned subscriptions (`danube doctor`)",
                there,
                NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED,
            )
            self._crowded = True
        elif there < NODE_LEDGERS_WARN - NODE_LEDGERS_RESERVED:
            self._crowded = False

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
        if self._tell_changed is not None:
            self._tell_changed(self.short)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(ROOM_LOOK_SECONDS)
            await self.guard.over(self.look())
