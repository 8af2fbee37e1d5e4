"""Counters, kept where things happen and read by the metrics. Plain numbers: nothing is locked or named.

A counter is updated once per batch, never once per message.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass(slots=True)
class Traffic:
    messages: int = 0
    bytes: int = 0

    def add(self, messages: int, bytes: int) -> None:
        self.messages += messages
        self.bytes += bytes


@dataclass(slots=True)
class Histogram:
    """How many values were at most each bound, and how many were above all."""

    bounds: tuple[float, ...] = COMMIT_SECONDS
    sum: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
