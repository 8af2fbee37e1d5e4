"""What happens to streams in object storage, seen from outside, and whether the promises held (I1, I2, I5, I7, I9).

It sees every record as it is stored, every object as it is made or deleted, and every row as it was published.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.objects import SimObjects
from pydanube.sim.world.history import History
from pydanube.stream.cold import Cold, Entry, SegmentIndex, index_key, read_index
from pydanube.stream.record import StreamRecord
from pydanube.stream.segments import Segment, folder_of, segment_key
from pydanube.wire.batch import Batch


class Row(NamedTuple):
    """What a producer said of one message."""

    payload: bytes
    key: bytes | None
    publish_time: int
    delivery_time: int | None


def rows_of(batch: Batch) -> list[Row]:
    payloads = (payload or b"" for payload in batch.payloads())
    return list(map(Row, payloads, batch.keys(), batch.publish_times(), batch.delivery_times()))


class TierHistory:
    """Watches the catalogue and the objects of one world."""

    def __init__(self, history: History, objects: SimObjects, loop: SimLoop) -> None:
        self.objects = objects
        self.rows: dict[str, dict[int, Row]] = {}  # stream: offset: as it was published
        self.truncated: dict[str, int] = {}  # what somebody asked to be deleted ends here
        self.removing: set[str] = set()  # streams that somebody is about to remove
        self.removed: set[str] = set()  # those of them that were taken from their owners
        self.records: dict[str, StreamRecord] = {}
        self._history = history
        self._published: dict[str, dict[str, Segment]] = {}  # stream: key: segment, also of what was buried since
        self._published_at: dict[str, float] = {}
        self._doomed: set[str] = set()  # keys, ever
        self._recorded: set[str] = set()  # keys of index objects, ever
        self._loop = loop
        objects.created, objects.deleting = self._created, self._deleting

    # -- records -------------------------------------------------------------------------------------------------------

    def stored(self, stream: str, before: StreamRecord, after: StreamRecord) -> None:
        """A change of a record has taken effect."""
        self.records[stream] = after
        if stream in self.removing and after.token != before.token:
            self.removed.add(stream)
        if before.cold == after.cold:
            return
        self._check(stream not in self.removed, "I5", f"{stream}: its record changed after it was taken for removal")
        for key in set(self._indexes(stream, after.cold.entries)) - set(self._indexes(stream, before.cold.entries)):
            again = key in self._doomed and key in self._recorded
            self._check(not again, "I7", f"{key} is listed again after it was given up: a late deletion may take it")
        self._recorded.update(self._indexes(stream, after.cold.entries))
        self._doomed.update(each.key for each in after.cold.doomed)
        old, new = self.segments(stream, before.cold), self.segments(stream, after.cold)
        spans = [(segment.first, segment.last) for segment in new.values()]
        for (_, last), (first, _) in pairwise(spans):
            self._check(last < first, "I2", f"{stream}: segments overlap or run backwards at {first}")
        for key, segment in new.items():
            if key not in old:
                self._check_published(stream, before, key, segment)
        doomed = {each.key for each in after.cold.doomed}
        for key, segment in old.items():
            if key not in new:
                self._check(segment.last < after.kept_from, "I1", f"{key} is given up, and holds what is kept")
                self._check(key in doomed, "I9", f"{key} is given up, but nothing will delete it")
        self._check_evicted(stream, before.cold, after.cold, new)

    def segments(self, stream: str, cold: Cold) -> dict[str, Segment]:
        """All that the record lists, through index objects as they were made, by key, in order."""
        return dict(self._below(stream, cold.entries))

    def _below(self, stream: str, entries: tuple[Entry, ...]) -> Iterator[tuple[str, Segment]]:
        for entry in entries:
            if isinstance(entry, SegmentIndex):
                yield from self._below(stream, self._listed(stream, entry))
            else:
                yield segment_key(stream, entry.plan), entry

    def _listed(self, stream: str, index: SegmentIndex) -> tuple[Entry, ...]:
        key = index_key(stream, index)
        try:
            return read_index(key, index, self.objects.made[key])
        except (KeyError, DanubeError) as error:
            self._check(False, "I1", f"{key} is recorded, and was never made so: {error!r}")
            return ()

    def _check_published(self, stream: str, before: StreamRecord, key: str, segment: Segment) -> None:
        self._check(before.cold.planned == segment.plan, "I2", f"{key} is published, and was not planned")
        made = self.objects.made.get(key)
        self._check(made is not None and len(made) == segment.size, "I1", f"{key} is published, and was not made so")
        known = self._published.setdefault(stream, {})
        for other, each in known.items():
            apart = each.last < segment.first or segment.last < each.first
            self._check(apart or other == key, "I2", f"{key} has rows that {other} has, too")
        known[key] = segment
        self._published_at[key] = self._loop.time()

    def _check_evicted(self, stream: str, before: Cold, after: Cold, segments: dict[str, Segment]) -> None:
        """Local copies may go of what was read again after it was published, and was right then (§28)."""
        if after.local_from <= before.local_from:
            return
        gone = [(key, each) for key, each in segments.items() if before.local_from <= each.last < after.local_from]
        for key, _ in gone:
            read = self.objects.read_whole.get(key, -1.0)
            self._check(read > self._published_at[key], "I1", f"{key} was not read again before local copies went")
        if self._history.streams[stream].durability is Durability.BUFFERED:
            return  # a power cut may have taken some
        kept_from = self.records[stream].kept_from
        for offset in self.rows.get(stream, {}):
            if max(before.local_from, kept_from) <= offset < after.local_from:
                held = any(each.first <= offset <= each.last for _, each in gone)
                self._check(held, "I1", f"{stream}: the local copy of {offset} goes, and no segment has it")

    # -- objects -------------------------------------------------------------------------------------------------------

    def _created(self, key: str) -> None:
        same = self.objects.held[key] == self.objects.made[key]
        self._check(same, "I2", f"{key} was written again with different content")

    def _deleting(self, key: str) -> None:
        """An object is deleted now: the record has said so before, and does not need it."""
        stream = self.stream_of(key)
        if stream is None or stream in self.removed:
            return
        self._check(key in self._doomed, "I7", f"{key} is deleted, and its record never gave it up")
        needed = key in self.needed(stream)
        self._check(not needed, "I1", f"{key} is deleted, and its record still needs it")

    def stream_of(self, key: str) -> str | None:
        return next((name for name in self.records if key.startswith(folder_of(name))), None)

    def needed(self, stream: str) -> set[str]:
        """Keys of what the record lists or is about to."""
        cold = self.records[stream].cold
        found = set(self.segments(stream, cold)) | set(self._indexes(stream, cold.entries))
        found |= {segment_key(stream, plan) for plan in (cold.planned, cold.merging) if plan is not None}
        return found

    def _indexes(self, stream: str, entries: tuple[Entry, ...]) -> Iterator[str]:
        for entry in entries:
            if isinstance(entry, SegmentIndex):
                yield index_key(stream, entry)
                yield from self._indexes(stream, self._listed(stream, entry))

    def indexes_over(self, stream: str, entries: tuple[Entry, ...], offset: int) -> Iterator[str]:
        """Keys of the index objects on the way to the segment that holds `offset`."""
        for entry in entries:
            if isinstance(entry, SegmentIndex) and entry.first <= offset <= entry.last:
                yield index_key(stream, entry)
                yield from self.indexes_over(stream, self._listed(stream, entry), offset)

    def orphans(self, stream: str) -> list[str]:
        """Objects that no record speaks of, but for those that landed after their time."""
        known = self.needed(stream) | {each.key for each in self.records[stream].cold.doomed}
        return [key for key in self.left(stream) if key not in known]

    def left(self, stream: str) -> list[str]:
        """What there is of it, but for what landed after its time."""
        held = [key for key in sorted(self.objects.held) if key.startswith(folder_of(stream))]
        return [key for key in held if not self._late(key)]

    def _late(self, key: str) -> bool:
        """Its creation landed after it was deleted, or is of an index that came to nothing. Nobody knows of it."""
        return key in self.objects.deleted or (key.endswith(".json") and key not in self._recorded)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def published(self, stream: str, offset: int, batch: Batch) -> None:
        known = self.rows.setdefault(stream, {})
        for place, row in enumerate(rows_of(batch)):
            known.setdefault(offset + place, row)

    def read(self, stream: str, offset: int, batches: list[Batch], *, first: int, lossy: bool) -> int:
        """Somebody who asked for `offset` was given these; where to go on. What lies below `first` may be gone."""
        known = self.rows.get(stream, {})
        for batch in batches:
            for place, row in enumerate(rows_of(batch)):
                at = batch.base_offset + place
                if at < offset:
                    continue
                if not lossy:
                    skipped = [each for each in range(max(offset, first), at) if each in known]
                    self._check(not skipped, "I1", f"{stream}: {skipped[:3]} were skipped by a reader at {offset}")
                same = known.get(at, row) == row
                self._check(same, "I2", f"{stream}: offset {at} was published as {known.get(at)}, and read as {row}")
                offset = at + 1
        return offset

    def blamed(self, error: DanubeError) -> None:
        """A reader was told that something is lost or damaged: that is so, and it is named."""
        named = [key for key in self.objects.made if key in str(error)]
        self._check(bool(named), "I7", f"an error that names no object: {error}")
        for key in named:
            known = key in self.objects.broken or key in self.objects.deleted
            self._check(known, "I7", f"{key} is said to be lost or damaged: {error}")

    def _check(self, holds: bool, promise: str, sentence: str) -> None:
        self._history.check(holds, promise, sentence)
