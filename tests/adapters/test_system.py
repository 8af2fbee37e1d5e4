"""The clock, the randomness and the threads of the machine do what their ports say."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.adapters.threads import ThreadOffload
from pydanube.ports.clock import Clock
from pydanube.ports.offload import Offload
from pydanube.ports.randomness import Randomness


def test_the_clock_counts_seconds_and_microseconds() -> None:
    clock: Clock = SystemClock()
    first = clock.monotonic()
    assert clock.monotonic() >= first
    assert abs(clock.wall() / 1e6 - time.time()) < 10


def test_randomness_stays_within_its_bounds() -> None:
    randomness: Randomness = SystemRandomness()
    assert len(randomness.bytes(20)) == 20
    assert randomness.bytes(16) != randomness.bytes(16)
    assert {randomness.below(3) for _ in range(300)} == {0, 1, 2}


def test_offloaded_work_runs_in_another_thread_and_its_errors_come_back() -> None:
    threads = ThreadOffload()
    offload: Offload = threads

    async def scenario() -> None:
        assert await offload.run(threading.get_ident) != threading.get_ident()
        assert await offload.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await offload.run(divmod, 7, 0)

    asyncio.run(scenario())
    threads.close()
