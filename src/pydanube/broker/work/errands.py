"""Work that is finished even if the client that asked for it is gone: no change stays half made."""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError, Task
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydanube.base.errors import DanubeError

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Errands:
    """Owned by one loop. A caller that needs a lock takes it before, and may still give up while it waits for it."""

    def __init__(self) -> None:
        self._tasks: dict[Task[Any], bool] = {}  # and whether its caller still waits for it

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns or raises what the work does. If the caller is cancelled, the work is not."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = True
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except CancelledError:
            if task in self._tasks:
                self._tasks[task] = False
            else:
                _report(task)
            raise

    async def run_holding(self, locks: AsyncExitStack, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The same, with locks of the caller: they are released when the work ends, even if the caller is gone."""
        return await self.run(_holding(locks.pop_all(), work))

    def _ended(self, task: Task[Any]) -> None:
        if not self._tasks.pop(task):
            _report(task)
        elif not task.cancelled():
            task.exception()  # marks it as retrieved; the caller has it

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _holding(locks: AsyncExitStack, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    async with locks:
        return await work()


def _report(task: Task[Any]) -> None:
    """The caller is gone: if the work failed, only the log can say so."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, DanubeError):
        log.warning("a request whose client did not wait for the answer failed: %s: %s", error.code, error)
    elif error is not None:
        message = "a request whose client did not wait for the answer failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
