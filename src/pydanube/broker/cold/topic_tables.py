"""Topics as tables: keeps the table of a topic up to date with its record, and merges small segments into few files.

The record decides, the table follows. The record says that there is a table before the first commit; the table is
updated after every change, and compared once after a start. When the policy is removed, the table stays correct for
the rows it has, and gets no new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from pydanube.base.errors import BatchTooLarge, ObjectsRefused, SegmentConflict, SegmentDamaged, SegmentMissing
from pydanube.base.limits import SECOND
from pydanube.broker.topic.topic import Topic
from pydanube.ports.clock import Clock
from pydanube.storage.stream.cold import ColdTier
from pydanube.storage.stream.stream import Stream
from pydanube.stream.cold import Cold, Entry, SegmentIndex
from pydanube.stream.delta_table import TABLE_FILES_MAX, Folded, listing_of, next_merge
from pydanube.stream.segments import SegmentPlan, folder_of, segment_key

log = logging.getLogger(__name__)
TABLE_STEPS = ("table", "merge")  # those of `STEPS` in tiering.py that concern tables
MERGES_AT_ONCE = 1  # live traffic and uploads go first
_Content = tuple[tuple[Entry, ...], bool]  # the entries a table was updated to, and whether it was to grow


@dataclass(slots=True)
class _TableState:
    """What is known about the table of one stream, as long as this broker owns the stream."""

    content: _Content | None = None  # the last update; None before the first
    unmergeable: set[str] = field(default_factory=set)  # keys of segments whose merge failed; bounded by the segments
    nothing_to_merge: Cold | None = None  # the record for which this was found


@dataclass(frozen=True, slots=True)
class TableStatus:
    """What an operator sees of a topic's table."""

    uri: str
    made: bool  # it has, or once had, rows
    grows: bool  # new segments are added to it, by policy
    troubles: tuple[str, ...]  # why it is not up to date


class TopicTables:
    """The tables of all topics. Owned by the broker's loop, like the `Tiering` that drives it."""

    def __init__(
        self, tier: ColdTier, clock: Clock, check_location: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._check_location = check_location  # raises if the location is no longer this broker's
        self._tier = tier
        self._clock = clock
        self._states: WeakKeyDictionary[Stream, _TableState] = WeakKeyDictionary()
        self._merges = asyncio.Semaphore(MERGES_AT_ONCE)

    # -- what is due ---------------------------------------------------------------------------------------------------

    def due(self, topic: Topic) -> bool:
        """Whether `follow` or `merge` has something to do. Must be cheap: called for every topic in every turn."""
        stream = topic.ledger.stream
        cold = stream.record.cold
        if not cold.tabled:
            return topic.options.table is not None and bool(cold.entries)
        return not self.settled(topic) or cold.merging is not None or self._next_merge(topic) is not None

    def settled(self, topic: Topic) -> bool:
        """Whether the table is up to date with the record. Only then may objects that it no longer lists be deleted."""
        stream = topic.ledger.stream
        if not stream.record.cold.tabled:
            return True
        state = self._states.get(stream)
        return state is not None and state.content == _content_of(topic)

    def uri(self, stream: str) -> str:
        """The URI of the table of the topic that `stream` belongs to. Raises if there can be no table."""
        if self._tier.tables is None:
            raise ObjectsRefused(f"a table cannot be created at {self._tier.location}: {self._tier.why_no_tables}")
        return f"{self._tier.tables}/{folder_of(stream).rstrip('/')}"

    # -- following -----------------------------------------------------------------------------------------------------

    async def follow(self, topic: Topic) -> None:
        """Updates the topic's table to its record.

        Index objects, which list older segments, are read only if the table does not have all of their rows.
        """
        if not self.due(topic):
            return
        stream = topic.ledger.stream
        self.uri(stream.name)
        if not stream.record.cold.tabled:
            await change_cold(stream, lambda cold: replace(cold, tabled=True))
        if self.settled(topic):
            return
        content = _content_of(topic)
        entries: Sequence[Entry] = content[0]
        while True:
            now, grows = self._clock.wall(), topic.options.table is not None
            listing = listing_of(stream.name, stream.epoch, entries, now=now, grows=grows)
            if len(listing.files) > TABLE_FILES_MAX:
                raise ObjectsRefused(f"{stream.name} has more than {TABLE_FILES_MAX} segments, too many for its table")
            unfold = await self._tier.segments.follow_table(listing)
            if not unfold:
                break
            entries = await self._unfolded(stream.name, entries, unfold)
        self._state(stream).content = content

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
        cold, state = stream.record.cold, self._state(stream)
        if topic.options.table is None or state.nothing_to_merge is cold:
            return None
        parts = next_merge(stream.name, cold, self._tier.settings.segment_bytes, state.unmergeable)
        if not parts:
            state.nothing_to_merge = cold
            return None
        return SegmentPlan(parts[0].first, parts[-1].last, stream.epoch)

    async def merge(self, topic: Topic) -> None:
        """Merges some small segments into one: the record plans it, the object is written, the record has it instead of
        the small ones, and the table is updated."""
        stream = topic.ledger.stream
        if not stream.record.cold.tabled or not self.settled(topic):
            return  # the table must list the small segments first, so that the merge changes none of its rows
        if stream.record.cold.merging is None:
            plan = self._next_merge(topic)
            if plan is None:
                return
            await change_cold(stream, lambda cold: replace(cold, merging=plan))
        cold = stream.record.cold
        plan = cold.merging
        assert plan is not None
        sources = [(segment_key(stream.name, part.plan), part) for part in cold.covered(plan)]
        try:
            async with self._merges:
                segment = await self._tier.segments.merge(segment_key(stream.name, plan), plan, stream.name, sources)
        except (BatchTooLarge, SegmentConflict, SegmentMissing, SegmentDamaged) as error:
            log.error("%s: could not merge segments %d to %d: %s", stream.name, plan.first, plan.last, error)
            await change_cold(stream, Cold.merge_given_up)
            self._state(stream).unmergeable |= {key for key, _ in sources}
            raise
        if self._check_location is not None:
            await self._check_location()
        not_before = self._clock.wall() + round(self._tier.settings.lease_seconds * SECOND)
        await change_cold(stream, lambda found: found.merged(stream.name, segment, not_before))
        await self.follow(topic)

    def _state(self, stream: Stream) -> _TableState:
        return self._states.setdefault(stream, _TableState())


def _content_of(topic: Topic) -> _Content:
    return topic.ledger.stream.record.cold.entries, topic.options.table is not None


async def change_cold(stream: Stream, change: Callable[[Cold], Cold]) -> None:
    """Changes the part of the stream's record that is about object storage."""
    await stream.decide(lambda record: record.with_cold(record.owner, change(record.cold)))
