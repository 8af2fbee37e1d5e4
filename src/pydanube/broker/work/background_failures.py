"""Failures of background work: logged once when they begin, listed while they last, retried after growing pauses."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pydanube.base.errors import DanubeError
from pydanube.base.retry import Backoff
from pydanube.ports.clock import Clock

log = logging.getLogger(__name__)
RETRY = Backoff(1.0, 60.0)


@dataclass(slots=True)
class _Failure:
    what: str
    kind: str  # of the error: its text may differ with each attempt
    failures: int  # in a row
    not_before: float


class BackgroundFailures:
    """By place, such as a stream, and step of the work. There is at most one for each of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], _Failure] = {}
        self.failures: dict[str, int] = {}  # how many so far, by step

    def waits(self, place: str, step: str) -> bool:
        """Whether it is too early for another attempt."""
        return self.pause(place, step) > 0

    def pause(self, place: str, step: str) -> float:
        """Seconds until the next attempt."""
        found = self._found.get((place, step))
        return 0.0 if found is None else max(0.0, found.not_before - self._clock.monotonic())

    def failed(self, place: str, step: str, error: BaseException) -> None:
        found, what = self._found.get((place, step)), f"{error}"
        self.failures[step] = self.failures.get(step, 0) + 1
        failures = 1 if found is None else found.failures + 1
        kind = error.code if isinstance(error, DanubeError) else type(error).__name__
        if found is None or found.kind != kind:
            log.warning("%s: %s does not work yet: %s", place, step, what)
        self._found[place, step] = _Failure(what, kind, failures, self._clock.monotonic() + RETRY.after(failures))

    def worked(self, place: str, step: str) -> None:
        if self._found.pop((place, step), None) is not None:
            log.info("%s: %s works again", place, step)

    def forget(self, place: str) -> None:
        """The place is no longer served by this broker."""
        for key in [key for key in self._found if key[0] == place]:
            del self._found[key]

    def places(self) -> list[str]:
        return sorted({place for place, _ in self._found})

    def of(self, place: str, *steps: str) -> list[str]:
        """One line for each of these steps that fails there, or for any step."""
        found = [(step, failure) for (where, step), failure in self._found.items() if where == place]
        return [f"{step}: {failure.what}" for step, failure in found if not steps or step in steps]

    def listed(self) -> list[tuple[str, str, str]]:
        return [(place, step, failure.what) for (place, step), failure in self._found.items()]
