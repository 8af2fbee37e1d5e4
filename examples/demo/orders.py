"""Generates orders of four cities on the Danube: most on time, some late, a few invalid, and knows the expected result.

Amounts are quarters of a euro, so that sums of floating-point numbers are exact.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

CITIES = ("Vienna", "Bratislava", "Budapest", "Belgrade")
WINDOW_SECONDS = 5  # as in orders.yaml
DELAY_SECONDS = 10
LATE_PART, BAD_PART, TOO_LATE_PART = 0.05, 0.004, 0.002
LATE_SECONDS_MAX = DELAY_SECONDS - 2  # always within the watermark
Window = tuple[int, str]  # the second since 1970 at which it starts, and the city


@dataclass
class Orders:
    """Generates orders, and knows where each of them must end up."""

    random: random.Random
    start: float  # seconds since 1970
    sent: int = 0
    late: int = 0
    too_late: int = 0
    bad: int = 0
    windows: dict[Window, list[float]] = field(default_factory=dict)  # orders and revenue
    closing: Window | None = None

    def make(self, count: int, now: float, watermark: float | None) -> list[bytes]:
        """`count` orders for this moment. Some are too late, once the watermark is known."""
        return [self._one(now, watermark) for _ in range(count)]

    def last(self, now: float) -> bytes:
        """An order so far ahead that all windows before it are final."""
        at = now + DELAY_SECONDS + 2 * WINDOW_SECONDS
        found = self._good(CITIES[0], 1.0, at)
        self.closing = (_window(at), CITIES[0])
        return found

    def final(self) -> dict[Window, list[float]]:
        """Exactly the windows that the table must have in the end."""
        return {window: found for window, found in self.windows.items() if window != self.closing}

    @property
    def counted(self) -> int:
        return round(sum(orders for orders, _ in self.final().values()))

    def _one(self, now: float, watermark: float | None) -> bytes:
        dice = self.random.random()
        city = self._city(now)
        amount = self.random.randrange(8, 400) / 4
        if dice < BAD_PART:
            return self._bad(city, amount, now)
        if dice < BAD_PART + TOO_LATE_PART and watermark is not None:
            self.sent += 1
            self.too_late += 1
            return _text(self.sent, city, amount, watermark - 2 * WINDOW_SECONDS)
        at = now - self.random.random() / 2
        if dice > 1 - LATE_PART:
            self.late += 1
            at = now - self.random.uniform(1, LATE_SECONDS_MAX)
        return self._good(city, amount, at)

    def _city(self, now: float) -> str:
        """The cities order in waves, one after the other."""
        weights = [1.3 + math.sin((now - self.start) / 6 - number * math.pi / 2) for number in range(len(CITIES))]
        return self.random.choices(CITIES, weights)[0]

    def _good(self, city: str, amount: float, at: float) -> bytes:
        self.sent += 1
        at = math.floor(at * 1000) / 1000  # as it is written
        found = self.windows.setdefault((_window(at), city), [0, 0.0])
        found[0] += 1
        found[1] += amount
        return _text(self.sent, city, amount, at)

    def _bad(self, city: str, amount: float, now: float) -> bytes:
        self.sent += 1
        self.bad += 1
        kinds: list[Callable[[], bytes]] = [
            lambda: _text(self.sent, city, -amount, now),
            lambda: _text(self.sent, city, "a dozen", now),
            lambda: b"no order at all",
        ]
        return self.random.choice(kinds)()


def _window(at: float) -> int:
    return int(at // WINDOW_SECONDS) * WINDOW_SECONDS


def _text(number: int, city: str, amount: float | str, at: float) -> bytes:
    time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"id": number, "city": city, "amount": amount, "at": time}).encode()


def found_in(rows: Iterator[dict[str, object]]) -> dict[Window, list[float]]:
    """The rows of the table in the form of `Orders.final`. A repeated window makes a difference."""
    found: dict[Window, list[float]] = {}
    times: Counter[Window] = Counter()
    for row in rows:
        start = row["window_start"]
        assert isinstance(start, datetime)
        window = (round(start.timestamp()), str(row["city"]))
        times[window] += 1
        found[window] = [float(str(row["orders"])) * times[window], float(str(row["revenue"]))]
    return found
