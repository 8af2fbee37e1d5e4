"""Moves sealed messages to object storage in the background, and deletes local copies that are no longer needed.

Every step is recorded in the stream's record before or after its effect, so that the next owner of the stream can
continue with it. An upload is planned, written, published. A local copy is evicted after its object was read again. An
object is given up in the record, deleted, then forgotten. A stream is worked on by one task at a time; a step
that fails does not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from pydanube.base.errors import BatchInvalid, BatchTooLarge, DanubeError, ObjectsFailed, OwnershipLost, SegmentMissing
from pydanube.base.limits import MIB, OFFSET_MAX, SECOND
from pydanube.broker.cold.topic_tables import TopicTables, change_cold
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.failures import BackgroundFailures
from pydanube.ports.clock import Clock
from pydanube.storage.checked_clock import checked_clock
from pydanube.storage.futures import cancel_all
from pydanube.storage.guard import Guard
from pydanube.storage.stream.cold import ColdTier
from pydanube.storage.stream.stream import Stream
from pydanube.stream.cold import Doomed, Entry, SegmentIndex, index_key, make_index
from pydanube.stream.record import StreamRecord
from pydanube.stream.retention import SealedPart, trim_before
from pydanube.stream.segments import Segment, SegmentPlan, segment_key
from pydanube.stream.tiering import local_segments, next_segment, outlived
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
OBJECT_STORAGE = "object storage"  # troubles are listed by stream; this stands for those of the location itself
STEPS = ("claim", "space", "upload", "table", "merge", "local copies", "deletion", "index")  # shown to users
TURN_SECONDS = 1.0
CLAIM_SECONDS = 10.0  # how long a request right after a start waits for the claim
UPLOADS_AT_ONCE = 2  # the process that writes a segment holds all of it in memory
TOPICS_A_SLICE = 200  # checked before the event loop runs other tasks
ENDS_KEPT = 4096  # how many batch boundaries of a segment are remembered while it is written
ROLLED_BYTES_MIN = MIB  # an open ledger smaller than this is not sealed to free space


class Space(NamedTuple):
    """The disk with the local copies, in bytes."""

    free: int
    total: int
    reserved: int = 0  # must stay free so that the broker can keep working


class Tiering:
    """The background work of a broker, owned by its loop. `topics` are those it serves; `space` measures the disk."""

    def __init__(
        self,
        tier: ColdTier,
        clock: Clock,
        topics: Callable[[], Sequence[Topic]],
        *,
        space: Callable[[], Awaitable[Space]] | None = None,
        claim: Callable[[], Awaitable[None]] | None = None,
        tables: TopicTables | None = None,
    ) -> None:
        self.tier = tier
        self.troubles = BackgroundFailures(clock)
        self.guard = Guard("moving messages to object storage")
        self.uploaded = 0  # segments
        self.uploaded_bytes = 0  # of their objects
        self.listed_max: int | None = None  # segments in a record, without those in lists; None for the default
        self.claimed = claim is None  # the location is known to be this broker's
        self._claim_error: DanubeError | None = None
        self._claim_tried = asyncio.Event()
        self._clock = checked_clock(clock)
        self._topics = topics
        self._space = space
        self._claim = claim
        self.tables = tables or TopicTables(tier, clock, self.check_location)
        self._turns = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._working: dict[str, Task[None]] = {}
        self._evict_before: dict[str, int] = {}  # by stream: local copies below this offset must go, to free space
        self._upload_now: dict[str, None] = {}  # streams whose next segment does not wait until it is full

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs forever. Nothing is written or deleted before the location is known to be this broker's."""
        while not self.claimed:
            await self.guard.over(self._claim_location())
        while True:
            await self.guard.over(self.turn())
            await asyncio.sleep(TURN_SECONDS)

    async def _claim_location(self) -> None:
        assert self._claim is not None
        try:
            await self._claim()
        except DanubeError as error:
            self._claim_error = error
            self.troubles.failed(OBJECT_STORAGE, "claim", error)
            self._claim_tried.set()
            return await asyncio.sleep(self.troubles.pause(OBJECT_STORAGE, "claim"))
        self.troubles.worked(OBJECT_STORAGE, "claim")
        self.claimed = True
        self._claim_tried.set()

    async def check_claimed(self) -> None:
        """Raises unless the location is known to be this broker's. After a start it first waits for an answer."""
        if not self.claimed:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLAIM_SECONDS):
                    await self._claim_tried.wait()
        if not self.claimed:
            error = self._claim_error or ObjectsFailed("object storage has not answered yet")
            raise type(error)(str(error))  # a copy: each caller adds its own traceback

    async def check_location(self) -> None:
        """Raises if the location is no longer this broker's: a folder may be unmounted, or a bucket replaced.

        Called before an upload is recorded, and before a local copy or an object is deleted.
        """
        if self._claim is None or not self.claimed:
            return
        try:
            await self._claim()
        except DanubeError as error:
            self.troubles.failed(OBJECT_STORAGE, "claim", error)
            raise
        self.troubles.worked(OBJECT_STORAGE, "claim")

    async def turn(self) -> None:
        """Starts the work that is due, and does not wait for it."""
        topics = list(self._topics())
        await self._free_space(topics)
        for number, topic in enumerate(topics, 1):
            self.begin(topic)
            if not number % TOPICS_A_SLICE:
                await asyncio.sleep(0)
        served = {topic.ledger.stream.name for topic in topics}
        for name in self.troubles.affected():
            if name not in served and name != OBJECT_STORAGE:
                self.troubles.forget(name)

    def begin(self, topic: Topic) -> Task[None] | None:
        stream = topic.ledger.stream
        if stream.name in self._working or topic.lost or not self._due(topic):
            return self._working.get(stream.name)
        task = asyncio.get_running_loop().create_task(self._work(topic))
        self._working[stream.name] = task
        task.add_done_callback(lambda _: self._working.pop(stream.name, None))
        return task

    async def finished(self, stream: str) -> None:
        """Waits until no task works on the stream."""
        while (working := self._working.get(stream)) is not None:
            await asyncio.wait([working])

    def _due(self, topic: Topic) -> bool:
        """Whether a topic has work to do. Must be cheap: called for every topic in every turn."""
        stream = topic.ledger.stream
        record, now = stream.record, self._clock.wall()
        cold = record.cold
        if cold.planned or stream.name in self._evict_before or self.tables.due(topic):
            return True
        if any(self._deletable(each, now) for each in cold.doomed):
            return True
        if next_segment(record, self.tier.settings, now, at_once=stream.name in self._upload_now) is not None:
            return True
        if not cold.entries:
            return False
        entries = cold.entries
        return (
            entries[0].first < record.kept_from
            or bool(outlived(record, self.tier.settings, now))
            or bool(cold.to_fold(self.listed_max))
            or self._unfolds(topic)
        )

    async def _work(self, topic: Topic) -> None:
        stream = topic.ledger.stream
        steps: tuple[tuple[str, Callable[[Topic], Awaitable[None]]], ...] = (
            ("upload", self._upload),
            ("table", self.tables.follow),
            ("merge", self.tables.merge),
            ("local copies", self._evict),
            ("deletion", self._delete_objects),
            ("index", self._fold),
        )
        for step, do in steps:
            if topic.lost:
                return
            if self.troubles.waits(stream.name, step):
                continue
            try:
                await do(topic)
                self.troubles.worked(stream.name, step)
            except OwnershipLost:
                return
            except DanubeError as error:
                self.troubles.failed(stream.name, step, error)
            except Exception as error:
                log.exception("%s: %s failed", stream.name, step)
                self.troubles.failed(stream.name, step, error)

    async def close(self) -> None:
        """Stops in the middle of any work: the next owner of a stream continues with it."""
        await cancel_all(self._working.values())
        await self.tier.segments.close()

    # -- uploading -----------------------------------------------------------------------------------------------------

    async def upload(self, topic: Topic) -> None:
        """Uploads everything that is stored now; raises if that fails."""
        stream = topic.ledger.stream
        await stream.seal()
        await self.finished(stream.name)
        self._upload_now[stream.name] = None
        task = self._working[stream.name] = asyncio.get_running_loop().create_task(self._upload(topic))
        task.add_done_callback(lambda _: self._working.pop(stream.name, None))
        await task

    async def _upload(self, topic: Topic) -> None:
        stream = topic.ledger.stream
        while topic.filler.open is None and await self._upload_one(stream):  # what a job writes is not visible yet
            pass
        self._upload_now.pop(stream.name, None)

    async def _upload_one(self, stream: Stream) -> bool:
        """Returns whether there was something to do."""
        settings, now = self.tier.settings, self._clock.wall()
        at_once = stream.name in self._upload_now

        def plan(record: StreamRecord) -> StreamRecord:
            last = None if record.cold.planned else next_segment(record, settings, now, at_once=at_once)
            return record if last is None else record.plan_segment(record.owner, last)

        record = await stream.decide(plan)
        planned = record.cold.planned
        if planned is None:
            return False
        if planned.last < record.kept_from:
            await change_cold(stream, lambda cold: cold.given_up(stream.name))
            return True
        measured = _Measured(stream.read_planned(planned))
        if await measured.empty():
            return await self._plan_further(stream, record)
        span = f"{planned.first} to {planned.last}"
        try:
            segment = await self._write(stream, planned, measured.batches())
        except BatchTooLarge:
            half = measured.half
            if half >= planned.last:
                raise
            log.warning("%s: offsets %s do not fit into one object and are split", stream.name, span)
            await stream.decide(lambda found: found.replanned(found.owner, stream.name, half))
            return True
        except BatchInvalid:
            end = measured.end
            if end is None or end >= planned.last:
                raise
            log.warning("%s: of offsets %s, nothing is left after %d; the object ends there", stream.name, span, end)
            await stream.decide(lambda found: found.replanned(found.owner, stream.name, end))
            return True
        await stream.decide(lambda found: found.published(found.owner, segment))
        self.uploaded += 1
        self.uploaded_bytes += segment.size
        return True

    async def _plan_further(self, stream: Stream, record: StreamRecord) -> bool:
        """Extends a plan of which no message is left: its loss was accepted, or a power cut hit a buffered ledger.

        A segment may begin with such a gap but never end with one, so the plan takes in the next ledger, or waits.
        """
        following = next(record.waiting, None)
        if following is None:
            return False
        await stream.decide(lambda found: found.replanned(found.owner, stream.name, following.last))
        return True

    async def _write(self, stream: Stream, plan: SegmentPlan, batches: AsyncIterator[Batch]) -> Segment:
        key = segment_key(stream.name, plan)
        async with self._turns:
            await self.check_location()
            segment = await self.tier.segments.write(key, plan, stream.name, batches)
            await self.check_location()
            return segment

    # -- local copies --------------------------------------------------------------------------------------------------

    async def _free_space(self, topics: Sequence[Topic]) -> None:
        """If the disk is short of space, marks the oldest local copies of all topics for eviction. If that is not
        enough, marks the largest topics for upload, so that more can be evicted."""
        self._evict_before.clear()
        if self._space is None or not self.tier.settings.evicts:
            return
        try:
            space = await self._space()
        except DanubeError as error:
            return self.troubles.failed(OBJECT_STORAGE, "space", error)
        self.troubles.worked(OBJECT_STORAGE, "space")
        excess = max(self.tier.settings.free_part * space.total, space.reserved) - space.free
        if excess <= 0:
            return
        streams = [topic.ledger.stream for topic in topics if not topic.lost]
        found = [(segment.newest, segment, stream) for stream in streams for segment in local_segments(stream.record)]
        for _, segment, stream in sorted(found, key=lambda each: (each[0], each[2].name)):
            self._evict_before[stream.name] = segment.last + 1
            excess -= segment.bytes
            if excess <= 0:
                return
        for stream in sorted(streams, key=lambda stream: -stream.bytes):  # the largest first
            if sum(ledger.bytes for ledger in stream.record.waiting):
                self._upload_now[stream.name] = None
            elif stream.open_bytes >= ROLLED_BYTES_MIN:
                stream.roll()
                self._upload_now[stream.name] = None

    async def _evict(self, topic: Topic) -> None:
        """Deletes local copies whose objects were read again and are intact (§28). A lost object is rewritten first."""
        stream, settings = topic.ledger.stream, self.tier.settings
        before = self._evict_before.pop(stream.name, 0)
        due = {segment.last: segment for segment in outlived(stream.record, settings, self._clock.wall())}
        due |= {segment.last: segment for segment in local_segments(stream.record) if segment.last < before}
        for segment in due.values():
            if not topic.restarts_without(segment.last):
                return  # a restart would need it, and object storage may be unreachable then
            await self._evict_one(stream, segment)

    async def _evict_one(self, stream: Stream, segment: Segment) -> None:
        try:
            await self.tier.segments.verify(segment_key(stream.name, segment.plan), segment)
        except SegmentMissing as error:
            log.error("%s: rewritten from the local copy: %s", stream.name, error)
            await _check_rows(stream, segment)
            written = await self._write(stream, segment.plan, stream.read_planned(segment.plan))
            if written.digest != segment.digest:
                raise
            await change_cold(stream, lambda cold: cold.replaced(segment, written))
        await self.check_location()
        await change_cold(stream, lambda cold: cold.evicted(segment.last + 1))

    # -- deleting objects ----------------------------------------------------------------------------------------------

    async def _delete_objects(self, topic: Topic) -> None:
        """Removes segments behind retention or a truncation: the record gives them up, the objects are deleted, and the
        record forgets them."""
        stream, now = topic.ledger.stream, self._clock.wall()
        lease = round(self.tier.settings.lease_seconds * SECOND) if stream.record.cold.tabled else None

        def give_up(record: StreamRecord) -> StreamRecord:
            not_before = 0 if lease is None else now + lease
            return record.with_cold(record.owner, record.cold.trimmed(stream.name, record.kept_from, not_before))

        record = await stream.decide(give_up)
        while self._unfolds(topic):
            await self._unfold(stream)
            record = await stream.decide(give_up)
        if not self.tables.settled(topic):
            return  # the table must stop listing them first
        gone = [each.key for each in record.cold.doomed if self._deletable(each, now)]
        if gone:
            await self.check_location()
        for key in gone:
            await self.tier.segments.delete(key)
        if gone:
            await change_cold(stream, lambda cold: cold.forgotten(gone))

    def _deletable(self, doomed: Doomed, now: int) -> bool:
        """Whether the lease for readers of the table has ended, by a clock that can be trusted."""
        return doomed.not_before <= now and (not doomed.not_before or self._clock.trusted())

    async def _unfold(self, stream: Stream) -> None:
        entries = await self.tier.reader.entries(stream.name, stream.record.cold.indexes[0])
        await change_cold(stream, lambda cold: cold.unfolded(stream.name, entries))

    def _unfolds(self, topic: Topic) -> bool:
        """Whether retention ends, or will soon end, the first segment of the first index, which is then unfolded."""
        record = topic.ledger.stream.record
        entries = record.cold.entries
        first = entries[0] if entries else None
        if not isinstance(first, SegmentIndex):
            return False
        head = first.head
        if record.kept_from > head.last:
            return True
        rest = SealedPart(head.last + 1, first.last, first.bytes - head.bytes, first.newest)
        parts = chain((head, rest), record.sealed_parts(first.last + 1))
        policy, unneeded = topic.options.retention, topic.options.deletable_before(topic.state)
        total = record.bytes
        now, trusted = self._clock.wall(), self._clock.trusted()
        return trim_before(parts, policy, unneeded, now, total_bytes=total, clock_trusted=trusted) > head.last

    async def _fold(self, topic: Topic) -> None:
        """Keeps the record small: lists of older segments become index objects."""
        stream = topic.ledger.stream
        while entries := stream.record.cold.to_fold(self.listed_max):
            await self._fold_one(stream, entries)

    async def _fold_one(self, stream: Stream, entries: Sequence[Entry]) -> None:
        index, data = make_index(entries, stream.record.cold.unfolds)
        await self.tier.segments.create(index_key(stream.name, index), data)
        await self.check_location()
        await change_cold(stream, lambda cold: cold.folded(entries, index))


