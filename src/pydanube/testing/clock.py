"""A clock that only moves when a test moves it. It has no timers; it notifies its watchers when it moves."""

from __future__ import annotations

from collections.abc import Callable

from pydanube.adapters.system import SystemClock
from pydanube.base.limits import SECOND


class VirtualClock:
    """The clock port. It shows the machine's time, or `wall` (microseconds since 1970), until it is moved."""

    def __init__(self, wall: int | None = None) -> None:
        self._start = SystemClock().wall() if wall is None else wall
        self._passed = 0  # microseconds
        self._watchers: dict[Callable[[], None], None] = {}

    def monotonic(self) -> float:
        return self._passed / SECOND

    def wall(self) -> int:
        return self._start + self._passed

    def advance(self, seconds: float) -> None:
        """Moves the clock forward. Whatever is due happens in the broker's next turns, after this returns."""
        if seconds < 0:
            raise ValueError(f"time cannot move backwards, by {seconds} seconds")
        self._passed += round(seconds * SECOND)
        for notify in list(self._watchers):
            notify()

    def watch(self, notify: Callable[[], None]) -> None:
        """Calls `notify` after each move, in the thread that moved it."""
        self._watchers[notify] = None

    def unwatch(self, notify: Callable[[], None]) -> None:
        self._watchers.pop(notify, None)
