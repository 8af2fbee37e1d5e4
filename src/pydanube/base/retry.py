"""How long to wait before something that failed is tried again. Uses no clock and no randomness of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

_DOUBLINGS_MAX = 60  # far beyond any bound


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses in seconds: each is twice as long as the one before, up to `longest`. Iterating gives them in order."""

    first: float
    longest: float

    def after(self, failures: int, below: Callable[[int], int] | None = None) -> float:
        """The pause after a number of failures in a row; 0 without a failure.

        `below` returns a random whole number below its argument. With it, the pause is between half and all of its
        length, so that clients that failed together do not all try again at the same time.
        """
        if not failures:
            return 0.0
        pause = min(self.longest, self.first * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
        return pause if below is None else pause * (500 + below(501)) / 1000

    def __iter__(self) -> Iterator[float]:
        return map(self.after, count(1))
