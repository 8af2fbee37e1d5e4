"""Work that goes on whether or not who asked for it waits: no change stays half made because a client hung up."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Errands:
    """Owned by one loop."""

    def __init__(self) -> None:
        self._tasks: dict[Task[Any], None] = {}

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Raises what it does. If the caller is cancelled, it is not."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # whoever waits has it

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
