"""What one batch reads, and which task reads which part of it: pure, from offsets to ranges to tasks.

A range is offsets of a partition. Which segments have them is a hint: what was sealed or moved since is read through
the broker, with the same offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.base.limits import MIB
from pydanube.spark.offsets import Offsets, TopicOffsets

TASK_BYTES_MAX = 512 * MIB  # a task that fails is read again
TASK_BYTES_MIN = 8 * MIB  # a task costs about 25 ms; as much is read in that time
MESSAGE_BYTES = 16  # what a message counts beyond its own bytes
Task = tuple["Range", ...]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the broker described it. Lists have one value for each partition."""

    name: str
    id: int
    partitions: int  # 0: it has none, and is its own place
    firsts: tuple[int, ...]
    ends: tuple[int, ...]  # one after the last confirmed offset
    bytes: int
    segments: int = 0  # in object storage, about

    def place(self, number: int) -> str:
        return f"{self.name}-part-{number}" if self.partitions else self.name

    @property
    def earliest(self) -> TopicOffsets:
        return TopicOffsets(self.id, self.firsts)

    @property
    def latest(self) -> TopicOffsets:
        return TopicOffsets(self.id, self.ends)

    @property
    def message_bytes(self) -> int:
        """About, on average."""
        messages = sum(self.ends) - sum(self.firsts)
        return MESSAGE_BYTES + (self.bytes // messages if messages else 0)


States = dict[str, TopicState]


class StoredSegment(NamedTuple):
    """A segment in object storage, with what its footer must say."""

    key: str
    first: int
    last: int
    epoch: int
    rows: int
    size: int  # of the object
    digest: str


class ObjectLocation(NamedTuple):
    """Of the objects. There is no credential in it: it travels in the plan."""

    url: str
    options: tuple[tuple[str, str], ...] = ()


class Range(NamedTuple):
    """Offsets `begin` to `end`, without `end`, of one partition."""

    topic: str
    id: int
    partition: int
    place: str  # the partition's name
    begin: int
    end: int
    expected: bool  # whether all from `begin` on was promised to be there; not where a partition is new
    stored: tuple[StoredSegment, ...] = ()  # in offset order; what none of them has is the broker's

    @property
    def messages(self) -> int:
        return self.end - self.begin

    def pieces(self) -> list[Range]:
        """The same offsets, in pieces that lie in one segment each, or in none."""
        found: list[Range] = []
        at = self.begin
        for segment in self.stored:
            first, end = max(at, segment.first), min(self.end, segment.last + 1)
            if first >= end:
                continue
            if at < first:
                found.append(self._replace(begin=at, end=first, stored=()))
            found.append(self._replace(begin=first, end=end, stored=(segment,)))
            at = end
        if at < self.end:
            found.append(self._replace(begin=at, stored=()))
        return found


class Job(NamedTuple):
    """What a task is told."""

    ranges: Task
    place: ObjectLocation | None  # of the segments
    watermark: int | None = None  # of the batch, for its column


def ranges_between(start: Offsets, end: Offsets, states: Mapping[str, TopicState]) -> list[Range]:
    """What lies between two offsets, in their order; a partition that `start` does not know begins at its first, and
    so does one that was cut off above its start: of the batch that was cut, all is still on the disk.
    """
    found: list[Range] = []
    for name, ends in end.items():
        state, known = states.get(name), start.get(name)
        if state is None:
            continue
        for number, stop in enumerate(ends.next):
            expected = known is not None and number < len(known.next)
            begin = min(state.firsts[number], stop)
            if known is not None and expected:
                begin = max(known.next[number], begin)
            if begin < stop:
                found.append(Range(name, ends.id, number, state.place(number), begin, stop, expected))
    return found


def split(ranges: Sequence[Range], states: Mapping[str, TopicState], tasks_min: int | None, cores: int) -> list[Task]:
    """Tasks of about the same number of bytes. Large ranges are cut, small ones share a task."""
    weights = [states[each.topic].message_bytes for each in ranges]
    total = sum(each.messages * weight for each, weight in zip(ranges, weights, strict=True))
    count = tasks_wanted(total, sum(each.messages for each in ranges), tasks_min, cores)
    if not count:
        return []
    tasks: list[Task] = []
    current: list[Range] = []
    filled = 0
    for each, weight in zip(ranges, weights, strict=True):
        while each.messages:
            room = total * (len(tasks) + 1) // count - filled  # up to where this task ends
            taken = min(each.messages, max(1, room // weight))
            current.append(each._replace(end=each.begin + taken))
            filled += taken * weight
            each = each._replace(begin=each.begin + taken)
            if filled >= total * (len(tasks) + 1) // count - weight // 2 and len(tasks) < count - 1:
                tasks.append(tuple(current))
                current = []
    return [*tasks, tuple(current)] if current else tasks


def with_stored(tasks: Sequence[Task], sealed: Mapping[str, Sequence[StoredSegment]]) -> list[Task]:
    """The same tasks, whose ranges know the segments they lie in; `sealed` has those of each place in offset order."""
    return [tuple(_with_stored(each, sealed.get(each.place, ())) for each in task) for task in tasks]


def _with_stored(wanted: Range, segments: Sequence[StoredSegment]) -> Range:
    at = bisect_left(segments, wanted.begin, key=lambda segment: segment.last)
    end = bisect_left(segments, wanted.end, key=lambda segment: segment.first)
    return wanted._replace(stored=tuple(segments[at:end]))


def tasks_wanted(bytes: int, messages: int, tasks_min: int | None, cores: int) -> int:
    """Few where there is little to read, as many as there are cores where it pays, and none too large."""
    count = max(-(-bytes // TASK_BYTES_MAX), min(cores, bytes // TASK_BYTES_MIN), 1)
    if count > cores:
        count = -(-count // cores) * cores  # whole rounds
    return min(max(count, tasks_min or 1), messages)


def shares(lags: Sequence[int], limit: int, turn: int) -> list[int]:
    """How much of `limit` each gets, in proportion to what it has; never more than `limit` together.

    Everybody who has something gets at least one. Where the limit is too small for that, they take turns.
    """
    total = sum(lags)
    if total <= limit:
        return list(lags)
    waiting = [at for at, lag in enumerate(lags) if lag]
    if len(waiting) >= limit:
        first = turn % len(waiting)
        chosen = {waiting[(first + each) % len(waiting)] for each in range(limit)}
        return [int(at in chosen) for at in range(len(lags))]
    spare = limit - len(waiting)
    found = [bool(lag) + (lag - 1) * spare // (total - len(waiting)) if lag else 0 for lag in lags]
    left = limit - sum(found)
    for at in waiting:
        more = min(left, lags[at] - found[at])
        found[at] += more
        left -= more
    return found
