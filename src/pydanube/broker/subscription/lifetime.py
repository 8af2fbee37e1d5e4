"""The state of a subscription on its broker, and when it works: its turns of the loop, its timer and its tasks.

Owned by its subscription; its parts share it. It decides when there is work, never what that is.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections.abc import Awaitable, Callable
from enum import Enum

from pydanube.base.limits import SECOND
from pydanube.ports.clock import Clock


class State(Enum):
    """A subscription begins open. Nothing happens any more once it is closed."""

    OPEN = "open"
    SEEKING = "seeking"  # a seek is not durable yet: nothing is read or handed out meanwhile
    CLOSED = "closed"


OPEN, SEEKING, CLOSED = State.OPEN, State.SEEKING, State.CLOSED  # an enum member takes longer to look up


class Lifetime:
    """`on_turn` is called whenever there may be something to do, and only while the subscription is open."""

    __slots__ = ("_clock", "_due", "_loop", "_name", "_scheduled", "_seeks", "_tasks", "_timer", "on_turn", "state")

    def __init__(self, name: str, clock: Clock) -> None:
        self.state: State = OPEN
        self.on_turn: Callable[[], None]  # set once, before the first turn
        self._name = name
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._scheduled = False  # a turn is
        self._seeks = 0  # that are not durable yet
        self._due: int | None = None  # when the timer rings
        self._timer: TimerHandle | None = None
        self._tasks: dict[Future[None], None] = {}

    @property
    def now(self) -> int:
        """The time of engines: monotonic, in microseconds."""
        return int(self._clock.monotonic() * SECOND)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is a turn soon, unless one is scheduled already."""
        if not self._scheduled and self.state is not CLOSED:
            self._scheduled = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._scheduled = False
        if self.state is OPEN:
            self.on_turn()

    def wake_at(self, due: int | None) -> None:
        """There is a turn at that time at the latest; None if nothing is due by itself."""
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
        """It is durable. With the last one, work goes on."""
        self._seeks -= 1
        if not self._seeks and self.state is SEEKING:
            self.state = OPEN
        self.wake()

    # -- tasks and the end ---------------------------------------------------------------------------------------------

    def start(self, work: Awaitable[None]) -> None:
        """A task that ends with the subscription at the latest. An error that it raises is reported."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: Future[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": f"subscription {self._name} failed", "exception": error})

    def close(self) -> None:
        """No more turns, and all tasks are cancelled."""
        self.state = CLOSED
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Once all tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
