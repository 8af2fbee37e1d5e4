"""How long to wait before something that failed is attempted again. It never looks at a clock, and draws no numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

_DOUBLINGS_MAX = 60  # a pause that has doubled so often is beyond every bound


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses in seconds: each is twice as long as the one before, up to `longest`. Iterating gives them in order."""

    first: float
    longest: float

    def after(self, failures: int, below: Callable[[int], int] | None = None) -> float:
        """After a number of failures in a row; no pause after none.

        `below` draws a whole number below its argument. With it, the pause is between half as long and as long, so that
        those who failed at the same time do not try again at the same time.
        """
        if not failures:
            return 0.0
        pause = min(self.longest, self.first * 2.0 ** min(failures - 1, _DOUBLINGS_MAX))
        return pause if below is None else pause * (500 + below(501)) / 1000

    def __iter__(self) -> Iterator[float]:
        return map(self.after, count(1))
