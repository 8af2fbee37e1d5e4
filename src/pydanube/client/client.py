"""The client: keeps one connection to a broker, for its producers, consumers and readers.

It reconnects automatically and emits events about that. Producers and consumers open their channels again themselves.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from msgspec.structs import replace

from pydanube.base.errors import (
    AlreadyOpened,
    ClientClosed,
    ClientForked,
    ConnectionLost,
    DanubeError,
    NotAnswered,
    NotOpened,
    OtherLoop,
)
from pydanube.base.names import full_name, parse_topic
from pydanube.base.wording import many
from pydanube.client.admin import Admin
from pydanube.client.arguments import Duration, seconds_of
from pydanube.client.channel import RETRY
from pydanube.client.connection import A, Connection
from pydanube.client.consumer import Consumer, Start
from pydanube.client.errors import copy_of
from pydanube.client.lifecycle import Openable, close_after
from pydanube.client.pipelines import report_pipeline
from pydanube.client.producer import Producer
from pydanube.client.reader import Reader, read_arrow
from pydanube.client.tokens import Tokens
from pydanube.client.topic_watch import TopicWatches
from pydanube.client.transport import Dialer, SocketDialer, parse_addresses
from pydanube.client.waiters import Waiters
from pydanube.operations.operation import Request
from pydanube.operations.pipelines import Reported, ReportPipeline
from pydanube.operations.topics import FindTopic, GetBounds, Topic
from pydanube.ports.clock import Clock
from pydanube.ports.randomness import Randomness
from pydanube.wire.commands import Batches

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
log = logging.getLogger(__name__)
_LEVELS = {"connected": logging.INFO, "connect_failed": logging.INFO, "refresh_failed": logging.INFO}


class ClientEvent(NamedTuple):
    """An event of the connection, such as connected or disconnected, or a failure that no call reported.

    Failures are connect_failed, refresh_failed, ack_failed, unreadable, damaged, and disk_full (messages are refused).
    """

    what: str
    error: DanubeError | None = None


class TopicInfo(Topic):
    """A topic, or with `partition` one of its partitions, under the name that was asked for."""

    partition: int | None = None

    def partition_names(self) -> list[tuple[int | None, str]]:
        """Number and name of each partition; None and the topic itself if it has none."""
        if not self.partitions:
            return [(self.partition, self.topic)]
        return [(number, f"{self.topic}-part-{number}") for number in range(self.partitions)]


class Member(Protocol):
    """An open producer, consumer or reader."""

    @property
    def unsent(self) -> int:
        """The number of messages that have not been answered."""
        ...

    async def close(self) -> None: ...

    def detach_after_fork(self, error: DanubeError) -> None:
        """After a fork, in the child: it belongs to the parent, and using it raises this error."""
        ...


class Client(Openable):
    """A client, created by `pydanube.connect`. Use it with `async with`, or `open` and `close`, on one event loop."""

    def __init__(
        self,
        address: str,
        *,
        clock: Clock,
        randomness: Randomness,
        ca_file: str | None = None,
        tokens: Tokens | None = None,
        dialer: Dialer | None = None,
        on_event: Callable[[ClientEvent], None] | None = None,
        request_timeout: Duration = 30.0,
    ) -> None:
        self.addresses = parse_addresses(address)
        self.clock = clock
        self.randomness = randomness
        self.admin = Admin(self)
        self._dialer = dialer or SocketDialer(ca_file)
        self._tokens = tokens
        self._on_event = on_event
        self.request_timeout = seconds_of(request_timeout)
        self.topic_watches = TopicWatches(self)
        self._connection: Connection | None = None
        self._waiters = Waiters()  # callers that wait for a connection
        self._reason: DanubeError = ConnectionLost("not connected yet")
        self._closed: DanubeError | None = NotOpened("the client is not open yet")
        self._reconnecting: Task[None] | None = None
        self._attempts = 0  # to reconnect, since the last stable connection
        self._since = 0.0  # time of the last connect
        self._members: dict[Member, None] = {}  # open producers, consumers and readers
        self._guard: AsyncGenerator[None, None] | None = None

    # -- producers, consumers and readers ------------------------------------------------------------------------------

    def producer(self, topic: str, **options: Any) -> Producer:
        """Returns a producer for a topic. Takes the options of `Producer`."""
        return Producer(self, topic, **options)

    def consumer(self, topics: Any = None, *, subscription: str, **options: Any) -> Consumer:
        """Returns a consumer of a topic, a list of topics, or a `pattern=`. Takes the options of `Consumer`."""
        return Consumer(self, topics, subscription=subscription, **options)

    def reader(self, topic: str, **options: Any) -> Reader:
        """Returns a reader, which needs no subscription. Takes the options of `Reader`."""
        return Reader(self, topic, **options)

    async def read_arrow(
        self, topic: str, start: Start = "earliest", end: Start = "latest", *, partition: int | None = None
    ) -> pa.Table:
        """Returns messages from `start` up to, but not including, `end` as an Arrow table, partition by partition."""
        return await read_arrow(self, topic, start, end, partition)

    async def report_pipeline(self, name: str, run: str, **facts: Any) -> Reported:
        """Reports the state of a running pipeline; its runner calls this about every two seconds.

        Takes the facts of `pydanube.operations.pipelines.ReportPipeline`. The answer has an order, which is repeated
        until its number is reported as `taken`. Raises `PipelineRunning` if another run has the name, also if it took
        the name over because this one had not reported for 15 seconds.
        """
        return await report_pipeline(self, ReportPipeline(name, run, **facts))

    async def topic(self, name: str, *, create: bool = False, reliable: bool | None = None) -> TopicInfo:
        """Returns what the broker knows about a topic. With `create`, creates it if it does not exist."""
        found = TopicInfo(**await self.ask(FindTopic(name, create=create, reliable=reliable)))
        asked = parse_topic(full_name(name))
        if asked.partition is None:
            return found
        return replace(found, topic=str(asked), partitions=0, partition=asked.partition)

    async def bounds(self, topic: str) -> tuple[int, int]:
        """Returns the first stored offset and the next offset of an unpartitioned topic, or of a partition."""
        found = await self.ask(GetBounds(topic))
        return found.first, found.end

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def unreachable(self) -> DanubeError:
        """Why there is no connection."""
        return copy_of(self._reason)

    async def connection(self) -> Connection:
        """Waits for a connection and returns it."""
        while self._connection is None:
            if self._closed is not None:
                raise copy_of(self._closed)
            await self._waiters.wait(self.loop)
        return self._connection

    async def ask(self, request: Request[A]) -> A:
        """Sends a request of `pydanube.operations`, after reconnecting if need be, and returns its answer.

        Raises the broker's error, why it did not answer, or `BrokerProtocolError` if it answered something else.
        """
        return await self.within(request.operation, self._ask(request))

    async def ask_any(self, request: Request[A]) -> A | Batches:
        """The same for requests that may be answered with batches."""
        return await self.within(request.operation, self._ask_any(request))

    async def _ask(self, request: Request[A]) -> A:
        return await (await self.connection()).request(request)

    async def _ask_any(self, request: Request[A]) -> A | Batches:
        return await (await self.connection()).request_any(request)

    async def within(self, verb: str, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs the work within the request timeout."""
        try:
            async with asyncio.timeout(self.request_timeout):
                return await work
        except TimeoutError:
            if self._connection is None:
                raise self.unreachable() from None
            raise NotAnswered(f"no answer to {verb} within {self.request_timeout:g} seconds") from None

    async def _connect(self) -> None:
        """Tries every address once."""
        for address in self.addresses:
            connection = Connection(self.loop, self._lost, address)
            try:
                token = None if self._tokens is None else await self._tokens.get()
                await connection.open(self._dialer, token)
                if connection.error is not None:  # it ended right after WELCOME, before `_lost` could handle it
                    raise copy_of(connection.error)
            except DanubeError as error:
                self._reason = error
            else:
                self._connection, self._since = connection, self.loop.time()
                self._waiters.wake()
                self.emit("connected", where=f"to {address}")
                return
        raise self.unreachable()

    def _lost(self, connection: Connection, error: DanubeError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self.loop.time() - self._since > RETRY.longest:  # it was stable
            self._attempts = 0
        if self._closed is None:
            self._reason = error
            self.emit("disconnected", error, where=f"from {connection.address}")
            self._reconnecting = self.loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        while True:
            self._attempts += 1
            await asyncio.sleep(RETRY.after(self._attempts, self.randomness.below))
            try:
                return await self._connect()
            except DanubeError as error:
                self.emit("connect_failed", error)

    def emit(self, what: str, error: DanubeError | None = None, *, where: str = "") -> None:
        """Logs an event and passes it to `on_event`."""
        text = f"{what.replace('_', ' ')} {where}".rstrip()
        log.log(_LEVELS.get(what, logging.WARNING), "%s%s", text, f": {error}" if error else "")
        if self._on_event is not None:
            self.call_back(self._on_event, ClientEvent(what, error))

    def call_back(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function of the program. Its exceptions go to the event loop's handler and do not harm the client."""
        try:
            function(*arguments)
        except Exception as error:
            context = {"message": f"{function!r} of a Danube client failed", "exception": error}
            self.loop.call_exception_handler(context)

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connects. Raises if no address answers; once connected, the client reconnects automatically."""
        if self._closed is None:
            raise AlreadyOpened("the client is already open")
        before, self._closed = self._closed, None
        self.loop = asyncio.get_running_loop()
        try:
            await self._connect()
        except BaseException:
            self._closed = before
            raise
        self._guard = self._close_with_loop()
        await anext(self._guard)
        return self

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Stays suspended until the event loop shuts down its generators, as `asyncio.run` does at its end.

        So a program that forgets to close the client still sends what is queued.
        """
        try:
            yield
        finally:
            self._guard = None
            if self._closed is None:
                await close_after(self, asyncio.CancelledError())

    def check_loop(self) -> None:
        """Raises in another thread or loop: calls there would wait until the client's loop happens to wake up."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self.loop:
            raise OtherLoop("the client was opened on another event loop and cannot be used from this one")

    def forked(self) -> None:
        """Called in the child of a fork: the connection belongs to the parent and must not be used."""
        if self._closed is None:
            self._closed = ClientForked("the client was opened before this process forked")
            self._connection = None
            for member in self._members:
                member.detach_after_fork(self._closed)
            self._members.clear()

    def left_open(self) -> None:
        """Called when the process exits: warns if the client is still open and has unsent messages."""
        if self._closed is None and (unsent := sum(member.unsent for member in self._members)):
            log.warning("the program is exiting without closing its client; %s may not have been sent", many(unsent))

    def add(self, member: Member) -> None:
        self._members[member] = None

    def remove(self, member: Member) -> None:
        self._members.pop(member, None)

    async def close(self) -> None:
        """Closes all producers, consumers and readers that are still open, then the connection."""
        if self._closed is not None:
            return
        try:
            outcomes = await asyncio.gather(*(member.close() for member in self._members), return_exceptions=True)
        finally:
            self._closed = ClientClosed("the client was closed")
            if self._reconnecting is not None:
                self._reconnecting.cancel()
            connection = self._connection
            if connection is not None:
                connection.end(ClientClosed("the client was closed"))
            self._waiters.wake()
        if connection is not None:
            await connection.wait_closed()
        if self._guard is not None:
            await self._guard.aclose()
        failure = next((outcome for outcome in outcomes if outcome is not None), None)
        if failure is not None:
            raise failure
