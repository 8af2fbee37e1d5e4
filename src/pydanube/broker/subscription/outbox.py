"""Deliveries of a subscription that were decided but not handed out yet, in order.

They wait for a read, or for the next turn of the loop. This module knows no engine and no consumer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from pydanube.base.ids import ConsumerId
from pydanube.base.ranges import Ranges
from pydanube.dispatch.events import Deliver

Recalled = Sequence[tuple[ConsumerId, int, int]]  # consumer, first, last


class Outbox:
    """Holds no more messages than the engine has in flight."""

    __slots__ = ("_waiting", "since")

    def __init__(self) -> None:
        self._waiting: deque[Deliver] = deque()
        self.since = 0  # when its oldest delivery was decided

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Deliver]:
        return iter(self._waiting)

    @property
    def head(self) -> Deliver | None:
        return self._waiting[0] if self._waiting else None

    def add(self, deliver: Deliver, now: int) -> None:
        if not self._waiting:
            self.since = now
        self._waiting.append(deliver)

    def waited_long(self, timeout: int | None, now: int) -> bool:
        """Whether the ack timeout might expire before a consumer has time for what is handed out now."""
        return timeout is not None and now - self.since > timeout // 4

    def take(self) -> Deliver:
        return self._waiting.popleft()

    def put_back(self, rest: Deliver) -> None:
        """Returns the rest of a delivery that was taken."""
        self._waiting.appendleft(rest)

    def skip(self, behind: int) -> int:
        """Removes the messages below `behind` from the first delivery. Returns how many there were."""
        deliver = self._waiting.popleft()
        if behind <= deliver.last:
            self.put_back(deliver._replace(first=behind))
        return min(behind, deliver.last + 1) - deliver.first

    def take_all(self) -> deque[Deliver]:
        waiting, self._waiting = self._waiting, deque()
        return waiting

    def leave(self, consumer: ConsumerId) -> None:
        """Removes the deliveries to a consumer that has left."""
        self._waiting = deque(deliver for deliver in self._waiting if deliver.consumer != consumer)

    def drop(self, recalled: Recalled) -> dict[ConsumerId, int]:
        """Removes what was recalled, in one pass. Returns the number of removed messages by consumer."""
        dropped: dict[ConsumerId, int] = {}
        if not recalled or not self._waiting:
            return dropped
        gone = by_consumer(recalled)
        left: deque[Deliver] = deque()
        for deliver in self._waiting:
            ranges = gone.get(deliver.consumer)
            at = deliver.first
            for first, last in () if ranges is None else ranges.within(deliver.first, deliver.last):
                if at < first:
                    left.append(deliver._replace(first=at, last=first - 1))
                dropped[deliver.consumer] = dropped.get(deliver.consumer, 0) + last - first + 1
                at = last + 1
            if at <= deliver.last:
                left.append(deliver if at == deliver.first else deliver._replace(first=at))
        self._waiting = left
        return dropped


def by_consumer(recalled: Recalled) -> dict[ConsumerId, Ranges]:
    found: dict[ConsumerId, Ranges] = {}
    for consumer, first, last in sorted(recalled):
        found.setdefault(consumer, Ranges()).add(first, last)
    return found
