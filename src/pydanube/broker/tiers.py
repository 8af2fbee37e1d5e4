"""The tiers of a topic for people: what lies where, whether it is sound, and uploading it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.base.errors import DanubeError, ObjectsRefused
from pydanube.broker.tiering import Tiering
from pydanube.broker.topic import Topic
from pydanube.ledger.catalog import Phase
from pydanube.ledger.cold import Entry, SegmentIndex
from pydanube.ledger.segments import Segment, segment_key
from pydanube.ledger.tiering import lag_seconds, local_bytes
from pydanube.storage.cold import ColdReader
from pydanube.storage.stream import Stream

BOTH, COLD, LOCAL = "both", "objects", "local"


class Part(NamedTuple):
    """A stretch of a topic: a segment, or a sealed ledger that none has yet."""

    id: str  # the key of its object, or the number of its ledger
    where: str  # local, objects or both
    first: int
    last: int
    bytes: int  # of its batches
    size: int  # of its object; 0 without
    newest: int  # append time of its last message, in microseconds


@dataclass(frozen=True, slots=True)
class Usage:
    """What a topic, or partition, has where, in bytes."""

    local: int = 0  # in ledgers on storage nodes, with what is being written
    objects: int = 0  # of its segments' objects
    segments: int = 0
    waiting: int = 0  # sealed, and not uploaded yet
    doomed: int = 0  # objects that are to be deleted
    lag_seconds: float = 0.0  # how long the oldest of what waits has waited
    troubles: tuple[str, ...] = ()


class Tiers:
    """Behind the one door. Without object storage it knows of local ledgers alone."""

    def __init__(self, tiering: Tiering | None, reader: ColdReader) -> None:
        self._tiering = tiering
        self._reader = reader

    @property
    def tiering(self) -> Tiering:
        if self._tiering is None:
            raise ObjectsRefused("this broker has no object storage: storage.objects.url is not set")
        return self._tiering

    async def parts(self, topic: Topic) -> list[Part]:
        """Oldest first."""
        stream = topic.ledger.stream
        record = stream.record
        found = [_segment_part(stream, segment) for segment in await self.segments(stream)]
        for ledger in record.ledgers:
            if ledger.phase is Phase.SEALED and ledger.last >= max(ledger.first, record.cold.end, record.kept_from):
                part = (ledger.first, ledger.last, ledger.bytes, 0, ledger.newest)
                found.append(Part(f"ledger-{ledger.id}", LOCAL, *part))
        return found

    async def segments(self, stream: Stream) -> list[Segment]:
        """All of them, from the record and from its index objects."""
        found: list[Segment] = []
        for entry in stream.record.cold.entries:
            found += await self._below(stream.name, entry)
        return [segment for segment in found if segment.last >= stream.record.kept_from]

    async def _below(self, stream: str, entry: Entry) -> Sequence[Segment]:
        if not isinstance(entry, SegmentIndex):
            return [entry]
        return [
            below for each in await self._reader.entries(stream, entry) for below in await self._below(stream, each)
        ]

    async def verify(self, topic: Topic, first: int) -> str | None:
        """What is wrong with the segment that starts at `first`, None if nothing is."""
        stream = topic.ledger.stream
        segment = await self._reader.find(stream.name, stream.record.cold.entries, first)
        if segment is None or segment.first != first:
            raise ObjectsRefused(f"{topic.name} has no segment that starts at offset {first}")
        try:
            await self.tiering.tier.segments.verify(segment_key(stream.name, segment.plan), segment)
        except DanubeError as error:
            if error.retriable:
                raise
            return str(error)
        return None

    async def upload(self, topic: Topic) -> None:
        await self.tiering.upload(topic)

    def usage(self, topic: Topic, now: int) -> Usage:
        stream = topic.ledger.stream
        record = stream.record
        cold = record.cold
        return Usage(
            local_bytes(record) + stream.open_bytes,
            sum(entry.size for entry in cold.entries),
            len(cold.segments),
            sum(ledger.bytes for ledger in record.waiting) if self._tiering else 0,
            len(cold.doomed),
            lag_seconds(record, now) if self._tiering else 0.0,
            tuple(self._tiering.troubles.of(stream.name)) if self._tiering else (),
        )


def _segment_part(stream: Stream, segment: Segment) -> Part:
    where = BOTH if segment.first >= stream.record.cold.local_from else COLD
    sizes = (segment.bytes, segment.size, segment.newest)
    return Part(segment_key(stream.name, segment.plan), where, segment.first, segment.last, *sizes)
