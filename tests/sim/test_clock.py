"""The simulated clock, randomness and offload, all controlled by the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from pydanube.ports.clock import Clock
from pydanube.ports.offload import Offload
from pydanube.ports.randomness import Randomness
from pydanube.sim.machine.clock import EPOCH_SECONDS, SimClock
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.offload import SimOffload
from pydanube.sim.machine.randomness import SimRandomness

START = EPOCH_SECONDS * 1_000_000


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    failures = loop.failures
    loop.shutdown()
    assert failures == []


def pass_time(loop: SimLoop, seconds: float) -> None:
    loop.run_until_complete(asyncio.sleep(seconds))


def test_both_clocks_follow_the_loop(loop: SimLoop) -> None:
    clock: Clock = SimClock(loop)
    assert (clock.monotonic(), clock.wall()) == (0.0, START)
    pass_time(loop, 2.5)
    assert (clock.monotonic(), clock.wall()) == (2.5, START + 2_500_000)


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(loop: SimLoop) -> None:
    clock = SimClock(loop, offset=-3)
    clock.jump(3600)
    assert clock.wall() == START + 3_597_000_000
    clock.jump(-7200)
    pass_time(loop, 1)
    assert (clock.monotonic(), clock.wall()) == (1.0, START - 3_602_000_000)


def test_a_frozen_wall_clock_stands_still_until_it_thaws(loop: SimLoop) -> None:
    clock = SimClock(loop)
    clock.freeze()
    pass_time(loop, 5)
    assert (clock.monotonic(), clock.wall()) == (5.0, START)
    clock.jump(1)
    assert clock.wall() == START + 1_000_000
    clock.thaw()
    assert clock.wall() == START + 6_000_000


def test_drift_changes_the_speed_and_never_goes_back(loop: SimLoop) -> None:
    clock = SimClock(loop, drift=0.1)
    pass_time(loop, 10)
    assert clock.monotonic() == pytest.approx(11.0)
    clock.set_drift(-0.1)
    assert clock.monotonic() == pytest.approx(11.0)
    pass_time(loop, 10)
    assert clock.monotonic() == pytest.approx(20.0)
    assert clock.wall() == pytest.approx(START + 20_000_000)


def test_randomness_repeats_with_its_seed() -> None:
    first: Randomness = SimRandomness(Random(1))
    second = SimRandomness(Random(1))
    assert (first.bytes(20), first.below(1_000)) == (second.bytes(20), second.below(1_000))
    assert {first.below(3) for _ in range(100)} == {0, 1, 2}


def test_offloaded_work_comes_back_later_in_any_order(loop: SimLoop) -> None:
    offload: Offload = SimOffload(loop, Random(1))
    order: list[int] = []

    async def scenario() -> None:
        work = [offload.run(order.append, number) for number in range(10)]
        assert order == []
        await asyncio.gather(*work)
        assert await offload.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await offload.run(divmod, 7, 0)

    loop.run_until_complete(scenario())
    assert sorted(order) == list(range(10)) != order


def test_work_of_a_dead_process_is_dropped(loop: SimLoop) -> None:
    offload = SimOffload(loop, Random(1))
    ran: list[int] = []

    async def program() -> None:
        await offload.run(ran.append, 1)

    process = loop.process("one")
    loop.spawn(process, program())
    loop.run_until_complete(asyncio.sleep(0))
    loop.kill(process)
    pass_time(loop, 1)
    assert ran == []
