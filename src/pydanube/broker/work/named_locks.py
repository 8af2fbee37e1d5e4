"""Locks by name: only one task at a time works on the same thing. An unused lock is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Lock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class NamedLocks:
    """Owned by one loop."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, _Lock] = {}

    def __contains__(self, name: Hashable) -> bool:
        """Whether a task holds that lock or waits for it."""
        return name in self._locks

    @asynccontextmanager
    async def of(self, name: Hashable) -> AsyncIterator[None]:
        named = self._locks.setdefault(name, _Lock())
        named.users += 1
        try:
            async with named.lock:
                yield
        finally:
            named.users -= 1
            if not named.users:
                del self._locks[name]
