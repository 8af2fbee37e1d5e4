"""The client without `await`, with the same methods, for scripts, notebooks and threads, also inside a running loop.

Each client runs an event loop in its own thread; methods run there and wait for the answer. `send` and `ack` return at
once, as in the asynchronous client; their `result()` waits.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self
from weakref import WeakSet

import pydanube
from pydanube import client as asynchronous
from pydanube.base.errors import AlreadyOpened, ClientClosed, ClientForked, DanubeError, NotOpened, ProducerBusy
from pydanube.client.arguments import Duration
from pydanube.client.connection import A
from pydanube.client.errors import copy_of
from pydanube.client.lifecycle import DISCONNECTED_SECONDS, INTERRUPTED_SECONDS
from pydanube.operations.operation import Request
from pydanube.operations.pipelines import Reported
from pydanube.sync.loop import LoopThread, Pending, Result

if TYPE_CHECKING:
    import pyarrow as pa

Given = ParamSpec("Given")  # the arguments of a method
Message = asynchronous.Message
MessageBatch = asynchronous.MessageBatch
CALLS_WAITING_MAX = 10_000  # sends of one producer that its loop has not handled yet; beyond it `send` waits
FETCHED_MAX = 1_000  # messages that one call to the loop fetches
FAILED_KEPT_MAX = 100  # failed calls, until `flush` or `close` raises the first


class _Openable:
    """What producers, consumers and readers share: they are opened and closed in the loop."""

    def __init__(self, loop: LoopThread, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def open(self) -> Self:
        self._loop.wait(self._inner.open())
        return self

    def close(self) -> None:
        """Closes it. Does nothing in a forked child, where it belongs to the parent."""
        with suppress(ClientForked):
            self._loop.wait(self._inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _quietly_after(error):
            self._loop.wait(self._inner.__aexit__(kind, error, traceback))


@contextmanager
def _quietly_after(error: BaseException | None) -> Iterator[None]:
    """Suppresses an error of closing if the block itself ended with an error, which is more useful."""
    try:
        yield
    except ClientForked:  # it belongs to the parent process
        pass
    except DanubeError:
        if error is None:
            raise


class Producer(_Openable):
    """Like `pydanube.client.Producer`, except that `send` waits while the buffer is full.

    Up to `buffer_bytes` more may wait for the event loop.
    """

    _inner: asynchronous.Producer

    def __init__(self, loop: LoopThread, inner: asynchronous.Producer) -> None:
        super().__init__(loop, inner)
        self._calls: deque[tuple[Callable[[], Any], int, Pending[Any]]] = deque()
        self._waiting = 0  # calls that the loop has not made yet
        self._waiting_bytes = 0  # of their payloads
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._running = False  # the loop is making the calls
        self._failed: list[Pending[Any]] = []  # the first ones

    def send(self, payload: Any, **options: Any) -> Pending[asynchronous.Receipt]:
        """Queues a message. Takes the options of the asynchronous `send`."""
        return self._call(lambda: self._inner.send(payload, **options), _size_of(payload))

    def send_many(self, payloads: Iterable[Any], **options: Any) -> Pending[asynchronous.Receipts]:
        """Publishes all messages or none. Call `result()` to wait until they are stored."""
        values = list(payloads)
        return self._call(lambda: self._inner.send_many(values, **options), sum(map(_size_of, values)))

    @property
    def last_sequence(self) -> int | None:
        """The last sequence that the broker is known to have under the producer's name; None if it has none."""
        return self._inner.last_sequence

    @property
    def last_sequences(self) -> list[int | None]:
        """The same for each partition."""
        return self._inner.last_sequences

    def flush(self) -> None:
        """Waits until everything sent so far is answered. Raises the first failure of a send that was not awaited."""
        self._drain()
        self._loop.wait(self._inner.flush())
        self._raise_failed()

    def close(self) -> None:
        with suppress(ClientForked):
            self._drain()
            super().close()
            self._raise_failed()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _quietly_after(error):
            self.drain_after(error)
        super().__exit__(kind, error, traceback)
        if error is None:
            self._raise_failed()

    def drain_after(self, error: BaseException | None) -> None:
        """Waits for all calls at the end of a block, but not for long after Ctrl-C."""
        seconds = INTERRUPTED_SECONDS if self._inner.connected else DISCONNECTED_SECONDS
        self._drain(None if error is None or isinstance(error, Exception) else seconds)

    def _drain(self, timeout: float | None = None) -> None:
        """Waits until the loop has made all calls."""
        self._loop.check_waiting()
        seen = threading.Event()
        self._call(seen.set)
        seen.wait(timeout)

    def _raise_failed(self) -> None:
        failed, self._failed = [each for each in self._failed if not each.asked], []
        if failed and failed[0].error is not None:
            raise failed[0].error

    def _call(self, call: Callable[[], Any], size: int = 0) -> Pending[Any]:
        self._loop.check()
        pending: Pending[Any] = Pending(self._loop)
        with self._lock:
            while not self._fits(size):
                if self._loop.here:
                    raise ProducerBusy(f"{self._waiting} sends are still waiting to be handled")
                self._room.wait()
            self._waiting += 1
            self._waiting_bytes += size
            self._calls.append((call, size, pending))
            first, self._running = not self._running, True
        if first:
            try:
                self._loop.run(self._run_calls())
            except DanubeError as error:
                self._fail_calls(error)
                raise
        return pending

    def _fits(self, size: int) -> bool:
        """Whether a call fits beside the waiting ones. Alone, a call of any size fits."""
        if not self._waiting_bytes or not size:
            return self._waiting < CALLS_WAITING_MAX
        return self._waiting < CALLS_WAITING_MAX and self._waiting_bytes + size <= self._inner.buffer_bytes

    def _call_done(self, size: int) -> None:
        with self._lock:
            self._waiting -= 1
            self._waiting_bytes -= size
            self._room.notify()

    def _fail_calls(self, error: DanubeError) -> None:
        """Fails the calls that the loop did not make before it ended."""
        with self._lock:
            calls, self._calls, self._running = self._calls, deque(), False
        for _, size, pending in calls:
            pending.fail(error)
            self._call_done(size)

    async def _run_calls(self) -> None:
        """Makes all calls in order. While the buffer is full, the next call waits, and so do those behind it."""
        try:
            await self._make_calls()
        except BaseException:  # the loop ends
            self._fail_calls(ClientClosed("the client was closed before it was sent"))
            raise

    async def _make_calls(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    return
                call, size, pending = self._calls.popleft()
            try:
                while self._inner.busy:
                    await self._inner.ready()
            except DanubeError as error:
                pending.fail(error)
            except BaseException:
                pending.fail(ClientClosed("the client was closed before it was sent"))
                raise
            else:
                pending.answer(call)
            finally:
                self._call_done(size)
            if pending.error is not None and len(self._failed) < FAILED_KEPT_MAX:
                self._failed.append(pending)


def _size_of(payload: Any) -> int:
    """The size of a payload; 0 if it is not known before serialization."""
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview | str) else 0


