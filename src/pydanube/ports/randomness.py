"""Randomness as a port, so that a seed replays a run."""

from __future__ import annotations

from typing import Protocol


class Randomness(Protocol):
    def bytes(self, count: int) -> bytes: ...

    def below(self, bound: int) -> int:
        """A whole number in [0, bound)."""
