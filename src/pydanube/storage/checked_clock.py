"""A clock that notices when the wall clock jumps.

A jump that one user notices counts for all of them. A stream or topic that is opened after a jump cannot notice it, so
a broker has one such clock, created when it starts.
"""

from __future__ import annotations

import logging

from pydanube.base.limits import CLOCK_AHEAD_DAYS, CLOCK_DISTRUST_SECONDS, DAY, SECOND
from pydanube.ports.clock import Clock
from pydanube.stream.times import AppendClock, ClockGuard

log = logging.getLogger(__name__)


class CheckedClock:
    """A `Clock` that also says which time to stamp messages with, and whether messages may be deleted by age."""

    def __init__(self, clock: Clock, distrust_seconds: float = CLOCK_DISTRUST_SECONDS) -> None:
        self._clock = clock
        now = (clock.wall(), self._microseconds)
        self._append_clock = AppendClock(*now)
        self._guard = ClockGuard(*now, distrust_seconds)
        self._distrust_seconds = distrust_seconds

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> int:
        return self._clock.wall()

    def append_time(self) -> int:
        """The time to stamp a message with now."""
        return self._append_clock.observe(self._clock.wall(), self._microseconds)

    def trusted(self, since: float | None = None) -> bool:
        """Whether messages may be deleted by age: not for a while after a jump, nor after `since` (monotonic).

        Must be called every few seconds.
        """
        self.append_time()
        monotonic = self._microseconds
        jump = self._guard.observe(self._clock.wall(), monotonic)
        if jump is not None:
            log.warning("the clock jumped by %.0f s; pausing deletion by time", jump / SECOND)
        doubted = since is not None and self.monotonic() - since < self._distrust_seconds
        return not doubted and self._guard.trusted(monotonic)

    def begin(self, newest: int) -> None:
        """Called at the start of a broker, with the append time of its newest message, or 0."""
        days = (self._clock.wall() - newest) // DAY
        if newest and days >= CLOCK_AHEAD_DAYS:
            log.warning("the newest message is %d days old; pausing deletion by time", days)
            self._guard.distrust(self._microseconds)

    @property
    def _microseconds(self) -> int:
        return int(self._clock.monotonic() * SECOND)


def checked_clock(clock: Clock) -> CheckedClock:
    """The clock itself if it already is a `CheckedClock`."""
    return clock if isinstance(clock, CheckedClock) else CheckedClock(clock)
