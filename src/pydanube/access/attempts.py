"""How often wrong credentials may come from one address. Bounded itself: addresses that were quiet are forgotten."""

from __future__ import annotations

from pydanube.base.errors import TooManyAttempts
from pydanube.base.limits import AUTH_ADDRESSES_MAX, AUTH_FAILURES_MAX, AUTH_FAILURES_PER_SECOND


class Attempts:
    """Counts failures by address. `now` is in seconds, and never goes backwards."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float]] = {}  # how many, less those that time has forgiven, and when

    def check(self, address: str, now: float) -> None:
        """Raises `TooManyAttempts` if the address has to wait. Called before a credential is examined."""
        if self._count(address, now) > AUTH_FAILURES_MAX - 1:
            raise TooManyAttempts(f"more than {AUTH_FAILURES_MAX} wrong tokens came from {address}")

    def failed(self, address: str, now: float) -> None:
        count = self._count(address, now) + 1
        self._failures.pop(address, None)  # so that the longest unheard are the first
        if len(self._failures) >= AUTH_ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = count, now

    def _count(self, address: str, now: float) -> float:
        count, since = self._failures.get(address, (0.0, now))
        return max(0.0, count - (now - since) * AUTH_FAILURES_PER_SECOND)
