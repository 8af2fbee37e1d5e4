"""The clients' side of the native protocol: the Python client's own connection over a simulated socket.

Batches, permits, acks and requests are encoded by the client's code and decoded by the broker's, and the other way
round. A connection that is lost is dialled again when a client needs one; its producers and consumers have ended.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from pydanube.api.listening.doorway import Doorway
from pydanube.api.listening.listener import Listener
from pydanube.api.listening.turns import Turns
from pydanube.api.native.face import NativeFace
from pydanube.base.errors import DanubeError
from pydanube.broker.door.entrance import Entrance
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import Delivery
from pydanube.client.arguments import options_of
from pydanube.client.connection import Channel, Connection
from pydanube.client.transport import Address, Link, Receiver, SocketLink
from pydanube.operations.channels import CloseChannel, OpenConsumer, OpenProducer, Read, Seek
from pydanube.operations.operation import Answer, Request
from pydanube.operations.topics import FindOffset, GetBounds
from pydanube.ports.clock import Clock
from pydanube.sim.machine.sockets import SimSocket, SimSockets
from pydanube.storage.futures import retrieve
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Ack, Acked, Batches, Deliver, Grant, Nack, Published, Recall, Taken
from pydanube.wire.data_commands import encode_publish

KEEPALIVE_SECONDS = 30
DIAL_SECONDS_MAX = 0.01
Ranges = Sequence[tuple[int, int]]


def listener_of(door: Entrance, clock: Clock, name: str) -> Listener:
    """The product's listener for native connections, without a socket of the system."""
    turns = Turns(clock)
    face = NativeFace(door, turns, name, KEEPALIVE_SECONDS, lambda: f"{name}:6650")
    return Listener(door, [face], turns, keepalive_seconds=KEEPALIVE_SECONDS)


class ConsumerSide(Protocol):
    """A consumer's program. `written_at` is when the broker sent what arrives now."""

    def deliver(self, delivery: Delivery, written_at: float) -> None: ...
    def reset(self, generation: int) -> None: ...
    def recall(self, generation: int, ranges: Ranges) -> None: ...
    def closed(self, error: DanubeError) -> None: ...


class ClientSession:
    """One connection of a client to the broker in its process. It implements the client's port `Dialer`."""

    def __init__(self, sockets: SimSockets, listener: Listener, random: Random, name: str) -> None:
        self._sockets = sockets
        self._listener = listener
        self._random = random
        self._address = Address(name, 6650)
        self._connection: Connection | None = None
        self._dialling = asyncio.Lock()
        self._socket: SimSocket

    async def dial(self, address: Address, receiver: Receiver) -> Link:
        await asyncio.sleep(self._random.uniform(0.0, DIAL_SECONDS_MAX))
        link = SocketLink(receiver)
        self._socket = self._sockets.connect(link, Doorway(self._listener))
        return link

    async def _connected(self) -> tuple[Connection, SimSocket]:
        async with self._dialling:
            connection = self._connection
            if connection is None or connection.error is not None:
                connection = Connection(self._sockets.loop, _ignore, self._address)
                await connection.open(self)
                self._connection = connection
            return connection, self._socket

    async def request(self, request: Request[Any]) -> Any:
        connection, _ = await self._connected()
        return await connection.request(request)

    async def bounds(self, topic: str) -> tuple[int, int]:
        found = await self.request(GetBounds(topic))
        return found.first, found.end

    async def offset_of_time(self, topic: str, time: int) -> int:
        return int((await self.request(FindOffset(topic, time))).offset)

    async def read(self, topic: str, offset: int, bytes_max: int) -> list[Batch]:
        connection, _ = await self._connected()
        answer: Answer | Batches = await connection.request_any(Read(topic, offset, bytes_max))
        return [Batch.parse(each) for each in answer.batches] if isinstance(answer, Batches) else []

    async def open_producer(self, topic: str, name: str | None = None, *, temporary: bool = False) -> ClientProducer:
        connection, _ = await self._connected()
        producer = ClientProducer(connection)
        await producer.open(topic, name, temporary=temporary)
        return producer

    async def open_consumer(
        self,
        topic: str,
        subscription: str,
        kind: SubscriptionKind,
        side: ConsumerSide,
        options: SubscriptionOptions,
        *,
        says_taken: bool,
    ) -> ClientConsumer:
        connection, socket = await self._connected()
        consumer = ClientConsumer(connection, socket, side)
        await consumer.open(
            OpenConsumer(
                consumer.number,
                topic,
                subscription,
                kind.name.lower(),
                "c",
                "earliest",
                options=options_of(options.stored()),
                says_taken=says_taken,
            )
        )
        return consumer