class _Measured:
    """The batches of a planned segment, measured as they are read, to split the segment if it is too large."""

    def __init__(self, batches: AsyncIterator[Batch]) -> None:
        self._batches = batches
        self._ends: list[tuple[int, int]] = []  # bytes up to the end of a batch, and its last offset
        self._first: Batch | None = None
        self.end: int | None = None  # the last offset, once all batches were read

    async def empty(self) -> bool:
        """Whether there are no batches at all."""
        self._first = await anext(self._batches, None)
        return self._first is None

    async def batches(self) -> AsyncIterator[Batch]:
        total, last = 0, None
        async for batch in self._all():
            last = batch.last_offset
            total += batch.size
            self._ends.append((total, batch.last_offset))
            if len(self._ends) > ENDS_KEPT:
                del self._ends[::2]  # half the precision is enough
            yield batch
        self.end = last

    async def _all(self) -> AsyncIterator[Batch]:
        if self._first is not None:
            yield self._first
        async for batch in self._batches:
            yield batch

    @property
    def half(self) -> int:
        """The last offset of about the first half of the bytes read so far."""
        at = bisect_left(self._ends, (self._ends[-1][0] // 2, OFFSET_MAX)) if self._ends else 0
        return self._ends[max(at - 1, 0)][1] if self._ends else OFFSET_MAX


async def _check_rows(stream: Stream, segment: Segment) -> None:
    """Raises unless the local copy has all rows: a power cut may take some of a buffered stream, even if sealed."""
    rows = 0
    async for batch in stream.read_planned(segment.plan):
        rows += batch.count
    if rows != segment.rows:
        key = segment_key(stream.name, segment.plan)
        raise SegmentMissing(f"{key} is missing, and the local copy has {rows} of its {segment.rows} rows")
