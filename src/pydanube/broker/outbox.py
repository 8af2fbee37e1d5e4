"""Deliveries that are decided and not handed out yet, in order: they wait for a read, or for the next turn of the loop.

And nacks that wait for theirs. Both belong to one subscription; nothing here knows an engine or a consumer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pydanube.base.ids import ConsumerId
from pydanube.base.ranges import Ranges
from pydanube.dispatch.events import Deliver
from pydanube.ledger.cursor import Range

Recalled = Sequence[tuple[ConsumerId, int, int]]  # consumer, first, last


class Outbox:
    """Never more than the engine has in flight."""

    __slots__ = ("_waiting", "since")

    def __init__(self) -> None:
        self._waiting: deque[Deliver] = deque()
        self.since = 0  # when the oldest delivery in it was decided

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

    def take(self) -> Deliver:
        return self._waiting.popleft()

    def put_back(self, rest: Deliver) -> None:
        """What is left of the one that was taken."""
        self._waiting.appendleft(rest)

    def take_all(self) -> deque[Deliver]:
        waiting, self._waiting = self._waiting, deque()
        return waiting

    def leave(self, consumer: ConsumerId) -> None:
        """No consumer is left to receive them."""
        self._waiting = deque(deliver for deliver in self._waiting if deliver.consumer != consumer)

    def drop(self, recalled: Recalled) -> dict[ConsumerId, int]:
        """Takes out what was recalled, in one pass however much it is; how many messages of whom that were."""
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


class Nack(NamedTuple):
    consumer: ConsumerId
    generation: int
    ranges: Sequence[Range]
    delay: int  # microseconds
    reason: str


class Nacks:
    """Applied some at a time, in order: a consumer may give up tens of thousands of messages at once."""

    __slots__ = ("_applied", "_apply", "_at_once", "_waiting", "_waiting_max", "count", "time")

    def __init__(self, apply: Callable[[Nack], None], *, at_once: int, waiting_max: int) -> None:
        self.count = 0  # ranges that wait
        self.time = 0  # of all that are applied in one turn: they failed together, and come again together
        self._apply = apply
        self._applied = 0  # ranges, in this turn
        self._at_once = at_once
        self._waiting: deque[Nack] = deque()
        self._waiting_max = waiting_max

    def add(self, nack: Nack, now: int) -> None:
        """At once, if there is room in this turn. Beyond a bound the oldest wait no longer."""
        if not self._applied:
            self.time = now
        self._waiting.append(nack)
        self.count += len(nack.ranges)
        self._go_on(max(self._at_once - self._applied, self.count - self._waiting_max))

    def turn(self, now: int) -> None:
        """Another turn of the loop: so many more."""
        self._applied, self.time = 0, now
        self._go_on(self._at_once)

    def finish(self) -> None:
        """All that wait, now: what comes next must find them applied."""
        self._go_on(self.count)

    def clear(self) -> None:
        self._waiting.clear()
        self.count = 0

    def _go_on(self, most: int) -> None:
        while self._waiting and most > 0:
            nack = self._waiting.popleft()
            ranges = nack.ranges[:most]
            if len(ranges) < len(nack.ranges):
                self._waiting.appendleft(nack._replace(ranges=nack.ranges[most:]))
            most -= len(ranges)
            self._applied += len(ranges)
            self.count -= len(ranges)
            self._apply(nack._replace(ranges=ranges))
