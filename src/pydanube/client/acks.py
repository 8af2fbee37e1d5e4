"""Acknowledgements on their way: many in one frame, one light object for all of them.

An `AckGroup` belongs to one feed and one generation. Whoever awaits it waits until the broker has made it durable.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Generator
from typing import Any, Protocol

from pydanube.base.errors import DanubeError
from pydanube.client.outgoing import fresh


class Acker(Protocol):
    loop: AbstractEventLoop

    def hurry_acks(self) -> None:
        """Somebody waits: send them now."""
        ...


class AckGroup:
    """Ranges that are acknowledged together. Consecutive acks extend the last range, which is kept apart."""

    __slots__ = ("_acker", "cumulative", "done", "error", "first", "last", "ranges", "waiters")

    def __init__(self, acker: Acker, *, cumulative: bool = False) -> None:
        self._acker = acker
        self.first = 0
        self.last = -1  # first > last: no range is open
        self.ranges: list[tuple[int, int]] = []
        self.cumulative = cumulative
        self.done = False
        self.error: DanubeError | None = None
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

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done:
            self._acker.hurry_acks()
            waiter: Future[None] = self._acker.loop.create_future()
            self.waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise fresh(self.error)
