"""`danube.ConsumerService`: subscribing, the stream of messages, acks and nacks.

A consumer is its name: whoever subscribes under it again takes over. It is in the subscription from then until its
stream or its connection ends, so another one is promoted, or gets its messages, at once.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydanube.api.grpc.calls import Call
from pydanube.api.grpc.encoding import Encoder
from pydanube.api.grpc.memory import KnownConsumer, Memory
from pydanube.api.grpc.messages import Messages
from pydanube.base.errors import (
    BatchUnreadable,
    ConsumerNotFound,
    DanubeError,
    GrpcMessageTooLarge,
    LimitReached,
    PartitionMissing,
    ProducerUnknown,
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
    POLICY_MICROSECONDS_MAX,
    REASON_CHARACTERS_MAX,
)
from pydanube.base.names import parse_topic
from pydanube.base.ranges import ranges_of
from pydanube.broker.serving.open_topic import ANONYMOUS, AnySubscription, ConsumerHold, Principal
from pydanube.broker.subscription.delivery import Delivery, Timing
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.best_effort_subscription import BestEffortSubscription
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.decoding import takes_long_to_decode
from pydanube.dispatch.explain import Cause
from pydanube.topic.records import SubscriptionKind, name_bytes
from pydanube.wire.http2.grpc import Status

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.api.grpc.face import GrpcFace

log = logging.getLogger(__name__)
MILLISECOND = 1_000  # microseconds
PERMITS_AT_FIRST = 16  # before the size of the messages is known
PERMITS_EARLY = 100  # before there is a stream, of a topic that would not send again what nobody takes
PERMITS_AT_ONCE_MAX = 2_000
danube = Messages("danube")
KINDS = {
    0: SubscriptionKind.EXCLUSIVE,
    1: SubscriptionKind.SHARED,
    2: SubscriptionKind.FAILOVER,
    3: SubscriptionKind.KEY_SHARED,
}
NEVER_ACKED = (Cause.NOT_PUBLISHED, Cause.BELOW_START, Cause.CURSOR_FULL)  # nobody can have got these
NUMBERS = {kind: number for number, kind in KINDS.items()}


class GrpcConsumer:
    """A sink. It is given more only while its stream takes it."""

    def __init__(self, service: ConsumerService, known: KnownConsumer, connection: GrpcConnection) -> None:
        self.known = known
        self.hold: ConsumerHold | None = None  # set once the subscription has it
        self.connection = connection
        self.call: Call | None = None  # its stream
        self._service = service
        self._encoder: Encoder
        self._failing = False  # a message could not be sent
        self._ahead = 0  # permits passed on, for which nothing came yet
        self._early = b""  # came before the stream was there; only of topics that would not send it again
        self._message_bytes = HTTP2_STREAM_QUEUE_BYTES_MAX // PERMITS_AT_FIRST
        self._waiting: deque[Delivery] = deque()  # until what came before them was encoded beside the loop
        self._encoding: Future[None] | None = None  # the task that works them off

    def begin(self, hold: ConsumerHold, broker_url: str) -> None:
        self.hold = hold
        topic = hold.open.topic
        names = topic.state.producers if isinstance(topic, Topic) else None

        def name_of(producer: int) -> str:
            try:
                return names.get(producer).name if names is not None and producer else ""
            except ProducerUnknown:
                return ""

        self._encoder = Encoder(self.known.topic, broker_url, isinstance(topic, Topic), name_of)
        if isinstance(hold.host, BestEffortSubscription):
            self._ahead = PERMITS_EARLY
            hold.host.grant(hold.consumer.id, PERMITS_EARLY)

    def stream(self, call: Call) -> None:
        """Its messages go there from now on."""
        self.call = call
        call.task = None
        call.begin()
        call.connection.keep(call, self._left)
        if self._early:
            call.send(self._early)
            self._early = b""
        self._top_up()

    def _left(self, said_so: bool) -> None:
        """The client ended its stream, or went away without a word: neither says anything of the messages."""
        self.call = None
        self._service.detach(self)

    def end(self) -> None:
        """Another one takes over."""
        call, self.call = self.call, None
        if call is not None:
            call.finish()

    # -- the sink ------------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """At once, or in its order when what is heavy was encoded beside the loop."""
        if self._encoding is None and not takes_long_to_decode(delivery.batch):
            if self._may_send(delivery):
                self._send(delivery, encoded(self._encoder, delivery))
            return
        self._waiting.append(delivery)  # no more than there were permits: those come back when it is sent
        if self._encoding is None:
            self._encoding = asyncio.ensure_future(self._catch_up())

    async def _catch_up(self) -> None:
        """Nobody else uses the encoder meanwhile."""
        try:
            while self._waiting and self.hold is not None:
                delivery = self._waiting[0]
                outcome = await self._service.offload.run(encoded, self._encoder, delivery)
                if self._waiting and self._waiting[0] is delivery:  # else it was sought, or closed, or has left
                    self._waiting.popleft()
                    if self._may_send(delivery):
                        self._send(delivery, outcome)
        finally:
            self._encoding = None

    def _may_send(self, delivery: Delivery) -> bool:
        """Else it was delivered in vain; where it matters the subscription knows."""
        self._ahead -= delivery.last - delivery.first + 1
        hold = self.hold
        if hold is None or len(self._early) >= HTTP2_STREAM_QUEUE_BYTES_MAX:
            return False
        if self._failing and self._taken_back(hold, delivery.first):
            self._top_up()
            return False
        return True

    def _send(self, delivery: Delivery, data: bytes | DanubeError) -> None:
        _, first, last, _, generation = delivery
        call, hold = self.call, self.hold
        assert hold is not None
        if isinstance(data, DanubeError):  # a native producer may send what only a reader finds to be no message
            if isinstance(data, GrpcMessageTooLarge) and first < last:
                self._deliver_singly(delivery)
                return
            self._failing = True
            hold.host.nack(hold.consumer.id, generation, [(first, last)], reason=f"cannot be read: {data}")
            self._top_up()
            return
        if generation and isinstance(hold.host, SubscriptionHost):
            self._service.hand_out(hold.host, generation, last)
        # Large ones count for a while: permits that small ones got must not let many of them in.
        self._message_bytes = max(len(data) // (last - first + 1), self._message_bytes * 7 // 8)
        if call is None:
            self._early += data
            return
        call.send(data)
        self._top_up()

    def _deliver_singly(self, delivery: Delivery) -> None:
        """One of them is too large, and only that one fails."""
        self._ahead += delivery.last - delivery.first + 1
        singly = [delivery._replace(first=each, last=each) for each in range(delivery.first, delivery.last + 1)]
        if self._encoding is not None:
            self._waiting.extendleft(reversed(singly))
            return
        for each in singly:
            self.deliver(each)

    def _taken_back(self, hold: ConsumerHold, offset: int) -> bool:
        """Where order is kept, what comes after a message that failed waits for it: also what is being handed out."""
        return isinstance(hold.host, SubscriptionHost) and hold.host.explain(offset).cause is not Cause.IN_FLIGHT

    def reset(self, generation: int) -> None:
        """What was sent cannot be called back here; its acks count only if it is in flight again (§14)."""
        if self._waiting:  # nobody got these
            self._ahead -= sum(map(_count, self._waiting))
            self._waiting.clear()
            self._top_up()

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Nor can what is to be delivered again, but what was not sent yet is not sent."""
        before = list(self._waiting)
        self._waiting = deque(piece for each in before for piece in _without(each, ranges))
        if dropped := sum(map(_count, before)) - sum(map(_count, self._waiting)):
            self._ahead -= dropped
            self._top_up()

    def unreadable(self, error: DanubeError | None) -> None:
        """The end of its stream is all that can be said here, and costs nothing if the consumer has nothing in hand."""
        call, hold = self.call, self.hold
        if error is None or call is None or hold is None or self._waiting:
            return
        if isinstance(hold.host, SubscriptionHost) and not hold.host.engine.held(hold.consumer.id):
            self.call = None
            self._service.detach(self)
            call.finish(Status.DATA_LOSS, f"{error} ({error.help})")

    def closed(self, error: DanubeError) -> None:
        """Health checks say CLOSE from now on; when the client has asked, its stream ends, and it looks again."""
        self.hold = None
        self._service.detach(self)
        call, self.call = self.call, None
        if call is not None:
            asyncio.get_running_loop().call_later(GRPC_CLOSE_SECONDS, call.finish)

    def _top_up(self) -> None:
        call, hold = self.call, self.hold
        if call is None or hold is None:
            return
        room = call.room()
        if not room:
            if isinstance(hold.host, SubscriptionHost):
                self._ahead -= hold.host.withdraw(hold.consumer.id)
            call.connection.woken[call.stream] = self._top_up
            return
        most = min(PERMITS_AT_ONCE_MAX, max(1, room // self._message_bytes))
        if 2 * self._ahead <= most:
            more = most - self._ahead
            self._ahead += more
            hold.host.grant(hold.consumer.id, more)


def _count(delivery: Delivery) -> int:
    return delivery.last - delivery.first + 1


def _without(delivery: Delivery, ranges: Sequence[tuple[int, int]]) -> list[Delivery]:
    """What is left of it; itself, if none of the ranges concerns it."""
    left = [delivery]
    for first, last in ranges:
        if first <= delivery.last and delivery.first <= last:
            parts = [(each, *bounds) for each in left for bounds in _around(each, first, last)]
            left = [each._replace(first=start, last=end) for each, start, end in parts if start <= end]
    return left


def _around(delivery: Delivery, first: int, last: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The part before a range and the part behind it; empty ones end before they start."""
    before = (delivery.first, min(delivery.last, first - 1))
    return before, (max(delivery.first, last + 1, before[1] + 1), delivery.last)


def encoded(encoder: Encoder, delivery: Delivery) -> bytes | DanubeError:
    """Its messages as they are sent, or why they cannot be."""
    try:
        return encoder.encode(delivery.batch, delivery.first, delivery.last)
    except DanubeError as error:
        return error
    except Exception as error:  # of a column that has what no field here takes: it fails, and what is behind it goes on
        return BatchUnreadable(f"{type(error).__name__}: {error}")


class Acks:
    """Acks of one subscription that came in one read."""

    __slots__ = ("calls", "connection", "generation", "host", "offsets")

    def __init__(self, host: SubscriptionHost, connection: GrpcConnection) -> None:
        self.host = host
        self.generation = host.known.cursor.generation
        self.connection = connection
        self.calls: list[tuple[Call, int]] = []  # with the number of the request
        self.offsets: list[int] = []

    def log(self) -> None:
        self.connection.acks.pop(self.host, None)
        try:
            done = self.host.ack(self.generation, ranges_of(sorted(set(self.offsets))))
        except DanubeError as error:
            for call, _ in self.calls:
                call.fail(error)
            return
        done.add_done_callback(self._logged)

    def _logged(self, done: Future[None]) -> None:
        error = TopicClosed("the broker is stopping") if done.cancelled() else done.exception()
        for call, request_id in self.calls:
            if error is None:
                call.reply(danube.AckResponse(request_id=request_id).SerializeToString())
            else:
                call.fail(error if isinstance(error, DanubeError) else DanubeError("the broker failed"))


class ConsumerService:
    name = "danube.ConsumerService"

    def __init__(self, face: GrpcFace) -> None:
        self.consumers: dict[int, GrpcConsumer] = {}  # that are in their subscriptions
        self.offload = face.service.offload
        # Of subscriptions that were sought: the generation, and the end of what was handed out in it.
        self.handed_out: WeakKeyDictionary[SubscriptionHost, tuple[int, int]] = WeakKeyDictionary()
        self._face = face
        self._memory = Memory(face.service.notes, self.consumers)

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def subscribe(self, call: Call, request: Any) -> Any:
        parse_topic(request.topic_name)
        name_bytes(request.subscription)
        name_bytes(request.consumer_name)
        kind = KINDS.get(request.subscription_type)
        if kind is None:
            raise RequestInvalid(f"unknown subscription type {request.subscription_type}")
        known = KnownConsumer(
            request.topic_name, request.subscription, request.consumer_name, kind, tuple(request.key_filters)
        )
        await self._attach(known, call.connection, create=True)
        await self._memory.remember(known)
        return danube.ConsumerResponse(request_id=request.request_id, consumer_id=known.id, consumer_name=known.name)

    async def _attach(self, known: KnownConsumer, connection: GrpcConnection, *, create: bool) -> GrpcConsumer:
        """Puts it into its subscription, in the place of another one of its name."""
        service = self._face.service
        try:
            opened = await service.open(ANONYMOUS, known.topic)
        except PartitionMissing as error:
            raise TopicNotFound(f"topic {known.topic} does not exist") from error
        host = service.subscription(ANONYMOUS, known.topic, known.subscription)
        if host is None and not create and opened.record.reliable:
            raise SubscriptionNotFound(f"{known.topic} has no subscription {known.subscription!r}")
        kind = known.kind if host is None else _kind(host)
        if len(connection.consumers) >= CHANNELS_MAX:
            raise LimitReached(f"{CHANNELS_MAX} consumers are already open on this connection")
        before = self.consumers.get(known.id)
        if before is not None:
            before.end()
            self.detach(before)
        consumer = GrpcConsumer(self, known, connection)
        hold = await service.open_consumer(
            Principal(address=connection.address),
            known.topic,
            known.subscription,
            kind,
            consumer,
            name=known.name,
            filters=[text.encode() for text in known.filters] if kind is SubscriptionKind.KEY_SHARED else (),
            create=False,
            options=self._face.service.pending.get(known.topic, known.subscription) if opened.record.reliable else None,
            timing=Timing.CHOSEN,
        )
        consumer.begin(hold, self._face.url)
        quicker = self.consumers.get(known.id)
        if quicker is not None:
            quicker.end()
            self.detach(quicker)
        self.consumers[known.id] = connection.consumers[known.id] = consumer
        if connection.closed:
            self.detach(consumer)
        if host is None:
            await self._face.service.pending.forget(known.topic, known.subscription)
        return consumer

    def detach(self, consumer: GrpcConsumer) -> None:
        """Takes it out of its subscription: what it had is due again."""
        for consumers in (self.consumers, consumer.connection.consumers):
            if consumers.get(consumer.known.id) is consumer:
                del consumers[consumer.known.id]
        hold, consumer.hold = consumer.hold, None
        if hold is not None:
            self._face.service.close_consumer(hold, crashed=False)

    def receive_messages(self, call: Call, request: Any) -> None:
        consumer = self.consumers.get(request.consumer_id)
        if consumer is not None and consumer.call is None and consumer.connection is call.connection:
            consumer.stream(call)
        else:
            call.connection.spawn(call, self._go_on(call, request.consumer_id))

    async def _go_on(self, call: Call, number: int) -> None:
        """With a stream instead of another one, or after a restart."""
        known = self._memory.find(number)
        try:
            if known is None:
                raise ConsumerNotFound(f"consumer {number} does not exist")
            consumer = await self._attach(known, call.connection, create=False)
        except DanubeError as error:
            if known is not None and isinstance(error, SubscriptionNotFound | TopicNotFound):
                await self._memory.forget(number)
            await asyncio.sleep(GRPC_REFUSAL_SECONDS)
            call.finish(Status.UNAVAILABLE, f"{error}: subscribe again.")
            return
        consumer.stream(call)

    def hand_out(self, host: SubscriptionHost, generation: int, last: int) -> None:
        """A consumer of a subscription that was sought got messages up to `last`."""
        sought, end = self.handed_out.get(host, (0, 0))
        self.handed_out[host] = generation, max(last + 1, end if generation == sought else 0)

    # -- acks ----------------------------------------------------------------------------------------------------------

    def ack(self, call: Call, request: Any) -> None:
        host = self._served(request)
        if host is None:
            call.connection.spawn(call, self._ack_later(call, request))
        else:
            self._ack(call, request, host)

    async def _ack_later(self, call: Call, request: Any) -> None:
        self._ack(call, request, await self._host(request))

    def _ack(self, call: Call, request: Any, host: AnySubscription) -> None:
        offset = request.msg_id.topic_offset
        cause = host.explain(offset).cause if isinstance(host, SubscriptionHost) else None
        if not isinstance(host, SubscriptionHost) or cause in NEVER_ACKED:
            call.reply(danube.AckResponse(request_id=request.request_id).SerializeToString())
            return
        connection = call.connection
        acks = connection.acks.get(host)
        if acks is None:
            acks = connection.acks[host] = Acks(host, connection)
            connection.behind(acks.log)
        acks.calls.append((call, request.request_id))
        if cause is Cause.IN_FLIGHT or (cause is not Cause.ACKED and self._handed_out(host, offset)):
            acks.offsets.append(offset)

    def _handed_out(self, host: SubscriptionHost, offset: int) -> bool:
        """Since the last seek (§14). Of one that was never sought any message may have been, before a restart too."""
        generation = host.known.cursor.generation
        sought, end = self.handed_out.get(host, (0, 0))
        return not generation or (generation == sought and offset < end)

    async def nack(self, call: Call, request: Any) -> Any:
        host = self._served(request) or await self._host(request)
        offset = request.msg_id.topic_offset
        if isinstance(host, SubscriptionHost):
            found = host.explain(offset)
            if found.cause is Cause.IN_FLIGHT and found.consumer is not None:
                delay = min(request.delay_ms * MILLISECOND, POLICY_MICROSECONDS_MAX)
                reason = request.reason[:REASON_CHARACTERS_MAX]
                generation = host.known.cursor.generation
                host.nack(found.consumer, generation, [(offset, offset)], delay, reason)
        return danube.NackResponse(request_id=request.request_id)

    def _served(self, request: Any) -> AnySubscription | None:
        if not request.HasField("msg_id"):
            raise RequestInvalid("an ack or nack needs a msg_id")
        return self._face.service.subscription(ANONYMOUS, request.msg_id.topic_name, request.subscription_name)

    async def _host(self, request: Any) -> AnySubscription:
        """Of a topic that nobody has opened since the broker started."""
        service, topic, name = self._face.service, request.msg_id.topic_name, request.subscription_name
        await service.open(ANONYMOUS, topic)
        host = service.subscription(ANONYMOUS, topic, name)
        if host is None:
            raise SubscriptionNotFound(f"{topic} has no subscription {name!r}")
        return host


def _kind(host: AnySubscription) -> SubscriptionKind:
    return host.kind if isinstance(host, BestEffortSubscription) else host.known.kind
