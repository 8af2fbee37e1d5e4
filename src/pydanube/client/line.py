"""The line before a full producer: sends that wait for room, and take it in the order they were made.

Whoever awaits a send is held up by it and may wait here. Sends that nobody awaits would pile up, so only a limited
amount of them may.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from pydanube.base.errors import DanubeError, ProducerBusy
from pydanube.base.limits import PRODUCER_LINE_BYTES_MAX
from pydanube.client.outgoing import Handed, Result, fresh


class Counter(Protocol):
    """The producer, as its line sees it: whoever counts the bytes."""

    topic: str
    send_timeout: float

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def full(self) -> bool: ...

    def obstacle(self) -> DanubeError | None:
        """Why nothing gets through now."""
        ...

    def unwatched(self, failed: InLine[Any], error: DanubeError) -> None:
        """It failed, and nobody awaits it."""
        ...


class InLine(Handed[Result]):
    """A send that waits for room; then it is what `place` returned."""

    __slots__ = ("_handed", "_line", "_place", "_waiters", "bytes", "count", "deadline", "error", "watched")

    def __init__(self, line: Line, place: Callable[[], Handed[Result]], size: int, count: int, deadline: float) -> None:
        super().__init__()
        self._line = line
        self._place: Callable[[], Handed[Result]] | None = place
        self._handed: Handed[Result] | None = None
        self._waiters: list[Future[None]] = []
        self.bytes = size
        self.count = count
        self.deadline = deadline
        self.error: DanubeError | None = None
        self.watched = False

    def __await__(self) -> Generator[Any, None, Result]:
        self._watch()
        if (moved := self.moved()) is not None:
            yield from moved
        if self._handed is None:
            assert self.error is not None
            raise fresh(self.error)
        return (yield from self._handed.__await__())

    def _watch(self) -> None:
        if not self.watched:
            self.watched = True
            if self._place is not None:
                self._line.awaited(self)

    def moved(self) -> Future[None] | None:
        """Done when it is no longer in the line; None if it is not."""
        if self._place is None:
            return None
        waiter: Future[None] = self._line.loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def put(self) -> DanubeError | None:
        """There is room. Returns why it could not be handed over, if it could not."""
        assert self._place is not None
        try:
            self._handed = self._place()
        except DanubeError as error:
            self.error = error
        self._leave()
        return self.error

    def fail(self, error: DanubeError) -> None:
        self.error = error
        self._leave()

    def _leave(self) -> None:
        self._place = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    @property
    def done(self) -> bool:
        return self._handed.done if self._handed is not None else self.error is not None

    @property
    def reason(self) -> DanubeError | None:
        return self._handed.reason if self._handed is not None else self.error or self._line.no_room()


class Line:
    """`advance` when there may be room again; `fail` when there will be none."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.queue: deque[InLine[Any]] = deque()
        self._idle_bytes = 0  # of those that nobody awaits
        self._expiry: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def messages(self) -> int:
        return sum(item.count for item in self.queue)

    @property
    def loop(self) -> AbstractEventLoop:
        return self._counter.loop

    def join(self, place: Callable[[], Handed[Result]], size: int, count: int) -> InLine[Result]:
        if self._idle_bytes >= PRODUCER_LINE_BYTES_MAX:
            raise self.no_room()
        item = InLine(self, place, size, count, self.loop.time() + self._counter.send_timeout)
        self._idle_bytes += size
        self.queue.append(item)
        if self._expiry is None:
            self._expiry = self.loop.call_at(item.deadline, self._expire)
        return item

    def no_room(self) -> DanubeError:
        """What those in line wait for."""
        return self._counter.obstacle() or ProducerBusy(
            f"the buffer for {self._counter.topic} is full of messages that are not acknowledged yet"
        )

    def awaited(self, item: InLine[Any]) -> None:
        self._idle_bytes -= item.bytes

    def advance(self) -> None:
        while self.queue and not self._counter.full:
            item = self._next()
            error = item.put()
            if error is not None and not item.watched:
                self._counter.unwatched(item, error)

    def fail(self, error: DanubeError) -> None:
        """All of them."""
        while self.queue:
            self._fail(error)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    async def settled(self) -> None:
        """Until those that are in line now are not."""
        for item in list(self.queue):
            if (moved := item.moved()) is not None:
                await moved

    def _next(self) -> InLine[Any]:
        item = self.queue.popleft()
        if not item.watched:
            self._idle_bytes -= item.bytes
        return item

    def _fail(self, error: DanubeError) -> None:
        item = self._next()
        item.fail(error)
        if not item.watched:
            self._counter.unwatched(item, error)

    def _expire(self) -> None:
        self._expiry = None
        now = self.loop.time()
        while self.queue and self.queue[0].deadline <= now:
            self._fail(self.no_room())
        if self.queue:
            self._expiry = self.loop.call_at(self.queue[0].deadline, self._expire)
