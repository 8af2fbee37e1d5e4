"""What consumers say of their messages, done or failed, told to the engine: of very many at once, in parts.

A turn of the loop must stay short, and one frame may name a whole window. Owned by its subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydanube.base.ids import ConsumerId
from pydanube.base.limits import ACKED_AT_ONCE, NACKED_AT_ONCE, UNACKED_MAX
from pydanube.dispatch.engine import Engine
from pydanube.topic.cursor import Range

Tell = Callable[[int, int], None]  # first, last


@dataclass(slots=True)
class _Said:
    tell: Tell
    ranges: Sequence[Range]
    at: int = 0  # the next range
    last: int | None = None  # of that range, if its end was told in an earlier turn


class Parts:
    """Told some at a time, in order.

    A long range is told from its end to its beginning: for the ordered types what lies behind a failure comes again
    with it, and would not count as failed itself. Nothing may be delivered in the middle of a range.
    """

    __slots__ = ("_at_once", "_told", "_waiting", "count")

    def __init__(self, at_once: int) -> None:
        self.count = 0  # messages that wait
        self._at_once = at_once
        self._told = 0  # in this turn
        self._waiting: deque[_Said] = deque()

    @property
    def fresh(self) -> bool:
        """Nothing was told in this turn yet."""
        return not self._told

    @property
    def midway(self) -> bool:
        return bool(self._waiting) and self._waiting[0].last is not None

    def add(self, tell: Tell, ranges: Sequence[Range]) -> None:
        """At once, if there is room in this turn."""
        if ranges:
            self._waiting.append(_Said(tell, ranges))
            self.count += sum(last - first + 1 for first, last in ranges)
            self._go_on(self._at_once - self._told)

    def turn(self) -> None:
        """Another turn of the loop: so many more."""
        self._told = 0
        self._go_on(self._at_once)

    def finish(self) -> None:
        """All that wait, now: what comes next must find them told."""
        while self._waiting:
            self._go_on(self.count)

    def clear(self) -> None:
        self._waiting.clear()
        self.count = 0

    def _go_on(self, most: int) -> None:
        while self._waiting and most > 0:
            said = self._waiting[0]
            resumed = said.last is not None
            first, last = said.ranges[said.at]
            last = last if said.last is None else said.last
            begin = max(first, last - most + 1)
            said.last = begin - 1 if begin > first else None
            said.at += said.last is None
            if said.at == len(said.ranges):
                self._waiting.popleft()
            count = last - begin + 1
            most -= count
            self._told += count
            self.count -= count
            said.tell(begin, last)
            if resumed and said.last is None:
                break  # deliveries were held back meanwhile: some go out before the next long range


class Verdicts:
    """Of all consumers of one subscription."""

    def __init__(self, engine: Engine[Any], *, ordered: bool) -> None:
        self._engine = engine
        self._ordered = ordered  # such an engine takes an ack of any length in one step
        self._acks = Parts(ACKED_AT_ONCE)
        self._nacks = Parts(NACKED_AT_ONCE)
        self._time = 0  # of all nacks that are told in one turn: they failed together, and come again together

    @property
    def waiting(self) -> bool:
        return bool(self._nacks.count or self._acks.count)

    @property
    def holds_back(self) -> bool:
        """Nothing may be delivered: some of it is done, or was given up, and the engine does not know."""
        return self._nacks.midway or bool(self._acks.count)

    def done(self, first: int, last: int, end: int) -> None:
        """The engine knows of nothing from `end` on."""
        if self._ordered or last - first < ACKED_AT_ONCE:
            self._engine.acked(first, last)
        else:
            self._acks.add(self._engine.acked, [(first, min(last, max(first, end - 1)))])

    def failed(self, consumer: ConsumerId, ranges: Sequence[Range], delay: int, reason: str, now: int) -> None:
        """Ranges within what the engine knows. No more are in flight than may wait here: others are not heard."""
        if self._nacks.fresh:
            self._time = now
        if self._nacks.count + sum(last - first + 1 for first, last in ranges) <= UNACKED_MAX:
            self._nacks.add(partial(self._fail, consumer, delay, reason), ranges)

    def _fail(self, consumer: ConsumerId, delay: int, reason: str, first: int, last: int) -> None:
        self._engine.nack(consumer, first, last, self._time, delay, reason)

    def turn(self, now: int) -> None:
        self._time = now
        self._acks.turn()
        self._nacks.turn()

    def finish(self) -> None:
        self._acks.finish()
        self._nacks.finish()

    def clear(self) -> None:
        self._acks.clear()
        self._nacks.clear()
