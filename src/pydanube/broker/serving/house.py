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
from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError
from pydanube.base.limits import HOUSE_SLOW_TURNS_MAX, HOUSE_TURN_SECONDS, HOUSE_TURNS, KIB
from pydanube.broker.serving.open_topic import Opened
from pydanube.broker.topic.topic import Topic
from pydanube.storage.guard import Guard

if TYPE_CHECKING:
    from pydanube.broker.door.service import Service

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
ROLL_BYTES_WHEN_SHORT = 64 * KIB  # of room on the disk: an open ledger with as much that nobody needs ends, to go
QUIET_TURNS = 10  # after which a topic is looked at although nothing happens in it by itself


class Housekeeping:
    """Owned by the broker's loop."""

    def __init__(self, service: Service, find_leftovers: Callable[[], Awaitable[None]]) -> None:
        self._service = service
        self._find_leftovers: Callable[[], Awaitable[None]] | None = find_leftovers  # until it has
        self.guard = Guard("housekeeping")
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()  # set when the clock is moved by hand
        self._waiting: dict[Opened, None] = {}  # for a turn
        self._takers: dict[Task[None], None] = {}
        self._under_way: dict[Opened, Task[None]] = {}
        self._again: dict[Opened, None] = {}  # of these, those that became due once more meanwhile
        self._slow: dict[Opened, None] = {}  # their last turn took long, or still does: the next is apart at once
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
        self._service.clock.trusted()  # a jump is noticed soon, whatever topics are open
        self._service.intake.turn()
        self._line_up(moved, rounds)

    async def _sweep(self) -> None:
        """What deleted topics have left, also before this start, begins to go; nobody waits for it here."""
        if self._find_leftovers is not None:
            try:
                await self._find_leftovers()
                self._find_leftovers = None
            except DanubeError as error:
                log.warning("cleaning up after deleted topics failed; retrying: %s", error)
        self._service.leftovers.begin()

    def _line_up(self, moved: bool, rounds: int) -> None:
        """Those that are due wait for a turn, unless they do already, or have one."""
        self._slow = {each: None for each in self._slow if each.ended is None or each in self._under_way}
        everybody = moved or self._service.room.short
        for number, opened in enumerate(self._service.opened()):
            topic = opened.topic
            if not isinstance(topic, Topic):
                topic.end_unused()
                continue
            if opened in self._under_way:
                if everybody:
                    self._again[opened] = None
                continue
            due = everybody or opened.policies.due_always or topic.lost or (rounds + number) % QUIET_TURNS == 0
            if topic.had_activity() or due:
                self._waiting[opened] = None
        for _ in range(min(HOUSE_TURNS - len(self._takers), len(self._waiting))):
            taker = self._loop.create_task(self._take_turns())
            self._takers[taker] = None
            taker.add_done_callback(self._takers.pop)

    async def _take_turns(self) -> None:
        while self._waiting:
            opened = next(iter(self._waiting))
            del self._waiting[opened]
            known = opened in self._slow
            if known and self.slow >= HOUSE_SLOW_TURNS_MAX:
                continue  # it gets its turn when one of those that are slow has had its own
            turn = self._under_way[opened] = self._loop.create_task(self._keep(opened))
            turn.add_done_callback(partial(self._had_turn, opened))
            if not known:
                await self._patience(opened, turn)

    async def _patience(self, opened: Opened, turn: Task[None]) -> None:
        """Until it has had its turn, or is waited for apart."""
        while not turn.done():
            await asyncio.wait([turn], timeout=HOUSE_TURN_SECONDS)
            if not turn.done() and self.slow < HOUSE_SLOW_TURNS_MAX:
                self._slow[opened] = None
                return log.warning("%s: housekeeping is taking long; other topics are not affected", opened.name)

    def _had_turn(self, opened: Opened, turn: Task[None]) -> None:
        del self._under_way[opened]
        if opened in self._again:
            del self._again[opened]
            self._waiting[opened] = None

    async def _keep(self, opened: Opened) -> None:
        service, topic, began = self._service, opened.topic, self._loop.time()
        assert isinstance(topic, Topic)
        try:
            if topic.lost:
                return await service.let_go(opened)
            await topic.tick()
            if service.room.short:
                topic.roll_unneeded(ROLL_BYTES_WHEN_SHORT)
            if opened.ended is None:
                opened.settle_usage()
        except Exception as error:  # one topic's trouble is not the others'
            log.error("%s: %s", opened.name, error, exc_info=not isinstance(error, DanubeError))
        if self._loop.time() - began < HOUSE_TURN_SECONDS:
            self._slow.pop(opened, None)
