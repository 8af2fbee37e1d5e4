"""The reading half of a stream: from the first copy that can serve it, or from object storage.

It shows only confirmed messages. Damaged ones are an error until an operator accepts their loss; then they are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    DanubeError,
    EntryMissing,
    LedgerDamaged,
    OffsetNotConfirmed,
    OffsetsDamaged,
    SegmentMissing,
)
from pydanube.base.ids import NO_OFFSET, LedgerId
from pydanube.base.limits import DAMAGE_LOGGED_MAX, LOST_RANGES_MAX, READ_AHEAD_BYTES
from pydanube.ports.storage import StorageNodes
from pydanube.storage.stream.cold import ColdReader
from pydanube.storage.stream.copies import CopyReader, after_damage
from pydanube.storage.stream.ownership import Ownership
from pydanube.stream.record import LedgerRecord, LostRange, Phase, StreamRecord
from pydanube.stream.segments import SegmentPlan
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
_logged: WeakKeyDictionary[StorageNodes, dict[tuple[str, int, int], None]] = WeakKeyDictionary()
"""Damage that was logged, by the nodes of its broker: every attempt to open a topic creates new `Stream` objects."""


def log_once(nodes: StorageNodes, stream: str, error: OffsetsDamaged, cause: DanubeError) -> None:
    logged = _logged.setdefault(nodes, {})
    damage = (stream, error.first, error.last)
    if damage not in logged:
        log.error("%s (%s)", error, cause)
        logged[damage] = None
        if len(logged) > DAMAGE_LOGGED_MAX:
            del logged[next(iter(logged))]


class StreamReader:
    """The part of `Stream` that reads; `Stream` itself defines `confirmed`."""

    def __init__(self, ownership: Ownership, nodes: StorageNodes, cold: ColdReader | None) -> None:
        self.name = ownership.name
        self.title = ownership.name  # name in logs and errors
        self._ownership = ownership
        self._nodes = nodes
        self._cold = cold or ColdReader(None)
        self._copies = CopyReader(self.name, nodes, self._end)
        self._damaged: dict[int, int] = {}  # first and last offsets
        self._first_of: StreamRecord | None = None  # the record that `_first` was computed from: it never changes
        self._first = 0

    @property
    def record(self) -> StreamRecord:
        """The record in the catalogue, as this owner last stored it."""
        return self._ownership.record

    @property
    def first(self) -> int:
        """The first offset that still exists, or the next one if there is none."""
        record = self._ownership.record
        if record is not self._first_of:
            self._first_of, self._first = record, record.first
        return self._first

    @property
    def damaged(self) -> dict[int, int]:
        """First and last offsets of the ranges that were found damaged and neither deleted nor accepted as lost yet."""
        if self._damaged:
            first = self.record.first
            self._damaged = {start: last for start, last in self._damaged.items() if last >= first}
        return self._damaged

    def damage_at(self, offset: int) -> OffsetsDamaged | None:
        """The damage already found at `offset`, without reading."""
        for first, last in self.damaged.items():
            if first <= offset <= last:
                return OffsetsDamaged.between(first, last, self.title)
        return None

    @property
    def confirmed(self) -> int:
        """The last visible offset; never decreases."""
        raise NotImplementedError

    async def read(self, offset: int, bytes_max: int) -> list[Batch]:
        """Confirmed batches from the one that contains `offset` on, or from the next one if it was never used."""
        if offset > self.confirmed:
            raise OffsetNotConfirmed(f"offset {offset} of {self.name} is not confirmed")
        offset = self.past_lost(offset)
        if offset > self.confirmed:
            raise OffsetNotConfirmed(f"nothing of {self.title} is confirmed after the part given up as damaged")
        cold = self.record.cold
        if offset < cold.local_from:
            return await self._read_cold(offset, bytes_max)
        ledger = self.record.ledger_at(offset)
        offset = max(offset, ledger.first)
        try:
            return await self._read_ledger(ledger, offset, bytes_max)
        except DanubeError as error:
            if offset < self.record.cold.end:  # evicted just now, or the local copy is damaged
                return await self._read_cold(offset, bytes_max)
            if not isinstance(error, EntryMissing):
                raise
            if offset < (first := self.record.first):  # deleted just now
                return await self.read(first, bytes_max)
            if ledger.durability is not Durability.BUFFERED:
                raise
            return await self.read(await self._copies.after_gap(ledger, offset), bytes_max)

    def past_lost(self, offset: int) -> int:
        """The offset itself, or the next one that was not accepted as lost."""
        record = self._ownership.record
        return record.past_lost(offset) if record.lost else offset

    async def find_damage(self) -> list[tuple[LedgerId, LostRange]]:
        """Reads everything that only the nodes have; returns what no copy can serve and was not accepted as lost."""
        found: list[tuple[LedgerId, LostRange]] = []
        record = self.record
        for ledger in [ledger for ledger in record.ledgers if not record.is_dead(ledger)]:
            end = self._end(ledger)
            offset = max(ledger.first, self._needed_from)
            while (offset := self.past_lost(offset)) <= end:
                try:
                    offset = (await self._read_ledger(ledger, offset, READ_AHEAD_BYTES))[-1].last_offset + 1
                except EntryMissing:
                    if offset < self._needed_from:  # deleted or evicted meanwhile
                        offset = self._needed_from
                        continue
                    if ledger.durability is not Durability.BUFFERED:
                        raise
                    offset = await self._copies.after_gap(ledger, offset)
                except OffsetsDamaged as damage:
                    lost = _lost(damage.first, damage.last, ledger.unknown_from)
                    found += [(ledger.id, each) for each in lost]
                    offset = damage.last + 1
        return [(ledger_id, lost) for ledger_id, lost in found if lost.last >= self._needed_from]

    @property
    def _needed_from(self) -> int:
        """The first offset of the part that only the nodes have."""
        return max(self.record.first, self.record.cold.end)

    async def _read_cold(self, offset: int, bytes_max: int) -> list[Batch]:
        record = self.record
        try:
            batches = await self._cold.read(self.name, record.cold, offset, bytes_max)
        except SegmentMissing:
            if self.record.cold == record.cold:
                raise
            return await self.read(max(offset, self.record.first), bytes_max)  # merged or trimmed meanwhile
        # After the last segment, or, if all segments were deleted, after the end of the last one.
        return batches or await self.read(max(record.cold.end, record.cold.local_from), bytes_max)

    async def read_planned(self, plan: SegmentPlan) -> AsyncIterator[Batch]:
        """The batches of a planned segment, from the nodes, even if readers may no longer see them."""
        for ledger in self.record.ledgers.reaching(plan.first):
            if ledger.first > plan.last:
                return
            offset = max(plan.first, ledger.first)
            while (offset := self.past_lost(offset)) <= min(plan.last, ledger.last):
                try:
                    batches = await self._read_ledger(ledger, offset, READ_AHEAD_BYTES)
                except EntryMissing:
                    if ledger.durability is not Durability.BUFFERED:
                        raise
                    offset = await self._copies.after_gap(ledger, offset)
                    continue
                for batch in batches:
                    if batch.base_offset > plan.last:
                        return
                    skipped = max(0, offset - batch.base_offset)
                    yield batch.slice(skipped, min(batch.last_offset, plan.last) - batch.base_offset + 1 - skipped)
                    offset = batch.last_offset + 1

    async def _read_ledger(self, ledger: LedgerRecord, offset: int, bytes_max: int) -> list[Batch]:
        """Raises `OffsetsDamaged` if the offset is damaged on every copy that had it."""
        try:
            return await self._copies.read(ledger, offset, bytes_max)
        except LedgerDamaged as damage:
            if damage.retriable:
                raise
            nodes = [self._nodes.get(identity) for identity in ledger.nodes]
            following = await after_damage(ledger.id, offset, nodes)
            end = min([self._end(ledger), *(each.first - 1 for each in self.record.lost if each.first > offset)])
            last = end if following is None else max(offset, min(following - 1, end))
            error = OffsetsDamaged.between(offset, last, self.title)
            if offset not in self.damaged and len(self._damaged) < LOST_RANGES_MAX:
                log_once(self._nodes, self.name, error, damage)
                self._damaged[offset] = last
            raise error from damage

    def _end(self, ledger: LedgerRecord) -> int:
        """The last offset of the ledger that is visible now."""
        return ledger.last if ledger.phase is Phase.SEALED else self.confirmed


def _lost(first: int, last: int, unknown_from: int) -> list[LostRange]:
    """One range, or two: the part that messages are known to have had, and the part where that is unknown."""
    if unknown_from == NO_OFFSET or last < unknown_from:
        return [LostRange(first, last)]
    known = [LostRange(first, unknown_from - 1)] if first < unknown_from else []
    return [*known, LostRange(max(first, unknown_from), last, known=False)]
