"""The machine's clock and randomness."""

from __future__ import annotations

import os
import secrets
import time

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    def monotonic(self) -> float:
        """Continues while the machine is suspended, if the system has such a clock, so that waking up is not a jump."""
        return time.clock_gettime(_STEADY)

    def wall(self) -> int:
        return time.time_ns() // 1000


def thread_seconds() -> float:
    """The processor time of the calling thread: unlike the clock, it does not count what other programs use."""
    return time.thread_time()


class SystemRandomness:
    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)
