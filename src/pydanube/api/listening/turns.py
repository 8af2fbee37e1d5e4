"""The loop's time, shared out: whoever sends much works it off in several turns, and nobody else waits long for it.

Owns who waits for a turn. Never decides what is done in one. A connection is a `Worker`: it takes what came in steps
that are short whatever they hold, and looks at the clock between them.
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
    """One for a broker: all its connections share the loop.

    The clock is the machine's even where a test gives the broker another: this is about the time of the processor.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.now = (SystemClock() if clock is None else clock).monotonic
        self._behind: deque[Callable[[float], None]] = deque()  # take turns
        self._to_begin: deque[Future[None]] = deque()
        self._waking = 0  # those that may begin, and have not gone on yet: nobody overtakes them
        self._begun = 0  # requests, in this turn of the loop
        self._may_begin = REQUESTS_BEGUN_PER_TURN  # fewer after turns that were long
        self._looked = 0.0  # when the last turn began
        self._scheduled = False
        self.left = FRESH_SECONDS  # for those who are not behind, all together, in this turn of the loop

    def spend(self, seconds: float) -> None:
        """Somebody was served who is not behind. When that adds up, a later turn of the loop has it all again."""
        self.left -= seconds
        if self.left < TURN_SECONDS / 2:
            self._schedule()

    def later(self, work: Callable[[float], None]) -> None:
        """Calls `work` in a later turn of the loop with the end of its turn. All who wait share one in each."""
        self._behind.append(work)
        self._schedule()

    async def begin(self) -> None:
        """Waits until a request may begin that may take a while: in one turn of the loop few of them do, in order."""
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
        if now - self._looked > TURN_SECONDS:  # with what had begun
            self._may_begin = max(1, self._may_begin // 2)
        elif self._may_begin < REQUESTS_BEGUN_PER_TURN:
            self._may_begin += 1
        self._begun = 0
        while self._to_begin and self._begun < self._may_begin:
            turn = self._to_begin.popleft()
            if not turn.done():  # else whoever asked is gone
                turn.set_result(None)
                self._begun += 1
                self._waking += 1
        try:
            for _ in range(len(self._behind)):
                self._behind.popleft()(end)
                if self.now() >= end:
                    break
        finally:  # whatever became of one, the others have their turn
            if self._behind or self._to_begin or self._begun:
                self._schedule()


class Worker:
    """A connection that works off what it was sent, in turns. While it is `lagging`, hardly more is read from it.

    One that is not behind is served at once, if others have not used up what there is of the turn. `urgent` is one that
    does not wait for those: what it asks for is little, and wanted exactly when there is much of everything else.
    """

    lagging = False
    urgent = False

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def work(self) -> None:
        """Handles what has arrived, as far as it gets; the rest in later turns."""
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
        """There is something to do that waits for its turn."""
        if not self.lagging:
            self.lagging = True
            self.turns.later(self._turn)

    def _step(self) -> bool:
        """Does a little of what has come: a millisecond or two. True if there may be more to do."""
        raise NotImplementedError

    def _turn_over(self) -> None:
        """What is done once for all steps of a turn."""

    def _read_or_not(self) -> None:
        """Reads from the socket, unless it is behind or has another reason not to."""
        raise NotImplementedError
