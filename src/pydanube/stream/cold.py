"""The part of a stream that lies in object storage: segments in offset order, older ones listed in index objects.

Pure. Segments are added at the end and trimmed from the beginning. When a list grows too long, its older half moves
into an index object of the next level, so a stream that keeps everything forever still has a small record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydanube.base.errors import SegmentDamaged
from pydanube.base.ids import Epoch
from pydanube.base.limits import SEGMENTS_LISTED_MAX
from pydanube.stream.retention import SealedPart
from pydanube.stream.segments import Segment, SegmentPlan, folder_of, partition_of, segment_key


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """An object that lists segments, or indexes of the level below: their sums and bounds, and its checksum."""

    first: int
    last: int
    level: int
    rows: int
    bytes: int
    size: int  # of the segments' objects
    oldest: int
    newest: int
    head_last: int  # of its first segment: last offset, bytes, and last append time
    head_bytes: int
    head_newest: int
    checksum: str  # SHA-256 of the object; its key derives from it

    @property
    def head(self) -> SealedPart:
        """Its first segment, which is the next to be trimmed."""
        return SealedPart(self.first, self.head_last, self.head_bytes, self.head_newest)


Entry = Segment | SegmentIndex


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object that is no longer needed. It is deleted, and then removed from the record."""

    key: str
    not_before: int = 0  # readers of a table may use it until then


@dataclass(frozen=True, slots=True)
class Cold:
    """The part of a stream in object storage, and what is about to change there."""

    entries: tuple[Entry, ...] = ()  # in offset order; higher levels come first, except for unfolded entries
    planned: SegmentPlan | None = None  # being written; its ledgers stay until it is published or given up
    merging: SegmentPlan | None = None  # the segments of this range are being written as one
    doomed: tuple[Doomed, ...] = ()
    local_from: int = 0  # offsets below need no copy on storage nodes
    tabled: bool = False  # its segments are, or once were, listed in a table
    unfolds: int = 0  # how often so far: an index folded again gets another key, so a late deletion cannot hit it

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments listed here, without those in indexes."""
        return tuple(entry for entry in self.entries if isinstance(entry, Segment))

    @property
    def indexes(self) -> tuple[SegmentIndex, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, SegmentIndex))

    @property
    def first(self) -> int | None:
        return self.entries[0].first if self.entries else None

    @property
    def end(self) -> int:
        """The offset after the last one in a segment; 0 without segments."""
        return self.entries[-1].last + 1 if self.entries else 0

    def published(self, segment: Segment) -> Cold:
        assert segment.plan == self.planned
        assert segment.first >= self.end
        return replace(self, entries=(*self.entries, segment), planned=None)

    def given_up(self, stream: str) -> Cold:
        """The plan is abandoned; an object that was written for it is deleted."""
        assert self.planned is not None
        doomed = Doomed(segment_key(stream, self.planned))
        return replace(self, planned=None, doomed=(*self.doomed, doomed))

    def replaced(self, before: Segment, after: Segment) -> Cold:
        """The same part, after the lost object of this segment was written again."""
        assert (before.plan, before.digest) == (after.plan, after.digest)
        return self._with((before,), (after,))

    def evicted(self, before: int) -> Cold:
        assert before <= self.end
        return replace(self, local_from=max(self.local_from, before))

    def trimmed(self, stream: str, kept_from: int, not_before: int = 0) -> Cold:
        """The part without the segments that end below `kept_from`, up to the first index or the first one being
        merged."""
        dead: list[Segment] = []
        for entry in self.entries:
            merges = self.merging is not None and entry.last >= self.merging.first
            if isinstance(entry, SegmentIndex) or entry.last >= kept_from or merges:
                break
            dead.append(entry)
        doomed = (Doomed(segment_key(stream, segment.plan), not_before) for segment in dead)
        return replace(self, entries=self.entries[len(dead) :], doomed=(*self.doomed, *doomed))

    def forgotten(self, keys: Iterable[str]) -> Cold:
        gone = set(keys)
        return replace(self, doomed=tuple(each for each in self.doomed if each.key not in gone))

    # -- indexes -------------------------------------------------------------------------------------------------------

    def to_fold(self, listed_max: int | None = None) -> tuple[Entry, ...]:
        """The entries to move into an index now, if a list is too long. Storage nodes have no copies of them."""
        most = SEGMENTS_LISTED_MAX if listed_max is None else listed_max
        still = self.end if self.merging is None else self.merging.first
        end = len(self.entries)
        level = -1
        while end and _level(self.entries[end - 1]) > level:
            level, start = _level(self.entries[end - 1]), end
            while start and _level(self.entries[start - 1]) == level:
                start -= 1
            if end - start > most:
                older = self.entries[start : start + most // 2]
                return older if older[-1].last < min(still, self.local_from) else ()
            end = start
        return ()

    def folded(self, entries: Sequence[Entry], index: SegmentIndex) -> Cold:
        """The part with `index` in place of these entries."""
        return self._with(entries, (index,))

    def unfolded(self, stream: str, entries: Sequence[Entry]) -> Cold:
        """The part with the entries of the first index in its place; the object of the index is deleted."""
        index = self.indexes[0]
        doomed = (*self.doomed, Doomed(index_key(stream, index)))
        return replace(self._with((index,), entries), doomed=doomed, unfolds=self.unfolds + 1)

    def _with(self, before: Sequence[Entry], after: Sequence[Entry]) -> Cold:
        """The part with `after` in place of `before`, whose entries are adjacent."""
        at = self.entries.index(before[0])
        assert self.entries[at : at + len(before)] == tuple(before)
        return replace(self, entries=(*self.entries[:at], *after, *self.entries[at + len(before) :]))

    # -- merging -------------------------------------------------------------------------------------------------------

    def covered(self, plan: SegmentPlan) -> tuple[Segment, ...]:
        """The segments that `plan` merges."""
        return tuple(each for each in self.segments if plan.first <= each.first and each.last <= plan.last)

    def merged(self, stream: str, segment: Segment, not_before: int) -> Cold:
        """The part with `segment` in place of those merged into it, which are deleted when readers of the table are
        done."""
        assert segment.plan == self.merging
        parts = self.covered(segment.plan)
        assert parts
        doomed = (Doomed(segment_key(stream, part.plan), not_before) for part in parts)
        return replace(self._with(parts, (segment,)), merging=None, doomed=(*self.doomed, *doomed))

    def merge_given_up(self) -> Cold:
        """There is another object under its key, which is not ours to delete."""
        return replace(self, merging=None)


def _level(entry: Entry) -> int:
    return entry.level if isinstance(entry, SegmentIndex) else 0


def find_entry(entries: Sequence[Entry], offset: int) -> Entry | None:
    """The entry that contains `offset`, or the next one after a gap."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if entries[middle].last < offset:
            low = middle + 1
        else:
            high = middle
    return entries[low] if low < len(entries) else None


