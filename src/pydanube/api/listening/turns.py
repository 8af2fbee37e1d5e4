"""Divides the loop's time: a connection that sends much is served in several turns, so that others do not wait long.

It owns the queue for turns, and never decides what is done in one. A connection is a `Worker`: it handles what has
arrived in short steps, and looks at the clock between them.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable

from pydanube.adapters.system import SystemClock
from pydanube.base.limits import FRESH_SECONDS, REQUESTS_BEGUN_PER_TURN, TURN_SECONDS
from pydanube.ports.clock import Clock


class Turns:
    """The turns of one broker, whose connections share the loop.

    It uses the system clock even if a test gives the broker another one, because it measures processor time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.now = (SystemClock() if clock is None else clock).monotonic
        self._behind: deque[Callable[[float], None]] = deque()  # the workers that take turns
        self._to_begin: deque[Future[None]] = deque()
        self._waking = 0  # requests that may begin but have not resumed yet; none may overtake them
        self._begun = 0  # requests that began in this turn of the loop
        self._may_begin = REQUESTS_BEGUN_PER_TURN  # per turn; fewer after long turns
        self._looked = 0.0  # when the last turn began
        self._scheduled = False
        self.left = FRESH_SECONDS  # of this turn of the loop, for all connections that are not behind

    def spend(self, seconds: float) -> None:
        """Counts the time spent on a connection that is not behind. The next turn of the loop starts over."""
        self.left -= seconds
        if self.left < TURN_SECONDS / 2:
            self._schedule()

    def later(self, work: Callable[[float], None]) -> None:
        """Calls `work` in a later turn of the loop, with the time when it must stop. All that wait share each turn."""
        self._behind.append(work)
        self._schedule()

    async def begin(self) -> None:
        """Waits until a request that may take long may begin: only a few do so in each turn of the loop, in order."""
        if self._begun < self._may_begin and not self._to_begin and not self._waking:
            self._begun += 1
            self._schedule()
            return
        turn: Future[None] = self._loop().create_future()
        self._to_begin.append(turn)
        self._schedule()
        try:
            await turn
        finally:
            if not turn.cancelled():
                self._waking -= 1

    def _loop(self) -> AbstractEventLoop:
        return asyncio.get_running_loop()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._looked = self.now()
            self._loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._scheduled = False
        self.left = FRESH_SECONDS
        now = self.now()
        end = now + TURN_SECONDS
        if now - self._looked > TURN_SECONDS:  # the last turn was long, with the requests that had begun
            self._may_begin = max(1, self._may_begin // 2)
        elif self._may_begin < REQUESTS_BEGUN_PER_TURN:
            self._may_begin += 1
        self._begun = 0
        while self._to_begin and self._begun < self._may_begin:
            turn = self._to_begin.popleft()
            if not turn.done():  # otherwise the caller is gone
                turn.set_result(None)
                self._begun += 1
                self._waking += 1
        try:
            for _ in range(len(self._behind)):
                self._behind.popleft()(end)
                if self.now() >= end:
                    break
        finally:  # even if one fails, the others get their turns
            if self._behind or self._to_begin or self._begun:
                self._schedule()


class Worker:
    """A connection that handles what it was sent in turns. While it is `lagging`, hardly anything more is read from it.

    A connection that is not behind is served at once, unless others have used up the time of this turn. An `urgent` one
    does not wait for them: its requests are small, and needed most when the broker is busy.
    """

    lagging = False
    urgent = False

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def work(self) -> None:
        """Handles what has arrived, as far as time allows; the rest follows in later turns."""
        turns = self.turns
        if self.lagging:
            return
        if turns.left <= 0 and not self.urgent:
            self.fall_behind()
            return
        start = turns.now()
        self._go_on_until(start + max(turns.left, TURN_SECONDS / 2))
        turns.spend(turns.now() - start)

    def _turn(self, end: float) -> None:
        self.lagging = False
        self._go_on_until(end)
        if not self.lagging:
            self._read_or_not()

    def _go_on_until(self, end: float) -> None:
        while self._step():
            if self.turns.now() >= end:
                self.fall_behind()
                break
        self._turn_over()

    def fall_behind(self) -> None:
        """Queues the connection for a turn."""
        if not self.lagging:
            self.lagging = True
            self.turns.later(self._turn)

    def _step(self) -> bool:
        """Handles a little of what has arrived, for a millisecond or two. True if there may be more to do."""
        raise NotImplementedError

    def _turn_over(self) -> None:
        """Called once after all steps of a turn."""

    def _read_or_not(self) -> None:
        """Reads from the socket, unless it is behind or has another reason not to."""
        raise NotImplementedError
