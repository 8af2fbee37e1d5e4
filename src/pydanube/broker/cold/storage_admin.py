"""Storage for operators: where the messages of a topic are stored, whether they are intact, and uploading them now.

`tiering.py` moves messages to object storage in the background; this module reports on it and works on request.
"""

from __future__ import annotations

import asyncio
from asyncio import Semaphore
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.base.errors import DanubeError, ObjectsRefused, SegmentDamaged, SegmentMissing
from pydanube.base.limits import ERROR_MESSAGE_CHARACTERS_MAX, OFFSET_MAX, SEGMENTS_LISTED_MAX, TROUBLES_LISTED_MAX
from pydanube.broker.cold.claim import check_mark
from pydanube.broker.cold.tiering import OBJECT_STORAGE, Tiering
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.jobs import JobAnswer, Jobs
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.stream.cold import ColdReader
from pydanube.storage.stream.stream import Stream
from pydanube.stream.cold import Cold, Entry, SegmentIndex, find_entry, index_key
from pydanube.stream.record import Phase
from pydanube.stream.segments import Segment, segment_key
from pydanube.stream.tiering import lag_seconds, local_bytes

BOTH, COLD, LOCAL, UNREADABLE = "both", "objects", "local", "unreadable"
SOUND, LOST, DAMAGED, GONE = "sound", "lost", "damaged", "gone"
JOB_SECONDS = 10.0  # how long a request waits for its result; far less than a client waits for an answer
CHECK_SECONDS = 10.0
VERIFIED_AT_ONCE = 2  # objects, each of which is read completely


class Part(NamedTuple):
    """A part of a topic: a segment, or a sealed ledger that is not uploaded yet."""

    id: str  # the key of its object, or the number of its ledger
    where: str  # local, objects or both; unreadable for a list of segments that cannot be read
    first: int
    last: int
    bytes: int  # of its batches
    size: int  # of its object; 0 if there is none
    newest: int  # append time of its last message, in microseconds


class Verified(NamedTuple):
    """The result of reading a segment's object again."""

    id: str  # its key
    result: str  # sound, lost, damaged, or gone: it is no longer a segment
    bytes: int  # that were read
    what: str = ""  # the error, if it is lost or damaged


class Uploaded(NamedTuple):
    """What an upload created."""

    segments: int
    messages: int
    bytes: int  # of their batches
    size: int  # of their objects


@dataclass(frozen=True, slots=True)
class Usage:
    """How much a topic or partition stores, and where."""

    bytes: int = 0  # of all its messages, counted once
    local: int = 0  # bytes in ledgers on storage nodes, including the open one
    objects: int = 0  # bytes of its segments' objects
    segments: int = 0
    waiting: int = 0  # bytes that are sealed and not uploaded yet
    doomed: int = 0  # objects that will be deleted
    lag_seconds: float = 0.0  # how long the oldest of `waiting` has waited
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectStorageStatus:
    """The state of object storage as a whole."""

    location: str | None  # without credentials; None if no object storage is configured
    claimed: bool  # it is known to be this broker's
    uploaded: int  # segments since the start
    uploaded_bytes: int  # of their objects
    failures: dict[str, int]  # since the start, by step
    troubled: int  # topics and partitions with problems
    troubles: tuple[str, ...]  # problems of the location itself


