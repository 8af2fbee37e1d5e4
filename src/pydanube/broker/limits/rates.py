"""Rates of messages and bytes: how much may pass now, and how long to wait if too much has passed.

Pure: the time is an argument. A batch is never split to fit a rate, and one that is larger than a second's worth still
passes. What exceeds the rate is a debt, which time repays. The caller decides what to do with a client that must wait.
"""

from __future__ import annotations

from pydanube.base.limits import SECOND

BURST = SECOND  # what was not used in the last second may be used now
RANGE = SECOND // 20  # messages of this much time are sent together


class _Limit:
    """A number per second. The state is the time at which everything that has passed is within the limit."""

    __slots__ = ("even_at", "per_second")

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self.even_at = -BURST

    def take(self, amount: int, now: int) -> None:
        cost = -(-amount * SECOND // self.per_second)  # rounded up, so that small messages are not free
        self.even_at = max(self.even_at, now - BURST) + cost

    def room(self, now: int) -> int:
        return (now - max(self.even_at, now - BURST)) * self.per_second // SECOND


class Rate:
    """Messages and bytes per second; None is no limit."""

    __slots__ = ("_bytes", "_messages", "bytes", "messages")

    def __init__(self, messages: int | None, bytes: int | None) -> None:
        self.messages = messages
        self.bytes = bytes
        self._messages = None if messages is None else _Limit(messages)
        self._bytes = None if bytes is None else _Limit(bytes)

    def take(self, messages: int, bytes: int, now: int) -> None:
        """Counts messages that pass, whether there is room for them or not."""
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(bytes, now)

    def wait(self, now: int) -> int:
        """Microseconds until everything that has passed is within the rate; 0 if it already is."""
        even_at = [limit.even_at for limit in (self._messages, self._bytes) if limit is not None]
        return max(0, *(at - now for at in even_at))

    def room(self, message_bytes: int, now: int) -> int:
        """How many messages of about this size may pass now: at least one, or none if the debt is not repaid yet."""
        if self.wait(now):
            return 0
        rooms = [] if self._messages is None else [self._messages.room(now)]
        if self._bytes is not None:
            rooms.append(self._bytes.room(now) // max(1, message_bytes))
        return max(1, min(rooms))


class Throttle:
    """Holds one receiver to a rate. Beyond it, nothing is sent until a whole range of messages may pass together."""

    __slots__ = ("_rate", "until")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self.until = 0  # nothing is sent before this time

    @property
    def limits(self) -> tuple[int | None, int | None]:
        return self._rate.messages, self._rate.bytes

    def rests(self, now: int) -> bool:
        """Whether nothing may be sent now."""
        if now >= self.until:
            wait = self._rate.wait(now)
            if not wait:
                return False
            self.until = now + wait + RANGE
        return True

    def room(self, wanted: int, message_bytes: int, now: int) -> int:
        """How many of the wanted messages may be sent now."""
        room = self._rate.room(message_bytes, now)
        if room < wanted:
            self.until = now + RANGE
        return min(room, wanted)

    def take(self, messages: int, bytes: int, now: int) -> None:
        self._rate.take(messages, bytes, now)

    def due(self, otherwise: int | None, now: int) -> int | None:
        """When the receiver may be sent to again; outside a rest, `otherwise`."""
        return self.until if self.rests(now) else otherwise


def rate_of(messages: int | None, bytes: int | None) -> Rate | None:
    """A rate, or None if nothing is limited."""
    return None if messages is None and bytes is None else Rate(messages, bytes)
