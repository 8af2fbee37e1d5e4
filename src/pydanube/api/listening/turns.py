"""Divides the loop's time among connections: each gets the same, and those that want little do not wait for the others.

It is a deficit round robin. In each turn of the loop a connection may use a quantum of time, in which received bytes
count as well; what it uses beyond that it does not get in the next turns. It owns the queues for turns, and never
decides what is done in one. A connection is a `Worker`: it handles what has arrived in short steps, and looks at the
clock between them.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable

from pydanube.adapters.system import SystemClock, thread_seconds
from pydanube.api.listening.loop_watch import TurnLengths
from pydanube.base.limits import (
    ALONE_TURNS,
    BYTE_SECONDS,
    DEBT_SECONDS_MAX,
    FRESH_SECONDS,
    QUANTUM_SECONDS,
    REQUESTS_BEGUN_PER_TURN,
    TURN_SECONDS,
)
from pydanube.ports.clock import Clock

Work = Callable[[float], None]  # is given the time when it must stop
_MEASURED_LEFT = FRESH_SECONDS - QUANTUM_SECONDS / 2  # looking at every turn would cost more than most turns take
_SMALL_SECONDS = QUANTUM_SECONDS * 3 / 4  # left of its quantum: it has sent little, and hardly anything of it is done


class Turns:
    """The turns of one broker, whose connections share the loop.

    It uses the system clock even if a test gives the broker another one, because it measures processor time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.now = (SystemClock() if clock is None else clock).monotonic
        self._small: deque[Work] = deque()  # of connections that want little, and wait because of others
        self._bulk: deque[Work] = deque()  # of those that want more than a part of their quantum
        self._to_begin: deque[Future[None]] = deque()
        self._waking = 0  # requests that may begin but have not resumed yet; none may overtake them
        self._begun = 0  # requests that began in this turn of the loop
        self._may_begin = REQUESTS_BEGUN_PER_TURN  # per turn; fewer after long turns
        self._last: object = None  # the key of the connection that was served; it keeps nothing alive
        self._alone_from = 0  # the turn from which on it counts as alone
        self.number = 0  # of this turn; counts only while there is something to do
        self._looked = 0.0  # when the last turn began, as far as it was seen
        self._used = 0.0  # the processor time of the loop's thread at that time
        self._scheduled = False
        self.left = FRESH_SECONDS  # of this turn of the loop, for all connections that are not behind
        self.lengths = TurnLengths()

    def spend(self, seconds: float, since: float) -> None:
        """Counts the time spent on a connection that is not behind. Each turn of the loop has its full time again."""
        self.left -= seconds
        if self.left < _MEASURED_LEFT and not self._scheduled:
            self._schedule(since)

    @property
    def idle(self) -> bool:
        """Whether no connection waits for a turn."""
        return not self._small and not self._bulk

    def alone(self, worker: Worker) -> bool:
        """Whether no other connection has done anything for a while: then it may use whole turns."""
        if worker.key is not self._last:
            self._last, self._alone_from = worker.key, self.number + ALONE_TURNS
        return self.number >= self._alone_from and self.idle

    def later(self, work: Work, *, small: bool = False) -> None:
        """Calls `work` in a later turn of the loop, which all that wait share. What is small comes first."""
        (self._small if small else self._bulk).append(work)
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

    def _schedule(self, since: float | None = None) -> None:
        if not self._scheduled:
            self._scheduled = True
            now = self.now()
            self._looked = now if since is None else since
            self._used = thread_seconds() - (now - self._looked)
            self._loop().call_soon(self._serve)

    def _serve(self) -> None:
        now = self.now()
        took = now - self._looked
        self.lengths.add(took, thread_seconds() - self._used)
        self.number += 1
        again = self.left < _MEASURED_LEFT or not self.idle  # what was begun is done in this turn: measure that, too
        self._scheduled = False
        self.left = FRESH_SECONDS
        if took > TURN_SECONDS:  # the last turn was long, with the requests that had begun
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
            for waiting in (self._small, self._bulk):  # at least one of each
                self._share(waiting, now + TURN_SECONDS)
        finally:  # even if one fails, the others get their turns
            if again or self._small or self._bulk or self._to_begin or self._begun:
                self._schedule(now)

    def _share(self, waiting: deque[Work], end: float) -> None:
        """Lets those that wait work one after the other, each once at most."""
        for _ in range(len(waiting)):
            waiting.popleft()(end)
            if self.now() >= end:
                break


class Worker:
    """A connection that handles what it was sent in turns. While it is `lagging`, hardly anything more is read from it.

    A connection that is not behind is served at once, unless others have used up the time of this turn. An `urgent` one
    does not wait for them: its requests are small, and needed most when the broker is busy.
    """

    lagging = False
    urgent = False
    _number = 0  # of the turn in which it was last given a quantum
    _credit = QUANTUM_SECONDS  # what it may use; negative after it has used more

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.key = object()

    def work(self, received: int = 0) -> None:
        """Handles what has arrived, as far as time allows; the rest follows in later turns."""
        turns = self.turns
        if not self.lagging:
            self._replenish()
        self._credit -= received * BYTE_SECONDS
        if self.lagging:
            return
        part = turns.left if turns.alone(self) else min(turns.left, self._credit)
        if part <= 0 and not self.urgent:
            self.fall_behind()
            return
        start = turns.now()
        more = self._serve_until(start + max(part, QUANTUM_SECONDS / 2))
        took = turns.now() - start
        self._credit -= took
        turns.spend(took, start)
        if more:
            self.fall_behind()

    def _replenish(self) -> None:
        """Adds the quantum of this turn, once. What was not used in earlier turns is not kept."""
        number = self.turns.number
        if self._number != number:
            self._number = number
            self._credit = min(max(self._credit, -DEBT_SECONDS_MAX) + QUANTUM_SECONDS, QUANTUM_SECONDS)

    def _turn(self, end: float) -> None:
        self.lagging = False
        self._replenish()
        start = self.turns.now()
        if not self.turns.alone(self):
            if self._credit <= 0:
                self.fall_behind()
                return
            end = min(end, start + self._credit)
        more = self._serve_until(end)
        self._credit -= self.turns.now() - start
        if more:
            self.fall_behind()
        if not self.lagging:
            self._read_or_not()

    def _serve_until(self, end: float) -> bool:
        """Returns whether there is more to do."""
        now, more = self.turns.now, self._step()
        while more and now() < end:
            more = self._step()
        self._turn_over()
        return more

    def fall_behind(self) -> None:
        """Queues the connection for a turn."""
        if not self.lagging:
            self.lagging = True
            self.turns.later(self._turn, small=self._credit > _SMALL_SECONDS)

    def _step(self) -> bool:
        """Handles a little of what has arrived, for a millisecond or two. True if there may be more to do."""
        raise NotImplementedError

    def _turn_over(self) -> None:
        """Called once after all steps of a turn."""

    def _read_or_not(self) -> None:
        """Reads from the socket, unless it is behind or has another reason not to."""
        raise NotImplementedError
