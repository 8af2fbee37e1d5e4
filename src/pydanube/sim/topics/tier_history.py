"""What happens to streams in object storage, and whether the promises were kept (I1, I2, I5, I7, I9).

It sees every record when it is stored, every object when it is created or deleted, and every row when it is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """One message as it was published."""

    payload: bytes
    key: bytes | None
    publish_time: int
    delivery_time: int | None


def rows_of(batch: Batch) -> list[Row]:
    payloads = (payload or b"" for payload in batch.payloads())
    return list(map(Row, payloads, batch.keys(), batch.publish_times(), batch.delivery_times()))


class TierHistory:
    """Watches the catalogue and the objects of one world."""

    def __init__(
        self,
        history: History,
        objects: SimObjects,
        loop: SimLoop,
        names: dict[str, str],
        is_released: Callable[[str], bool],
    ) -> None:
        """`names` has the topic of each stream; `is_released` says whether it was taken from its last owner."""
        self.objects = objects
        self.rows: dict[str, dict[int, Row]] = {}  # stream: offset: row
        self.removing: set[str] = set()  # streams that are about to be removed
        self.removed: set[str] = set()  # streams that were taken from their owners to be removed
        self.records: dict[str, StreamRecord] = {}
        self._history = history
        self._names = names
        self._is_released = is_released
        self._versions: dict[str, int] = {}  # of the records
        self._published: dict[str, dict[str, Segment]] = {}  # stream: key: segment, including deleted ones
        self._published_at: dict[str, float] = {}
        self._doomed: set[str] = set()  # all keys that were ever doomed
        self._recorded: set[str] = set()  # all keys of index objects that were ever recorded
        self._loop = loop
        objects.created, objects.deleting = self._created, self._deleting

    def _note_removal(self, stream: str) -> None:
        if stream in self.removing and self._is_released(stream):
            self.removed.add(stream)

    # -- records -------------------------------------------------------------------------------------------------------

    def stored(self, stream: str, after: StreamRecord, version: int) -> None:
        """Checks a record, if it is newer than the one that was seen before."""
        if version <= self._versions.get(stream, 0):
            return
        before = self.records.get(stream, StreamRecord())
        self.records[stream], self._versions[stream] = after, version
        self._note_removal(stream)
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
                self._check(segment.last < after.kept_from, "I1", f"{key} is given up, but contains messages to keep")
                self._check(key in doomed, "I9", f"{key} is given up, but nothing will delete it")
        self._check_evicted(stream, before.cold, after.cold, new)

    def was_published(self, stream: str, offset: int) -> bool:
        """Whether a segment has ever had the offset."""
        return any(each.first <= offset <= each.last for each in self._published.get(stream, {}).values())

    def segments(self, stream: str, cold: Cold) -> dict[str, Segment]:
        """All segments that the record lists, directly or through index objects, by key, in order."""
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
            self._check(False, "I1", f"{key} is recorded, but was not created like that: {error!r}")
            return ()

    def _check_published(self, stream: str, before: StreamRecord, key: str, segment: Segment) -> None:
        self._check(before.cold.planned == segment.plan, "I2", f"{key} is published, but was not planned")
        made = self.objects.made.get(key)
        self._check(made is not None and len(made) == segment.size, "I1", f"{key} is published, but not as created")
        known = self._published.setdefault(stream, {})
        for other, each in known.items():
            apart = each.last < segment.first or segment.last < each.first
            self._check(apart or other == key, "I2", f"{key} has rows that {other} has too")
        known[key] = segment
        self._published_at[key] = self._loop.time()

    def _check_evicted(self, stream: str, before: Cold, after: Cold, segments: dict[str, Segment]) -> None:
        """Local copies may be deleted once the segment was read back after publication and was correct (§28)."""
        if after.local_from <= before.local_from:
            return
        gone = [(key, each) for key, each in segments.items() if before.local_from <= each.last < after.local_from]
        for key, _ in gone:
            read = self.objects.read_whole.get(key, -1.0)
            self._check(read > self._published_at[key], "I1", f"{key} was not read back before its local copies went")
        if self._history.streams[self._names[stream]].durability is Durability.BUFFERED:
            return  # a power cut may have lost some
        kept_from = self.records[stream].kept_from
        for offset in self.rows.get(stream, {}):
            if max(before.local_from, kept_from) <= offset < after.local_from:
                held = any(each.first <= offset <= each.last for _, each in gone)
                self._check(held, "I1", f"{stream}: the local copy of {offset} is deleted, but no segment has it")

    # -- objects -------------------------------------------------------------------------------------------------------

    def _created(self, key: str) -> None:
        same = self.objects.held[key] == self.objects.made[key]
        self._check(same, "I2", f"{key} was written again with different content")

    def _deleting(self, key: str) -> None:
        """Checks an object that is being deleted: its record gave it up before, and does not need it."""
        stream = self.stream_of(key)
        if stream is None:
            return
        self._note_removal(stream)
        if stream in self.removed:
            return
        self._check(key in self._doomed, "I7", f"{key} is deleted, but its record never gave it up")
        needed = key in self.needed(stream)
        self._check(not needed, "I1", f"{key} is deleted, but its record still needs it")

    def stream_of(self, key: str) -> str | None:
        return next((name for name in self.records if key.startswith(folder_of(name))), None)

    def needed(self, stream: str) -> set[str]:
        """The keys of objects that the record lists or plans."""
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
        """The keys of the index objects that lead to the segment with `offset`."""
        for entry in entries:
            if isinstance(entry, SegmentIndex) and entry.first <= offset <= entry.last:
                yield index_key(stream, entry)
                yield from self.indexes_over(stream, self._listed(stream, entry), offset)

    def orphans(self, stream: str) -> list[str]:
        """Objects that the record does not mention, except those that were created too late."""
        known = self.needed(stream) | {each.key for each in self.records[stream].cold.doomed}
        return [key for key in self.left(stream) if key not in known]

    def left(self, stream: str) -> list[str]:
        """The objects of a stream, except those that were created too late."""
        held = [key for key in sorted(self.objects.held) if key.startswith(folder_of(stream))]
        return [key for key in held if not self._late(key)]

    def _late(self, key: str) -> bool:
        """Whether it was created after its deletion, or is an index that was never recorded: no broker knows of it."""
        return key in self.objects.deleted or (key.endswith(".json") and key not in self._recorded)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def published(self, stream: str, offset: int, batch: Batch) -> None:
        known = self.rows.setdefault(stream, {})
        for at, row in enumerate(rows_of(batch), offset):
            known.setdefault(at, row)

    def read(self, stream: str, offset: int, batches: list[Batch], *, first: int, lossy: bool) -> int:
        """Checks what a reader got at `offset`, and returns where it continues. Offsets below `first` may be gone."""
        known = self.rows.get(stream, {})
        for batch in batches:
            for at, row in enumerate(rows_of(batch), batch.base_offset):
                if at < offset:
                    continue
                if not lossy:
                    skipped = [each for each in range(max(offset, first), at) if each in known]
                    self._check(not skipped, "I1", f"{stream}: {skipped[:3]} were skipped by a reader at {offset}")
                same = known.get(at, row) == row
                self._check(same, "I2", f"{stream}: offset {at} was published as {known.get(at)}, but read as {row}")
                offset = at + 1
        return offset

    def check_report(self, error: DanubeError) -> None:
        """Checks an error that reports a lost or damaged object: it names the object, and is true."""
        named = [key for key in self.objects.made if key in str(error)]
        self._check(bool(named), "I7", f"the error does not name an object: {error}")
        for key in named:
            known = key in self.objects.broken or key in self.objects.deleted
            self._check(known, "I7", f"{key} is neither lost nor damaged, but reported: {error}")

    def _check(self, holds: bool, promise: str, sentence: str) -> None:
        self._history.check(holds, promise, sentence)
