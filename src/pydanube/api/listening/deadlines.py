"""Timers of connections and calls. Thousands may expire at once, so what they cause is done in turns.

A timer of the loop does its work at once, and the loop runs all that are due in one iteration. A deadline only queues
its work for a turn (`turns.py`).
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable

from pydanube.api.listening.turns import Turns


class Deadline:
    """Calls `work` in the first turn after `seconds`, unless it is cancelled before."""

    __slots__ = ("_timer", "_turns", "_work")

    def __init__(self, turns: Turns, seconds: float, work: Callable[[], None]) -> None:
        self._turns = turns
        self._work: Callable[[], None] | None = work
        self._timer: TimerHandle | None = asyncio.get_running_loop().call_later(seconds, self._expired)

    def _expired(self) -> None:
        self._timer = None
        self._turns.later(self._turn)

    def _turn(self, _: float) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()

    def cancel(self) -> None:
        self._work = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