class StorageAdmin:
    """What the door offers operators about storage. Without object storage it only knows local ledgers."""

    def __init__(self, tiering: Tiering | None, reader: ColdReader, metadata: MetadataStore) -> None:
        self._tiering = tiering
        self._reader = reader
        self._metadata = metadata
        self._jobs = Jobs()
        self.close = self._jobs.close
        self._verifying = Semaphore(VERIFIED_AT_ONCE)

    @property
    def tiering(self) -> Tiering:
        if self._tiering is None:
            raise ObjectsRefused("this broker has no object storage: storage.objects.url is not set")
        return self._tiering

    @property
    def configured(self) -> bool:
        return self._tiering is not None

    # -- where messages are stored -------------------------------------------------------------------------------------

    async def parts(self, topic: Topic, start: int = 0, limit: int | None = None) -> list[Part]:
        """The parts that end at `start` or behind it, oldest first, and at most `limit` of them."""
        found: list[Part] = []
        async for part in self._parts(topic.ledger.stream, start):
            if limit is not None and len(found) >= limit:
                break
            found.append(part)
        return found

    async def _parts(self, stream: Stream, start: int) -> AsyncIterator[Part]:
        record = stream.record
        start = max(start, record.kept_from)
        async for entry in self._uploaded(stream, record.cold.entries, start, OFFSET_MAX):
            yield _part_of(stream, entry)
        for ledger in record.ledgers.reaching(max(record.cold.end, start)):
            if ledger.phase is Phase.SEALED and not ledger.empty:
                yield Part(f"ledger-{ledger.id}", LOCAL, ledger.first, ledger.last, ledger.bytes, 0, ledger.newest)

    async def _uploaded(
        self, stream: Stream, entries: Sequence[Entry], start: int, end: int, *, skips: bool = False
    ) -> AsyncIterator[Entry]:
        """The segments of the record and of its index objects that have offsets from `start` up to but not including
        `end`. An index that is lost or damaged stands for its segments; with `skips`, one that cannot be read is left
        out."""
        for entry in entries:
            if entry.last < start or entry.first >= end:
                continue
            if isinstance(entry, Segment):
                yield entry
                continue
            try:
                listed = await self._reader.entries(stream.name, entry)
            except DanubeError as error:
                if not skips and not isinstance(error, SegmentMissing | SegmentDamaged):
                    raise
                if not skips:
                    yield entry
                continue
            async for each in self._uploaded(stream, listed, start, end, skips=skips):
                yield each

    async def sealed(self, topic: Topic, start: int, end: int, limit: int) -> list[tuple[str, Segment]]:
        """Segments with offsets from `start` up to but not including `end`, with the keys of their objects.

        Segments whose index cannot be read are left out: a client that reads them through the broker gets the error.
        """
        stream = topic.ledger.stream
        found: list[tuple[str, Segment]] = []
        async for segment in self._uploaded(stream, stream.record.cold.entries, start, end, skips=True):
            if len(found) >= limit:
                break
            assert isinstance(segment, Segment)
            found.append((segment_key(stream.name, segment.plan), segment))
        return found

    @property
    def direct_location(self) -> tuple[str, Mapping[str, str]] | None:
        """URL and options for clients that read objects with their own credentials; None if no client can."""
        return None if self._tiering is None else self._tiering.tier.client_access

    def usage(self, topic: Topic, now: int) -> Usage:
        stream = topic.ledger.stream
        record = stream.record
        cold = record.cold
        return Usage(
            stream.bytes,
            local_bytes(record) + stream.open_bytes,
            sum(entry.size for entry in cold.entries),
            _count(cold),
            sum(ledger.bytes for ledger in record.waiting) if self._tiering else 0,
            len(cold.doomed),
            lag_seconds(record, now) if self._tiering else 0.0,
            tuple(self._tiering.troubles.of(stream.name)) if self._tiering else (),
        )

    # -- the location --------------------------------------------------------------------------------------------------

    def status(self) -> ObjectStorageStatus:
        tiering = self._tiering
        if tiering is None:
            return ObjectStorageStatus(None, False, 0, 0, {}, 0, ())
        troubles = tiering.troubles
        return ObjectStorageStatus(
            tiering.tier.location,
            tiering.claimed,
            tiering.uploaded,
            tiering.uploaded_bytes,
            dict(troubles.failures),
            len([name for name in troubles.affected() if name != OBJECT_STORAGE]),
            tuple(troubles.of(OBJECT_STORAGE)),
        )

    async def check(self) -> str | None:
        """Checks the location now. Returns what is wrong, or None if it answers and is this broker's."""
        tiering = self.tiering
        try:
            await tiering.check_claimed()
            async with asyncio.timeout(CHECK_SECONDS):
                await check_mark(tiering.tier.segments, self._metadata, tiering.tier.location)
        except TimeoutError:
            return f"{tiering.tier.location} did not answer in {CHECK_SECONDS:g} seconds"
        except DanubeError as error:
            return str(error)
        return None

    # -- verifying and uploading ---------------------------------------------------------------------------------------

    async def verify(self, topic: Topic, first: int, ticket: int | None = None) -> JobAnswer:
        """Reads the segment that starts at `first` again; the result is a `Verified`."""
        stream = topic.ledger.stream
        await self.tiering.check_claimed()
        return await self._jobs.ask(
            ("verify", stream.name, first), lambda: self._verify(stream, first), ticket, JOB_SECONDS
        )

    async def _verify(self, stream: Stream, first: int) -> Verified:
        segment = await self._find(stream, first)
        if not isinstance(segment, Segment):
            return segment
        key = segment_key(stream.name, segment.plan)
        async with self._verifying:
            try:
                await self.tiering.tier.segments.verify(key, segment)
            except (SegmentMissing, SegmentDamaged) as error:
                if await self._find(stream, first) != segment:
                    return Verified(key, GONE, 0)  # it was merged or deleted while it was read
                return Verified(key, _fault(error), 0, str(error))
        return Verified(key, SOUND, segment.size)

    async def _find(self, stream: Stream, first: int) -> Segment | Verified:
        """The segment that starts at `first`, or a result that says why there is none."""
        found = find_entry(stream.record.cold.entries, max(first, stream.record.kept_from))
        while isinstance(index := found, SegmentIndex):
            try:
                found = find_entry(await self._reader.entries(stream.name, index), first)
            except (SegmentMissing, SegmentDamaged) as error:
                return Verified(index_key(stream.name, index), _fault(error), 0, str(error))
        return found if isinstance(found, Segment) and found.first == first else Verified("", GONE, 0)

    async def upload(self, topic: Topic, ticket: int | None = None) -> JobAnswer:
        """Uploads everything that is stored at the first request; the result is an `Uploaded`."""
        stream = topic.ledger.stream
        await self.tiering.check_claimed()
        return await self._jobs.ask(("upload", stream.name), lambda: self._upload(topic), ticket, JOB_SECONDS)

    async def _upload(self, topic: Topic) -> Uploaded:
        stream = topic.ledger.stream
        since = stream.record.cold.end
        await self.tiering.upload(topic)
        made = [segment for segment in stream.record.cold.segments if segment.first >= since]
        return Uploaded(
            len(made),
            sum(segment.rows for segment in made),
            sum(segment.bytes for segment in made),
            sum(segment.size for segment in made),
        )