class _Receiving(_Openable):
    """What consumers and readers share: they fetch messages and batches from the loop."""

    def receive(self, timeout: Duration | None = None) -> Message:
        message: Message = self._loop.wait(self._inner.receive(timeout))
        return message

    def batches(self) -> Iterator[MessageBatch]:
        iterator = self._inner.batches()
        while (batch := self._loop.wait(_next(iterator))) is not None:
            yield batch

    def __next__(self) -> Message:
        message: Message | None = self._loop.wait(_next(self._inner))
        if message is None:
            raise StopIteration
        return message

    def __iter__(self) -> Iterator[Message]:
        while (message := next(self, None)) is not None:
            yield message


async def _next(iterator: Any) -> Any:
    """The next item; None at the end."""
    return await anext(iterator, None)


class Consumer(_Receiving):
    """Like `pydanube.client.Consumer`. Messages that have arrived are fetched from the event loop together."""

    _inner: asynchronous.Consumer

    def __init__(self, loop: LoopThread, inner: asynchronous.Consumer) -> None:
        super().__init__(loop, inner)
        self._fetched = inner.inbox.fetched  # from the loop, not yet returned to the program
        inner.outer = self

    def __next__(self) -> Message:
        return self.receive()

    def receive(self, timeout: Duration | None = None) -> Message:
        with suppress(IndexError):  # another thread may have taken the last one
            return self._fetched.popleft()
        message: Message = self._loop.wait(self._fetch_next(timeout))
        return message

    async def _fetch_next(self, timeout: Duration | None) -> Message:  # noqa: ASYNC109 - given by the program
        """Returns the next message, and keeps others that have arrived for the next calls."""
        first = await self._inner.receive(timeout)
        self._fetched += self._inner.arrived(FETCHED_MAX - 1)
        return first

    def fetch(self, count: int, timeout: Duration | None = None) -> list[Message]:
        """Returns `count` messages, or as many as arrive within `timeout` seconds, possibly none."""
        found: list[Message] = []
        with suppress(IndexError):
            while len(found) < count:
                found.append(self._fetched.popleft())
        if len(found) == count:
            return found
        try:
            return found + self._loop.wait(self._inner.fetch(count - len(found), timeout))
        except DanubeError:  # nothing more will arrive; the next call raises it
            if found:
                return found
            raise
        except BaseException:  # Ctrl-C
            self._fetched.extendleft(reversed(found))
            raise

    def batches(self) -> Iterator[MessageBatch]:
        """Yields batches. Messages that were already fetched come first, each in a batch of its own."""
        with suppress(IndexError):
            while True:
                one = self._fetched.popleft()
                yield one.batch.part(one.offset, one.offset)
        yield from super().batches()

    def ack(self, what: Message | MessageBatch) -> Pending[None]:
        """Acknowledges messages. Call `result()` to wait until the acknowledgement is durable."""
        return self._acknowledge(self._inner.ack, what)

    def ack_all(self, what: Message | MessageBatch) -> Pending[None]:
        """Acknowledges a message and everything before it. Exclusive and Failover subscriptions only."""
        return self._acknowledge(self._inner.ack_all, what)

    def _acknowledge(self, ack: Callable[[Any], Awaitable[None]], what: Message | MessageBatch) -> Pending[None]:
        pending: Pending[None] = Pending(self._loop)
        self._loop.call(pending.answer, lambda: ack(what))
        return pending

    def nack(self, what: Message | MessageBatch, delay: Duration = 0.0, reason: str = "") -> None:
        """Rejects messages: the broker delivers them again after the delay."""
        self._loop.wait(self._nack(what, delay, reason))

    async def _nack(self, what: Message | MessageBatch, delay: Duration, reason: str) -> None:
        self._inner.nack(what, delay, reason)

    @property
    def partitions(self) -> list[tuple[str, int | None]]:
        """The topics and partitions that it receives from."""
        return self._inner.partitions

    def pause(self) -> None:
        """Stops deliveries to the whole subscription until `resume`."""
        self._loop.wait(self._inner.pause())

    def resume(self) -> None:
        """Resumes deliveries, even if another consumer paused the subscription."""
        self._loop.wait(self._inner.resume())

    def seek(self, to: Any, *, partition: int | None = None) -> None:
        """Moves the subscription to earliest, latest, an offset or a time; durable when this returns."""
        self._loop.wait(self._inner.seek(to, partition=partition))
        self._fetched.clear()


