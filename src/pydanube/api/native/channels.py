"""The producers and consumers of a connection: each a number on the wire and a hold in the service."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError
from pydanube.base.limits import ACK_RANGES_MAX
from pydanube.broker.serving.open_topic import ConsumerHold, Producer
from pydanube.broker.subscription.delivery import Delivery, Timing
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.served import Receipt
from pydanube.wire.batch import Batch, Codec
from pydanube.wire.commands import Ack, AckTimeout, Error, Limit, Nack, Range, Recall, Reset, Taken, encode_deliver
from pydanube.wire.commands import Receipt as Durability

if TYPE_CHECKING:
    from pydanube.api.native.connection import NativeConnection

PERMITS_AT_FIRST = 100  # before the size of the messages is known
PERMITS_AT_ONCE_MAX = 20_000
BYTES_AT_ONCE = 1024 * 1024  # about as much as a consumer is given ahead of what its socket has taken
_DURABILITIES = {"none": Durability.NONE, "buffered": Durability.BUFFERED, "fsynced": Durability.FSYNCED}


class ProducerChannel:
    unsettled = False

    def __init__(self, connection: NativeConnection, number: int) -> None:
        self.number = number
        self.ended = False  # by the broker: nothing more is said on it
        self.durability = (Durability.NONE, 0)
        self._connection = connection
        self._producer: Producer | None = None  # set once the topic has it

    def begin(self, producer: Producer) -> None:
        self._producer = producer
        producer.tell_limit = self.limited
        kind, _, copies = producer.open.topic.receipt.partition(":")
        self.durability = (_DURABILITIES.get(kind, Durability.REPLICATED), int(copies or (kind != "none")))

    def limited(self, message_bytes_max: int | None) -> None:
        self._connection.send(Limit(self.number, message_bytes_max).encode())

    def closed(self, error: DanubeError) -> None:
        self._producer = None
        self._connection.end(self, error)

    def publish(self, batch: Batch) -> Receipt:
        assert self._producer is not None
        return self._connection.service.publish(self._producer, batch)

    def close(self, *, crashed: bool) -> None:
        self._let_go(lost=crashed)

    def lost(self) -> None:
        """With its connection: it may come back."""
        self._let_go(lost=True)

    def _let_go(self, *, lost: bool) -> None:
        if self._producer is not None:
            self._producer.let_go(lost=lost)
            self._producer = None


class ConsumerChannel:
    """A sink. The client's permits are passed on piece by piece, so that a slow socket holds little."""

    def __init__(self, connection: NativeConnection, number: int) -> None:
        self.number = number
        self.ended = False  # by the broker: nothing more is said on it
        self.hold: ConsumerHold | None = None  # set once the subscription has it
        self._connection = connection
        self._credit = 0  # permits of the client that were not passed on yet
        self._ahead = 0  # permits passed on, for which nothing came yet
        self._room: int | None = None  # bytes that it still takes, if it says so; the last message may go beyond
        self._message_bytes = BYTES_AT_ONCE // PERMITS_AT_FIRST

    @property
    def unsettled(self) -> bool:
        """What it did before is still being sorted out, some of it in each turn of the loop: it leaves afterwards."""
        host = None if self.hold is None else self.hold.host
        return isinstance(host, SubscriptionHost) and host.unsettled

    def begin(self, hold: ConsumerHold) -> None:
        self.hold = hold
        if hold.consumer.timing is Timing.TAKEN:
            hold.consumer.tell_timeout = self.timed

    # -- the sink ------------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        batch, first, last, attempt, generation = delivery
        count = last - first + 1
        if count * 4 < batch.count and batch.codec is Codec.NONE:
            batch = delivery.cut()
        self._connection.send(encode_deliver(self.number, generation, first, last, attempt, *batch.parts()))
        self._message_bytes = max(1, batch.size // batch.count)
        self._ahead -= count
        if self._room is not None:
            self._room -= batch.size
            if self._room <= 0:
                self.hold_back()
        if self._credit:
            self.top_up()

    def reset(self, generation: int) -> None:
        self._connection.send(Reset(self.number, generation).encode())

    def recall(self, generation: int, ranges: Sequence[Range]) -> None:
        """Only who says what was taken knows what to do with it."""
        if self.hold is None or self.hold.consumer.timing is not Timing.TAKEN:
            return
        for at in range(0, len(ranges), ACK_RANGES_MAX):
            self._connection.send(Recall(self.number, generation, list(ranges[at : at + ACK_RANGES_MAX])).encode())

    def timed(self, ack_timeout: int | None) -> None:
        """What its program works on was reported under another timeout, perhaps too seldom for this one."""
        self._connection.send(AckTimeout(self.number, ack_timeout).encode())

    def unreadable(self, error: DanubeError | None) -> None:
        if error is not None:
            self._connection.send(Error.of(error, self.number).encode())
        elif self.hold is not None and isinstance(self.hold.host, SubscriptionHost):
            self.reset(self.hold.host.known.cursor.generation)

    def closed(self, error: DanubeError) -> None:
        self.hold = None
        self._connection.end(self, error)

    # -- the client ----------------------------------------------------------------------------------------------------

    def grant(self, permits: int, size: int) -> None:
        self._credit += permits
        if size:
            self._room = (self._room or 0) + size
        self.top_up()

    def top_up(self) -> None:
        hold = self.hold
        if hold is None or not self._connection.writable:
            return
        size = BYTES_AT_ONCE if self._room is None else min(BYTES_AT_ONCE, self._room)
        if size <= 0:
            return
        most = min(PERMITS_AT_ONCE_MAX, max(1, size // self._message_bytes))
        more = min(self._credit, most - self._ahead)
        if more > 0 and (more == self._credit or 2 * self._ahead <= most):
            self._credit -= more
            self._ahead += more
            hold.host.grant(hold.consumer.id, more)

    def hold_back(self) -> None:
        """The socket or the client takes no more: what was not used yet of the permits is kept until it does."""
        hold = self.hold
        if hold is not None and isinstance(hold.host, SubscriptionHost):
            taken = hold.host.withdraw(hold.consumer.id)
            self._ahead -= taken
            self._credit += taken

    def ack(self, ack: Ack) -> Future[None]:
        assert self.hold is not None
        if ack.cumulative:
            return self.hold.host.ack_through(ack.generation, ack.ranges[0][1])
        return self.hold.host.ack(ack.generation, ack.ranges)

    def nack(self, nack: Nack) -> None:
        assert self.hold is not None
        self.hold.host.nack(self.hold.consumer.id, nack.generation, nack.ranges, nack.delay, nack.reason)

    def taken(self, taken: Taken) -> None:
        hold = self.hold
        if hold is not None and isinstance(hold.host, SubscriptionHost):
            hold.host.taken(hold.consumer.id, taken.generation, taken.ranges)

    def lost(self) -> None:
        """With its connection. A broken network says nothing of the messages, so none of them counts as failed."""
        self.close(crashed=False)

    def close(self, *, crashed: bool) -> None:
        if self.hold is not None:
            self._connection.service.close_consumer(self.hold, crashed=crashed)
            self.hold = None
