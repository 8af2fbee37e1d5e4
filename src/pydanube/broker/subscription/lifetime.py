"""The state of a subscription on its broker, and when it works: its turns of the loop, its timer and its tasks.

Owned by its subscription and shared by its parts. It decides when there is work, but not which.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections.abc import Awaitable, Callable
from enum import Enum

from pydanube.base.limits import SECOND
from pydanube.ports.clock import Clock


class State(Enum):
    """A subscription is open at first. Once closed, it stays closed."""

    OPEN = "open"
    SEEKING = "seeking"  # a seek is not durable yet: nothing is read or delivered
    CLOSED = "closed"


OPEN, SEEKING, CLOSED = State.OPEN, State.SEEKING, State.CLOSED  # looking up an enum member takes longer


class Lifetime:
    """Calls `on_turn` whenever there may be work, but only while the subscription is open."""

    __slots__ = ("_clock", "_due", "_loop", "_name", "_scheduled", "_seeks", "_tasks", "_timer", "on_turn", "state")

    def __init__(self, name: str, clock: Clock) -> None:
        self.state: State = OPEN
        self.on_turn: Callable[[], None]  # set once, before the first turn
        self._name = name
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._scheduled = False  # whether a turn is scheduled
        self._seeks = 0  # how many are not durable yet
        self._due: int | None = None  # when the timer rings
        self._timer: TimerHandle | None = None
        self._tasks: dict[Future[None], None] = {}

    @property
    def now(self) -> int:
        """The time of engines: monotonic, in microseconds."""
        return int(self._clock.monotonic() * SECOND)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedules a turn, unless one is scheduled already."""
        if not self._scheduled and self.state is not CLOSED:
            self._scheduled = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._scheduled = False
        if self.state is OPEN:
            self.on_turn()

    def wake_at(self, due: int | None) -> None:
        """Schedules a turn for `due` or earlier; None cancels it."""
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, (due - self.now) / SECOND), self._ring)

    def _ring(self) -> None:
        self._due = self._timer = None
        self.wake()

    # -- seeks ---------------------------------------------------------------------------------------------------------

    def begin_seek(self) -> None:
        self._seeks += 1
        self.state = SEEKING

    def end_seek(self) -> None:
        """Called when a seek is durable. Work resumes when no seek is pending."""
        self._seeks -= 1
        if not self._seeks and self.state is SEEKING:
            self.state = OPEN
        self.wake()

    # -- tasks and the end ---------------------------------------------------------------------------------------------

    def start(self, work: Awaitable[None]) -> None:
        """Starts a task, which is cancelled when the subscription is closed. An error in it is reported."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: Future[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": f"subscription {self._name} failed", "exception": error})

    def close(self) -> None:
        """Ends all turns and cancels all tasks."""
        self.state = CLOSED
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Waits until all tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