class Reader(_Receiving):
    """Like `pydanube.client.Reader`."""

    _inner: asynchronous.Reader

    @property
    def offsets(self) -> dict[int | None, int]:
        """For each partition, the offset after the last message returned: where another reader can continue."""
        return self._inner.offsets

    def seek(self, to: Any) -> None:
        """Moves to earliest, latest, an offset, a time, or the `offsets` of another reader."""
        self._loop.wait(self._inner.seek(to))


def _waiting(
    method: Callable[Concatenate[asynchronous.Admin, Given], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Admin, Given], Result]:
    """The same method, which waits for the answer."""

    @wraps(method)  # `help` shows its arguments
    def waiting(admin: Admin, /, *arguments: Given.args, **options: Given.kwargs) -> Result:
        return admin._loop.wait(method(admin._inner, *arguments, **options))

    return waiting


class Admin:
    """Like `pydanube.client.Admin`, with methods that wait for the answer."""

    def __init__(self, loop: LoopThread, inner: asynchronous.Admin) -> None:
        self._loop = loop
        self._inner = inner

    create_namespace = _waiting(asynchronous.Admin.create_namespace)
    namespaces = _waiting(asynchronous.Admin.namespaces)
    delete_namespace = _waiting(asynchronous.Admin.delete_namespace)
    policies = _waiting(asynchronous.Admin.policies)
    create_topic = _waiting(asynchronous.Admin.create_topic)
    topics = _waiting(asynchronous.Admin.topics)
    topic_records = _waiting(asynchronous.Admin.topic_records)
    describe_topic = _waiting(asynchronous.Admin.describe_topic)
    alter_topic = _waiting(asynchronous.Admin.alter_topic)
    delete_topic = _waiting(asynchronous.Admin.delete_topic)
    truncate_topic = _waiting(asynchronous.Admin.truncate_topic)
    peek = _waiting(asynchronous.Admin.peek)
    create_subscription = _waiting(asynchronous.Admin.create_subscription)
    subscriptions = _waiting(asynchronous.Admin.subscriptions)
    describe_subscription = _waiting(asynchronous.Admin.describe_subscription)
    alter_subscription = _waiting(asynchronous.Admin.alter_subscription)
    seek_subscription = _waiting(asynchronous.Admin.seek_subscription)
    skip_messages = _waiting(asynchronous.Admin.skip_messages)
    delete_subscription = _waiting(asynchronous.Admin.delete_subscription)
    blocked_subscriptions = _waiting(asynchronous.Admin.blocked_subscriptions)
    abandoned_subscriptions = _waiting(asynchronous.Admin.abandoned_subscriptions)
    consumers = _waiting(asynchronous.Admin.consumers)
    explain = _waiting(asynchronous.Admin.explain)
    explanations = _waiting(asynchronous.Admin.explanations)
    connections = _waiting(asynchronous.Admin.connections)
    status = _waiting(asynchronous.Admin.status)
    settings = _waiting(asynchronous.Admin.settings)
    storage_status = _waiting(asynchronous.Admin.storage_status)
    storage_usage = _waiting(asynchronous.Admin.storage_usage)
    storage_usages = _waiting(asynchronous.Admin.storage_usages)
    segments = _waiting(asynchronous.Admin.segments)
    table = _waiting(asynchronous.Admin.table)
    verify_segment = _waiting(asynchronous.Admin.verify_segment)
    verify_topic = _waiting(asynchronous.Admin.verify_topic)
    upload_topic = _waiting(asynchronous.Admin.upload_topic)
    damaged_topics = _waiting(asynchronous.Admin.damaged_topics)
    salvage_topic = _waiting(asynchronous.Admin.salvage_topic)
    examine_topic = _waiting(asynchronous.Admin.examine_topic)
    sinks = _waiting(asynchronous.Admin.sinks)
    register_schema = _waiting(asynchronous.Admin.register_schema)
    schema = _waiting(asynchronous.Admin.schema)
    schema_by_id = _waiting(asynchronous.Admin.schema_by_id)
    subjects = _waiting(asynchronous.Admin.subjects)
    schema_versions = _waiting(asynchronous.Admin.schema_versions)
    check_schema = _waiting(asynchronous.Admin.check_schema)
    delete_schema = _waiting(asynchronous.Admin.delete_schema)
    schema_mode = _waiting(asynchronous.Admin.schema_mode)
    set_schema_mode = _waiting(asynchronous.Admin.set_schema_mode)
    pipelines = _waiting(asynchronous.Admin.pipelines)
    pipeline = _waiting(asynchronous.Admin.pipeline)
    pipeline_logs = _waiting(asynchronous.Admin.pipeline_logs)
    order_pipeline = _waiting(asynchronous.Admin.order_pipeline)
    forget_pipeline = _waiting(asynchronous.Admin.forget_pipeline)


