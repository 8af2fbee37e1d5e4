"""Log warnings about an error that may come with every message: at once, and then only now and then."""

from __future__ import annotations

import logging

from pydanube.base.errors import DanubeError
from pydanube.base.limits import WARNING_REPEAT_SECONDS
from pydanube.ports.clock import Clock

log = logging.getLogger(__name__)


class RareWarnings:
    """Warnings about one subscription: the first of a kind at once, the next after some time, with a count."""

    __slots__ = ("_clock", "_logged", "_subscription")

    def __init__(self, subscription: str, clock: Clock) -> None:
        self._subscription = subscription
        self._clock = clock
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}  # by text and error: when, and how many since

    def warn(self, what: str, which: object, error: Exception) -> None:
        kind = what, error.code if isinstance(error, DanubeError) else type(error).__name__
        now = self._clock.monotonic()
        logged, unlogged = self._logged.get(kind, (None, 0))
        if logged is not None and now - logged < WARNING_REPEAT_SECONDS:
            self._logged[kind] = logged, unlogged + 1
            return
        self._logged[kind] = now, 0
        since = f" (and {unlogged} more times since it was last logged)" if unlogged else ""
        log.warning("subscription %s %s %s: %s%s", self._subscription, what, which, error, since)
