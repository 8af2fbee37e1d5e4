"""What one subscription has finished: everything below its floor, and a bounded set of offsets above it.

Deciding only reads, and returns the record to log; `replay` is the only writer. A cursor knows neither consumers nor
what is in flight, and it never passes an offset that no record calls done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pydanube.base.errors import AckInvalid, AcksScattered, ArgumentInvalid, OffsetNotConfirmed
from pydanube.base.limits import ACK_RANGES_MAX
from pydanube.topic.ackset import AckSet
from pydanube.topic.records import MOVES, Acked, Cause, Moved

Range = tuple[int, int]  # first and last offset
_NEW: Final = tuple.__new__  # skips the record's own constructor: a tenth of the cost of a single ack


class Cursor:
    """Owned by its topic. Every offset below `floor` is done, `floor` itself is not."""

    __slots__ = ("above", "floor", "generation", "subscription")

    def __init__(self, subscription: int, floor: int = 0, generation: int = 0) -> None:
        self.subscription = subscription
        self.floor = floor
        self.generation = generation  # of the subscription; each seek adds one
        self.above = AckSet(floor)

    @property
    def ceiling(self) -> int:
        """Dispatch stops below it, so that whatever it hands out can be acknowledged. Only a seek lowers it."""
        return self.above.ceiling

    def pending(self, first: int, last: int) -> list[Range]:
        """The ranges within [first, last] that are not done, in order."""
        return self.above.missing(max(first, self.floor), last)

    def behind(self, count: int, end: int) -> int:
        """The floor after the next `count` offsets that are not done, at most `end`."""
        floor = self.floor
        for first, last in self.pending(floor, end - 1) if count > 0 else ():
            floor = min(last, first + count - 1) + 1
            count -= floor - first
            if not count:
                break
        return floor

    def decide_ack(self, ranges: Sequence[Range], end: int, cause: Cause = Cause.ACKED) -> Acked | None:
        """The record of what is new in `ranges`; None if all of it is done. Nothing from `end` on is confirmed yet.

        A range that is partly done is logged whole: cutting it up could turn one range into thousands.
        """
        if len(ranges) == 1:  # most acks are of one message
            first, last = ranges[0]
            if not 0 <= first <= last < end:
                _refuse(ranges[0], end)
            above, floor = self.above, self.floor
            if first < floor:
                first = floor
            if above.count:
                first = above.next_missing(first)
            if first > last:
                return None
            if last >= above.ceiling and first != floor:
                self._refuse_scattered(last)
            return _NEW(Acked, (self.subscription, self.generation, ((first, last),), cause))
        undone = self._undone(ranges, end)
        return Acked(self.subscription, self.generation, undone, cause) if undone else None

    def decide_move(self, floor: int, end: int, cause: Cause) -> Moved | None:
        """The record of a new floor, at most `end`; None if the move changes nothing, which a seek never does."""
        if cause not in MOVES or floor < 0:
            raise ArgumentInvalid(f"a cursor cannot move to {floor} by {cause.name}")
        if floor > end:
            raise OffsetNotConfirmed(f"a cursor cannot move to {floor}: the topic is confirmed only below {end}")
        passed = max(0, floor - self.floor - self.above.count_below(floor))
        if cause is Cause.SEEK:
            return Moved(self.subscription, self.generation + 1, floor, cause, passed)
        return Moved(self.subscription, self.generation, floor, cause, passed) if floor > self.floor else None

    def replay(self, record: Acked | Moved) -> int:
        """Applies the record; returns how many offsets it made done, 0 for any move."""
        if type(record) is not Acked:
            assert isinstance(record, Moved)
            self._move(record)
            return 0
        _, generation, ranges, _ = record
        if generation != self.generation:
            return 0  # it is from before a seek
        floor, above = self.floor, self.above
        if len(ranges) == 1 and ranges[0][0] > floor:
            return above.add(*ranges[0])
        before = floor + above.count
        for first, last in ranges:
            if first > self.floor:
                above.add(first, last)
            elif last >= self.floor:
                self._rise(last + 1)
        return self.floor + above.count - before

    def _move(self, record: Moved) -> None:
        if record.cause is Cause.SEEK:
            self.floor, self.generation = record.floor, record.generation
            self.above = AckSet(record.floor)
        elif record.floor > self.floor:
            self._rise(record.floor)

    def _rise(self, floor: int) -> None:
        """Raises the floor to `floor`, and past any done offsets that follow."""
        above = self.above
        self.floor = above.next_missing(floor) if above.count else floor
        above.drop_below(self.floor)

    def _undone(self, ranges: Iterable[Range], end: int) -> tuple[Range, ...]:
        found: list[Range] = []
        for first, last in merged(ranges):
            if not 0 <= first <= last < end:
                _refuse((first, last), end)
            first = self.above.next_missing(max(first, self.floor))
            if first > last:
                continue
            if last >= self.above.ceiling and first != self.floor:
                self._refuse_scattered(last)
            found.append((first, last))
        if len(found) > ACK_RANGES_MAX:
            raise AckInvalid(f"{len(found)} ranges at once; the maximum is {ACK_RANGES_MAX}")
        return tuple(found)

    def _refuse_scattered(self, offset: int) -> None:
        raise AcksScattered(f"offset {offset} is too far above {self.floor}, the first unacknowledged offset")


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in order, in as few ranges as possible. A range that ends before it starts is left unchanged."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1 and first <= last:
            if last > found[-1][1]:
                found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def _refuse(wrong: Range, end: int) -> None:
    first, last = wrong
    if 0 <= first <= last:
        raise OffsetNotConfirmed(
            f"offsets {first} to {last} were acknowledged, but the topic is confirmed only below {end}"
        )
    raise AckInvalid(f"offsets {first} to {last} are not a valid range")
