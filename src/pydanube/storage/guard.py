"""Background loops that run as long as the broker: a round that fails does not end the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from pydanube.base.limits import ROUND_FAILED_PAUSE_SECONDS, WARNING_REPEAT_SECONDS


class Guard:
    """Guards one loop. It catches unexpected errors, such as bugs; the loop itself handles those it expects."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0  # rounds so far
        self.failing: str | None = None  # why the last round failed
        self._logged = -WARNING_REPEAT_SECONDS

    async def over(self, work: Awaitable[object]) -> bool:
        """Whether the round succeeded. After a failure, waits before it returns."""
        try:
            await work
        except Exception as error:
            self.failures += 1
            self.failing = f"{type(error).__name__}: {error}"
            loop = asyncio.get_running_loop()
            if loop.time() - self._logged >= WARNING_REPEAT_SECONDS:
                self._logged = loop.time()
                message = f"{self.name} failed and will be retried (failures so far: {self.failures})"
                loop.call_exception_handler({"message": message, "exception": error})
            await asyncio.sleep(ROUND_FAILED_PAUSE_SECONDS)
            return False
        self.failing = None
        return True
