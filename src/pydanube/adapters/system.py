"""The clock and the randomness of the machine."""

from __future__ import annotations

import os
import secrets
import time


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> int:
        return time.time_ns() // 1000


class SystemRandomness:
    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)
