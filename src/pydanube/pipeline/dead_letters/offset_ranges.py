"""A set of offsets as a bounded number of ranges: exact while there are few of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

OffsetRange = tuple[int, int, int]  # first and last offset, and how many of those between them are in the set


class OffsetRanges:
    """Ranges in order. Two ranges never touch."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self.all: list[OffsetRange] = [(first, last, count) for first, last, count in ranges]

    def find(self, offset: int) -> OffsetRange | None:
        """The range that contains the offset."""
        at = bisect_right(self.all, offset, key=lambda each: each[0]) - 1
        return self.all[at] if at >= 0 and offset <= self.all[at][1] else None

    def add(self, offset: int) -> None:
        """Adds an offset that was not added before."""
        at = bisect_right(self.all, offset, key=lambda each: each[0])
        if at and offset <= self.all[at - 1][1]:
            first, last, count = self.all[at - 1]
            self.all[at - 1] = first, last, min(count + 1, last - first + 1)
            return
        self.all.insert(at, (offset, offset, 1))
        for left in (at, at - 1):
            if 0 <= left < len(self.all) - 1 and self.all[left][1] + 1 == self.all[left + 1][0]:
                self._join(left)

    def join_nearest(self) -> None:
        """Leaves one range fewer. Which offsets of the joined range are in the set is forgotten, only not how many."""
        self._join(min(range(len(self.all) - 1), key=lambda at: self.all[at + 1][0] - self.all[at][1]))

    def _join(self, left: int) -> None:
        (first, _, some), (_, last, others) = self.all[left : left + 2]
        self.all[left : left + 2] = [(first, last, some + others)]


def is_exact(found: OffsetRange) -> bool:
    """Whether all offsets of the range are in the set."""
    first, last, count = found
    return count == last - first + 1
