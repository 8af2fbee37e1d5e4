"""What one batch reads, and which task reads which part of it: from offsets to ranges to tasks. Pure.

A range has offsets of a partition. The segments that contain them are a hint: if they have changed since, the same
offsets are read through the broker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.base.limits import MIB
from pydanube.operations.storage import SealedSegment
from pydanube.spark.offsets import Offsets, TopicOffsets

TASK_BYTES_MAX = 512 * MIB  # a task that fails is repeated
TASK_BYTES_MIN = 8 * MIB  # read in about 25 ms, which is the cost of a task
MESSAGE_BYTES = 16  # counted for a message besides its own bytes
Task = tuple["Range", ...]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the broker described it. Tuples have one value for each partition."""

    name: str
    id: int
    partitions: int  # 0: it has none, and counts as one
    firsts: tuple[int, ...]
    ends: tuple[int, ...]  # the offset after the last confirmed one
    bytes: int
    segments: int = 0  # in object storage, roughly

    def partition_name(self, number: int) -> str:
        return f"{self.name}-part-{number}" if self.partitions else self.name

    @property
    def earliest(self) -> TopicOffsets:
        return TopicOffsets(self.id, self.firsts)

    @property
    def latest(self) -> TopicOffsets:
        return TopicOffsets(self.id, self.ends)

    @property
    def message_bytes(self) -> int:
        """The average size of a message, roughly."""
        messages = sum(self.ends) - sum(self.firsts)
        return MESSAGE_BYTES + (self.bytes // messages if messages else 0)


States = dict[str, TopicState]


class ObjectLocation(NamedTuple):
    """Where objects are. It contains no credentials, because it is part of the plan."""

    url: str
    options: tuple[tuple[str, str], ...] = ()


class Range(NamedTuple):
    """The offsets from `begin` up to, but not including, `end` of one partition."""

    topic: str
    id: int
    partition: int
    name: str  # of the partition
    begin: int
    end: int
    expected: bool  # whether missing messages are an error; false if the partition is new to the query
    stored: tuple[SealedSegment, ...] = ()  # in offset order; other offsets are read through the broker

    @property
    def messages(self) -> int:
        return self.end - self.begin

    def pieces(self) -> list[Range]:
        """The same offsets in pieces, each of which lies in one segment or in none."""
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
    ranges: Task
    objects: ObjectLocation | None  # where the segments are
    watermark: int | None = None  # of the batch, for the column `watermark`


def ranges_between(start: Offsets, end: Offsets, states: Mapping[str, TopicState]) -> list[Range]:
    """The ranges between two offsets, in their order. A partition that `start` does not have begins at its first
    offset, and so does one whose first offset lies after its start.
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
                found.append(Range(name, ends.id, number, state.partition_name(number), begin, stop, expected))
    return found


def split(ranges: Sequence[Range], states: Mapping[str, TopicState], tasks_min: int | None, cores: int) -> list[Task]:
    """Tasks with about the same number of bytes. Large ranges are divided, and small ones share a task."""
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
            room = total * (len(tasks) + 1) // count - filled  # until this task is full
            taken = min(each.messages, max(1, room // weight))
            current.append(each._replace(end=each.begin + taken))
            filled += taken * weight
            each = each._replace(begin=each.begin + taken)
            if filled >= total * (len(tasks) + 1) // count - weight // 2 and len(tasks) < count - 1:
                tasks.append(tuple(current))
                current = []
    return [*tasks, tuple(current)] if current else tasks


def with_stored(tasks: Sequence[Task], sealed: Mapping[str, Sequence[SealedSegment]]) -> list[Task]:
    """The same tasks, with the segments of their ranges; `sealed` has those of each partition in offset order."""
    return [tuple(_with_stored(each, sealed.get(each.name, ())) for each in task) for task in tasks]


def _with_stored(wanted: Range, segments: Sequence[SealedSegment]) -> Range:
    at = bisect_left(segments, wanted.begin, key=lambda segment: segment.last)
    end = bisect_left(segments, wanted.end, key=lambda segment: segment.first)
    return wanted._replace(stored=tuple(segments[at:end]))


def tasks_wanted(bytes: int, messages: int, tasks_min: int | None, cores: int) -> int:
    """How many tasks: few if there is little to read, as many as cores if that is worthwhile, and none too large."""
    count = max(-(-bytes // TASK_BYTES_MAX), min(cores, bytes // TASK_BYTES_MIN), 1)
    if count > cores:
        count = -(-count // cores) * cores  # complete rounds
    return min(max(count, tasks_min or 1), messages)


def shares(lags: Sequence[int], limit: int, turn: int) -> list[int]:
    """The share of `limit` for each lag, in proportion to it; together never more than `limit`.

    Every lag above zero gets at least one. If the limit is too small for that, they take turns.
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
