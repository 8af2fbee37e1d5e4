"""Limits how many calls run at a time and how many may wait; further calls are refused."""

from __future__ import annotations

from asyncio import Semaphore
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydanube.base.errors import TierBusy


class CallLimit:
    def __init__(self, at_once: int, waiting_max: int) -> None:
        self._free = Semaphore(at_once)
        self._waiting_max = waiting_max
        self.waiting = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn. `TierBusy` if too many are already waiting."""
        if self._free.locked() and self.waiting >= self._waiting_max:
            raise TierBusy(f"{self.waiting} calls are waiting for the cold tier")
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._free.release()
