"""Moves what is sealed into object storage, in the background, and lets local copies go that nobody misses.

Every step is decided in the stream's record before or after its effect, so that the next owner of the stream continues
with it: planned, written, published; read again, then evicted; buried, deleted, then forgotten. One thing at a time
happens to a stream; a step that fails does not hold up the others.
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

from pydanube.base.errors import (
    BatchInvalid,
    BatchTooLarge,
    DanubeError,
    ObjectsFailed,
    OwnershipLost,
    SegmentMissing,
)
from pydanube.base.limits import MIB, OFFSET_MAX
from pydanube.broker.cold.tables import Tables
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.background_failures import BackgroundFailures
from pydanube.ports.clock import Clock
from pydanube.storage.guard import Guard
from pydanube.storage.stream.cold import ColdTier
from pydanube.storage.stream.stream import Stream
from pydanube.storage.watched_clock import watched
from pydanube.stream.cold import Cold, Doomed, Entry, SegmentIndex, index_key, make_index
from pydanube.stream.record import StreamRecord
from pydanube.stream.retention import LedgerInfo, trim_before
from pydanube.stream.segments import Segment, SegmentPlan, segment_key
from pydanube.stream.tiering import SECOND, local_segments, next_segment, outlived
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
PLACE = "object storage"  # as a place of trouble, beside streams
STEPS = ("claim", "space", "upload", "table", "merge", "local copies", "deletion", "index")  # that may fail
TURN_SECONDS = 1.0
CLAIM_SECONDS = 10.0  # that somebody who asks right after a start waits to know whose the place is
UPLOADS_AT_ONCE = 2  # each holds a segment in the memory of the process that writes it
TOPICS_A_SLICE = 200  # looked at before others have their turn
ENDS_KEPT = 4096  # ends of batches of a segment that is being written
ROLLED_BYTES_MIN = MIB  # of an open ledger that is sealed to make room


class Space(NamedTuple):
    """Of the disk that local copies lie on."""

    free: int
    total: int
    kept: int = 0  # what must be free for the broker to go on


class Tiering:
    """Owned by the broker's loop. `topics` are those that it serves; `space` is asked before local copies go."""

    def __init__(
        self,
        tier: ColdTier,
        clock: Clock,
        topics: Callable[[], Sequence[Topic]],
        *,
        space: Callable[[], Awaitable[Space]] | None = None,
        claim: Callable[[], Awaitable[None]] | None = None,
        tables: Tables | None = None,
        listed_max: int | None = None,
    ) -> None:
        self.tier = tier
        self.troubles = BackgroundFailures(clock)
        self.guard = Guard("moving messages to object storage")
        self.uploaded = 0  # segments
        self.uploaded_bytes = 0  # of their objects
        self.claimed = claim is None  # the place is known to be ours
        self._unclaimed: DanubeError | None = None  # why it is not
        self._asked = asyncio.Event()  # whether it is, at least once
        self._clock = watched(clock)
        self._topics = topics
        self._space = space
        self._claim = claim
        self.tables = tables or Tables(tier, clock, self.check_place)
        self._listed_max = listed_max
        self._turns = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._working: dict[str, Task[None]] = {}
        self._pressed: dict[str, int] = {}  # streams whose local copies below this must go, for want of space
        self._hurried: dict[str, None] = {}  # streams whose next segment does not wait until it is full

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Forever. Nothing is written or deleted before the place is known to be ours."""
        while not self.claimed:
            await self.guard.over(self._take_place())
        while True:
            await self.guard.over(self.turn())
            await asyncio.sleep(TURN_SECONDS)

    async def _take_place(self) -> None:
        assert self._claim is not None
        try:
            await self._claim()
        except DanubeError as error:
            self._unclaimed = error
            self.troubles.failed(PLACE, "claim", error)
            self._asked.set()
            return await asyncio.sleep(self.troubles.pause(PLACE, "claim"))
        self.troubles.worked(PLACE, "claim")
        self.claimed = True
        self._asked.set()

    async def check_claimed(self) -> None:
        """Raises unless the place is known to be ours; right after a start it waits for the first answer."""
        if not self.claimed:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLAIM_SECONDS):
                    await self._asked.wait()
        if not self.claimed:
            why = self._unclaimed or ObjectsFailed("object storage has not answered yet")
            raise type(why)(str(why))

    async def check_place(self) -> None:
        """Raises if the place is no longer ours: a folder that was mounted may be gone, a bucket another one.

        Asked before something is recorded as being there, and before a local copy or an object goes.
        """
        if self._claim is None or not self.claimed:
            return
        try:
            await self._claim()
        except DanubeError as error:
            self.troubles.failed(PLACE, "claim", error)
            raise
        self.troubles.worked(PLACE, "claim")

    async def turn(self) -> None:
        """Begins what is due, and does not wait for it."""
        topics = list(self._topics())
        await self._press(topics)
        for number, topic in enumerate(topics, 1):
            self.begin(topic)
            if not number % TOPICS_A_SLICE:
                await asyncio.sleep(0)
        served = {topic.ledger.stream.name for topic in topics}
        for place in self.troubles.places():
            if place not in served and place != PLACE:
                self.troubles.forget(place)

    def begin(self, topic: Topic) -> Task[None] | None:
        stream = topic.ledger.stream
        if stream.name in self._working or topic.lost or not self._due(topic):
            return self._working.get(stream.name)
        task = asyncio.get_running_loop().create_task(self._work(topic))
        self._working[stream.name] = task
        task.add_done_callback(lambda _: self._working.pop(stream.name, None))
        return task

    async def finished(self, stream: str) -> None:
        """Waits for what is under way of a stream."""
        while (working := self._working.get(stream)) is not None:
            await asyncio.wait([working])

    def _due(self, topic: Topic) -> bool:
        """Cheap: asked of every topic in every turn."""
        stream = topic.ledger.stream
        record, now = stream.record, self._clock.wall()
        cold = record.cold
        if cold.planned or stream.name in self._pressed or self.tables.due(topic):
            return True
        if any(self._ended(each, now) for each in cold.doomed):
            return True
        if next_segment(record, self.tier.settings, now, at_once=stream.name in self._hurried) is not None:
            return True
        if not cold.entries:
            return False
        entries = cold.entries
        return (
            entries[0].first < record.kept_from
            or bool(outlived(record, self.tier.settings, now))
            or bool(cold.to_fold(self._listed_max))
            or self._unfolds(topic)
        )

    async def _work(self, topic: Topic) -> None:
        stream = topic.ledger.stream
        steps: tuple[tuple[str, Callable[[Topic], Awaitable[None]]], ...] = (
            ("upload", self._upload),
            ("table", self.tables.follow),
            ("merge", self.tables.merge),
            ("local copies", self._evict),
            ("deletion", self._bury),
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
        """What is under way is left as it is: whoever serves the topics next continues with it."""
        working = list(self._working.values())
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await self.tier.segments.close()

    # -- uploading -----------------------------------------------------------------------------------------------------

    async def upload(self, topic: Topic) -> None:
        """All that is there now, before it returns; raises why not."""
        stream = topic.ledger.stream
        await stream.seal()
        await self.finished(stream.name)
        self._hurried[stream.name] = None
        task = self._working[stream.name] = asyncio.get_running_loop().create_task(self._upload(topic))
        task.add_done_callback(lambda _: self._working.pop(stream.name, None))
        await task

    async def _upload(self, topic: Topic) -> None:
        stream = topic.ledger.stream
        while not topic.reserved and await self._upload_one(stream):  # what nobody may see yet is not to be seen there
            pass
        self._hurried.pop(stream.name, None)

    async def _upload_one(self, stream: Stream) -> bool:
        """Whether there was something to do."""
        settings, now = self.tier.settings, self._clock.wall()
        at_once = stream.name in self._hurried

        def plan(record: StreamRecord) -> StreamRecord:
            last = None if record.cold.planned else next_segment(record, settings, now, at_once=at_once)
            return record if last is None else record.plan_segment(record.owner, last)

        record = await stream.decide(plan)
        planned = record.cold.planned
        if planned is None:
            return False
        if planned.last < record.kept_from:
            await _change(stream, lambda cold: cold.given_up(stream.name))
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
        """Of what was planned nothing is left: its loss was accepted, or a power cut took it from a buffered ledger.

        A segment begins with such a gap and never ends with one: the plan takes in the ledger that follows, or waits.
        """
        following = next(record.waiting, None)
        if following is None:
            return False
        await stream.decide(lambda found: found.replanned(found.owner, stream.name, following.last))
        return True

    async def _write(self, stream: Stream, plan: SegmentPlan, batches: AsyncIterator[Batch]) -> Segment:
        key = segment_key(stream.name, plan)
        async with self._turns:
            await self.check_place()
            segment = await self.tier.segments.write(key, plan, stream.name, batches)
            await self.check_place()
            return segment

    # -- local copies --------------------------------------------------------------------------------------------------

    async def _press(self, topics: Sequence[Topic]) -> None:
        """Where the disk is short of space, the oldest local copies of all topics go; if that is not enough, more is
        uploaded."""
        self._pressed.clear()
        if self._space is None or not self.tier.settings.evicts:
            return
        try:
            space = await self._space()
        except DanubeError as error:
            return self.troubles.failed(PLACE, "space", error)
        self.troubles.worked(PLACE, "space")
        excess = max(self.tier.settings.free_part * space.total, space.kept) - space.free
        if excess <= 0:
            return
        streams = [topic.ledger.stream for topic in topics if not topic.lost]
        found = [(segment.newest, segment, stream) for stream in streams for segment in local_segments(stream.record)]
        for _, segment, stream in sorted(found, key=lambda each: (each[0], each[2].name)):
            self._pressed[stream.name] = segment.last + 1
            excess -= segment.bytes
            if excess <= 0:
                return
        for stream in sorted(streams, key=lambda stream: -stream.bytes):  # the largest first
            if sum(ledger.bytes for ledger in stream.record.waiting):
                self._hurried[stream.name] = None
            elif stream.open_bytes >= ROLLED_BYTES_MIN:
                stream.roll()
                self._hurried[stream.name] = None

    async def _evict(self, topic: Topic) -> None:
        """What is read again and found to be right needs no local copy (§28). What is lost is written again from it."""
        stream, settings = topic.ledger.stream, self.tier.settings
        before = self._pressed.pop(stream.name, 0)
        due = {segment.last: segment for segment in outlived(stream.record, settings, self._clock.wall())}
        due |= {segment.last: segment for segment in local_segments(stream.record) if segment.last < before}
        for segment in due.values():
            if not topic.restarts_without(segment.last):
                return  # object storage may be away then
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
            await _change(stream, lambda cold: cold.replaced(segment, written))
        await self.check_place()
        await _change(stream, lambda cold: cold.evicted(segment.last + 1))

    # -- the end of objects --------------------------------------------------------------------------------------------

    async def _bury(self, topic: Topic) -> None:
        """Segments that retention or a truncation has ended are given up in the record, deleted, and forgotten."""
        stream, now = topic.ledger.stream, self._clock.wall()
        lease = round(self.tier.settings.lease_seconds * SECOND) if stream.record.cold.tabled else None

        def bury(record: StreamRecord) -> StreamRecord:
            not_before = 0 if lease is None else now + lease
            return record.with_cold(record.owner, record.cold.buried(stream.name, record.kept_from, not_before))

        record = await stream.decide(bury)
        while self._unfolds(topic):
            await self._unfold(stream)
            record = await stream.decide(bury)
        if not self.tables.settled(topic):
            return  # a table that lists them goes first
        gone = [each.key for each in record.cold.doomed if self._ended(each, now)]
        if gone:
            await self.check_place()
        for key in gone:
            await self.tier.segments.delete(key)
        if gone:
            await _change(stream, lambda cold: cold.forgotten(gone))

    def _ended(self, doomed: Doomed, now: int) -> bool:
        """Whether nobody reads it any more: its lease has ended, as far as the clock may be trusted."""
        return doomed.not_before <= now and (not doomed.not_before or self._clock.trusted())

    async def _unfold(self, stream: Stream) -> None:
        entries = await self.tier.reader.entries(stream.name, stream.record.cold.indexes[0])
        await _change(stream, lambda cold: cold.unfolded(stream.name, entries))

    def _unfolds(self, topic: Topic) -> bool:
        """Whether the first segment of the first index has ended, or is about to."""
        record = topic.ledger.stream.record
        entries = record.cold.entries
        first = entries[0] if entries else None
        if not isinstance(first, SegmentIndex):
            return False
        head = first.head
        if record.kept_from > head.last:
            return True
        rest = LedgerInfo(head.last + 1, first.last, first.bytes - head.bytes, first.newest)
        stretches = chain((head, rest), record.stretches(first.last + 1))
        policy, unneeded = topic.options.retention, topic.options.deletable_before(topic.state)
        total = record.bytes
        now, trusted = self._clock.wall(), self._clock.trusted()
        return trim_before(stretches, policy, unneeded, now, total_bytes=total, clock_trusted=trusted) > head.last

    async def _fold(self, topic: Topic) -> None:
        """The record stays small: older lists of segments become objects themselves."""
        stream = topic.ledger.stream
        while entries := stream.record.cold.to_fold(self._listed_max):
            await self._fold_one(stream, entries)

    async def _fold_one(self, stream: Stream, entries: Sequence[Entry]) -> None:
        index, data = make_index(entries, stream.record.cold.unfolds)
        await self.tier.segments.create(index_key(stream.name, index), data)
        await self.check_place()
        await _change(stream, lambda cold: cold.folded(entries, index))


class _Measured:
    """Batches of a planned segment as they are taken, to know where half of them end if they are too many for one."""

    def __init__(self, batches: AsyncIterator[Batch]) -> None:
        self._batches = batches
        self._ends: list[tuple[int, int]] = []  # bytes up to the end of a batch, and its last offset
        self._first: Batch | None = None
        self.end: int | None = None  # the last offset of all there is, once all of it was taken

    async def empty(self) -> bool:
        """Whether there is none at all."""
        self._first = await anext(self._batches, None)
        return self._first is None

    async def batches(self) -> AsyncIterator[Batch]:
        total, last = 0, None
        async for batch in self._all():
            last = batch.last_offset
            total += batch.size
            self._ends.append((total, batch.last_offset))
            if len(self._ends) > ENDS_KEPT:
                del self._ends[::2]  # half as fine does as well
            yield batch
        self.end = last

    async def _all(self) -> AsyncIterator[Batch]:
        if self._first is not None:
            yield self._first
        async for batch in self._batches:
            yield batch

    @property
    def half(self) -> int:
        """The last offset of about the first half of what was taken."""
        at = bisect_left(self._ends, (self._ends[-1][0] // 2, OFFSET_MAX)) if self._ends else 0
        return self._ends[max(at - 1, 0)][1] if self._ends else OFFSET_MAX


async def _check_rows(stream: Stream, segment: Segment) -> None:
    """That the local copy still has all rows: of a buffered stream a power cut takes some, also of sealed ledgers."""
    rows = 0
    async for batch in stream.read_planned(segment.plan):
        rows += batch.count
    if rows != segment.rows:
        key = segment_key(stream.name, segment.plan)
        raise SegmentMissing(f"{key} is missing, and the local copy has {rows} of its {segment.rows} rows")


async def _change(stream: Stream, change: Callable[[Cold], Cold]) -> StreamRecord:
    """Of what the record says about object storage."""
    return await stream.decide(lambda record: record.with_cold(record.owner, change(record.cold)))
