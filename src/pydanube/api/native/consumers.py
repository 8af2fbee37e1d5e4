"""The consumers of a connection: each has a number on the wire and a handle from the session."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from pydanube.base.errors import ChannelInvalid, DanubeError
from pydanube.base.limits import ACK_RANGES_MAX, MIB
from pydanube.broker.door.values import (
    ConsumerHandle,
    Delivery,
    SubscriptionOptions,
    Timing,
    start_of,
    subscription_kind,
)
from pydanube.operations.channels import Generation, OpenConsumer, OpenedConsumer, Pause, Resume, Seek
from pydanube.operations.operation import Done
from pydanube.wire.batch import Codec
from pydanube.wire.commands import Ack, AckTimeout, Error, Nack, Range, Recall, Reset, Taken, encode_deliver

if TYPE_CHECKING:
    from pydanube.api.native.connection import NativeConnection

PERMITS_AT_FIRST = 100  # before the size of the messages is known
PERMITS_AT_ONCE_MAX = 20_000
BYTES_AT_ONCE = 1 * MIB  # about how much a consumer is given ahead of what its socket has accepted


class ConsumerChannel:
    """The sink of a consumer. The client's permits are passed on in portions, so that a slow socket holds little."""

    def __init__(self, connection: NativeConnection, number: int) -> None:
        self.number = number
        self.ended = False  # whether the broker has closed it; nothing more is sent on it
        self.handle: ConsumerHandle | None = None  # set once the subscription has it
        self._connection = connection
        self._credit = 0  # permits of the client that were not passed on yet
        self._ahead = 0  # permits that were passed on but not used yet
        self._room: int | None = None  # bytes that the client still accepts, if it says so; one message may exceed it
        self._message_bytes = BYTES_AT_ONCE // PERMITS_AT_FIRST

    @property
    def unsettled(self) -> bool:
        """Whether its earlier acks are still being processed in slices. It leaves when that is done."""
        return self.handle is not None and self.handle.unsettled

    def begin(self, handle: ConsumerHandle) -> None:
        self.handle = handle
        if handle.says_taken:
            handle.on_timeout(self.timed)

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
        """Tells only clients that report what their programs have taken: others could not handle it."""
        if self.handle is None or not self.handle.says_taken:
            return
        for at in range(0, len(ranges), ACK_RANGES_MAX):
            self._connection.send(Recall(self.number, generation, list(ranges[at : at + ACK_RANGES_MAX])).encode())

    def timed(self, ack_timeout: int | None) -> None:
        """Tells the client about a new ack timeout, because it may have to report its work more often."""
        self._connection.send(AckTimeout(self.number, ack_timeout).encode())

    def unreadable(self, error: DanubeError | None) -> None:
        if error is not None:
            self._connection.send(Error.of(error, self.number).encode())
        elif self.handle is not None and self.handle.reliable:
            self.reset(self.handle.generation)

    def closed(self, error: DanubeError) -> None:
        self.handle = None
        self._connection.end(self, error)

    # -- the client ----------------------------------------------------------------------------------------------------

    def grant(self, permits: int, size: int) -> None:
        self._credit += permits
        if size:
            self._room = (self._room or 0) + size
        self.top_up()

    def top_up(self) -> None:
        handle = self.handle
        if handle is None or not self._connection.writable:
            return
        size = BYTES_AT_ONCE if self._room is None else min(BYTES_AT_ONCE, self._room)
        if size <= 0:
            return
        most = min(PERMITS_AT_ONCE_MAX, max(1, size // self._message_bytes))
        more = min(self._credit, most - self._ahead)
        if more > 0 and (more == self._credit or 2 * self._ahead <= most):
            self._credit -= more
            self._ahead += more
            handle.grant(more)

    def hold_back(self) -> None:
        """The socket or the client accepts no more for now: unused permits are taken back until it does."""
        if self.handle is not None:
            taken = self.handle.withdraw()
            self._ahead -= taken
            self._credit += taken

    def ack(self, ack: Ack) -> Future[None]:
        assert self.handle is not None
        if ack.cumulative:
            return self.handle.ack_through(ack.generation, ack.ranges[0][1])
        return self.handle.ack(ack.generation, ack.ranges)

    def nack(self, nack: Nack) -> None:
        assert self.handle is not None
        self.handle.nack(nack.generation, nack.ranges, nack.delay, nack.reason)

    def taken(self, taken: Taken) -> None:
        if self.handle is not None:
            self.handle.taken(taken.generation, taken.ranges)

    def lost(self) -> None:
        """The connection is lost. That says nothing about the messages, so none of them counts as failed."""
        self.close(crashed=False)

    def close(self, *, crashed: bool) -> None:
        if self.handle is not None:
            self.handle.close(crashed=crashed)
            self.handle = None


async def open_consumer(connection: NativeConnection, request: OpenConsumer, number: int) -> OpenedConsumer:
    with connection.opening(request.channel):
        channel = ConsumerChannel(connection, request.channel)
        handle = await connection.session.open_consumer(
            request.topic,
            request.subscription,
            subscription_kind(request.type),
            channel,
            name=request.name,
            start=start_of(request.start),
            filters=[each.encode() for each in request.filters],
            create=request.create,
            reliable=request.reliable,
            resume=request.resume,
            options=None if request.options is None else SubscriptionOptions.from_json(request.options.given()),
            timing=Timing.TAKEN if request.says_taken else Timing.DELIVERED,
            takes_over=request.takes_over,
        )
        channel.begin(handle)
        connection.add(channel)
    channel.top_up()
    return OpenedConsumer(
        consumer=handle.id,
        resume=handle.mark,
        generation=handle.generation,
        floor=handle.floor,
        reliable=handle.reliable,
        ack_timeout=handle.ack_timeout if handle.reliable else UNSET,
    )


async def seek(connection: NativeConnection, request: Seek, number: int) -> Generation:
    consumer = _consumer(connection, request.channel)
    return Generation(await consumer.seek(offset=request.offset, time=request.time))


async def pause(connection: NativeConnection, request: Pause, number: int) -> Done:
    _consumer(connection, request.channel).pause()
    return Done()


async def resume(connection: NativeConnection, request: Resume, number: int) -> Done:
    _consumer(connection, request.channel).resume()
    return Done()


def _consumer(connection: NativeConnection, number: int) -> ConsumerHandle:
    channel = connection.channels.get(number)
    if not isinstance(channel, ConsumerChannel) or channel.handle is None:
        raise ChannelInvalid(f"channel {number} is not a consumer")
    return channel.handle
