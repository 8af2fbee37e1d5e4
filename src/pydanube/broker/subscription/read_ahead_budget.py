"""The memory that all subscriptions of a broker may use for batches they have read."""

from __future__ import annotations

from typing import Protocol

from pydanube.base.limits import READ_AHEAD_ALL_BYTES_MAX


class Reader(Protocol):
    """Whoever keeps batches in memory that it could read again."""

    def let_go(self) -> None:
        """Frees all of it."""
        ...


class ReadAheadBudget:
    """Shared by all subscriptions of a broker: the one that has not used its batches for longest frees them first."""

    def __init__(self, bytes_max: int = READ_AHEAD_ALL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  # of memory in use
        self._users: dict[Reader, int] = {}  # with the bytes of each, least recently used first

    def hold(self, user: Reader, size: int) -> None:
        """The user has so many bytes from now on."""
        self.bytes += size - self._users.pop(user, 0)
        if size:
            self._users[user] = size
        while self.bytes > self.bytes_max and len(self._users) > 1:  # the one that is at work needs what it has
            next(iter(self._users)).let_go()
