"""Notices at once that a topic was assigned to another broker, by watching the metadata (§39, §40).

Without it the old owner would find out at its next write, and deliver messages from its memory until then.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable

from pydanube.base.errors import WatchLagged
from pydanube.storage.futures import cancel_all
from pydanube.storage.guard import Guard
from pydanube.storage.metadata.table import RowChange, TableWatch
from pydanube.storage.stream.assignments import Assignments
from pydanube.stream.assignment import Assignment


class Losses:
    """Owned by the broker's loop. `lost` is called with each topic that another broker has now, and `check` when it is
    unknown which ones those are."""

    def __init__(
        self,
        assignments: Assignments,
        me: Assignment,
        lost: Callable[[str], Awaitable[None]],
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self.guard = Guard("watching for topics that other brokers take")
        self._assignments = assignments
        self._me = me
        self._lost = lost
        self._check = check
        self._lagged = False
        self._watching: Task[None] | None = None

    def begin(self) -> None:
        """Called before any topic is open: from then on, no change is missed."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._assignments.watch()))

    async def _watch(self, watch: TableWatch[Assignment]) -> None:
        """Runs until the store is closed. After a failure, or if too many changes came at once, it starts over."""
        while not await self.guard.over(self._follow(watch)) or self._lagged:
            watch.close()
            watch, self._lagged = self._assignments.watch(), False
            await self.guard.over(self._check())

    async def _follow(self, watch: TableWatch[Assignment]) -> None:
        try:
            async for change in watch:
                await self._note(change)
        except WatchLagged:
            self._lagged = True

    async def _note(self, change: RowChange[Assignment]) -> None:
        """Ends the use of a topic that has another owner. One that has none was deleted, which ends its users too."""
        if change.record is not None and change.record.broker != self._me.broker:
            await self._lost(change.key)

    async def close(self) -> None:
        await cancel_all([self._watching])