class Client:
    """A client, created by `connect`. Use it with `with`, or `open` and `close`."""

    def __init__(self, address: str | None = None, **options: Any) -> None:
        self._inner = pydanube.connect(address, **options)
        self._running: LoopThread | None = None
        self._closed: DanubeError = NotOpened("the client is not open yet")
        self._producers: WeakSet[Producer] = WeakSet()

    @property
    def _loop(self) -> LoopThread:
        if self._running is None:
            raise copy_of(self._closed)
        return self._running

    def producer(self, topic: str, **options: Any) -> Producer:
        """Publishes to a topic; the options are those of `pydanube.Client.producer`."""
        producer = Producer(self._loop, self._inner.producer(topic, **options))
        self._producers.add(producer)
        return producer

    def consumer(self, topics: str | Sequence[str] | None = None, *, subscription: str, **options: Any) -> Consumer:
        """Receives what a subscription delivers; the options are those of `pydanube.Client.consumer`."""
        return Consumer(self._loop, self._inner.consumer(topics, subscription=subscription, **options))

    def reader(self, topic: str, **options: Any) -> Reader:
        """Reads a topic without a subscription; the options are those of `pydanube.Client.reader`."""
        return Reader(self._loop, self._inner.reader(topic, **options))

    def read_arrow(
        self, topic: str, start: Any = "earliest", end: Any = "latest", *, partition: int | None = None
    ) -> pa.Table:
        """Returns messages from `start` up to, but not including, `end` as an Arrow table, partition by partition."""
        return self._loop.wait(self._inner.read_arrow(topic, start, end, partition=partition))

    def ask(self, request: Request[A]) -> A:
        """Sends a request of `pydanube.operations` and returns its answer."""
        return self._loop.wait(self._inner.ask(request))

    def report_pipeline(self, name: str, run: str, **facts: Any) -> Reported:
        """For runners of pipelines; see `pydanube.Client.report_pipeline`."""
        return self._loop.wait(self._inner.report_pipeline(name, run, **facts))

    @property
    def admin(self) -> Admin:
        """Topics, subscriptions, namespaces and policies."""
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
        _open.add(self)
        return self

    def close(self) -> None:
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        """Closes the client after a block that ended with this error."""
        if self._running is None:
            return
        try:
            with _quietly_after(error):
                for producer in list(self._producers):
                    producer.drain_after(error)
                self._running.wait(self._inner.__aexit__(None, error, None))
        finally:
            self._stop()

    def _stop(self) -> None:
        running, self._running = self._running, None
        self._closed = ClientClosed("the client is closed")
        _open.discard(self)
        if running is not None:
            running.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(error)


_open: WeakSet[Client] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes open clients when the program ends, so that queued messages are sent. What cannot be sent is logged."""
    for client in list(_open):
        with suppress(Exception):
            client._close(SystemExit())


def connect(address: str | None = None, **options: Any) -> Client:
    """Returns a client for use without asyncio. Takes the options of `pydanube.connect`."""
    return Client(address, **options)


__all__ = ["Client", "Consumer", "LoopThread", "Pending", "Producer", "Reader", "connect"]
