"""The client without `await`: the same words, for scripts, notebooks and threads, also inside a running loop.

Each client has a thread of its own with an event loop; calls are handed to it and their answers waited for. `send` and
`ack` hand over and return, as in the asynchronous client; their `result()` waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pydanube
from pydanube import client as asynchronous
from pydanube.base.errors import AlreadyOpened, ClientClosed, DanubeError
from pydanube.client.outgoing import fresh
from pydanube.client.pipelines import Reported

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
Message = asynchronous.Message
MessageBatch = asynchronous.MessageBatch
HANDED_OVER_MAX = 10_000  # sends of one producer that its loop has not looked at yet; beyond it `send` waits
BROUGHT_MAX = 1_000  # messages that one visit to the loop brings
FAILED_KEPT_MAX = 100  # calls that failed in the loop, until `flush` or `close` says so


class LoopThread:
    """A thread that runs an event loop, uvloop where there is one."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="pydanube", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs it there and waits. Interrupting the wait cancels it."""
        if self.loop.is_closed():
            work.close()
            raise ClientClosed("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Pending(Generic[Result]):
    """What `send` and `ack` return. It may be dropped; `result()` waits."""

    __slots__ = ("_handed_over", "_loop", "asked")

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._handed_over: Future[Awaitable[Result]] = Future()
        self.asked = False

    def answer(self, call: Callable[[], Awaitable[Result]]) -> None:
        """In the loop: does what was asked for."""
        try:
            self._handed_over.set_result(call())
        except Exception as error:
            self._handed_over.set_exception(error)

    def fail(self, error: BaseException) -> None:
        self._handed_over.set_exception(error)

    @property
    def error(self) -> BaseException | None:
        """Why it could not even be handed over."""
        return self._handed_over.exception() if self._handed_over.done() else None

    def result(self, timeout: float | None = None) -> Result:
        """Gives up after `timeout` seconds; what was handed over is not taken back by that.

        Raises why it takes so long if that is known, a lost connection for one; else `TimeoutError`.
        """
        self.asked = True
        return self._loop.wait(_within(self._handed_over.result(timeout), timeout))


async def _within(what: Awaitable[Result], timeout: float | None) -> Result:  # noqa: ASYNC109 - handed in by a program
    try:
        async with asyncio.timeout(timeout):
            return await what
    except TimeoutError:
        reason = getattr(what, "reason", None)
        if reason is None:
            raise
        raise fresh(reason) from None


class _Opened:
    """Whatever is opened and closed in the loop."""

    def __init__(self, loop: LoopThread, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def open(self) -> Self:
        self._loop.wait(self._inner.open())
        return self

    def close(self) -> None:
        self._loop.wait(self._inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.wait(self._inner.__aexit__(kind, error, traceback))


class Producer(_Opened):
    """As `pydanube.client.Producer`, but that a full buffer makes `send` wait."""

    _inner: asynchronous.Producer

    def __init__(self, loop: LoopThread, inner: asynchronous.Producer) -> None:
        super().__init__(loop, inner)
        self._calls: deque[tuple[Callable[[], Any], Pending[Any]]] = deque()
        self._room = threading.Semaphore(HANDED_OVER_MAX)
        self._lock = threading.Lock()
        self._running = False  # the loop is working through the calls
        self._failed: list[Pending[Any]] = []  # the first that could not be handed over

    def send(self, payload: Any, **options: Any) -> Pending[asynchronous.Receipt]:
        """Options are those of the asynchronous `send`."""
        return self._hand_over(lambda: self._inner.send(payload, **options))

    def send_many(self, payloads: Iterable[Any], **options: Any) -> Pending[asynchronous.Receipts]:
        values = list(payloads)
        return self._hand_over(lambda: self._inner.send_many(values, **options))

    @property
    def last_sequence(self) -> int | None:
        return self._inner.last_sequence

    @property
    def last_sequences(self) -> list[int | None]:
        return self._inner.last_sequences

    def flush(self) -> None:
        """Until everything sent before is answered; raises what nobody waited for."""
        self._drain()
        self._loop.wait(self._inner.flush())
        self._raise_failed()

    def close(self) -> None:
        self._drain()
        super().close()
        self._raise_failed()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._drain()
        super().__exit__(kind, error, traceback)
        if error is None:
            self._raise_failed()

    def _drain(self) -> None:
        """Until the loop has seen all calls."""
        seen = threading.Event()
        self._hand_over(seen.set)
        seen.wait()

    def _raise_failed(self) -> None:
        failed, self._failed = [each for each in self._failed if not each.asked], []
        if failed and failed[0].error is not None:
            raise failed[0].error

    def _hand_over(self, call: Callable[[], Any]) -> Pending[Any]:
        if self._loop.loop.is_closed():
            raise ClientClosed("the client is closed")
        self._room.acquire()
        pending: Pending[Any] = Pending(self._loop)
        with self._lock:
            self._calls.append((call, pending))
            first, self._running = not self._running, True
        if first:
            asyncio.run_coroutine_threadsafe(self._work(), self._loop.loop)
        return pending

    async def _work(self) -> None:
        """All calls in their order; where the buffer is full the next one waits, and with it those behind it."""
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    return
                call, pending = self._calls.popleft()
            try:
                while self._inner.busy:
                    await self._inner.ready()
            except DanubeError as error:
                pending.fail(error)
            else:
                pending.answer(call)
            self._room.release()
            if pending.error is not None and len(self._failed) < FAILED_KEPT_MAX:
                self._failed.append(pending)


class _Receiving(_Opened):
    """Messages and batches, each fetched from the loop."""

    def receive(self, timeout: float | None = None) -> Message:
        message: Message = self._loop.wait(self._inner.receive(timeout))
        return message

    def batches(self) -> Iterator[MessageBatch]:
        iterator = self._inner.batches()
        while True:
            yield self._loop.wait(_next(iterator))

    def __iter__(self) -> Iterator[Message]:
        while True:
            yield self.receive()


async def _next(iterator: Any) -> MessageBatch:
    batch: MessageBatch = await anext(iterator)
    return batch


class Consumer(_Receiving):
    """As `pydanube.client.Consumer`. Messages that have arrived are brought over from the loop together."""

    _inner: asynchronous.Consumer

    def __init__(self, loop: LoopThread, inner: asynchronous.Consumer) -> None:
        super().__init__(loop, inner)
        self._brought: deque[Message] = deque()

    def receive(self, timeout: float | None = None) -> Message:
        if not self._brought:
            self._brought += self._loop.wait(self._some(timeout))
        return self._brought.popleft()

    async def _some(self, timeout: float | None) -> list[Message]:  # noqa: ASYNC109 - handed in by a program
        """The next message, and those that are there already."""
        first = await self._inner.receive(timeout)
        return [first, *self._inner.arrived(BROUGHT_MAX - 1)]

    def fetch(self, count: int, timeout: float | None = None) -> list[Message]:
        found = [self._brought.popleft() for _ in range(min(count, len(self._brought)))]
        if len(found) == count:
            return found
        try:
            return found + self._loop.wait(self._inner.fetch(count - len(found), timeout))
        except DanubeError:  # nothing more will come: whoever asks again hears of it
            if found:
                return found
            raise
        except BaseException:  # Ctrl-C
            self._brought.extendleft(reversed(found))
            raise

    def batches(self) -> Iterator[MessageBatch]:
        """After single messages that were brought over already, each in a batch of its own."""
        while self._brought:
            one = self._brought.popleft()
            yield one.batch.part(one.offset, one.offset)
        yield from super().batches()

    def ack(self, what: Message | MessageBatch) -> Pending[None]:
        return self._acknowledge(self._inner.ack, what)

    def ack_all(self, what: Message | MessageBatch) -> Pending[None]:
        return self._acknowledge(self._inner.ack_all, what)

    def _acknowledge(self, ack: Callable[[Any], Awaitable[None]], what: Message | MessageBatch) -> Pending[None]:
        if self._loop.loop.is_closed():
            raise ClientClosed("the client is closed")
        pending: Pending[None] = Pending(self._loop)
        self._loop.loop.call_soon_threadsafe(pending.answer, lambda: ack(what))
        return pending

    def nack(self, what: Message | MessageBatch, delay: float = 0.0, reason: str = "") -> None:
        self._loop.wait(self._nack(what, delay, reason))

    async def _nack(self, what: Message | MessageBatch, delay: float, reason: str) -> None:
        self._inner.nack(what, delay, reason)

    @property
    def partitions(self) -> list[tuple[str, int | None]]:
        return self._inner.partitions

    def pause(self) -> None:
        self._loop.wait(self._inner.pause())

    def resume(self) -> None:
        self._loop.wait(self._inner.resume())

    def seek(self, to: Any, *, partition: int | None = None) -> None:
        self._loop.wait(self._inner.seek(to, partition=partition))
        self._brought.clear()


class Reader(_Receiving):
    """As `pydanube.client.Reader`."""

    _inner: asynchronous.Reader

    @property
    def offsets(self) -> dict[int | None, int]:
        return self._inner.offsets

    def seek(self, to: Any) -> None:
        self._loop.wait(self._inner.seek(to))


class Admin:
    """As `pydanube.client.Admin`: every method of it, waiting for the answer."""

    def __init__(self, loop: LoopThread, inner: asynchronous.Admin) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)
        return lambda *arguments, **options: self._loop.wait(method(*arguments, **options))


class Client:
    """Made by `connect`; used with `with`, or `open` and `close`."""

    def __init__(self, address: str, **options: Any) -> None:
        self._inner = pydanube.connect(address, **options)
        self._running: LoopThread | None = None

    @property
    def _loop(self) -> LoopThread:
        if self._running is None:
            raise ClientClosed("the client is not open")
        return self._running

    def producer(self, topic: str, **options: Any) -> Producer:
        return Producer(self._loop, self._inner.producer(topic, **options))

    def consumer(self, topics: str | Sequence[str] | None = None, *, subscription: str, **options: Any) -> Consumer:
        return Consumer(self._loop, self._inner.consumer(topics, subscription=subscription, **options))

    def reader(self, topic: str, **options: Any) -> Reader:
        return Reader(self._loop, self._inner.reader(topic, **options))

    def read_arrow(
        self, topic: str, start: Any = "earliest", end: Any = "latest", *, partition: int | None = None
    ) -> pa.Table:
        return self._loop.wait(self._inner.read_arrow(topic, start, end, partition=partition))

    def report_pipeline(self, name: str, run: str, **facts: Any) -> Reported:
        return self._loop.wait(self._inner.report_pipeline(name, run, **facts))

    @property
    def admin(self) -> Admin:
        return Admin(self._loop, self._inner.admin)

    def open(self) -> Self:
        if self._running is not None:
            raise AlreadyOpened("the client is open")
        self._running = LoopThread()
        try:
            self._running.wait(self._inner.open())
        except BaseException:
            self._stop()
            raise
        return self

    def close(self) -> None:
        if self._running is not None:
            try:
                self._running.wait(self._inner.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(address: str, **options: Any) -> Client:
    """Options are those of `pydanube.connect`."""
    return Client(address, **options)


__all__ = ["Client", "Consumer", "Pending", "Producer", "Reader", "connect"]
