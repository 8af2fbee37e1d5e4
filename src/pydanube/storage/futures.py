"""Ends tasks and futures, and passes on their errors."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterable
from typing import Any, TypeVar

from pydanube.base.errors import DanubeError

Result = TypeVar("Result")


async def cancel_all(tasks: Iterable[Future[Any] | None]) -> None:
    """Cancels those that exist, and returns when they have ended, whatever their results."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


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
