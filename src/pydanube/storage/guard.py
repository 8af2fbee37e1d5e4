"""Work that a broker does in the background for as long as it runs: one round that fails does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from pydanube.base.limits import ROUND_FAILED_PAUSE_SECONDS, WARNING_REPEAT_SECONDS


class Guard:
    """Of one loop. What it catches is not foreseen, such as a mistake of ours: errors that are belong to the loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0  # so far
        self.failing: str | None = None  # why the last round failed
        self._told = -WARNING_REPEAT_SECONDS

    async def over(self, work: Awaitable[object]) -> bool:
        """Whether the round went well. If it did not, this returns after a pause."""
        try:
            await work
        except Exception as error:
            self.failures += 1
            self.failing = f"{type(error).__name__}: {error}"
            loop = asyncio.get_running_loop()
            if loop.time() - self._told >= WARNING_REPEAT_SECONDS:
                self._told = loop.time()
                message = f"{self.name} failed and will be retried (failures so far: {self.failures})"
                loop.call_exception_handler({"message": message, "exception": error})
            await asyncio.sleep(ROUND_FAILED_PAUSE_SECONDS)
            return False
        self.failing = None
        return True
