"""How many bytes may be on their way to the journal at a time, shared evenly by the connections that publish.

A new message waits behind everything that is already on its way, so this bounds how long it waits. A connection that
uses up its share is not read until there is room again; what it sends stays in its socket. The module owns no
connection and no clock.
"""

from __future__ import annotations

from pydanube.base.limits import UNCONFIRMED_ALONE_BYTES_MAX, UNCONFIRMED_BYTES_MAX, UNCONFIRMED_BYTES_MIN


class Intake:
    """The intake of a broker. A connection has a share if it has published in this period or the one before."""

    def __init__(self) -> None:
        self.period = 0
        self._now = 0  # connections that have published in this period
        self._before = 0  # and in the period before

    def turn(self) -> None:
        """Begins another period. The broker calls this about once a second."""
        self.period += 1
        self._now, self._before = 0, self._now

    def count(self) -> None:
        """Counts a connection when it publishes for the first time in this period."""
        self._now += 1

    @property
    def share(self) -> int:
        """The bytes that one connection may have on their way; with more, it is not read."""
        publishing = max(self._now, self._before)
        if publishing <= 1:
            return UNCONFIRMED_ALONE_BYTES_MAX
        return max(UNCONFIRMED_BYTES_MIN, UNCONFIRMED_BYTES_MAX // publishing)


class Account:
    """What one connection has on its way."""

    __slots__ = ("_bytes", "_intake", "_period", "full")

    def __init__(self, intake: Intake) -> None:
        self.full = False
        self._intake = intake
        self._period = -1  # the period in which it last published
        self._bytes = 0

    def add(self, bytes: int) -> bool:
        """Counts bytes that are now on their way. Returns whether this used up the share."""
        intake = self._intake
        if self._period != intake.period:
            self._period = intake.period
            intake.count()
        self._bytes += bytes
        became = not self.full and self._bytes > intake.share
        self.full = self.full or became
        return became

    def remove(self, bytes: int) -> bool:
        """Subtracts bytes that were confirmed or failed. Returns whether there is room again, if there was none."""
        self._bytes -= bytes
        became = self.full and self._bytes <= self._intake.share // 2
        self.full = self.full and not became
        return became
