"""Logs lasting failures without flooding the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pydanube.base.errors import DanubeError
from pydanube.base.limits import WARNING_REPEAT_SECONDS
from pydanube.base.retry import Backoff
from pydanube.ports.clock import Clock

log = logging.getLogger(__name__)
RETRY = Backoff(1.0, 60.0)


@dataclass(slots=True)
class _Failure:
    what: str
    kind: str  # the error's code: its text may differ with each attempt
    failures: int  # in a row
    not_before: float


class BackgroundFailures:
    """Failures are logged once when they begin, listed while they last, and retried after growing pauses.

    Each is identified by a place, such as a stream, and a step of the work.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], _Failure] = {}
        self.failures: dict[str, int] = {}  # their number so far, by step

    def waits(self, where: str, step: str) -> bool:
        """Whether it is too early for another attempt."""
        return self.pause(where, step) > 0

    def pause(self, where: str, step: str) -> float:
        """Seconds until the next attempt."""
        found = self._found.get((where, step))
        return 0.0 if found is None else max(0.0, found.not_before - self._clock.monotonic())

    def failed(self, where: str, step: str, error: BaseException) -> None:
        found, what = self._found.get((where, step)), f"{error}"
        self.failures[step] = self.failures.get(step, 0) + 1
        failures = 1 if found is None else found.failures + 1
        kind = error.code if isinstance(error, DanubeError) else type(error).__name__
        if found is None or found.kind != kind:
            log.warning("%s: %s does not work yet: %s", where, step, what)
        self._found[where, step] = _Failure(what, kind, failures, self._clock.monotonic() + RETRY.after(failures))

    def worked(self, where: str, step: str) -> None:
        if self._found.pop((where, step), None) is not None:
            log.info("%s: %s works again", where, step)

    def forget(self, where: str) -> None:
        """Called when this broker no longer serves it."""
        for key in [key for key in self._found if key[0] == where]:
            del self._found[key]

    def affected(self) -> list[str]:
        return sorted({where for where, _ in self._found})

    def of(self, where: str, *steps: str) -> list[str]:
        """One line for each of these steps that fails there; without steps, for all of them."""
        found = [(step, failure) for (each, step), failure in self._found.items() if each == where]
        return [f"{step}: {failure.what}" for step, failure in found if not steps or step in steps]

    def listed(self) -> list[tuple[str, str, str]]:
        return [(where, step, failure.what) for (where, step), failure in self._found.items()]


class RareWarnings:
    """Warnings about one subscription: logs the first of a kind at once, the next after some time, with a count."""

    __slots__ = ("_clock", "_logged", "_subscription")

    def __init__(self, subscription: str, clock: Clock) -> None:
        self._subscription = subscription
        self._clock = clock
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}  # by text and error: when, and how many since then

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
