"""A priority queue of numbers by time: offsets by delivery time, retries and keys by the end of their delay.

Removing a number early needs no search: its heap entry stays behind, and stale entries are removed in bulk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

_STALE_MAX = 1_024  # stale heap entries before they are removed; more as the agenda grows


class Agenda:
    """Each number has at most one time."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (time, number); an entry is stale if the number has another time now

    def __len__(self) -> int:
        return len(self._times)

    def time_of(self, number: int) -> int | None:
        return self._times.get(number)

    def set(self, number: int, time: int) -> None:
        self._times[number] = time
        heappush(self._heap, (time, number))
        self._sweep()

    def discard(self, number: int) -> None:
        if self._times.pop(number, None) is not None:
            self._sweep()

    def discard_all(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._times.pop(number, None)
        self._sweep()

    def numbers_within(self, first: int, last: int) -> list[int]:
        return numbers_within(self._times, first, last)

    def take_due(self, now: int, most: int | None = None) -> list[int]:
        """Removes and returns the numbers whose time has come, earliest first; at most `most`, if given."""
        taken: list[int] = []
        while self._heap and self._heap[0][0] <= now and len(taken) != most:
            time, number = heappop(self._heap)
            if self._times.get(number) == time:
                del self._times[number]
                taken.append(number)
        return taken

    def shift(self, by: int) -> None:
        """Moves all times, because the clock they were taken from was corrected."""
        self._times = {number: time + by for number, time in self._times.items()}
        self._heap = [(time, number) for number, time in self._times.items()]
        heapify(self._heap)

    def is_due(self, now: int) -> bool:
        return bool(self._heap) and (time := self.next_time()) is not None and time <= now

    def next_time(self) -> int | None:
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._times.clear()
        self._heap.clear()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._times) + _STALE_MAX:
            self._heap = [(time, number) for number, time in self._times.items()]
            heapify(self._heap)


def numbers_within(table: Mapping[int, object], first: int, last: int) -> list[int]:
    """The keys of the table in [first, last], ascending. Iterates over the range or the table, whichever is shorter."""
    if last - first < len(table):
        return [number for number in range(first, last + 1) if number in table]
    return sorted([number for number in table if first <= number <= last])
