"""How callers wait for storage nodes: for the first answers that are enough, and for a node that is busy.

A busy node has refused and done nothing. That ends no ledger: whoever asked keeps what it has and asks again.
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
BUSY = Backoff(0.005, 0.1)  # before a busy node is asked again: it has room within some groups of its journal


class Patience:
    """Asks busy nodes again until they answer, or until `end`. What was asked by then may still happen."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = False

    def ask(self, call: Callable[..., Future[Answer]], *arguments: object) -> Future[Answer]:
        """The first call happens at once."""
        asked: Future[Answer] = self._loop.create_future()
        self._try(asked, partial(call, *arguments), 1)
        return asked

    def end(self) -> None:
        self._ended = True

    def _try(self, asked: Future[Answer], call: Callable[[], Future[Answer]], attempt: int) -> None:
        if self._ended or asked.done():
            asked.cancel()
            return
        answer = call()
        if answer.done():
            self._answered(asked, call, attempt, answer)
        else:
            answer.add_done_callback(partial(self._answered, asked, call, attempt))

    def _answered(
        self, asked: Future[Answer], call: Callable[[], Future[Answer]], attempt: int, answer: Future[Answer]
    ) -> None:
        error = NodeClosed("the storage node abandoned the call") if answer.cancelled() else answer.exception()
        if asked.done():
            return
        if isinstance(error, NodeBusy):
            self._loop.call_later(BUSY.after(attempt), self._try, asked, call, attempt + 1)
        elif error is not None:
            asked.set_exception(error)
        else:
            asked.set_result(answer.result())


class Answers(Generic[Answer]):
    """What several nodes answer to one question, by their place. Errors are answers too, bugs are not."""

    def __init__(self, futures: Mapping[int, Future[Answer]]) -> None:
        self.results: dict[int, Answer] = {}
        self.errors: dict[int, DanubeError] = {}
        self.asked = len(futures)
        self._left = len(futures)
        self._bug: BaseException | None = None
        self._news: Future[None] | None = None
        for place, future in futures.items():
            if future.done():
                self._arrived(place, future)
            else:
                future.add_done_callback(partial(self._arrived, place))

    @property
    def causes(self) -> list[str]:
        """Why those failed that did, in the order of places."""
        return [f"{self.errors[place].code}: {self.errors[place]}" for place in sorted(self.errors)]

    async def until(self, enough: Callable[[], bool]) -> None:
        """Returns when the answers so far are enough, or when all are there."""
        while not enough() and await self.one_more():
            pass

    async def one_more(self) -> bool:
        """Waits for one more answer; false if all are there."""
        before = self._left
        if before and self._bug is None:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self._bug is not None:
            raise self._bug
        return before > 0

    def _arrived(self, place: int, future: Future[Any]) -> None:
        self._left -= 1
        if not future.cancelled():
            error = future.exception()
            if error is None:
                self.results[place] = future.result()
            elif isinstance(error, DanubeError):
                self.errors[place] = error
            else:
                self._bug = error
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
