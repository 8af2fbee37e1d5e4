"""Sets of offsets as sorted ranges. Their cost depends on the number of ranges, never on the number of offsets.

Ranges never overlap or touch, so equal sets have equal ranges. Both ends belong to a range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice


class Ranges:
    """A mutable set of offsets. `count` is the number of offsets, kept up to date."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.count = 0
        for first, last in ranges:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __contains__(self, offset: int) -> bool:
        at = bisect_left(self._lasts, offset)
        return at < len(self._lasts) and self._firsts[at] <= offset

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    @property
    def head(self) -> tuple[int, int]:
        """The lowest range; the set must not be empty."""
        return self._firsts[0], self._lasts[0]

    @property
    def first(self) -> int:
        """The lowest offset; the set must not be empty."""
        return self._firsts[0]

    @property
    def last(self) -> int:
        """The highest offset; the set must not be empty."""
        return self._lasts[-1]

    def add(self, first: int, last: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            self.count += last - first + 1
            return
        low, high = bisect_left(lasts, first - 1), bisect_right(firsts, last + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
            self.count -= sum(lasts[low:high]) - sum(firsts[low:high]) + high - low
        firsts[low:high] = (first,)
        lasts[low:high] = (last,)
        self.count += last - first + 1

    def cut(self, first: int, last: int) -> list[tuple[int, int]]:
        """Removes and returns what is within [first, last]."""
        firsts, lasts = self._firsts, self._lasts
        low, high = bisect_left(lasts, first), bisect_right(firsts, last)
        if low >= high:
            return []
        found = list(zip(firsts[low:high], lasts[low:high], strict=True))
        before, after = found[0][0], found[-1][1]
        found[0] = (max(before, first), found[0][1])
        found[-1] = (found[-1][0], min(after, last))
        kept = [(before, first - 1)] if before < first else []
        if after > last:
            kept.append((last + 1, after))
        firsts[low:high] = [start for start, _ in kept]
        lasts[low:high] = [end for _, end in kept]
        for start, end in found:
            self.count -= end - start + 1
        return found

    def move_from(self, first: int, above: Ranges) -> None:
        """Moves everything from `first` on into another set, which has only higher offsets. Fast for scattered sets."""
        at = bisect_left(self._lasts, first)
        firsts, lasts = self._firsts[at:], self._lasts[at:]
        if not firsts:
            return
        del self._firsts[at:], self._lasts[at:]
        if firsts[0] < first:
            self._firsts.append(firsts[0])
            self._lasts.append(first - 1)
            firsts[0] = first
        count = sum(lasts) - sum(firsts) + len(firsts)
        self.count -= count
        above.count += count
        if above and lasts[-1] + 1 == above.first:
            above._firsts[0] = firsts.pop()
            lasts.pop()
        above._firsts[:0] = firsts
        above._lasts[:0] = lasts

    def take(self, count: int, ranges_max: int | None = None) -> list[tuple[int, int]]:
        """Removes and returns the lowest `count` offsets, or all if there are fewer, in at most `ranges_max` ranges."""
        firsts, lasts = self._firsts, self._lasts
        taken: list[tuple[int, int]] = []
        left = count
        for first, last in islice(zip(firsts, lasts, strict=True), ranges_max):
            if left <= 0 or last - first + 1 > left:
                break
            taken.append((first, last))
            left -= last - first + 1
        del firsts[: len(taken)], lasts[: len(taken)]  # all at once, because deleting the front of a list is slow
        if left > 0 and firsts and len(taken) != ranges_max:
            taken.append((firsts[0], firsts[0] + left - 1))
            firsts[0] += left
            left = 0
        self.count -= max(count, 0) - max(left, 0)
        return taken

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """What is within [first, last]."""
        low, high = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        found = zip(self._firsts[low:high], self._lasts[low:high], strict=True)
        return [(max(start, first), min(end, last)) for start, end in found]

    def clear(self) -> None:
        self._firsts.clear()
        self._lasts.clear()
        self.count = 0


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Combines ascending offsets into ranges."""
    found: list[tuple[int, int]] = []
    first = last = -2
    for offset in offsets:
        if offset != last + 1:
            if last >= 0:
                found.append((first, last))
            first = offset
        last = offset
    if last >= 0:
        found.append((first, last))
    return found


def extend_ranges(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    """Appends a range, or extends the last one if they touch."""
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))
