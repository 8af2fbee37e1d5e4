"""The queue in front of a producer whose buffer is full: sends wait here for room, in order.

A program that awaits a send is held up by it, so such sends may always queue. Sends that no one awaits could pile up
without limit, so their total size is limited.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from pydanube.base.errors import DanubeError, ProducerBusy
from pydanube.base.limits import PRODUCER_QUEUE_BYTES_MAX
from pydanube.client.errors import copy_of
from pydanube.client.send_results import Result, SendResult


class QueueOwner(Protocol):
    """The producer, as its queue sees it."""

    topic: str
    send_timeout: float

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def full(self) -> bool: ...

    def obstacle(self) -> DanubeError | None:
        """Why nothing can be sent now; None if it can."""
        ...

    def on_unawaited_failure(self, failed: QueuedSend[Any], error: DanubeError) -> None:
        """A queued send failed that no one awaits."""
        ...


class QueuedSend(SendResult[Result]):
    """A send that waits for room. Then `hand_over` sends it, and returns what this one waits for from then on."""

    __slots__ = ("_hand_over", "_handed", "_queue", "_waiters", "awaited", "bytes", "count", "deadline", "error")

    def __init__(
        self, queue: SendQueue, hand_over: Callable[[], SendResult[Result]], size: int, count: int, deadline: float
    ) -> None:
        super().__init__()
        self._queue = queue
        self._hand_over: Callable[[], SendResult[Result]] | None = hand_over
        self._handed: SendResult[Result] | None = None
        self._waiters: list[Future[None]] = []
        self.bytes = size
        self.count = count
        self.deadline = deadline
        self.error: DanubeError | None = None
        self.awaited = False

    def __await__(self) -> Generator[Any, None, Result]:
        self._watch()
        if (left := self.left()) is not None:
            yield from left
        if self._handed is None:
            assert self.error is not None
            raise copy_of(self.error)
        return (yield from self._handed.__await__())

    def _watch(self) -> None:
        if not self.awaited:
            self.awaited = True
            if self._hand_over is not None:
                self._queue.on_awaited(self)

    def left(self) -> Future[None] | None:
        """A future for when it leaves the queue; None if it has left."""
        if self._hand_over is None:
            return None
        waiter: Future[None] = self._queue.loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def put(self) -> DanubeError | None:
        """Sends it, because there is room. Returns the error if that fails."""
        assert self._hand_over is not None
        try:
            self._handed = self._hand_over()
        except DanubeError as error:
            self.error = error
        self._leave()
        return self.error

    def fail(self, error: DanubeError) -> None:
        self.error = error
        self._leave()

    def _leave(self) -> None:
        self._hand_over = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    @property
    def done(self) -> bool:
        return self._handed.done if self._handed is not None else self.error is not None

    @property
    def reason(self) -> DanubeError | None:
        return self._handed.reason if self._handed is not None else self.error or self._queue.no_room()


class SendQueue:
    """Call `advance` when there may be room again, and `fail` when there never will be."""

    def __init__(self, owner: QueueOwner) -> None:
        self._owner = owner
        self.items: deque[QueuedSend[Any]] = deque()
        self._unawaited_bytes = 0  # of sends that no one awaits
        self._expiry: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def messages(self) -> int:
        return sum(item.count for item in self.items)

    @property
    def loop(self) -> AbstractEventLoop:
        return self._owner.loop

    def join(self, hand_over: Callable[[], SendResult[Result]], size: int, count: int) -> QueuedSend[Result]:
        if self._unawaited_bytes >= PRODUCER_QUEUE_BYTES_MAX:
            raise self.no_room()
        item = QueuedSend(self, hand_over, size, count, self.loop.time() + self._owner.send_timeout)
        self._unawaited_bytes += size
        self.items.append(item)
        if self._expiry is None:
            self._expiry = self.loop.call_at(item.deadline, self._expire)
        return item

    def no_room(self) -> DanubeError:
        """Why sends are waiting."""
        return self._owner.obstacle() or ProducerBusy(
            f"the buffer for {self._owner.topic} is full of messages that are not acknowledged yet"
        )

    def on_awaited(self, item: QueuedSend[Any]) -> None:
        self._unawaited_bytes -= item.bytes

    def advance(self) -> None:
        while self.items and not self._owner.full:
            item = self._next()
            error = item.put()
            if error is not None and not item.awaited:
                self._owner.on_unawaited_failure(item, error)

    def fail(self, error: DanubeError) -> None:
        """Fails all sends."""
        while self.items:
            self._fail(error)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    async def settled(self) -> None:
        """Waits until the sends that are queued now have left the queue."""
        for item in list(self.items):
            if (left := item.left()) is not None:
                await left

    def _next(self) -> QueuedSend[Any]:
        item = self.items.popleft()
        if not item.awaited:
            self._unawaited_bytes -= item.bytes
        return item

    def _fail(self, error: DanubeError) -> None:
        item = self._next()
        item.fail(error)
        if not item.awaited:
            self._owner.on_unawaited_failure(item, error)

    def _expire(self) -> None:
        self._expiry = None
        now = self.loop.time()
        while self.items and self.items[0].deadline <= now:
            self._fail(self.no_room())
        if self.items:
            self._expiry = self.loop.call_at(self.items[0].deadline, self._expire)
