"""Callers that wait for a change: one future each, removed as soon as its caller gives up."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future


class Waiters:
    """`wake` lets all callers check again. A cancelled caller, for example after a timeout, leaves nothing behind."""

    def __init__(self) -> None:
        self._futures: dict[Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self, loop: AbstractEventLoop) -> None:
        future: Future[None] = loop.create_future()
        self._futures[future] = None
        try:
            await future
        finally:
            self._futures.pop(future, None)

    def wake(self) -> None:
        futures, self._futures = self._futures, {}
        for future in futures:
            if not future.done():
                future.set_result(None)
