"""A rate limit for actions that cost the server more than the client. The caller supplies the time."""

from __future__ import annotations

from pydanube.base.limits import SECOND


class Allowance:
    """A token bucket: `most` actions at once, and `per_second` more each second."""

    __slots__ = ("_at", "_most", "_parts", "_per_second")

    def __init__(self, most: int, per_second: int) -> None:
        self._most = most * SECOND
        self._per_second = per_second
        self._parts = self._most  # an act has as many as a second has microseconds
        self._at: int | None = None

    def take(self, now: int) -> bool:
        """Whether one more action is allowed at `now`, in microseconds."""
        if self._at is None:
            self._at = now
        elif now > self._at:
            self._parts = min(self._most, self._parts + (now - self._at) * self._per_second)
            self._at = now
        if self._parts < SECOND:
            return False
        self._parts -= SECOND
        return True
