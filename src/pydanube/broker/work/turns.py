"""One at a time by name: whoever works on the same thing waits, and what nobody works on is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Turns:
    """Owned by one loop."""

    def __init__(self) -> None:
        self._turns: dict[Hashable, _Turn] = {}

    def __contains__(self, name: Hashable) -> bool:
        """Whether somebody works on it, or waits to."""
        return name in self._turns

    @asynccontextmanager
    async def of(self, name: Hashable) -> AsyncIterator[None]:
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]
