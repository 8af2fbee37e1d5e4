"""The clock of a process, watched: whoever shares it knows of a jump, whichever of them was there to see it.

A stream or topic that is opened after a jump cannot see it. So there is one of these for a broker, made when it starts.
"""

from __future__ import annotations

import logging

from pydanube.base.limits import CLOCK_AHEAD_DAYS, CLOCK_DISTRUST_SECONDS, DAY, SECOND
from pydanube.ports.clock import Clock
from pydanube.stream.retention import ClockGuard
from pydanube.stream.times import ClockBelief

log = logging.getLogger(__name__)


class WatchedClock:
    """A `Clock` that also says what to stamp messages with, and whether anything may be deleted by its time."""

    def __init__(self, clock: Clock, distrust_seconds: float = CLOCK_DISTRUST_SECONDS) -> None:
        self._clock = clock
        now = (clock.wall(), self._microseconds)
        self._belief = ClockBelief(*now)
        self._guard = ClockGuard(*now, distrust_seconds)
        self._distrust_seconds = distrust_seconds

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> int:
        return self._clock.wall()

    def believed(self) -> int:
        """What time it is, as far as the clock is believed."""
        return self._belief.observe(self._clock.wall(), self._microseconds)

    def trusted(self, since: float | None = None) -> bool:
        """Whether anything may be deleted by time: not for a while after a jump, nor after `since` (monotonic).

        To be asked every few seconds.
        """
        self.believed()
        monotonic = self._microseconds
        jump = self._guard.observe(self._clock.wall(), monotonic)
        if jump is not None:
            log.warning("the clock jumped by %.0f s; pausing deletion by time", jump / SECOND)
        doubted = since is not None and self.monotonic() - since < self._distrust_seconds
        return not doubted and self._guard.trusted(monotonic)

    def begin(self, newest: int) -> None:
        """At the start of a broker whose newest message is of that time; 0 if it has none."""
        days = (self._clock.wall() - newest) // DAY
        if newest and days >= CLOCK_AHEAD_DAYS:
            log.warning("the newest message is %d days old; pausing deletion by time", days)
            self._guard.distrust(self._microseconds)

    @property
    def _microseconds(self) -> int:
        return int(self._clock.monotonic() * SECOND)


def watched(clock: Clock) -> WatchedClock:
    """The same one if somebody watches it already."""
    return clock if isinstance(clock, WatchedClock) else WatchedClock(clock)
