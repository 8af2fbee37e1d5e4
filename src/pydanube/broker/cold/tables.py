"""Topics as tables: follows a topic's record with its table, and merges small segments so that its files stay few.

The record decides, the table follows: durably marked before the first commit, brought up to date after every change,
compared once after a start. A table outlives its policy: it stays right for what it has, and gets nothing new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from pydanube.base.errors import BatchTooLarge, ObjectsRefused, SegmentConflict, SegmentDamaged, SegmentMissing
from pydanube.broker.topic.topic import Topic
from pydanube.ports.clock import Clock
from pydanube.storage.stream.cold import ColdTier
from pydanube.storage.stream.stream import Stream
from pydanube.stream.cold import Cold, Entry, SegmentIndex
from pydanube.stream.delta_table import TABLE_FILES_MAX, Folded, listing_of, next_merge
from pydanube.stream.segments import SegmentPlan, folder_of, segment_key
from pydanube.stream.times import SECOND

log = logging.getLogger(__name__)
TABLE_STEPS = ("table", "merge")  # of a round of tiering
MERGES_AT_ONCE = 1  # live traffic and uploads go first
_Seen = tuple[tuple[Entry, ...], bool]  # what a table was brought to, and whether it was to grow


@dataclass(slots=True)
class _Followed:
    """Of one owner's hold on a stream."""

    seen: _Seen | None = None
    spoilt: set[str] = field(default_factory=set)  # keys of segments that could not be merged; no more than there are
    idle: Cold | None = None  # of this nothing is to be merged


@dataclass(frozen=True, slots=True)
class Table:
    """A topic's table, for people."""

    uri: str
    made: bool  # something is, or was, listed in it
    grows: bool  # the policy says so: what is uploaded is listed
    troubles: tuple[str, ...]  # why it is not up to date


class Tables:
    """Owned by the broker's loop, as the `Tiering` that asks it."""

    def __init__(self, tier: ColdTier, clock: Clock, check_place: Callable[[], Awaitable[None]] | None = None) -> None:
        self._check_place = check_place  # raises if the place is no longer ours
        self._tier = tier
        self._clock = clock
        self._followed: WeakKeyDictionary[Stream, _Followed] = WeakKeyDictionary()
        self._merges = asyncio.Semaphore(MERGES_AT_ONCE)

    # -- what is due ---------------------------------------------------------------------------------------------------

    def due(self, topic: Topic) -> bool:
        """Cheap: asked of every topic in every turn."""
        stream = topic.ledger.stream
        cold = stream.record.cold
        if not cold.tabled:
            return topic.options.table is not None and bool(cold.entries)
        return not self.settled(topic) or cold.merging is not None or self._next_merge(topic) is not None

    def settled(self, topic: Topic) -> bool:
        """Whether the table has what the record says: only then objects go that it gave up."""
        stream = topic.ledger.stream
        if not stream.record.cold.tabled:
            return True
        followed = self._followed.get(stream)
        return followed is not None and followed.seen == _seen(topic)

    def uri(self, stream: str) -> str:
        """Of the table of the topic that `stream` is a partition of; raises why there can be none."""
        if self._tier.tables is None:
            raise ObjectsRefused(f"a table cannot be created at {self._tier.location}: {self._tier.why_no_tables}")
        return f"{self._tier.tables}/{folder_of(stream).rstrip('/')}"

    # -- following -----------------------------------------------------------------------------------------------------

    async def follow(self, topic: Topic) -> None:
        """Brings the topic's table to what its record says.

        Lists that are objects themselves are read only if the table does not have all of their rows.
        """
        if not self.due(topic):
            return
        stream = topic.ledger.stream
        self.uri(stream.name)
        if not stream.record.cold.tabled:
            await _change(stream, lambda cold: replace(cold, tabled=True))
        if self.settled(topic):
            return
        seen = _seen(topic)
        entries: Sequence[Entry] = seen[0]
        while True:
            now, grows = self._clock.wall(), topic.options.table is not None
            listing = listing_of(stream.name, stream.epoch, entries, now=now, grows=grows)
            if len(listing.files) > TABLE_FILES_MAX:
                raise ObjectsRefused(f"{stream.name} has more than {TABLE_FILES_MAX} segments, too many for its table")
            unfold = await self._tier.segments.follow_table(listing)
            if not unfold:
                break
            entries = await self._unfolded(stream.name, entries, unfold)
        self._of(stream).seen = seen

    async def _unfolded(self, stream: str, entries: Sequence[Entry], unfold: Sequence[Folded]) -> list[Entry]:
        wanted = {(each.first, each.last) for each in unfold}
        found: list[Entry] = []
        for entry in entries:
            if isinstance(entry, SegmentIndex) and (entry.first, entry.last) in wanted:
                found += await self._tier.reader.entries(stream, entry)
            else:
                found.append(entry)
        return found

    # -- merging -------------------------------------------------------------------------------------------------------

    def _next_merge(self, topic: Topic) -> SegmentPlan | None:
        stream = topic.ledger.stream
        cold, followed = stream.record.cold, self._of(stream)
        if topic.options.table is None or followed.idle is cold:
            return None
        parts = next_merge(stream.name, cold, self._tier.settings.segment_bytes, followed.spoilt)
        if not parts:
            followed.idle = cold
            return None
        return SegmentPlan(parts[0].first, parts[-1].last, stream.epoch)

    async def merge(self, topic: Topic) -> None:
        """Some small segments become one: recorded first, then written, then in their place, then in the table."""
        stream = topic.ledger.stream
        if not stream.record.cold.tabled or not self.settled(topic):
            return  # the table has them as they are first, so that a merge changes none of its rows
        if stream.record.cold.merging is None:
            plan = self._next_merge(topic)
            if plan is None:
                return
            await _change(stream, lambda cold: replace(cold, merging=plan))
        cold = stream.record.cold
        plan = cold.merging
        assert plan is not None
        sources = [(segment_key(stream.name, part.plan), part) for part in cold.covered(plan)]
        try:
            async with self._merges:
                segment = await self._tier.segments.merge(segment_key(stream.name, plan), plan, stream.name, sources)
        except (BatchTooLarge, SegmentConflict, SegmentMissing, SegmentDamaged) as error:
            log.error("%s: could not merge segments %d to %d: %s", stream.name, plan.first, plan.last, error)
            await _change(stream, Cold.merge_given_up)
            self._of(stream).spoilt |= {key for key, _ in sources}
            raise
        if self._check_place is not None:
            await self._check_place()
        not_before = self._clock.wall() + round(self._tier.settings.lease_seconds * SECOND)
        await _change(stream, lambda found: found.merged(stream.name, segment, not_before))
        await self.follow(topic)

    def _of(self, stream: Stream) -> _Followed:
        return self._followed.setdefault(stream, _Followed())


def _seen(topic: Topic) -> _Seen:
    return topic.ledger.stream.record.cold.entries, topic.options.table is not None


async def _change(stream: Stream, change: Callable[[Cold], Cold]) -> None:
    await stream.decide(lambda record: record.with_cold(record.owner, change(record.cold)))
