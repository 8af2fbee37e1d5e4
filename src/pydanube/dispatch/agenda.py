"""Numbers that wait for a time: offsets for their delivery time, retries and keys for the end of their delay.

The next time comes first. What is taken off before its time costs no search, and its traces are swept out in bulk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

_TRACES_MAX = 1_024  # of entries that were taken off, before they are swept out; more as the agenda grows


class Agenda:
    """Each number has at most one time."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (time, number), also of numbers that have another time by now

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

    def known(self, first: int, last: int) -> list[int]:
        return known(self._times, first, last)

    def take_due(self, now: int, most: int | None = None) -> list[int]:
        """Takes off the numbers whose time has come, the earliest first; at most `most`, if given."""
        taken: list[int] = []
        while self._heap and self._heap[0][0] <= now and len(taken) != most:
            time, number = heappop(self._heap)
            if self._times.get(number) == time:
                del self._times[number]
                taken.append(number)
        return taken

    def shift(self, by: int) -> None:
        """All times were told by a clock that was wrong by so much."""
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
        if len(self._heap) > 2 * len(self._times) + _TRACES_MAX:
            self._heap = [(time, number) for number, time in self._times.items()]
            heapify(self._heap)


def known(table: Mapping[int, object], first: int, last: int) -> list[int]:
    """The numbers of [first, last] that a table has, ascending; whichever of both is the shorter is walked."""
    if last - first < len(table):
        return [number for number in range(first, last + 1) if number in table]
    return sorted([number for number in table if first <= number <= last])
