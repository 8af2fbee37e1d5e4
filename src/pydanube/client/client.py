"""The client: one connection, kept up, and what is opened over it.

Reconnects by itself and says so. Producers and consumers open their channels again on their own.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

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
from pydanube.base.keys import KeyHash
from pydanube.base.names import full_name
from pydanube.base.wording import many
from pydanube.client.admin import Admin
from pydanube.client.channel import RETRY
from pydanube.client.connection import Connection
from pydanube.client.consumer import Consumer, Start
from pydanube.client.ending import Openable, close_after
from pydanube.client.outgoing import fresh
from pydanube.client.pipelines import Reported, report_pipeline
from pydanube.client.producer import Producer
from pydanube.client.reader import Reader, read_arrow
from pydanube.client.topic_watch import TopicWatches
from pydanube.client.transport import Dialer, SocketDialer, parse_addresses
from pydanube.client.values import Duration, seconds_of
from pydanube.client.waiters import Waiters
from pydanube.ports.clock import Clock
from pydanube.ports.randomness import Randomness
from pydanube.wire.commands import Batches, Reply

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


class TopicInfo(NamedTuple):
    topic: str
    partitions: int  # 0: not partitioned
    reliable: bool
    partition: int | None = None  # the name is that of one partition, and has no further ones
    key_hash: KeyHash = KeyHash.FNV1A64  # what decides the partition of a key
    dead_letters: bool = False  # the broker made it for them
    id: int = 0  # another if it is deleted and made again

    def places(self) -> list[tuple[int | None, str]]:
        """Number and name of each partition; a topic without partitions is its only place."""
        if not self.partitions:
            return [(self.partition, self.topic)]
        return [(number, f"{self.topic}-part-{number}") for number in range(self.partitions)]


class Closing(Protocol):
    """An open producer, consumer or reader."""

    @property
    def unsent(self) -> int:
        """Messages that were handed over and are not answered."""
        ...

    async def close(self) -> None: ...

    def disown(self, error: DanubeError) -> None:
        """It belongs to another process: whoever uses it here gets this error."""
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
        dialer: Dialer | None = None,
        on_event: Callable[[ClientEvent], None] | None = None,
        request_timeout: Duration = 30.0,
    ) -> None:
        self.addresses = parse_addresses(address)
        self.clock = clock
        self.randomness = randomness
        self.admin = Admin(self)
        self._dialer = dialer or SocketDialer(ca_file)
        self._on_event = on_event
        self.request_timeout = seconds_of(request_timeout)
        self.topic_watches = TopicWatches(self)
        self._connection: Connection | None = None
        self._waiters = Waiters()  # for a connection
        self._reason: DanubeError = ConnectionLost("not connected yet")
        self._closed: DanubeError | None = NotOpened("the client is not open yet")
        self._reconnecting: Task[None] | None = None
        self._attempts = 0  # to connect again, since a connection last stayed
        self._since = 0.0  # when the connection was made
        self._members: dict[Closing, None] = {}  # open producers, consumers and readers
        self._guard: AsyncGenerator[None, None] | None = None

    # -- what is opened over it ----------------------------------------------------------------------------------------

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
        """For runners of pipelines, every two seconds or so; facts are those of `client.pipelines.report_pipeline`.

        The answer is an order, which is given again until its number is reported as `taken`. `PipelineRunning`: another
        run has the name, also where this one was not heard of for 15 seconds.
        """
        return await report_pipeline(self, name, run, **facts)

    async def topic(self, name: str, *, create: bool = False, reliable: bool | None = None) -> TopicInfo:
        """Returns what the broker knows about a topic. With `create`, creates it if it does not exist."""
        name = full_name(name)
        fields: dict[str, Any] = {"topic": name, "create": create}
        if reliable is not None:
            fields["reliable"] = reliable
        found = await self.ask("topic", fields)
        whole, reliable = str(found["topic"]), bool(found["reliable"])
        if name != whole:
            return TopicInfo(name, 0, reliable, int(name.removeprefix(f"{whole}-part-")), id=int(found["id"]))
        return TopicInfo(
            name,
            int(found["partitions"]),
            reliable,
            key_hash=KeyHash(found.get("key_hash", KeyHash.CRC32C.value)),
            dead_letters=bool(found.get("dead_letters", False)),
            id=int(found["id"]),
        )

    async def bounds(self, place: str) -> tuple[int, int]:
        """Returns the first stored offset and the next offset of a topic without partitions, or of a partition."""
        found = await self.ask("bounds", {"topic": full_name(place)})
        return int(found["first"]), int(found["end"])

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def unreachable(self) -> DanubeError:
        """Why there is no connection."""
        return fresh(self._reason)

    async def connection(self) -> Connection:
        """The connection, as soon as there is one."""
        while self._connection is None:
            if self._closed is not None:
                raise fresh(self._closed)
            await self._waiters.wait(self.loop)
        return self._connection

    async def ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self.ask_any(verb, fields)
        assert isinstance(answer, Reply)
        return answer.fields

    async def ask_any(self, verb: str, fields: Mapping[str, Any]) -> Reply | Batches:
        """Waits for a connection if there is none; what the broker answers, or why there was no answer, is raised."""
        return await self.within(verb, self._request(verb, fields))

    async def _request(self, verb: str, fields: Mapping[str, Any]) -> Reply | Batches:
        return await (await self.connection()).request(verb, fields)

    async def within(self, verb: str, work: Coroutine[Any, Any, Result]) -> Result:
        """What the work gives, if it gives it in the time that requests have."""
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
                await connection.open(self._dialer)
                if connection.error is not None:  # it ended right behind its WELCOME, when nobody listened yet
                    raise fresh(connection.error)
            except DanubeError as error:
                self._reason = error
            else:
                self._connection, self._since = connection, self.loop.time()
                self._waiters.wake()
                self.say("connected", where=f"to {address}")
                return
        raise self.unreachable()

    def _lost(self, connection: Connection, error: DanubeError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if self.loop.time() - self._since > RETRY.longest:  # else each one is dropped, and they become fewer
            self._attempts = 0
        if self._closed is None:
            self._reason = error
            self.say("disconnected", error, where=f"from {connection.address}")
            self._reconnecting = self.loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        while True:
            self._attempts += 1
            await asyncio.sleep(RETRY.after(self._attempts, self.randomness.below))
            try:
                return await self._connect()
            except DanubeError as error:
                self.say("connect_failed", error)

    def say(self, what: str, error: DanubeError | None = None, *, where: str = "") -> None:
        """To the log, and to the program if it wants to know."""
        text = f"{what.replace('_', ' ')} {where}".rstrip()
        log.log(_LEVELS.get(what, logging.WARNING), "%s%s", text, f": {error}" if error else "")
        if self._on_event is not None:
            self.call_back(self._on_event, ClientEvent(what, error))

    def call_back(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls the program; what it raises is the loop's to report, and harms no connection."""
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
        self._guard = self._guarded()
        await anext(self._guard)
        return self

    async def _guarded(self) -> AsyncGenerator[None, None]:
        """Stays suspended until the loop shuts down its generators, as `asyncio.run` does at its end.

        A program that has forgotten to close the client still sends what it has.
        """
        try:
            yield
        finally:
            self._guard = None
            if self._closed is None:
                await close_after(self, asyncio.CancelledError())

    def check_loop(self) -> None:
        """What a program hands over elsewhere would wait until the loop happens to wake up."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self.loop:
            raise OtherLoop("the client was opened on another event loop and cannot be used from this one")

    def forked(self) -> None:
        """In the child of a fork: the connection is the parent's, and must not be touched."""
        if self._closed is None:
            self._closed = ClientForked("the client was opened before this process forked")
            self._connection = None
            for member in self._members:
                member.disown(self._closed)
            self._members.clear()

    def left_open(self) -> None:
        """The process ends, and nobody has closed it."""
        if self._closed is None and (unsent := sum(member.unsent for member in self._members)):
            log.warning("the program is exiting without closing its client; %s may not have been sent", many(unsent))

    def add(self, member: Closing) -> None:
        self._members[member] = None

    def remove(self, member: Closing) -> None:
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
            await connection.gone()
        if self._guard is not None:
            await self._guard.aclose()
        failure = next((outcome for outcome in outcomes if outcome is not None), None)
        if failure is not None:
            raise failure