# -- index objects -----------------------------------------------------------------------------------------------------


def make_index(entries: Sequence[Entry], unfolds: int = 0) -> tuple[SegmentIndex, bytes]:
    """The record of an index of these entries, and the bytes of its object."""
    fields = {"danube_index": 1, "unfolds": unfolds, "entries": [entry_fields(entry) for entry in entries]}
    data = json.dumps(fields, indent=1).encode()
    first = entries[0]
    index = SegmentIndex(
        first.first,
        entries[-1].last,
        1 if isinstance(first, Segment) else first.level + 1,
        sum(entry.rows for entry in entries),
        sum(entry.bytes for entry in entries),
        sum(entry.size for entry in entries),
        min(entry.oldest for entry in entries),
        max(entry.newest for entry in entries),
        *((first.last, first.bytes, first.newest) if isinstance(first, Segment) else first.head[1:4]),
        hashlib.sha256(data).hexdigest(),
    )
    return index, data


def read_index(key: str, index: SegmentIndex, data: bytes) -> tuple[Entry, ...]:
    """The entries in the object of `index`; `SegmentDamaged` if it is not the object that was written."""
    if hashlib.sha256(data).hexdigest() != index.checksum:
        raise SegmentDamaged(f"{key} is not the index that was written")
    return tuple(entry_of(fields) for fields in json.loads(data)["entries"])


def index_key(stream: str, index: SegmentIndex) -> str:
    prefix = f"{folder_of(stream)}_segments/partition={partition_of(stream)}/index-{index.level}"
    return f"{prefix}-{index.first:020d}-{index.last:020d}-{index.checksum[:16]}.json"


def entry_fields(entry: Entry) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in type(entry).__slots__}
    if isinstance(entry, Segment):
        fields["groups"] = [group - entry.first for group in entry.groups]
    return fields


def entry_of(fields: dict[str, Any]) -> Entry:
    """Raises `TypeError`, `ValueError` or `KeyError` for anything that `entry_fields` does not return."""
    fields = dict(fields)
    texts = ("checksum", "digest")
    wrong = [
        name
        for name, value in fields.items()
        if name != "groups" and type(value) is not (str if name in texts else int)
    ]
    if wrong:
        raise TypeError(f"{wrong[0]} is {fields[wrong[0]]!r}")
    if "level" in fields:
        return SegmentIndex(**fields)
    groups = fields.pop("groups")
    if not isinstance(groups, list) or not all(type(group) is int for group in groups):
        raise TypeError(f"groups are {groups!r}")
    epoch = Epoch(fields.pop("epoch"))
    return Segment(epoch=epoch, groups=tuple(fields["first"] + group for group in groups), **fields)
