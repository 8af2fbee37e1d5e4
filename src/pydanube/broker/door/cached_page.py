"""A page that is expensive to build and may be slightly old: it is built once for all who ask within that time."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable

from pydanube.base.limits import METRICS_KEPT_SECONDS


class CachedPage:
    """Call it for the page. A failure is not kept."""

    def __init__(self, make: Callable[[], Awaitable[str]]) -> None:
        self._make = make
        self._making: Task[bytes] | None = None
        self._page = b""
        self._fresh_until = float("-inf")

    async def __call__(self) -> bytes:
        loop = asyncio.get_running_loop()
        if self._making is None:
            if loop.time() < self._fresh_until:
                return self._page
            self._making = loop.create_task(self._made())
        return await asyncio.shield(self._making)  # a caller that leaves must not cancel it for the others

    async def _made(self) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self._page = (await self._make()).encode()
            self._fresh_until = began + METRICS_KEPT_SECONDS
        finally:
            self._making = None
        return self._page
