"""What goes wrong with one message after the other, told now and then instead of each time."""

from __future__ import annotations

import logging

from pydanube.base.errors import DanubeError
from pydanube.base.limits import TOLD_AGAIN_SECONDS
from pydanube.ports.clock import Clock

log = logging.getLogger(__name__)


class Seldom:
    """Warnings about one subscription: the first of a kind at once, the next after some time, with a count."""

    def __init__(self, subscription: str, clock: Clock) -> None:
        self._subscription = subscription
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}  # by what and error: when, and how often since

    def warn(self, what: str, which: object, error: Exception) -> None:
        kind = what, error.code if isinstance(error, DanubeError) else type(error).__name__
        now = self._clock.monotonic()
        told, untold = self._told.get(kind, (None, 0))
        if told is not None and now - told < TOLD_AGAIN_SECONDS:
            self._told[kind] = told, untold + 1
            return
        self._told[kind] = now, 0
        since = f" (and {untold} more times since it was last logged)" if untold else ""
        log.warning("subscription %s %s %s: %s%s", self._subscription, what, which, error, since)
