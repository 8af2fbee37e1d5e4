"""Calls storage nodes and waits for their answers: until there are enough of them, and until a busy node is free.

A busy node has refused the call and done nothing. The ledger does not end because of it: the caller calls again.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from pydanube.base.errors import DanubeError, NodeBusy, NodeClosed
from pydanube.base.retry import Backoff

Answer = TypeVar("Answer")
BUSY = Backoff(0.005, 0.1)  # before a busy node is called again: some groups of its journal make room


class RetryingCaller:
    """Calls busy nodes again until they answer, or until `stop`. Calls made by then may still take effect."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def call(self, operation: Callable[..., Future[Answer]], *arguments: object) -> Future[Answer]:
        """Makes the first attempt at once."""
        final: Future[Answer] = self._loop.create_future()
        self._try(final, partial(operation, *arguments), 1)
        return final

    def stop(self) -> None:
        self._stopped = True

    def _try(self, final: Future[Answer], attempt: Callable[[], Future[Answer]], number: int) -> None:
        if self._stopped or final.done():
            final.cancel()
            return
        answer = attempt()
        if answer.done():
            self._answered(final, attempt, number, answer)
        else:
            answer.add_done_callback(partial(self._answered, final, attempt, number))

    def _answered(
        self, final: Future[Answer], attempt: Callable[[], Future[Answer]], number: int, answer: Future[Answer]
    ) -> None:
        error = NodeClosed("the storage node abandoned the call") if answer.cancelled() else answer.exception()
        if final.done():
            return
        if isinstance(error, NodeBusy):
            self._loop.call_later(BUSY.after(number), self._try, final, attempt, number + 1)
        elif error is not None:
            final.set_exception(error)
        else:
            final.set_result(answer.result())


class Answers(Generic[Answer]):
    """The answers of several nodes to one call, by their index in the ledger's record.

    A `DanubeError` is an answer too; any other exception is a bug and is raised to the caller that waits.
    """

    def __init__(self, futures: Mapping[int, Future[Answer]]) -> None:
        self.results: dict[int, Answer] = {}
        self.errors: dict[int, DanubeError] = {}
        self.asked = len(futures)
        self._left = len(futures)
        self._bug: BaseException | None = None
        self._arrival: Future[None] | None = None
        for index, future in futures.items():
            if future.done():
                self._arrived(index, future)
            else:
                future.add_done_callback(partial(self._arrived, index))

    @property
    def causes(self) -> list[str]:
        """The errors, in the order of the nodes."""
        return [f"{self.errors[index].code}: {self.errors[index]}" for index in sorted(self.errors)]

    async def until(self, enough: Callable[[], bool]) -> None:
        """Returns when the answers so far are enough, or when all have arrived."""
        while not enough() and await self.one_more():
            pass

    async def one_more(self) -> bool:
        """Waits for one more answer; false if all have arrived."""
        before = self._left
        if before and self._bug is None:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if self._bug is not None:
            raise self._bug
        return before > 0

    def _arrived(self, index: int, future: Future[Any]) -> None:
        self._left -= 1
        if not future.cancelled():
            error = future.exception()
            if error is None:
                self.results[index] = future.result()
            elif isinstance(error, DanubeError):
                self.errors[index] = error
            else:
                self._bug = error
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
