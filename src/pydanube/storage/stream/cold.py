"""Reads the part of a stream that is in object storage, through lists of segments that may be objects themselves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydanube.base.errors import ObjectMissing, ObjectsRefused, SegmentMissing
from pydanube.base.limits import COLD_INDEXES_KEPT
from pydanube.ports.segments import Segments
from pydanube.stream.cold import Cold, Entry, SegmentIndex, find_entry, index_key, read_index
from pydanube.stream.segments import Segment, segment_key
from pydanube.stream.tiering import TierSettings
from pydanube.wire.batch import Batch


@dataclass(frozen=True, slots=True)
class ColdTier:
    """The object storage of one broker."""

    segments: Segments
    reader: ColdReader
    settings: TierSettings
    location: str = "object storage"  # for people, without credentials
    tables: str | None = None  # the URI of the location, as readers of tables write it
    why_no_tables: str = "it is not set up for tables"  # if there is no such URI
    client_access: tuple[str, Mapping[str, str]] | None = None  # URL and options for clients with their own credentials


class ColdReader:
    """Shared by all streams of a broker. Without `segments` there is no object storage, and reads fail."""

    def __init__(self, segments: Segments | None) -> None:
        self._segments = segments
        self._listed: OrderedDict[str, tuple[Entry, ...]] = OrderedDict()  # index objects, the last used at the end

    @property
    def segments(self) -> Segments:
        if self._segments is None:
            raise ObjectsRefused("a part of this topic is in object storage, but storage.objects.url is not set")
        return self._segments

    async def read(self, stream: str, cold: Cold, offset: int, bytes_max: int) -> list[Batch]:
        """Batches from `offset` on, or from the next row after a gap; none if it is after all segments."""
        while (segment := await self.find(stream, cold.entries, offset)) is not None:
            key = segment_key(stream, segment.plan)
            if batches := await self.segments.read(key, segment, max(offset, segment.first), bytes_max):
                return batches
            offset = segment.last + 1
        return []

    async def find(self, stream: str, entries: Sequence[Entry], offset: int) -> Segment | None:
        """The segment that contains `offset`, or the next one after a gap."""
        found = find_entry(entries, offset)
        while isinstance(found, SegmentIndex):
            found = find_entry(await self.entries(stream, found), offset)
        return found

    async def entries(self, stream: str, index: SegmentIndex) -> tuple[Entry, ...]:
        key = index_key(stream, index)
        listed = self._listed.pop(key, None)
        if listed is None:
            try:
                listed = read_index(key, index, await self.segments.load(key))
            except ObjectMissing:
                raise SegmentMissing(f"{key}, a list of segments, is missing") from None
        self._listed[key] = listed
        while len(self._listed) > COLD_INDEXES_KEPT:
            self._listed.popitem(last=False)
        return listed


def tier_bounds(tier: ColdTier | None, ledger_bytes: int, ledger_seconds: float) -> tuple[int, float]:
    """How large and how old a ledger may become: with a cold tier no more than a segment."""
    if tier is None:
        return ledger_bytes, ledger_seconds
    return min(ledger_bytes, tier.settings.segment_bytes), min(ledger_seconds, tier.settings.ledger_seconds)
