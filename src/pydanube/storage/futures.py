"""Ends tasks and futures, and passes on their errors."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

from pydanube.base.errors import DanubeError
from pydanube.base.limits import CONFIRMED_AT_ONCE

Result = TypeVar("Result")


async def cancel_all(tasks: Iterable[Future[Any] | None]) -> None:
    """Cancels those that exist, and returns when they have ended, whatever their results."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


class Confirmations:
    """Completes futures in order, a limited number in each turn of the loop: each of them causes others, up to what a
    client is sent."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Future[None]] = deque()

    def add(self, done: Iterable[Future[None]]) -> None:
        idle = not self._waiting
        self._waiting.extend(done)
        if idle:
            self._turn()

    def _turn(self) -> None:
        for _ in range(min(len(self._waiting), CONFIRMED_AT_ONCE)):
            settle(self._waiting.popleft(), None)
        if self._waiting:
            self._loop.call_soon(self._turn)

    def finish(self) -> None:
        """Completes all that wait, before something later is refused."""
        while self._waiting:
            settle(self._waiting.popleft(), None)


def settle(answer: Future[None], error: BaseException | None) -> None:
    """Completes the future, with this error if there is one, unless it is already done."""
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
        answer.exception()  # marks it as retrieved, because perhaps no one waits


def retrieve(ended: Future[Any]) -> None:
    """Marks its error as retrieved, so that asyncio does not report it: everyone concerned has it."""
    if not ended.cancelled():
        ended.exception()


def refused(error: DanubeError) -> Future[Result]:
    """A future that already has this error."""
    answer: Future[Result] = asyncio.get_running_loop().create_future()
    answer.set_exception(error)
    return answer


def danube_error(error: BaseException) -> DanubeError:
    """The error itself if it is in the table of errors; any other is a bug, and becomes an internal error."""
    return error if isinstance(error, DanubeError) else DanubeError(str(error))
