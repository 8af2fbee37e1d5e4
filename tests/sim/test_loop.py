"""The simulated loop: asyncio runs on it unchanged, the seed decides the order, and processes can be killed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from collections.abc import AsyncIterator, Iterator

import pytest

from pydanube.sim.machine.loop import PROCESS, SimBudgetExceeded, SimLoop, SimStalled


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(7)
    yield loop
    failures = loop.failures
    loop.shutdown()
    assert failures == []


# -- time --------------------------------------------------------------------------------------------------------------


def test_time_jumps_to_the_next_timer(loop: SimLoop) -> None:
    async def scenario() -> list[float]:
        times = []
        for delay in (3600.0, 0.25, 0.0):
            await asyncio.sleep(delay)
            times.append(loop.time())
        return times

    assert loop.run_until_complete(scenario()) == [3600.0, 3600.25, 3600.25]


def test_timers_fire_in_the_order_of_their_times_and_cancelled_ones_never(loop: SimLoop) -> None:
    fired: list[int] = []

    async def scenario() -> None:
        handles = [loop.call_later(1000 - n, fired.append, n) for n in range(1000)]
        for n, handle in enumerate(handles):
            if n % 10:
                handle.cancel()
        await asyncio.sleep(2000)

    loop.run_until_complete(scenario())
    assert fired == list(range(990, -1, -10))


def test_a_cancelled_timer_does_not_move_time(loop: SimLoop) -> None:
    async def scenario() -> float:
        loop.call_later(500, lambda: None).cancel()
        future = loop.create_future()
        loop.call_later(1, future.set_result, None)
        await future
        return loop.time()

    assert loop.run_until_complete(scenario()) == 1.0


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_timeouts_cancel_what_they_guard(loop: SimLoop) -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 3)
        assert loop.time() == 3.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await loop.create_future()
        assert loop.time() == 5.0
        assert await asyncio.wait_for(asyncio.sleep(1, "done"), 3) == "done"

    loop.run_until_complete(scenario())


def test_gather_queues_locks_events_and_groups_work(loop: SimLoop) -> None:
    async def scenario() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        lock, event = asyncio.Lock(), asyncio.Event()
        inside = 0

        async def produce(first: int) -> None:
            await event.wait()
            for number in range(first, first + 10):
                await queue.put(number)

        async def consume() -> list[int]:
            nonlocal inside
            found = []
            for _ in range(10):
                found.append(await queue.get())
                async with lock:
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0.1)
                    inside -= 1
            return found

        loop.call_later(1, event.set)
        async with asyncio.TaskGroup() as group:
            for first in (0, 10, 20):
                group.create_task(produce(first))
            found = await asyncio.gather(*(consume() for _ in range(3)))
        assert sorted(number for numbers in found for number in numbers) == list(range(30))

    loop.run_until_complete(scenario())


def test_an_error_of_the_awaited_coroutine_is_raised(loop: SimLoop) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        loop.run_until_complete(fail())


def test_abandoned_generators_are_closed(loop: SimLoop) -> None:
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            closed.append(True)

    async def scenario() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(2)

    loop.run_until_complete(scenario())
    assert closed == [True]


def test_threads_are_refused(loop: SimLoop) -> None:
    async def scenario() -> None:
        assert asyncio.get_running_loop() is loop
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)
        with pytest.raises(RuntimeError, match="no threads"):
            loop.call_soon_threadsafe(print)

    loop.run_until_complete(scenario())


# -- order and trace ---------------------------------------------------------------------------------------------------


def trace_of(seed: int) -> tuple[str, list[int]]:
    loop = SimLoop(seed)
    order: list[int] = []

    async def worker(number: int) -> None:
        for _ in range(5):
            await asyncio.sleep(0.001 * (number % 3))
            order.append(number)
            loop.trace("step", number)

    async def scenario() -> None:
        await asyncio.gather(*(worker(number) for number in range(8)))

    loop.run_until_complete(scenario())
    digest = loop.trace_digest()
    loop.shutdown()
    return digest, order


def test_equal_seeds_give_equal_runs_and_others_another_order() -> None:
    runs = [trace_of(seed) for seed in range(20)]
    assert runs == [trace_of(seed) for seed in range(20)]
    assert len({digest for digest, _ in runs}) == 20
    assert len({tuple(order) for _, order in runs}) == 20


def test_every_order_of_ready_callbacks_comes_up() -> None:
    seen = set()
    for seed in range(200):
        loop = SimLoop(seed)
        order: list[int] = []
        for number in range(3):
            loop.call_soon(order.append, number)
        loop.run_until_complete(asyncio.sleep(1))
        seen.add(tuple(order))
        loop.shutdown()
    assert len(seen) == 6


def test_the_digest_covers_choices_that_are_not_traced() -> None:
    digests = set()
    for extra in (0, 1):
        loop = SimLoop(1)
        for _ in range(3 + extra):
            loop.call_soon(int)
        loop.run_until_complete(asyncio.sleep(1))
        digests.add(loop.trace_digest())
        loop.shutdown()
    assert len(digests) == 2


def test_a_recorded_trace_can_be_printed() -> None:
    loop = SimLoop(1, record=True)
    loop.run_until_complete(asyncio.sleep(1.5))
    loop.trace("fault", "disk", 3)
    assert loop.lines is not None
    assert list(loop.lines) == ["1.500000000 fault ('disk', 3)"]
    loop.shutdown()


def test_forked_randomness_is_its_own_and_the_same_for_a_seed() -> None:
    first, second = SimLoop(5), SimLoop(5)
    first.fork_random("network").random()
    assert first.fork_random("disk").random() == second.fork_random("disk").random()
    assert first.fork_random("disk").random() != first.fork_random("network").random()


# -- budgets and stalls ------------------------------------------------------------------------------------------------


def test_a_run_that_spins_exceeds_its_budget() -> None:
    loop = SimLoop(1, budget=1_000)

    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(SimBudgetExceeded, match="1000 events"):
        loop.run_until_complete(spin())
    assert loop.events == 1_001
    loop.shutdown()


def test_a_wait_that_nothing_can_end_is_a_stall_that_says_where() -> None:
    loop = SimLoop(1)

    async def wait_for_ever() -> None:
        await loop.create_future()

    with pytest.raises(SimStalled, match="wait_for_ever"):
        loop.run_until_complete(wait_for_ever())
    loop.shutdown()


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_killed_process_runs_nothing_more_not_even_finally(loop: SimLoop) -> None:
    marks: list[str] = []

    async def child(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                marks.append(name)
        finally:
            marks.append(f"{name} finally")

    async def program(name: str) -> None:
        asyncio.get_running_loop().create_task(child(name))
        await child(name)

    async def scenario() -> None:
        one, two = loop.process("one"), loop.process("two")
        loop.spawn(one, program("one"))
        loop.spawn(two, program("two"))
        await asyncio.sleep(2.5)
        loop.kill(one)
        assert not one.alive
        await asyncio.sleep(2)

    loop.run_until_complete(scenario())
    assert marks.count("one") == 4
    assert marks.count("two") == 8
    assert "one finally" not in marks


def test_what_a_dead_process_waited_for_does_not_wake_it(loop: SimLoop) -> None:
    woken = []
    future = loop.create_future()

    async def program() -> None:
        await future
        woken.append(True)

    async def scenario() -> None:
        process = loop.process("one")
        loop.spawn(process, program())
        await asyncio.sleep(1)
        future.set_result(None)  # its wake-up is ready when the process dies
        loop.kill(process)
        await asyncio.sleep(1)

    loop.run_until_complete(scenario())
    assert woken == []


def test_a_restart_is_another_incarnation(loop: SimLoop) -> None:
    async def program() -> str:
        return repr(PROCESS.get())

    first = loop.process("one")
    with pytest.raises(ValueError, match="one#1 is still alive"):
        loop.process("one")
    loop.kill(first)
    loop.kill(first)
    assert loop.run_until_complete(loop.spawn(loop.process("one"), program())) == "one#2"


def test_a_paused_process_continues_where_it_was(loop: SimLoop) -> None:
    times: list[float] = []

    async def program() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            times.append(loop.time())

    async def scenario() -> None:
        process = loop.process("one")
        task = loop.spawn(process, program())
        await asyncio.sleep(1.5)
        loop.pause(process)
        await asyncio.sleep(60)
        loop.run_in(process, times.append, -1.0)
        assert times == [1.0]
        loop.resume(process)
        await task

    loop.run_until_complete(scenario())
    assert sorted(times) == [-1.0, 1.0, 61.5, 62.5]


def test_a_watcher_of_a_process_is_told_of_its_death_once(loop: SimLoop) -> None:
    dead: list[str] = []
    process = loop.process("one")
    process.on_kill.append(lambda process: dead.append(process.name))
    loop.kill(process)
    loop.kill(process)
    assert dead == ["one"]


# -- failures and the end ----------------------------------------------------------------------------------------------


def test_unhandled_errors_are_collected() -> None:
    loop = SimLoop(1)

    def broken() -> None:
        raise KeyError("callback")

    async def fail() -> None:
        raise ValueError("task")

    async def scenario() -> None:
        process = loop.process("one")
        loop.spawn(process, fail(), name="worker")
        kept = loop.spawn(process, fail())
        loop.call_soon(broken)
        loop.run_in(process, broken)
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="task"):
            await kept

    loop.run_until_complete(scenario())
    found = sorted(str(failure) for failure in loop.failures)
    loop.shutdown()
    assert len(found) == 3
    assert "one#1: callback" in found[0]
    assert "KeyError('callback')" in found[0]
    assert "world: callback" in found[1]
    assert found[2].endswith("one#1: task worker: ValueError('task')")


def test_an_error_that_a_dead_process_could_not_retrieve_is_not_a_failure(loop: SimLoop) -> None:
    async def fail() -> None:
        raise ValueError

    async def scenario() -> None:
        process = loop.process("one")
        loop.spawn(process, fail())
        await asyncio.sleep(1)
        loop.kill(process)

    loop.run_until_complete(scenario())


def test_a_run_ends_silently_whatever_is_pending() -> None:
    loop = SimLoop(1)
    marks = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            marks.append("closed")
            loop.call_soon(marks.append, "never")
            loop.create_task(stubborn())
            await asyncio.sleep(1)

    async def unstarted() -> None:
        raise AssertionError

    async def scenario() -> None:
        process = loop.process("one")
        loop.spawn(process, stubborn())
        failed = loop.create_future()
        failed.set_exception(KeyError("unseen"))
        loop.call_later(50, failed.result)
        del failed
        await asyncio.sleep(1)
        loop.spawn(process, unstarted())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.run_until_complete(scenario())
        loop.shutdown()
        loop.shutdown()
        gc.collect()
    assert marks == ["closed"]
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="shut down"):
        loop.run_until_complete(loop.create_future())


def test_finished_tasks_are_forgotten(loop: SimLoop) -> None:
    async def scenario() -> None:
        for _ in range(1_000):
            await loop.create_task(asyncio.sleep(0))

    loop.run_until_complete(scenario())
    assert sum(len(tasks.items) for _, tasks in loop._task_lists()) <= 65
