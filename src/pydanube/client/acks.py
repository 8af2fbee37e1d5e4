"""Acknowledgements on their way: many in one frame, one light object for all of them; and what must not come too soon.

An `AckGroup` belongs to one feed and one generation. Whoever awaits it waits until the broker has made it durable; what
nobody awaits and fails is told to its feed. `Postponed` remembers nacks with a delay across a broken connection.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from pydanube.base.errors import DanubeError
from pydanube.base.limits import CLIENT_POSTPONED_RANGES_MAX
from pydanube.client.outgoing import fresh


class Acker(Protocol):
    loop: AbstractEventLoop

    def hurry_acks(self) -> None:
        """Somebody waits: send them now."""
        ...

    def obstacle(self) -> DanubeError | None:
        """Why nothing gets through now."""
        ...

    def ack_failed(self, error: DanubeError, count: int) -> None:
        """Messages that could not be acknowledged, and whose result no one awaits."""
        ...


class AckGroup:
    """Ranges that are acknowledged together. Consecutive acks extend the last range, which is kept apart."""

    __slots__ = ("_acker", "cumulative", "done", "error", "first", "generation", "last", "ranges", "waiters", "watched")

    def __init__(self, acker: Acker, *, cumulative: bool = False) -> None:
        self._acker = acker
        self.first = 0
        self.last = -1  # first > last: no range is open
        self.ranges: list[tuple[int, int]] = []
        self.cumulative = cumulative
        self.generation: int | None = None  # of the subscription, when it was first sent or kept
        self.done = False
        self.error: DanubeError | None = None
        self.watched = False  # somebody waits or has waited, and so learns of the error
        self.waiters: list[Future[None]] = []

    def all_ranges(self) -> list[tuple[int, int]]:
        """Ends the open range."""
        if self.first <= self.last:
            self.ranges.append((self.first, self.last))
            self.first, self.last = 0, -1
        return self.ranges

    def finish(self, error: DanubeError | None = None) -> None:
        self.done = True
        self.error = error
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()
        if error is not None and not self.watched and (ranges := self.all_ranges()):
            self._acker.ack_failed(error, sum(last - first + 1 for first, last in ranges))

    @property
    def reason(self) -> DanubeError | None:
        """Why it is not durable yet, as far as that is known."""
        return None if self.done else self._acker.obstacle()

    def __await__(self) -> Generator[Any, None, None]:
        self.watched = True
        if not self.done:
            self._acker.hurry_acks()
            waiter: Future[None] = self._acker.loop.create_future()
            self.waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise fresh(self.error)


class Nacked(NamedTuple):
    """Messages first..last are wanted again at `until` (seconds of the client's monotonic clock), not before."""

    first: int
    last: int
    until: float
    reason: str


class Postponed:
    """Delayed nacks. A broken connection may lose one, and makes the broker deliver again what it had delivered.

    So from then on, until its time has come, whatever comes of it is nacked once more for the time that is left.
    """

    def __init__(self) -> None:
        self._told: deque[Nacked] = deque(maxlen=CLIENT_POSTPONED_RANGES_MAX)  # the broker keeps to these
        self._untold: list[Nacked] = []  # the connection broke since: it may have forgotten these

    def add(self, nacked: Nacked, *, told: bool) -> None:
        """Told: the broker was. If it does not hear of it, the connection breaks."""
        if told:
            self._told.append(nacked)
        elif len(self._untold) < CLIENT_POSTPONED_RANGES_MAX:
            self._untold.append(nacked)

    def clear(self) -> None:
        self._told.clear()
        self._untold.clear()

    def connection_broke(self, now: float) -> None:
        known = [*self._untold, *self._told][-CLIENT_POSTPONED_RANGES_MAX:]
        self._untold = [nacked for nacked in known if nacked.until > now]
        self._told.clear()

    def take(self, first: int, last: int, now: float) -> list[Nacked]:
        """Those parts of first..last, ascending, that come too soon; the broker is about to be told again."""
        if not self._untold:
            return []
        found: dict[int, Nacked] = {}
        left: list[Nacked] = []
        for nacked in self._untold:
            if nacked.until <= now:
                continue
            begin, end = max(first, nacked.first), min(last, nacked.last)
            if begin > end:
                left.append(nacked)
                continue
            if nacked.first < begin:
                left.append(nacked._replace(last=begin - 1))
            if end < nacked.last:
                left.append(nacked._replace(first=end + 1))
            if begin not in found:
                found[begin] = nacked._replace(first=begin, last=end)
        self._untold = left
        self._told.extend(found.values())
        return [found[begin] for begin in sorted(found)]
