"""Offsets that were dealt with, as ranges that say how many of theirs were: exact while there are few ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Spans:
    """Ranges of offsets, each with the number of offsets in it that were added. Ranges never touch."""

    def __init__(self, spans: Iterable[Iterable[int]] = ()) -> None:
        self.all: list[tuple[int, int, int]] = [(first, last, count) for first, last, count in spans]

    def find(self, offset: int) -> tuple[int, int, int] | None:
        """The range that it lies in."""
        at = bisect_right(self.all, offset, key=lambda span: span[0]) - 1
        return self.all[at] if at >= 0 and offset <= self.all[at][1] else None

    def add(self, offset: int) -> None:
        """One that was not added before."""
        at = bisect_right(self.all, offset, key=lambda span: span[0])
        if at and offset <= self.all[at - 1][1]:
            first, last, count = self.all[at - 1]
            self.all[at - 1] = first, last, min(count + 1, last - first + 1)
            return
        self.all.insert(at, (offset, offset, 1))
        for left in (at, at - 1):
            if 0 <= left < len(self.all) - 1 and self.all[left][1] + 1 == self.all[left + 1][0]:
                self._join(left)

    def join_nearest(self) -> None:
        """One range less: from now on nobody knows which offsets of the joined one were added, only how many."""
        self._join(min(range(len(self.all) - 1), key=lambda at: self.all[at + 1][0] - self.all[at][1]))

    def _join(self, left: int) -> None:
        (first, _, some), (_, last, others) = self.all[left : left + 2]
        self.all[left : left + 2] = [(first, last, some + others)]


def exact(span: tuple[int, int, int]) -> bool:
    """Whether all of its offsets were added."""
    first, last, count = span
    return count == last - first + 1
