"""Time as a value. Sleeping and timers belong to the event loop, whose time the same adapter or simulator drives."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean anything."""

    def wall(self) -> int:
        """Microseconds since 1970 as the machine believes; may jump either way."""
