"""Work that may outlast a request: the caller waits a while, gets a ticket if it takes longer, and asks again with it.

The result of a job is kept for the holder of its ticket. The number of jobs is bounded; the oldest finished ones are
dropped first.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from pydanube.base.errors import TierBusy
from pydanube.storage.futures import cancel_all, retrieve

JOBS_MAX = 64


class JobAnswer(NamedTuple):
    """`result` is None while the job is running."""

    ticket: int
    result: Any


class _Job(NamedTuple):
    what: tuple[Any, ...]
    task: Task[Any]


class Jobs:
    """Owned by one loop."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Job] = {}
        self._tickets = 0

    async def ask(
        self, what: tuple[Any, ...], begin: Callable[[], Coroutine[Any, Any, Any]], ticket: int | None, seconds: float
    ) -> JobAnswer:
        """Waits for the job of that ticket. Without a ticket, or with one for other work, a job begins."""
        job = None if ticket is None else self._jobs.get(ticket)
        if ticket is None or job is None or job.what != what:
            ticket, job = self._begin(what, begin)
        await asyncio.wait([job.task], timeout=seconds)
        if not job.task.done():
            return JobAnswer(ticket, None)
        self._jobs.pop(ticket, None)
        return JobAnswer(ticket, job.task.result())

    def _begin(self, what: tuple[Any, ...], begin: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[int, _Job]:
        if len(self._jobs) >= JOBS_MAX:
            ended = next((ticket for ticket, job in self._jobs.items() if job.task.done()), None)
            if ended is None:
                raise TierBusy(f"{JOBS_MAX} verifications and uploads are already in progress")
            del self._jobs[ended]
        self._tickets += 1
        task = asyncio.get_running_loop().create_task(begin())
        task.add_done_callback(retrieve)  # the holder of the ticket gets the error
        job = self._jobs[self._tickets] = _Job(what, task)
        return self._tickets, job

    async def close(self) -> None:
        await cancel_all(job.task for job in self._jobs.values())