class _ClientChannel(Channel):
    def __init__(self, connection: Connection) -> None:
        self.number = connection.add_channel(self)
        self._connection = connection
        self._error: DanubeError | None = None  # why it has ended
        self._waiting: dict[int, Future[Any]] = {}  # for answers, by request

    async def _open(self, request: Request[Any]) -> Any:
        """If the caller gives up, the broker may be opening it: it is closed again."""
        try:
            return await self._connection.request(request)
        except DanubeError:
            self._connection.remove_channel(self.number)
            raise
        except BaseException:
            self._go(CloseChannel(self.number))
            raise

    def _expect(self) -> tuple[int, Future[Any]]:
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        request = self._connection.next_request()
        answer = self._waiting[request] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(retrieve)  # perhaps no one waits any more
        return request, answer

    def _answer(self, request: int, result: int | None) -> None:
        answer = self._waiting.pop(request, None)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def refused(self, request: int, error: DanubeError) -> None:
        answer = self._waiting.pop(request, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def broken(self, error: DanubeError) -> None:
        self.ended(error)

    def ended(self, error: DanubeError) -> None:
        self._error = error
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(type(error)(*error.args))

    async def leave(self) -> None:
        """Closes it for good, once the broker has answered."""
        self._connection.remove_channel(self.number)
        await self._connection.request(CloseChannel(self.number))

    def _go(self, request: CloseChannel) -> None:
        self._connection.remove_channel(self.number)
        if self._error is None:
            self._connection.request_nowait(request)


class ClientProducer(_ClientChannel):
    producer_id = 0

    async def open(self, topic: str, name: str | None, *, temporary: bool) -> None:
        opened = await self._open(OpenProducer(self.number, topic, name, temporary=temporary))
        self.producer_id = opened.producer_id

    def publish(self, batch: Batch) -> Future[int]:
        """Done when the batch is confirmed: the offset that it has."""
        request, answer = self._expect()
        self._connection.write(encode_publish(self.number, request, *batch.parts()))
        return answer

    def published(self, answer: Published) -> None:
        self._answer(answer.request, answer.base_offset)

    def let_go(self) -> None:
        """As if the connection was lost: the producer may come back."""
        self._go(CloseChannel(self.number, returning=True))


class ClientConsumer(_ClientChannel):
    def __init__(self, connection: Connection, socket: SimSocket, side: ConsumerSide) -> None:
        super().__init__(connection)
        self._socket = socket
        self._side = side

    async def open(self, request: OpenConsumer) -> None:
        await self._open(request)

    # -- what it sends -------------------------------------------------------------------------------------------------

    def grant(self, permits: int) -> None:
        self._connection.write(Grant(self.number, permits).encode())

    def taken(self, generation: int, ranges: Ranges) -> None:
        self._connection.write(Taken(self.number, generation, list(ranges)).encode())

    def nack(self, generation: int, ranges: Ranges, delay: int, reason: str) -> int:
        """Returns the end of what it has sent by now, for `heard_at`."""
        self._connection.write(Nack(self.number, 0, generation, list(ranges), delay, reason).encode())
        return self._socket.written

    def ack(self, generation: int, ranges: Ranges, *, cumulative: bool = False) -> Future[None]:
        request, answer = self._expect()
        self._connection.write(Ack(self.number, request, generation, list(ranges), cumulative).encode())
        return answer

    async def seek(self, offset: int) -> None:
        await self._connection.request(Seek(self.number, offset))

    def close(self, *, crashed: bool) -> None:
        self._go(CloseChannel(self.number, crashed=crashed))

    def heard_at(self, end: int) -> float:
        """When the broker had read everything up to there."""
        return self._socket.peer.heard_at(end)

    # -- what it receives ----------------------------------------------------------------------------------------------

    def delivered(self, delivery: Deliver) -> None:
        _, generation, first, last, attempt, batch = delivery
        self._side.deliver(Delivery(Batch.parse(batch), first, last, attempt, generation), self._socket.written_at)

    def acked(self, answer: Acked) -> None:
        self._answer(answer.request, None)

    def reset(self, generation: int) -> None:
        self._side.reset(generation)

    def recalled(self, recall: Recall) -> None:
        self._side.recall(recall.generation, recall.ranges)

    def ended(self, error: DanubeError) -> None:
        super().ended(error)
        self._side.closed(error)


def _ignore(connection: Connection, error: DanubeError) -> None:
    """Called when a connection is lost: the next request dials again."""
