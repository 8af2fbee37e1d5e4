"""Waiting for what tells nobody that it has come about: it is asked again and again, and not forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

PATIENCE_SECONDS = 30.0  # far longer than anything takes, on a busy machine too
PAUSE_SECONDS = 0.001


async def until(condition: Callable[[], Any]) -> Any:
    """What the condition says once it says something true; it may have to be awaited."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = condition()
            if isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(PAUSE_SECONDS)
