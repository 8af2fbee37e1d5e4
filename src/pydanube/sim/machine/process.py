"""Processes on the simulated loop, which can be killed and paused, with their callbacks, tasks and failures."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube.sim.machine.loop import SimLoop

TASKS_PRUNE_MIN = 64  # finished tasks are dropped when there are this many, or half of all


@dataclass(eq=False, slots=True)
class Process:
    """One life of a simulated process. A restart is another `Process` with the same name and the next incarnation."""

    name: str
    incarnation: int
    context: Context
    alive: bool = True
    stopped: bool = False  # dead or paused: its callbacks do not run
    held: list[SimHandle] = field(default_factory=list)  # callbacks that became ready during a pause
    on_kill: list[Callable[[Process], None]] = field(default_factory=list)
    tasks: TaskList = field(default_factory=lambda: TaskList())

    def __repr__(self) -> str:
        return f"{self.name}#{self.incarnation}"


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


@dataclass(frozen=True, slots=True)
class Failure:
    """An unhandled exception."""

    time: float
    process: str
    message: str
    error: BaseException | None

    def __str__(self) -> str:
        return f"{self.time:.6f} {self.process}: {self.message}: {self.error!r}"


class SimHandle(asyncio.TimerHandle):
    """A callback to run now or at `deadline`. It is lighter than asyncio's handle, whose fields it does not use."""

    __slots__ = ("arguments", "callback", "context", "deadline", "dropped", "loop")

    def __init__(
        self,
        loop: SimLoop,
        deadline: float,
        callback: Callable[..., object] | None,
        arguments: tuple[Any, ...],
        context: Context,
    ) -> None:  # the base class is not initialised on purpose: see above
        self.loop = loop
        self.deadline = deadline
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.dropped = False

    def cancel(self) -> None:
        if not self.dropped:
            self.dropped = True
            self.callback = None
            self.arguments = ()
            self.loop.timer_cancelled()

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.deadline

    def __repr__(self) -> str:
        return f"<SimHandle {self.callback!r} at {self.deadline:.6f}{' cancelled' if self.dropped else ''}>"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class TaskList:
    """Keeps tasks alive: if a task of a dead process were collected, its `finally` blocks would run."""

    __slots__ = ("items", "limit")

    def __init__(self) -> None:
        self.items: list[asyncio.Task[Any]] = []
        self.limit = TASKS_PRUNE_MIN

    def add(self, task: asyncio.Task[Any]) -> None:
        self.items.append(task)
        if len(self.items) > self.limit:
            self.items = [task for task in self.items if not task.done() or is_unretrieved(task)]
            self.limit = max(TASKS_PRUNE_MIN, 2 * len(self.items))


def is_unretrieved(task: asyncio.Task[Any]) -> bool:
    """Whether the task failed and its exception was not retrieved yet."""
    return task._log_traceback


def close_task(task: asyncio.Task[Any]) -> None:
    with contextlib.suppress(BaseException):  # a `finally` may await or raise, which no one can handle
        task.get_coro().close()


def close_unstarted(task: asyncio.Task[Any]) -> None:
    """Closes the coroutine of a task that never started, which would warn that it was never awaited."""
    coroutine = task.get_coro()
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()
