"""Work that is finished even if the client that asked for it is gone: no change is left half made."""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError, Task
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydanube.base.errors import DanubeError
from pydanube.storage.futures import cancel_all, retrieve

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Errands:
    """Owned by one loop. A caller that needs a lock takes it first, and can still give up while it waits for it."""

    def __init__(self) -> None:
        self._tasks: dict[Task[Any], bool] = {}  # whether its caller still waits

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns or raises what the work does. If the caller is cancelled, the work continues."""
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
        """Like `run`, with locks of the caller, which are released when the work ends, even if the caller is gone."""
        return await self.run(_holding(locks.pop_all(), work))

    def _ended(self, task: Task[Any]) -> None:
        if not self._tasks.pop(task):
            _report(task)
        else:
            retrieve(task)

    async def close(self) -> None:
        await cancel_all(self._tasks)


async def _holding(locks: AsyncExitStack, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    async with locks:
        return await work()


def _report(task: Task[Any]) -> None:
    """Logs a failure of work whose caller is gone."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, DanubeError):
        log.warning("a request whose client did not wait for the answer failed: %s: %s", error.code, error)
    elif error is not None:
        message = "a request whose client did not wait for the answer failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
