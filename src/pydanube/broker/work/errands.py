"""Work that goes on whether or not who asked for it waits: no change stays half made because a client hung up."""

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
    """Owned by one loop. Nobody waits in here: whoever needs a turn has it before, and may give up until then."""

    def __init__(self) -> None:
        self._tasks: dict[Task[Any], bool] = {}  # with whether somebody waits for it

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Raises what it does. If the caller is cancelled, it is not."""
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

    async def run_holding(self, turn: AsyncExitStack, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The same, with a turn that the caller has: it ends with the work, even if the caller is gone by then."""
        return await self.run(_holding(turn.pop_all(), work))

    def _ended(self, task: Task[Any]) -> None:
        if not self._tasks.pop(task):
            _report(task)
        elif not task.cancelled():
            task.exception()  # whoever waits has it

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _holding(turn: AsyncExitStack, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    async with turn:
        return await work()


def _report(task: Task[Any]) -> None:
    """Whoever asked has gone: if it failed, the log is the only place that says so."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, DanubeError):
        log.warning("a request whose client did not wait for the answer failed: %s: %s", error.code, error)
    elif error is not None:
        message = "a request whose client did not wait for the answer failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