def total(usages: Iterable[tuple[str, Usage]]) -> Usage:
    """The sum for several partitions or topics. Each trouble is prefixed with the name of its partition."""
    named = list(usages)
    found = [usage for _, usage in named]
    return Usage(
        sum(each.bytes for each in found),
        sum(each.local for each in found),
        sum(each.objects for each in found),
        sum(each.segments for each in found),
        sum(each.waiting for each in found),
        sum(each.doomed for each in found),
        max((each.lag_seconds for each in found), default=0.0),
        first_few([f"{name}: {trouble}" for name, each in named for trouble in each.troubles]),
    )


def first_few(troubles: Sequence[str]) -> tuple[str, ...]:
    """Those that fit an answer, and how many more there are: all partitions of a topic may have some."""
    more = len(troubles) - TROUBLES_LISTED_MAX
    few = [each[:ERROR_MESSAGE_CHARACTERS_MAX] for each in troubles[:TROUBLES_LISTED_MAX]]
    return (*few, f"and {more} more") if more > 0 else tuple(few)


def _count(cold: Cold) -> int:
    """The number of segments, including those in index objects, each of which lists half of what a record may list."""
    fold: int = SEGMENTS_LISTED_MAX // 2
    return len(cold.segments) + sum(int(fold**index.level) for index in cold.indexes)


def _fault(error: DanubeError) -> str:
    return LOST if isinstance(error, SegmentMissing) else DAMAGED


def _part_of(stream: Stream, entry: Entry) -> Part:
    sizes = (entry.first, entry.last, entry.bytes, entry.size, entry.newest)
    if isinstance(entry, SegmentIndex):
        return Part(index_key(stream.name, entry), UNREADABLE, *sizes)
    where = BOTH if entry.first >= stream.record.cold.local_from else COLD
    return Part(segment_key(stream.name, entry.plan), where, *sizes)
