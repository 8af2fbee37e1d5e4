"""Who waits for something to change: a future each, gone from here as soon as its owner gives up."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future


class Waiters:
    """`wake` lets all of them look again. One that was cancelled, by a time-out for example, leaves nothing behind."""

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
