"""Acks and nacks on their way to the engine. If they name very many messages, they reach it over several turns.

A turn of the loop must stay short, and one frame may name a whole window of messages. Owned by its subscription. It
knows an engine and no consumer, and records nothing: the cursor already has the acks.
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

Apply = Callable[[int, int], None]  # first, last


@dataclass(slots=True)
class _Waiting:
    apply: Apply
    ranges: Sequence[Range]
    at: int = 0  # the next range
    last: int | None = None  # the end of the rest of that range, if its tail was applied in an earlier turn


class RangeQueue:
    """Applies ranges in order, a limited number of offsets in each turn.

    A long range is applied from its end to its beginning: for the ordered types, what lies behind a failure is
    delivered again with it, and would then no longer count as failed itself. Nothing may be delivered while a range is
    half applied.
    """

    __slots__ = ("_applied", "_at_once", "_waiting", "count")

    def __init__(self, at_once: int) -> None:
        self.count = 0  # offsets that wait
        self._at_once = at_once
        self._applied = 0  # offsets, in this turn
        self._waiting: deque[_Waiting] = deque()

    @property
    def untouched(self) -> bool:
        """Whether nothing was applied in this turn yet."""
        return not self._applied

    @property
    def midway(self) -> bool:
        """Whether a range is half applied."""
        return bool(self._waiting) and self._waiting[0].last is not None

    def add(self, apply: Apply, ranges: Sequence[Range]) -> None:
        """Applies them at once as far as this turn has room for them."""
        if ranges:
            self._waiting.append(_Waiting(apply, ranges))
            self.count += sum(last - first + 1 for first, last in ranges)
            self._apply(self._at_once - self._applied)

    def turn(self) -> None:
        """Begins a new turn of the loop, which has room again."""
        self._applied = 0
        self._apply(self._at_once)

    def finish(self) -> None:
        """Applies everything that waits, because the next step depends on it."""
        while self._waiting:
            self._apply(self.count)

    def clear(self) -> None:
        self._waiting.clear()
        self.count = 0

    def _apply(self, most: int) -> None:
        while self._waiting and most > 0:
            waiting = self._waiting[0]
            resumed = waiting.last is not None
            first, last = waiting.ranges[waiting.at]
            last = last if waiting.last is None else waiting.last
            begin = max(first, last - most + 1)
            waiting.last = begin - 1 if begin > first else None
            waiting.at += waiting.last is None
            if waiting.at == len(waiting.ranges):
                self._waiting.popleft()
            count = last - begin + 1
            most -= count
            self._applied += count
            self.count -= count
            waiting.apply(begin, last)
            if resumed and waiting.last is None:
                break  # deliveries were held back for this range: some of them go out before the next long one


class AckQueue:
    """Acks and nacks of all consumers of one subscription."""

    __slots__ = ("_acks", "_engine", "_nacks", "_ordered", "_time")

    def __init__(self, engine: Engine[Any], *, ordered: bool) -> None:
        self._engine = engine
        self._ordered = ordered  # an ordered engine processes an ack of any length in one step
        self._acks = RangeQueue(ACKED_AT_ONCE)
        self._nacks = RangeQueue(NACKED_AT_ONCE)
        self._time = 0  # of all nacks applied in one turn: they failed together, so they are delivered again together

    @property
    def waiting(self) -> bool:
        return bool(self._nacks.count or self._acks.count)

    @property
    def holds_back(self) -> bool:
        """Whether nothing may be delivered, because the engine does not know yet that some messages are done or have
        failed."""
        return self._nacks.midway or bool(self._acks.count)

    def acked(self, first: int, last: int, end: int) -> None:
        """Marks messages as done. The engine knows no messages from `end` on."""
        if self._ordered or last - first < ACKED_AT_ONCE:
            self._engine.acked(first, last)
        else:
            self._acks.add(self._engine.acked, [(first, min(last, max(first, end - 1)))])

    def nacked(self, consumer: ConsumerId, ranges: Sequence[Range], delay: int, reason: str, now: int) -> None:
        """Marks messages as failed; the engine knows them all. Ignores nacks of more messages than can be in flight."""
        if self._nacks.untouched:
            self._time = now
        if self._nacks.count + sum(last - first + 1 for first, last in ranges) <= UNACKED_MAX:
            self._nacks.add(partial(self._nack, consumer, delay, reason), ranges)

    def _nack(self, consumer: ConsumerId, delay: int, reason: str, first: int, last: int) -> None:
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
