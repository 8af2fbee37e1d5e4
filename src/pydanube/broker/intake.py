"""What may be on its way to the journal at a time, shared evenly by the connections that publish.

Whatever is published waits behind what is on its way already, so this bounds how long: a connection that sends faster
is not read meanwhile, and what it sends stays in its socket. It owns no connection.
"""

from __future__ import annotations

from pydanube.base.limits import UNCONFIRMED_BYTES_MAX, UNCONFIRMED_BYTES_MIN


class Intake:
    """One for a broker."""

    def __init__(self) -> None:
        self.publishing = 0  # connections that have bytes on their way

    @property
    def share(self) -> int:
        """Bytes that one connection may have on their way before it is not read."""
        return max(UNCONFIRMED_BYTES_MIN, UNCONFIRMED_BYTES_MAX // max(1, self.publishing))


class Account:
    """One connection's part of an intake."""

    __slots__ = ("_bytes", "_intake", "full")

    def __init__(self, intake: Intake) -> None:
        self.full = False
        self._intake = intake
        self._bytes = 0

    def add(self, bytes: int) -> bool:
        """They are on their way; whether it is full now and was not before."""
        if not self._bytes:
            self._intake.publishing += 1
        self._bytes += bytes
        became = not self.full and self._bytes > self._intake.share
        self.full = self.full or became
        return became

    def remove(self, bytes: int) -> bool:
        """They are confirmed or have failed; whether it has room now and had none before."""
        self._bytes -= bytes
        if not self._bytes:
            self._intake.publishing -= 1
        became = self.full and self._bytes <= self._intake.share // 2
        self.full = self.full and not became
        return became
