"""Housekeeping: about once a second, does what has become due in each open topic.

A few topics get their turns at a time. A slow one is waited for separately, because object storage that does not answer
for one topic must not hold up the others. A topic never has two turns at once.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count

from pydanube.base.errors import DanubeError
from pydanube.base.limits import (
    HOUSEKEEPING_SLOW_TURNS_MAX,
    HOUSEKEEPING_TURN_SECONDS,
    HOUSEKEEPING_TURNS,
    KIB,
    TOPICS_LOOKED_AT_AT_ONCE,
)
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.limits.intake import Intake
from pydanube.broker.serving.leftovers import Leftovers
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.futures import cancel_all
from pydanube.storage.guard import Guard

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
ROLL_BYTES_WHEN_SHORT = 64 * KIB  # an open ledger this large is sealed if half is unneeded and the disk nearly full
QUIET_TURNS = 10  # a topic without activity gets only every tenth turn


class Housekeeping:
    """Owned by the broker's loop."""

    def __init__(
        self,
        topics: OpenTopics,
        leftovers: Leftovers,
        find_leftovers: Callable[[], Awaitable[None]],
        room: DiskRoom,
        intake: Intake,
        clock: CheckedClock,
    ) -> None:
        self._topics = topics
        self._leftovers = leftovers
        self._room = room
        self._intake = intake
        self._clock = clock
        self._find_leftovers: Callable[[], Awaitable[None]] | None = find_leftovers  # None once it has succeeded
        self.guard = Guard("housekeeping")
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self.time_moved = self._moved.set  # for tests that move the clock: does what has become due
        self._waiting: dict[OpenTopic, None] = {}  # for a turn
        self._takers: dict[Task[None], None] = {}
        self._under_way: dict[OpenTopic, Task[None]] = {}
        self._again: dict[OpenTopic, None] = {}  # those of them that have become due again
        self._slow: dict[OpenTopic, None] = {}  # their last turn was slow or still runs, so they run separately
        self._running = self._loop.create_task(self._run())

    @property
    def slow(self) -> int:
        """How many topics are waited for separately."""
        return sum(opened in self._slow for opened in self._under_way)

    async def close(self) -> None:
        await cancel_all([self._running, *self._takers, *self._under_way.values()])

    async def _run(self) -> None:
        for rounds in count(1):
            await self.guard.over(self._round(rounds))

    async def _round(self, rounds: int) -> None:
        await self._sweep()
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_SECONDS):
                await self._moved.wait()
        moved = self._moved.is_set()
        self._moved.clear()
        self._clock.trusted()  # notices a jump of the clock soon, even if no topic asks for the time
        self._intake.turn()
        await self._line_up(moved, rounds)

    async def _sweep(self) -> None:
        """Starts to remove what deleted topics have left, also before this start of the broker, without waiting."""
        if self._find_leftovers is not None:
            try:
                await self._find_leftovers()
                self._find_leftovers = None
            except DanubeError as error:
                log.warning("cleaning up after deleted topics failed; retrying: %s", error)
        self._leftovers.begin()

    async def _line_up(self, moved: bool, rounds: int) -> None:
        """Queues the topics that are due, unless they are already queued or have a turn. Looks at a few hundred in one
        turn of the loop."""
        self._slow = {each: None for each in self._slow if each.ended is None or each in self._under_way}
        everybody = moved or self._room.short
        for number, opened in enumerate(self._topics.opened()):
            if number % TOPICS_LOOKED_AT_AT_ONCE == TOPICS_LOOKED_AT_AT_ONCE - 1:
                await asyncio.sleep(0)
            if opened.ended is not None:
                continue  # meanwhile
            opened.topic.end_unused()
            if not opened.topic.reliable:
                continue
            if opened in self._under_way:
                if everybody:
                    self._again[opened] = None
                continue
            due = everybody or opened.policies.due_always or opened.topic.lost or (rounds + number) % QUIET_TURNS == 0
            if opened.reliable.had_activity() or due:
                self._waiting[opened] = None
        for _ in range(min(HOUSEKEEPING_TURNS - len(self._takers), len(self._waiting))):
            taker = self._loop.create_task(self._take_turns())
            self._takers[taker] = None
            taker.add_done_callback(self._takers.pop)

    async def _take_turns(self) -> None:
        while self._waiting:
            opened = next(iter(self._waiting))
            del self._waiting[opened]
            known = opened in self._slow
            if known and self.slow >= HOUSEKEEPING_SLOW_TURNS_MAX:
                continue  # it gets a turn when another slow topic has finished its own
            turn = self._under_way[opened] = self._loop.create_task(self._keep(opened))
            turn.add_done_callback(partial(self._had_turn, opened))
            if not known:
                await self._patience(opened, turn)

    async def _patience(self, opened: OpenTopic, turn: Task[None]) -> None:
        """Waits until the turn is over, or the topic counts as slow and is waited for separately."""
        while not turn.done():
            await asyncio.wait([turn], timeout=HOUSEKEEPING_TURN_SECONDS)
            if not turn.done() and self.slow < HOUSEKEEPING_SLOW_TURNS_MAX:
                self._slow[opened] = None
                return log.warning("%s: housekeeping is taking long; other topics are not affected", opened.name)

    def _had_turn(self, opened: OpenTopic, turn: Task[None]) -> None:
        del self._under_way[opened]
        if opened in self._again:
            del self._again[opened]
            self._waiting[opened] = None

    async def _keep(self, opened: OpenTopic) -> None:
        topic, began = opened.reliable, self._loop.time()
        try:
            if topic.lost:
                return await self._topics.let_go(opened)
            await topic.tick()
            if self._room.short:
                topic.roll_unneeded(ROLL_BYTES_WHEN_SHORT)
            if opened.ended is None:
                opened.settle_usage()
        except Exception as error:  # the failure of one topic must not affect the others
            log.error("%s: %s", opened.name, error, exc_info=not isinstance(error, DanubeError))
        if self._loop.time() - began < HOUSEKEEPING_TURN_SECONDS:
            self._slow.pop(opened, None)
