"""Batches that were sent again before the first copy was confirmed: they are answered together with that one."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable

from pydanube.base.errors import TopicBusy
from pydanube.base.limits import REPEATS_WAITING_MAX


class RepeatedBatches:
    """Of one topic. `written_end` is behind the last offset that is durable."""

    def __init__(self, written_end: Callable[[], int]) -> None:
        self._written_end = written_end
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, Future[None]]] = []  # the last offset of the first copy, and who waits for it

    def confirmation(self, last: int) -> Future[None]:
        """Of a batch that was appended before and ends at `last`."""
        answer: Future[None] = self._loop.create_future()
        if last < self._written_end():
            answer.set_result(None)
        elif len(self._waiting) >= REPEATS_WAITING_MAX:
            raise TopicBusy(f"{len(self._waiting)} repeated batches are waiting for the first one to be confirmed")
        else:
            self._waiting.append((last, answer))
        return answer

    def answer(self, error: BaseException | None) -> None:
        """Something was confirmed, or failed."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for last, answer in waiting:
            if answer.done():
                continue
            if last < self._written_end():
                answer.set_result(None)
            elif error is not None:
                answer.set_exception(error)
                answer.exception()  # marks it as retrieved; a caller that waits still gets it
            else:
                self._waiting.append((last, answer))
