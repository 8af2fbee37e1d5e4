"""What may be on its way to the journal at a time, shared evenly by the connections that publish.

Whatever is published waits behind what is on its way already, so this bounds how long: a connection that sends faster
is not read meanwhile, and what it sends stays in its socket. It owns no connection and no clock.
"""

from __future__ import annotations

from pydanube.base.limits import UNCONFIRMED_ALONE_BYTES_MAX, UNCONFIRMED_BYTES_MAX, UNCONFIRMED_BYTES_MIN


class Intake:
    """One for a broker. Who has published in this period or the last counts: also who does so only now and then."""

    def __init__(self) -> None:
        self.period = 0
        self._now = 0  # connections that have published in this period
        self._before = 0  # and in the last

    def turn(self) -> None:
        """To be called every second or so: another period begins."""
        self.period += 1
        self._now, self._before = 0, self._now

    def count(self) -> None:
        """One more connection publishes in this period."""
        self._now += 1

    @property
    def share(self) -> int:
        """Bytes that one connection may have on their way before it is not read."""
        publishing = max(self._now, self._before)
        if publishing <= 1:
            return UNCONFIRMED_ALONE_BYTES_MAX
        return max(UNCONFIRMED_BYTES_MIN, UNCONFIRMED_BYTES_MAX // publishing)


class Account:
    """One connection's part of an intake."""

    __slots__ = ("_bytes", "_intake", "_period", "full")

    def __init__(self, intake: Intake) -> None:
        self.full = False
        self._intake = intake
        self._period = -1  # in which it published last
        self._bytes = 0

    def add(self, bytes: int) -> bool:
        """They are on their way; whether it is full now and was not before."""
        intake = self._intake
        if self._period != intake.period:
            self._period = intake.period
            intake.count()
        self._bytes += bytes
        became = not self.full and self._bytes > intake.share
        self.full = self.full or became
        return became

    def remove(self, bytes: int) -> bool:
        """They are confirmed or have failed; whether it has room now and had none before."""
        self._bytes -= bytes
        became = self.full and self._bytes <= self._intake.share // 2
        self.full = self.full and not became
        return became
