"""Acknowledgements on their way to the broker, and nacks whose delay must outlive a broken connection.

An `AckGroup` is one small object for many acks, which travel in one frame: while one is under way, the next fills
(§38). It belongs to one partition and generation. Awaiting it waits until the acks are durable; failures of groups that
no one awaits are reported to the partition.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple, Protocol

from pydanube.base.errors import DanubeError
from pydanube.base.limits import CLIENT_POSTPONED_RANGES_MAX
from pydanube.client.errors import copy_of


class Acker(Protocol):
    loop: AbstractEventLoop

    def obstacle(self) -> DanubeError | None:
        """Why nothing can be sent now; None if it can."""
        ...

    def ack_failed(self, error: DanubeError, count: int) -> None:
        """`count` messages could not be acknowledged, and no one awaits the result."""
        ...


class AckGroup:
    """Ranges that are acknowledged together. Consecutive acks extend the open range, `first` to `last`."""

    __slots__ = ("_acker", "awaited", "cumulative", "done", "error", "first", "generation", "last", "ranges", "waiters")

    def __init__(self, acker: Acker, *, cumulative: bool = False) -> None:
        self._acker = acker
        self.first = 0
        self.last = -1  # first > last: no range is open
        self.ranges: list[tuple[int, int]] = []
        self.cumulative = cumulative
        self.generation: int | None = None  # of the subscription, when it was first sent or stored
        self.done = False
        self.error: DanubeError | None = None
        self.awaited = False  # someone awaits or has awaited it, and gets the error
        self.waiters: list[Future[None]] = []

    def all_ranges(self) -> list[tuple[int, int]]:
        """Closes the open range and returns all."""
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
        if error is not None and not self.awaited and (ranges := self.all_ranges()):
            self._acker.ack_failed(error, sum(last - first + 1 for first, last in ranges))

    @property
    def reason(self) -> DanubeError | None:
        """Why it is not durable yet, if that is known."""
        return None if self.done else self._acker.obstacle()

    def __await__(self) -> Generator[Any, None, None]:
        self.awaited = True
        if not self.done:
            waiter: Future[None] = self._acker.loop.create_future()
            self.waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise copy_of(self.error)


class Nacked(NamedTuple):
    """Messages first..last are wanted again at `until` (seconds of the client's monotonic clock), not before."""

    first: int
    last: int
    until: float
    reason: str


class Postponed:
    """Delayed nacks. A broken connection may lose one, and makes the broker deliver the messages again.

    If a message is delivered before its delay is over, it is nacked again for the rest of the delay.
    """

    def __init__(self) -> None:
        self._sent: deque[Nacked] = deque(maxlen=CLIENT_POSTPONED_RANGES_MAX)  # the broker knows these
        self._unsent: list[Nacked] = []  # the connection broke since: the broker may not know these

    def add(self, nacked: Nacked, *, sent: bool) -> None:
        """`sent`: the nack was written to a connection. If it does not arrive, that connection breaks."""
        if sent:
            self._sent.append(nacked)
        elif len(self._unsent) < CLIENT_POSTPONED_RANGES_MAX:
            self._unsent.append(nacked)

    def clear(self) -> None:
        self._sent.clear()
        self._unsent.clear()

    def connection_broke(self, now: float) -> None:
        known = [*self._unsent, *self._sent][-CLIENT_POSTPONED_RANGES_MAX:]
        self._unsent = [nacked for nacked in known if nacked.until > now]
        self._sent.clear()

    def take(self, first: int, last: int, now: float) -> list[Nacked]:
        """Returns the parts of first..last, ascending, whose delay is not over; the caller nacks them again."""
        if not self._unsent:
            return []
        found: dict[int, Nacked] = {}
        left: list[Nacked] = []
        for nacked in self._unsent:
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
        self._unsent = left
        self._sent.extend(found.values())
        return [found[begin] for begin in sorted(found)]
