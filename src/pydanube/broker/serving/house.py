"""Housekeeping: every second or so each open topic gets what time brings about in it.

Topics get their turns a few at a time, and one that takes long is waited for apart: object storage that does not answer
for one topic must not keep the others waiting. A topic never has two turns at once.
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
)
from pydanube.broker.limits.disk_room import Room
from pydanube.broker.limits.intake import Intake
from pydanube.broker.serving.leftovers import Leftovers
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.guard import Guard

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
ROLL_BYTES_WHEN_SHORT = 64 * KIB  # of room on the disk: an open ledger with as much that nobody needs ends, to go
QUIET_TURNS = 10  # after which a topic is looked at although nothing happens in it by itself


class Housekeeping:
    """Owned by the broker's loop."""

    def __init__(
        self,
        topics: OpenTopics,
        leftovers: Leftovers,
        find_leftovers: Callable[[], Awaitable[None]],
        room: Room,
        intake: Intake,
        clock: CheckedClock,
    ) -> None:
        self._topics = topics
        self._leftovers = leftovers
        self._room = room
        self._intake = intake
        self._clock = clock
        self._find_leftovers: Callable[[], Awaitable[None]] | None = find_leftovers  # until it has
        self.guard = Guard("housekeeping")
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()  # set when the clock is moved by hand
        self._waiting: dict[OpenTopic, None] = {}  # for a turn
        self._takers: dict[Task[None], None] = {}
        self._under_way: dict[OpenTopic, Task[None]] = {}
        self._again: dict[OpenTopic, None] = {}  # of these, those that became due once more meanwhile
        self._slow: dict[OpenTopic, None] = {}  # their last turn took long, or still does: the next is apart at once
        self._running = self._loop.create_task(self._run())

    def time_moved(self) -> None:
        """The clock was moved by hand: what is due by now happens now."""
        self._moved.set()

    @property
    def slow(self) -> int:
        """Topics that are waited for apart."""
        return sum(opened in self._slow for opened in self._under_way)

    async def close(self) -> None:
        tasks = [self._running, *self._takers, *self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
        self._clock.trusted()  # a jump is noticed soon, whatever topics are open
        self._intake.turn()
        self._line_up(moved, rounds)

    async def _sweep(self) -> None:
        """What deleted topics have left, also before this start, begins to go; nobody waits for it here."""
        if self._find_leftovers is not None:
            try:
                await self._find_leftovers()
                self._find_leftovers = None
            except DanubeError as error:
                log.warning("cleaning up after deleted topics failed; retrying: %s", error)
        self._leftovers.begin()

    def _line_up(self, moved: bool, rounds: int) -> None:
        """Those that are due wait for a turn, unless they do already, or have one."""
        self._slow = {each: None for each in self._slow if each.ended is None or each in self._under_way}
        everybody = moved or self._room.short
        for number, opened in enumerate(self._topics.opened()):
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
                continue  # it gets its turn when one of those that are slow has had its own
            turn = self._under_way[opened] = self._loop.create_task(self._keep(opened))
            turn.add_done_callback(partial(self._had_turn, opened))
            if not known:
                await self._patience(opened, turn)

    async def _patience(self, opened: OpenTopic, turn: Task[None]) -> None:
        """Until it has had its turn, or is waited for apart."""
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
        except Exception as error:  # one topic's trouble is not the others'
            log.error("%s: %s", opened.name, error, exc_info=not isinstance(error, DanubeError))
        if self._loop.time() - began < HOUSEKEEPING_TURN_SECONDS:
            self._slow.pop(opened, None)
