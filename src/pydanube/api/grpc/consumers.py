"""`danube.ConsumerService`: subscribing, the stream of messages, acks and nacks.

A consumer is identified by its name: a client that subscribes again under it takes over. It is in the subscription
until its stream or its connection ends; then another consumer is promoted, or gets its messages, at once.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydanube.access.principals import Principal
from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.encoding import Encoder
from pydanube.api.grpc.ids import consumer_id
from pydanube.api.grpc.messages import Messages
from pydanube.api.listening.failures import error_of
from pydanube.base.errors import (
    BatchUnreadable,
    ConsumerNotFound,
    DanubeError,
    GrpcMessageTooLarge,
    GrpcPeerForgotten,
    LimitReached,
    NotAllowed,
    PartitionMissing,
    RequestInvalid,
    SubscriptionNotFound,
    TopicClosed,
    TopicNotFound,
)
from pydanube.base.limits import (
    CHANNELS_MAX,
    GRPC_CLOSE_SECONDS,
    GRPC_REFUSAL_SECONDS,
    HTTP2_STREAM_QUEUE_BYTES_MAX,
    MILLISECOND,
    POLICY_MICROSECONDS_MAX,
    REASON_CHARACTERS_MAX,
)
from pydanube.base.names import parse_topic
from pydanube.base.ranges import ranges_of
from pydanube.broker.door.values import (
    AckVerdict,
    ConsumerHandle,
    Delivery,
    KnownConsumer,
    SubscriptionHandle,
    Timing,
    takes_long_to_decode,
)
from pydanube.topic.records import SubscriptionKind, name_bytes

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.ports.offload import Offload

log = logging.getLogger(__name__)
PERMITS_AT_FIRST = 16  # before the size of the messages is known
PERMITS_EARLY = 100  # before there is a stream, on a best-effort topic, which never sends a message again
PERMITS_AT_ONCE_MAX = 2_000
danube = Messages("danube")
KINDS = {
    0: SubscriptionKind.EXCLUSIVE,
    1: SubscriptionKind.SHARED,
    2: SubscriptionKind.FAILOVER,
    3: SubscriptionKind.KEY_SHARED,
}
NUMBERS = {kind: number for number, kind in KINDS.items()}


class GrpcConsumer:
    """The sink of a consumer. It gets more messages only while its stream accepts them."""

    def __init__(
        self, service: ConsumerService, known: KnownConsumer, principal: Principal, connection: GrpcConnection
    ) -> None:
        self.known = known
        self.key = principal, known.id
        self.handle: ConsumerHandle | None = None  # set once the subscription has it
        self.connection = connection
        self.call: Call | None = None  # its stream
        self._service = service
        self._encoder: Encoder
        self._failing = False  # a message could not be sent
        self._ahead = 0  # permits that were passed on but not used yet
        self._early = b""  # messages of a best-effort topic that arrived before there was a stream
        self._message_bytes = HTTP2_STREAM_QUEUE_BYTES_MAX // PERMITS_AT_FIRST
        self._waiting: deque[Delivery] = deque()  # until the deliveries before them were encoded off the loop
        self._encoding: Future[None] | None = None  # the task that encodes them

    def begin(self, handle: ConsumerHandle, broker_url: str) -> None:
        self.handle = handle
        self._encoder = Encoder(self.known.topic, broker_url, handle.reliable, handle.producer_names())
        if not handle.reliable:
            self._ahead = PERMITS_EARLY
            handle.grant(PERMITS_EARLY)

    def stream(self, call: Call) -> None:
        """Sends its messages to this stream from now on."""
        self.call = call
        call.task = None
        call.begin()
        call.connection.keep(call, self._left)
        if self._early:
            call.send(self._early)
            self._early = b""
        self._top_up()

    def _left(self, said_so: bool) -> None:
        """The client ended its stream, or is gone: neither says anything about the messages."""
        self.call = None
        self._service.detach(self)

    def end(self) -> None:
        """Ends its stream, because another client takes over."""
        call, self.call = self.call, None
        if call is not None:
            call.finish()

    # -- the sink ------------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """Sends at once, or, in order, after expensive deliveries before it were encoded off the loop."""
        if self._encoding is None and not takes_long_to_decode(delivery.batch):
            if self._may_send(delivery):
                self._send(delivery, encoded(self._encoder, delivery))
            return
        self._waiting.append(delivery)  # bounded by the permits, which are renewed only when it is sent
        if self._encoding is None:
            self._encoding = asyncio.ensure_future(self._catch_up())

    async def _catch_up(self) -> None:
        """Encodes and sends what waits. Nothing else uses the encoder meanwhile."""
        try:
            while self._waiting and self.handle is not None:
                delivery = self._waiting[0]
                outcome = await self._service.offload.run(encoded, self._encoder, delivery)
                if self._waiting and self._waiting[0] is delivery:  # otherwise there was a seek, or it has ended
                    self._waiting.popleft()
                    if self._may_send(delivery):
                        self._send(delivery, outcome)
        finally:
            self._encoding = None

    def _may_send(self, delivery: Delivery) -> bool:
        """Whether the delivery may still be sent. If not, the subscription delivers it again where needed."""
        self._ahead -= delivery.last - delivery.first + 1
        handle = self.handle
        if handle is None or len(self._early) >= HTTP2_STREAM_QUEUE_BYTES_MAX:
            return False
        # In ordered subscriptions, messages after a failed one wait for it, even those that are being handed out.
        if self._failing and not handle.is_in_flight(delivery.first):
            self._top_up()
            return False
        return True

    def _send(self, delivery: Delivery, data: bytes | DanubeError) -> None:
        _, first, last, _, generation = delivery
        call, handle = self.call, self.handle
        assert handle is not None
        if isinstance(data, DanubeError):  # a native producer may send a batch that turns out to be invalid when read
            if isinstance(data, GrpcMessageTooLarge) and first < last:
                self._deliver_singly(delivery)
                return
            self._failing = True
            handle.nack(generation, [(first, last)], reason=f"cannot be read: {data}")
            self._top_up()
            return
        if generation:
            self._service.hand_out(handle, generation, last)
        # Large messages count for a while, so that permits meant for small ones do not admit many large ones.
        self._message_bytes = max(len(data) // (last - first + 1), self._message_bytes * 7 // 8)
        if call is None:
            self._early += data
            return
        call.send(data)
        self._top_up()

    def _deliver_singly(self, delivery: Delivery) -> None:
        """Sends the messages one by one, because one of them is too large and only that one should fail."""
        self._ahead += delivery.last - delivery.first + 1
        singly = [delivery._replace(first=each, last=each) for each in range(delivery.first, delivery.last + 1)]
        if self._encoding is not None:
            self._waiting.extendleft(reversed(singly))
            return
        for each in singly:
            self.deliver(each)

    def reset(self, generation: int) -> None:
        """Messages that were sent cannot be recalled in this protocol; acks count if they are in flight again (§14)."""
        if self._waiting:  # these were not sent
            self._ahead -= sum(map(_count, self._waiting))
            self._waiting.clear()
            self._top_up()

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Drops recalled messages that were not sent yet; those that were cannot be recalled in this protocol."""
        before = list(self._waiting)
        self._waiting = deque(piece for each in before for piece in _without(each, ranges))
        if dropped := sum(map(_count, before)) - sum(map(_count, self._waiting)):
            self._ahead -= dropped
            self._top_up()

    def unreadable(self, error: DanubeError | None) -> None:
        """Ends the stream, the only way to report it in this protocol; harmless if the consumer has no messages."""
        call, handle = self.call, self.handle
        if error is None or call is None or handle is None or self._waiting:
            return
        if handle.reliable and not handle.held:
            self.call = None
            self._service.detach(self)
            call.fail(error)

    def closed(self, error: DanubeError) -> None:
        """Health checks answer CLOSE from now on. After the client has asked, its stream ends, and it subscribes again.

        If the caller is no longer allowed, its stream ends at once.
        """
        self.handle = None
        self._service.detach(self)
        call, self.call = self.call, None
        if call is not None and isinstance(error, NotAllowed):
            call.fail(error)
        elif call is not None:
            asyncio.get_running_loop().call_later(GRPC_CLOSE_SECONDS, call.finish)

    def _top_up(self) -> None:
        call, handle = self.call, self.handle
        if call is None or handle is None:
            return
        room = call.room()
        if not room:
            self._ahead -= handle.withdraw()
            call.connection.woken[call.stream] = self._top_up
            return
        most = min(PERMITS_AT_ONCE_MAX, max(1, room // self._message_bytes))
        if 2 * self._ahead <= most:
            more = most - self._ahead
            self._ahead += more
            handle.grant(more)


def _count(delivery: Delivery) -> int:
    return delivery.last - delivery.first + 1


def _without(delivery: Delivery, ranges: Sequence[tuple[int, int]]) -> list[Delivery]:
    """What is left of a delivery without the ranges; the delivery itself if none of them overlaps it."""
    left = [delivery]
    for first, last in ranges:
        if first <= delivery.last and delivery.first <= last:
            parts = [(each, *bounds) for each in left for bounds in _around(each, first, last)]
            left = [each._replace(first=start, last=end) for each, start, end in parts if start <= end]
    return left


def _around(delivery: Delivery, first: int, last: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The part before a range and the part after it; an empty part ends before it starts."""
    before = (delivery.first, min(delivery.last, first - 1))
    return before, (max(delivery.first, last + 1, before[1] + 1), delivery.last)


def encoded(encoder: Encoder, delivery: Delivery) -> bytes | DanubeError:
    """The encoded messages, or the reason why they cannot be encoded."""
    try:
        return encoder.encode(delivery.batch, delivery.first, delivery.last)
    except DanubeError as error:
        return error
    except Exception as error:  # a column has a value that no field can hold: it fails, and later messages continue
        return BatchUnreadable(f"{type(error).__name__}: {error}")


class Acks:
    """Acks of one subscription that arrived in one read."""

    __slots__ = ("calls", "connection", "generation", "handle", "offsets")

    def __init__(self, handle: SubscriptionHandle, connection: GrpcConnection) -> None:
        self.handle = handle
        self.generation = handle.generation
        self.connection = connection
        self.calls: list[tuple[Call, int]] = []  # with the number of the request
        self.offsets: list[int] = []

    def log(self) -> None:
        self.connection.acks.pop(self.handle, None)
        try:
            done = self.handle.ack(self.generation, ranges_of(sorted(set(self.offsets))))
        except DanubeError as error:
            for call, _ in self.calls:
                call.fail(error)
            return
        done.add_done_callback(self._logged)

    def _logged(self, done: Future[None]) -> None:
        failure = TopicClosed("the broker is stopping") if done.cancelled() else done.exception()
        error = None if failure is None else error_of(failure)
        for call, request_id in self.calls:
            if error is None:
                call.reply(danube.AckResponse(request_id=request_id).SerializeToString())
            else:
                call.fail(error)


class ConsumerService:
    name = "danube.ConsumerService"

    def __init__(self, offload: Offload, url: str) -> None:
        self.consumers: dict[tuple[Principal, int], GrpcConsumer] = {}  # that are in their subscriptions
        self.offload = offload
        # By subscription that was sought: its generation, and the end of what was handed out in it.
        self.handed_out: WeakKeyDictionary[object, tuple[int, int]] = WeakKeyDictionary()
        self._url = url  # where clients reach the broker

    def _connected(self) -> Container[int]:
        return {number for _, number in self.consumers}

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def subscribe(self, call: Call, request: Any) -> Any:
        parse_topic(request.topic_name)
        name_bytes(request.subscription)
        name_bytes(request.consumer_name)
        kind = KINDS.get(request.subscription_type)
        if kind is None:
            raise RequestInvalid(f"unknown subscription type {request.subscription_type}")
        names = request.topic_name, request.subscription, request.consumer_name
        known = KnownConsumer(consumer_id(*names), *names, kind, tuple(request.key_filters))
        await self._attach(known, call, create=True)
        await call.session.remember_consumer(known, self._connected)
        return danube.ConsumerResponse(request_id=request.request_id, consumer_id=known.id, consumer_name=known.name)

    async def _attach(self, known: KnownConsumer, call: Call, *, create: bool) -> GrpcConsumer:
        """Adds a consumer to its subscription; it replaces another one of its name."""
        session, connection = call.session, call.connection
        try:
            found = await session.find_subscription(known.topic, known.subscription)
        except PartitionMissing as error:
            raise TopicNotFound(f"topic {known.topic} does not exist") from error
        kind = known.kind if found is None else found.kind
        if len(connection.consumers) >= CHANNELS_MAX:
            raise LimitReached(f"{CHANNELS_MAX} consumers are already open on this connection")
        consumer = GrpcConsumer(self, known, session.principal, connection)
        key = consumer.key
        before = self.consumers.get(key)
        if before is not None:
            before.end()
            self.detach(before)
        handle = await session.open_consumer(
            known.topic,
            known.subscription,
            kind,
            consumer,
            name=known.name,
            filters=[text.encode() for text in known.filters] if kind is SubscriptionKind.KEY_SHARED else (),
            create=False,
            subscribe=create,
            pending=True,
            timing=Timing.CHOSEN,
        )
        consumer.begin(handle, self._url)
        quicker = self.consumers.get(key)
        if quicker is not None:
            quicker.end()
            self.detach(quicker)
        self.consumers[key] = connection.consumers[key] = consumer
        if connection.closed:
            self.detach(consumer)
        return consumer

    def detach(self, consumer: GrpcConsumer) -> None:
        """Removes a consumer from its subscription: its messages are delivered again."""
        for each in (consumer.connection.consumers, self.consumers):
            if each.get(consumer.key) is consumer:
                del each[consumer.key]
        handle, consumer.handle = consumer.handle, None
        if handle is not None:
            handle.close(crashed=False)

    def receive_messages(self, call: Call, request: Any) -> None:
        consumer = call.connection.consumers.get((call.session.principal, request.consumer_id))
        if consumer is not None and consumer.call is None:
            consumer.stream(call)
        else:
            call.connection.spawn(call, self._go_on(call, request.consumer_id))

    async def _go_on(self, call: Call, number: int) -> None:
        """Resumes a consumer with a new stream, or after a restart."""
        known: KnownConsumer | None = None
        try:
            known = call.session.known_consumer(number)
            if known is None:
                raise ConsumerNotFound(f"consumer {number} does not exist")
            consumer = await self._attach(known, call, create=False)
        except DanubeError as error:
            if known is not None and isinstance(error, SubscriptionNotFound | TopicNotFound):
                await call.session.forget_consumer(known)
            await asyncio.sleep(GRPC_REFUSAL_SECONDS)
            call.fail(error if isinstance(error, NotAllowed) else GrpcPeerForgotten(str(error)))
            return
        consumer.stream(call)

    def hand_out(self, handle: ConsumerHandle, generation: int, last: int) -> None:
        """Notes that a consumer of a subscription that was sought got messages up to `last`."""
        sought, end = self.handed_out.get(handle.subscription, (0, 0))
        self.handed_out[handle.subscription] = generation, max(last + 1, end if generation == sought else 0)

    # -- acks ----------------------------------------------------------------------------------------------------------

    def ack(self, call: Call, request: Any) -> None:
        handle = self._known(call, request)
        if handle is None:
            call.connection.spawn(call, self._ack_later(call, request))
        else:
            self._ack(call, request, handle)

    async def _ack_later(self, call: Call, request: Any) -> None:
        """All acks from one read share the handle that the first of them got, and are logged together."""
        self._ack(call, request, self._known(call, request) or await self._find(call, request))

    def _ack(self, call: Call, request: Any, handle: SubscriptionHandle) -> None:
        offset = request.msg_id.topic_offset
        verdict = handle.judge_ack(offset, self.handed_out)
        if verdict is AckVerdict.VOID:
            call.reply(danube.AckResponse(request_id=request.request_id).SerializeToString())
            return
        connection = call.connection
        acks = connection.acks.get(handle)
        if acks is None:
            acks = connection.acks[handle] = Acks(handle, connection)
            connection.behind(acks.log)
        acks.calls.append((call, request.request_id))
        if verdict is AckVerdict.COUNTS:
            acks.offsets.append(offset)

    async def nack(self, call: Call, request: Any) -> Any:
        handle = self._known(call, request) or await self._find(call, request)
        delay = min(request.delay_ms * MILLISECOND, POLICY_MICROSECONDS_MAX)
        handle.nack_offset(request.msg_id.topic_offset, delay, request.reason[:REASON_CHARACTERS_MAX])
        return danube.NackResponse(request_id=request.request_id)

    def _known(self, call: Call, request: Any) -> SubscriptionHandle | None:
        """The subscription, if the caller has sent acks to it before on this connection, and is still allowed to."""
        if not request.HasField("msg_id"):
            raise RequestInvalid("an ack or nack needs a msg_id")
        found = call.connection.subscriptions.get((request.msg_id.topic_name, request.subscription_name))
        return found if found is not None and found.served and found.principal == call.session.principal else None

    async def _find(self, call: Call, request: Any) -> SubscriptionHandle:
        names = request.msg_id.topic_name, request.subscription_name
        found = await call.session.subscription(*names)
        call.connection.remember(names, found)
        return found
