"""The simulated event loop: virtual time, a seeded order of ready callbacks, and processes that can die at any of them.

It owns time, order and the trace, and never uses a real clock, a thread or unseeded randomness. Everything that asyncio
builds on `call_soon` and `call_at` (tasks, futures, timeouts, queues) runs on it unchanged.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple

from pydanube.sim.machine.process import (
    PROCESS,
    Failure,
    Process,
    SimHandle,
    TaskList,
    close_task,
    close_unstarted,
    is_unretrieved,
)

__all__ = ["PROCESS", "Failure", "Process", "SimBudgetExceeded", "SimLoop", "SimStalled"]

if TYPE_CHECKING:  # the type checker wants a complete loop; this one has no sockets or signals
    from asyncio import SelectorEventLoop as Base
else:
    from asyncio import AbstractEventLoop as Base

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

EVENTS_MAX = 5_000_000  # a run that needs more spins
TRACE_LINES_MAX = 100_000  # recorded lines that are kept for printing; the oldest are dropped
TIMERS_PRUNE_MIN = 256  # cancelled timers are removed when there are this many, and more than half of all


class SimBudgetExceeded(Exception):
    """The run exceeded its budget of events: most likely something spins without waiting."""


class SimStalled(Exception):
    """Nothing is ready and no timer is set, but the run is not finished: some task waits forever."""


class SimLoop(Base):
    """The `seed` decides every order that asyncio leaves open. Equal seeds give equal runs and digests."""

    def __init__(self, seed: int = 0, *, budget: int = EVENTS_MAX, record: bool = False) -> None:
        self.seed = seed
        self.budget = budget
        self.events = 0
        self.world = Context()  # for what belongs to no process: disks, networks and the scenario itself
        self.lines: deque[str] | None = deque(maxlen=TRACE_LINES_MAX) if record else None
        self._now = 0.0
        self._random = random.Random(seed)
        self._ready: list[SimHandle] = []
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timer_count = 0  # timers ever set; the second key of the heap
        self._cancelled_count = 0  # an upper bound of the cancelled timers in the heap
        self._task_count = 0
        self._tasks = TaskList()
        self._processes: list[Process] = []
        self._failures: list[Failure] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._closed = False
        self._running = False

    # -- scheduling ------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> SimHandle:
        return self.call_at(self._now, callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> SimHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self, when, callback, args, copy_context() if context is None else context)
        if self._closed:
            handle.dropped = True
        elif when <= self._now:
            self._ready.append(handle)
        else:
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> NoReturn:
        raise RuntimeError("the simulated loop has no threads")

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Any], *args: *Arguments
    ) -> NoReturn:
        raise RuntimeError("the simulated loop has no threads: use the offload port")

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Result] | Generator[Any, None, Result],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Result]:
        self._task_count += 1
        name = f"task-{self._task_count}" if name is None else str(name)
        if self._closed:
            return self._closed_task(coro, name)
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        (self._tasks if process is None else process.tasks).add(task)
        return task

    # -- running ---------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Runs until the coroutine or future is done, and returns its result or raises its exception."""
        if self._closed:
            raise RuntimeError("the simulated loop is shut down")
        if self._running:
            raise RuntimeError("the simulated loop is already running")
        main = asyncio.ensure_future(future, loop=self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            self._run(main)
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
        return main.result()

    def _run(self, main: asyncio.Future[Any]) -> None:
        ready, draw = self._ready, self._random.random
        while not main.done():
            count = len(ready)
            if count > 1:
                index = int(draw() * count)
                handle = ready[index]
                ready[index] = ready[-1]
                ready.pop()
            elif count:
                handle = ready.pop()
            else:
                self._advance_time()
                continue
            if handle.dropped:
                continue
            context = handle.context
            process = context.get(PROCESS)
            if process is not None and process.stopped:
                if process.alive:
                    process.held.append(handle)
                continue
            self.events += 1
            if self.events > self.budget:
                raise SimBudgetExceeded(f"more than {self.budget} events by {self._now:.6f} s; next: {handle!r}")
            try:
                context.run(handle.callback, *handle.arguments)  # type: ignore[arg-type]
            except (Exception, asyncio.CancelledError) as error:
                self._fail(process, f"callback {handle.callback!r}", error)

    def _advance_time(self) -> None:
        """Moves time to the next active timer, and makes all timers ready that are due then."""
        timers, ready = self._timers, self._ready
        while timers:
            when, _, handle = heapq.heappop(timers)
            if handle.dropped:
                self._cancelled_count -= 1
                continue
            process = handle.context.get(PROCESS)
            if process is not None and not process.alive:
                continue
            self._now = when
            ready.append(handle)
            while timers and timers[0][0] <= when:
                ready.append(heapq.heappop(timers)[2])
            return
        raise SimStalled(f"nothing is left to run at {self._now:.6f} s; waiting tasks: {self._waiting() or 'none'}")

    def timer_cancelled(self) -> None:
        self._cancelled_count += 1
        if self._cancelled_count > TIMERS_PRUNE_MIN and 2 * self._cancelled_count > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if not timer[2].dropped]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def _waiting(self) -> str:
        found = []
        for owner, tasks in self._task_lists():
            for task in tasks.items:
                if not task.done():
                    frames = task.get_stack()
                    where = f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "?"
                    found.append(f"{owner} {task.get_name()} in {where}")
        return "; ".join(found[:20])

    # -- processes -------------------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """A new life of the process `name`, whose previous life must have ended."""
        former = [process for process in self._processes if process.name == name]
        if former and former[-1].alive:
            raise ValueError(f"{former[-1]!r} is still alive")
        process = Process(name, len(former) + 1, Context())
        process.context.run(PROCESS.set, process)
        self._processes.append(process)
        self.trace("process.start", name, process.incarnation)
        return process

    def spawn(
        self, process: Process, coroutine: Coroutine[Any, Any, Result], *, name: str | None = None
    ) -> asyncio.Task[Result]:
        """Starts a task in the process. The tasks that it starts belong to the process too."""
        return self.create_task(coroutine, name=name, context=process.context.copy())

    def run_in(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """Runs a callback in the process at once, from outside: a message or an interrupt arrives."""
        if process.stopped:
            if process.alive:
                process.held.append(SimHandle(self, self._now, callback, args, process.context))
            return
        try:
            process.context.run(callback, *args)
        except (Exception, asyncio.CancelledError) as error:
            self._fail(process, f"callback {callback!r}", error)

    def kill(self, process: Process) -> None:
        """Kills the process like `kill -9`: nothing of it runs after that, not even a `finally`."""
        if not process.alive:
            return
        process.alive = False
        process.stopped = True
        process.held.clear()
        for task in process.tasks.items:
            if is_unretrieved(task):  # the task that would have looked at it is dead
                task._log_traceback = False
            close_unstarted(task)
        self.trace("process.kill", process.name, process.incarnation)
        for callback in process.on_kill:
            callback(process)
        process.on_kill.clear()

    def pause(self, process: Process) -> None:
        """Stops the process like SIGSTOP: its callbacks wait for `resume`, while time passes for the others."""
        if process.alive:
            process.stopped = True
            self.trace("process.pause", process.name)

    def resume(self, process: Process) -> None:
        if process.alive and process.stopped:
            process.stopped = False
            self._ready.extend(process.held)
            process.held.clear()
            self.trace("process.resume", process.name)

    # -- trace and failures ----------------------------------------------------------------------------------------

    def trace(self, kind: str, *values: object) -> None:
        """Adds an event to the digest. The values must have the same `repr` in every run: no ids, no sets."""
        if self._closed:
            return
        line = f"{self._now:.9f} {kind} {values!r}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def trace_digest(self) -> str:
        """A digest of the trace, the time, the number of events and every seeded choice, equal for equal runs."""
        digest = self._hash.copy()
        digest.update(f"{self._now!r} {self.events} {self._random.getstate()!r}".encode())
        return digest.hexdigest()

    def fork_random(self, name: str) -> random.Random:
        """A random generator for one part of the world, independent of all others."""
        return random.Random(f"{self.seed}/{name}")

    @property
    def failures(self) -> list[Failure]:
        """Exceptions of callbacks, and of tasks whose exception was not retrieved so far."""
        found = list(self._failures)
        for owner, tasks in self._task_lists():
            for task in tasks.items:
                if is_unretrieved(task):
                    found.append(Failure(self._now, owner, f"task {task.get_name()}", task._exception))
        return found

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._fail(PROCESS.get(), str(context.get("message")), context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def _fail(self, process: Process | None, message: str, error: BaseException | None) -> None:
        if not self._closed:
            self._failures.append(Failure(self._now, repr(process) if process else "world", message, error))

    # -- ending ----------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Drops all pending callbacks and closes the coroutines silently. What they still try has no effect."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # so that a `finally` that asks for the loop gets this one
        try:
            for _, tasks in self._task_lists():
                for task in tasks.items:
                    if not task.done():
                        close_task(task)
                tasks.items.clear()
        finally:
            asyncio._set_running_loop(before)
        for process in self._processes:
            process.held.clear()
            process.on_kill.clear()

    def close(self) -> None:
        self.shutdown()

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def _task_lists(self) -> list[tuple[str, TaskList]]:
        return [("world", self._tasks), *((repr(process), process.tasks) for process in self._processes)]

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.create_task(generator.aclose())

    def _closed_task(self, coro: Any, name: str) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name)
        close_task(task)
        return task
