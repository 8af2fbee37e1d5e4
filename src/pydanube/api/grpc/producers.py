"""`danube.ProducerService`: producers by name, and their messages, which become batches.

Messages of one producer that arrive in one read of the socket become one batch, and share its cost and its receipt.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from functools import partial
from typing import TYPE_CHECKING, Any

from pydanube.access.principals import Principal
from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.ids import NUMBER_ATTRIBUTE, producer_id
from pydanube.api.grpc.messages import Messages
from pydanube.api.listening.failures import error_of
from pydanube.base.errors import (
    DanubeError,
    GrpcPeerForgotten,
    LimitReached,
    NotServed,
    PartitionMissing,
    RequestInvalid,
    TopicClosed,
    TopicKindDiffers,
    TopicNotFound,
)
from pydanube.base.keys import check_key
from pydanube.base.limits import CHANNELS_MAX, GRPC_COALESCED_BYTES, GRPC_COALESCED_MESSAGES, KEY_BYTES_MAX, MILLISECOND
from pydanube.base.names import parse_topic
from pydanube.broker.door.session import Session
from pydanube.broker.door.values import PRODUCER_ATTRIBUTE, ProducerHandle, Receipt
from pydanube.topic.records import name_bytes
from pydanube.wire.batch import Batch, build

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.ports.clock import Clock

UNUSED_SECONDS = 1.0  # how long a new producer stays open before its first use
danube = Messages("danube")
Key = tuple[Principal, int]  # the principal and its producer id


class GrpcProducer:
    """A producer name on a topic, of one principal, which gets the same producer if it opens it again. It is closed
    with the last connection that used it.
    """

    __slots__ = ("connections", "exclusive", "handle", "id", "key", "name", "topic")

    def __init__(self, key: Key, topic: str, name: str, exclusive: bool, handle: ProducerHandle) -> None:
        self.key = key
        self.id = key[1]
        self.topic = topic
        self.name = name
        self.exclusive = exclusive
        self.handle = handle
        self.connections: dict[GrpcConnection, None] = {}


class Sends:
    """Messages of one producer that arrived in one read, and the calls that wait for them."""

    __slots__ = ("bytes", "calls", "connection", "full", "messages", "producer", "service")

    def __init__(self, service: ProducerService, producer: GrpcProducer, connection: GrpcConnection) -> None:
        self.service = service
        self.producer = producer
        self.connection = connection
        self.calls: list[Call] = []
        self.messages: list[Any] = []
        self.bytes = 0
        self.full = False

    def add(self, call: Call, message: Any) -> None:
        self.calls.append(call)
        self.messages.append(message)
        self.bytes += len(message.payload)
        if self.bytes >= GRPC_COALESCED_BYTES or len(self.calls) >= GRPC_COALESCED_MESSAGES:
            self.full = True

    def publish(self) -> None:
        if self.connection.sends.get(self.producer) is self:
            del self.connection.sends[self.producer]
        try:
            receipt = self.service.publish(self.producer, self.messages)
        except DanubeError as error:
            self._split(error)
            return
        self.connection.await_written(receipt.written or receipt.confirmed, self.bytes)
        if receipt.confirmed.done():
            self._confirmed(receipt.confirmed)
        else:
            receipt.confirmed.add_done_callback(self._confirmed)

    def _split(self, error: DanubeError) -> None:
        """Sends the messages one by one, because one of them may be at fault: each gets its own answer."""
        if len(self.calls) == 1:
            self.calls[0].fail(error)
            return
        for call, message in zip(self.calls, self.messages, strict=True):
            alone = Sends(self.service, self.producer, self.connection)
            alone.add(call, message)
            alone.publish()

    def _confirmed(self, confirmed: Future[None]) -> None:
        failure = TopicClosed("the broker is stopping") if confirmed.cancelled() else confirmed.exception()
        if failure is None:
            for call, message in zip(self.calls, self.messages, strict=True):
                call.reply(response(message.request_id))
            return
        error = error_of(failure)
        for call in self.calls:
            call.fail(error)


class ProducerService:
    name = "danube.ProducerService"

    def __init__(self, clock: Clock) -> None:
        self.producers: dict[Key, GrpcProducer] = {}
        self._clock = clock
        self._attaching: dict[Key, Task[GrpcProducer]] = {}

    # -- producers -----------------------------------------------------------------------------------------------------

    async def create_producer(self, call: Call, request: Any) -> Any:
        topic, name = request.topic_name, request.producer_name
        parse_topic(topic)
        name_bytes(name)
        if request.dispatch_strategy not in (0, 1) or request.producer_access_mode not in (0, 1):
            raise RequestInvalid("unknown dispatch strategy or access mode")
        if request.schema_ref.subject:
            raise NotServed("producers with a schema are not supported yet (topics cannot be bound to subjects)")
        reliable, exclusive = request.dispatch_strategy == 1, request.producer_access_mode == 1
        await call.session.topics.prepare(topic, reliable=reliable)
        producer = await self._attach(call.session, topic, name, reliable, exclusive)
        self._use(producer, call)
        return danube.ProducerResponse(
            request_id=request.request_id, producer_id=producer.id, producer_name=producer.name
        )

    async def _attach(self, session: Session, topic: str, name: str, reliable: bool, exclusive: bool) -> GrpcProducer:
        key = session.principal, producer_id(topic, name, reliable=reliable, exclusive=exclusive)
        known = self.producers.get(key)
        if known is not None:
            return known
        attaching = self._attaching.get(key)
        if attaching is None:
            attaching = asyncio.ensure_future(self._open(session, key, topic, name, reliable, exclusive))
            self._attaching[key] = attaching
            attaching.add_done_callback(partial(self._attached, key))
        return await asyncio.shield(attaching)

    def _attached(self, key: Key, attaching: Task[GrpcProducer]) -> None:
        del self._attaching[key]
        if not attaching.cancelled() and attaching.exception() is None:  # an error went to the caller
            asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._drop_unused, attaching.result())

    def _drop_unused(self, producer: GrpcProducer) -> None:
        """Closes a producer that no connection uses: the caller may have given up meanwhile."""
        if not producer.connections and self.producers.get(producer.key) is producer:
            del self.producers[producer.key]
            producer.handle.close(lost=False)

    async def _open(
        self, session: Session, key: Key, topic: str, name: str, reliable: bool, exclusive: bool
    ) -> GrpcProducer:
        ended = partial(self._ended, key)
        handle = await session.open_producer(topic, ended, reliable=reliable, create=False, exclusive=exclusive)
        producer = self.producers[key] = GrpcProducer(key, topic, name, exclusive, handle)
        return producer

    def _ended(self, key: Key, error: DanubeError) -> None:
        """Called when the topic is no longer served."""
        producer = self.producers.pop(key, None)
        for connection in () if producer is None else producer.connections:
            connection.producers.pop(key, None)

    def _use(self, producer: GrpcProducer, call: Call) -> None:
        connection = call.connection
        producer.handle.used_by(call.session.principal)
        if connection.closed or self.producers.get(producer.key) is not producer:  # the latter: it has ended meanwhile
            self.forget(producer, connection)
        elif producer.key not in connection.producers:
            if len(connection.producers) >= CHANNELS_MAX:
                raise LimitReached(f"{CHANNELS_MAX} producers are already open on this connection")
            connection.producers[producer.key] = producer
            producer.connections[connection] = None

    def forget(self, producer: GrpcProducer, connection: GrpcConnection) -> None:
        """Called when a connection is gone."""
        producer.connections.pop(connection, None)
        self._drop_unused(producer)

    # -- messages ------------------------------------------------------------------------------------------------------

    def send_message(self, call: Call, request: Any) -> None:
        identity, connection = request.msg_id, call.connection
        key = call.session.principal, identity.producer_id
        producer = connection.producers.get(key)
        if producer is None:
            producer = self.producers.get(key)
            if producer is not None and producer.topic == identity.topic_name:
                self._use(producer, call)
        if producer is None or producer.topic != identity.topic_name:
            self._send_to_unknown(call, request)
            return
        self._send(call, request, producer)

    def _send(self, call: Call, request: Any, producer: GrpcProducer) -> None:
        if 4 * len(request.routing_key) > KEY_BYTES_MAX:  # checked before it shares a batch with others
            check_key(request.routing_key.encode())
        connection = call.connection
        sends = connection.sends.get(producer)
        if sends is None or sends.full:
            sends = connection.sends[producer] = Sends(self, producer, connection)
            connection.behind(sends.publish)
        sends.add(call, request)

    def _send_to_unknown(self, call: Call, request: Any) -> None:
        """Lets a producer continue after a restart of the broker or a new connection: its id proves that it existed."""
        identity, name = request.msg_id, request.producer_name
        if not request.HasField("msg_id"):
            raise RequestInvalid("a message needs a msg_id")
        topic, number = identity.topic_name, identity.producer_id
        for reliable, exclusive in ((True, False), (False, False), (True, True), (False, True)):
            if number == producer_id(topic, name, reliable=reliable, exclusive=exclusive):
                call.connection.spawn(call, self._reattach(call, request, reliable, exclusive))
                return
        call.fail(GrpcPeerForgotten(f"producer {number} of {topic[:300]} does not exist on this broker"))

    async def _reattach(self, call: Call, request: Any, reliable: bool, exclusive: bool) -> None:
        try:
            topic, name = request.msg_id.topic_name, request.producer_name
            producer = await self._attach(call.session, topic, name, reliable, exclusive)
        except (TopicNotFound, PartitionMissing, TopicKindDiffers) as error:  # the client must create it again
            call.fail(GrpcPeerForgotten(str(error)))
            return
        self._use(producer, call)
        self._send(call, request, producer)

    def publish(self, producer: GrpcProducer, messages: list[Any]) -> Receipt:
        now = self._clock.wall()
        number = producer.id if producer.exclusive else None
        return producer.handle.publish(batch_of(messages, producer.name, now, number))


def batch_of(messages: list[Any], name: str, now: int, number: int | None = None) -> Batch:
    """A batch as a native producer would build it. Its name, and the id of an exclusive producer, are attributes."""
    times = [message.publish_time * MILLISECOND or now for message in messages]
    alone = {PRODUCER_ATTRIBUTE: name} if number is None else {PRODUCER_ATTRIBUTE: name, NUMBER_ATTRIBUTE: str(number)}
    return build(
        [message.payload for message in messages],
        publish_time=times[0],
        publish_times=times,
        keys=_present(messages, "routing_key"),
        attributes=[{**message.attributes, **alone} if message.attributes else alone for message in messages],
        schema_ids=_signed(_present(messages, "schema_id"), 64),
        schema_versions=_signed(_present(messages, "schema_version"), 32),
    )


def _present(messages: list[Any], field: str) -> list[Any] | None:
    """The values of an optional field; None if no message has it."""
    values = [getattr(message, field) if message.HasField(field) else None for message in messages]
    return values if values.count(None) < len(values) else None


def _signed(values: list[Any] | None, bits: int) -> list[Any] | None:
    """Unsigned numbers as a batch stores them: the upper half as negative numbers."""
    half = 1 << (bits - 1)
    return values and [value if value is None or value < half else value - 2 * half for value in values]


def response(request_id: int) -> bytes:
    """A `MessageResponse`."""
    if not request_id:
        return b""
    encoded = bytearray(b"\x08")
    while request_id > 0x7F:
        encoded.append(request_id & 0x7F | 0x80)
        request_id >>= 7
    encoded.append(request_id)
    return bytes(encoded)
