"""The producers of a connection: each has a number on the wire and a handle from the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError
from pydanube.broker.door.values import ProducerHandle, Receipt
from pydanube.operations.channels import OpenedProducer, OpenProducer
from pydanube.topic.dedup import Renewal
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Limit
from pydanube.wire.commands import Receipt as Durability

if TYPE_CHECKING:
    from pydanube.api.native.connection import NativeConnection

_DURABILITIES = {"none": Durability.NONE, "buffered": Durability.BUFFERED, "fsynced": Durability.FSYNCED}


class ProducerChannel:
    unsettled = False

    def __init__(self, connection: NativeConnection, number: int) -> None:
        self.number = number
        self.ended = False  # whether the broker has closed it; nothing more is sent on it
        self.durability = (Durability.NONE, 0)
        self._connection = connection
        self._producer: ProducerHandle | None = None  # set once the topic has it

    def begin(self, producer: ProducerHandle) -> None:
        self._producer = producer
        producer.on_limit = self.limited
        kind, _, copies = producer.receipt.partition(":")
        self.durability = (_DURABILITIES.get(kind, Durability.REPLICATED), int(copies or (kind != "none")))

    def limited(self, message_bytes_max: int | None) -> None:
        self._connection.send(Limit(self.number, message_bytes_max).encode())

    def closed(self, error: DanubeError) -> None:
        self._producer = None
        self._connection.end(self, error)

    def publish(self, batch: Batch) -> Receipt:
        assert self._producer is not None
        return self._producer.publish(batch)

    def close(self, *, crashed: bool) -> None:
        self._let_go(lost=crashed)

    def lost(self) -> None:
        """The connection is lost; the producer may come back."""
        self._let_go(lost=True)

    def _let_go(self, *, lost: bool) -> None:
        if self._producer is not None:
            self._producer.close(lost=lost)
            self._producer = None


async def open_producer(connection: NativeConnection, request: OpenProducer, number: int) -> OpenedProducer:
    with connection.opening(request.channel):
        channel = ProducerChannel(connection, request.channel)
        producer = await connection.session.open_producer(
            request.topic,
            channel.closed,
            name=request.name,
            resume=request.resume,
            fresh=request.fresh,
            temporary=request.temporary,
            renewal=_renewal(request),
            reliable=request.reliable,
            create=request.create,
        )
        channel.begin(producer)
        connection.add(channel)
    producer_id, epoch, next_sequence = producer.session
    return OpenedProducer(
        topic=str(producer.topic),
        partition=producer.topic.partition,
        producer_id=producer_id,
        epoch=epoch,
        next_sequence=next_sequence,
        reliable=producer.reliable,
        durability=producer.receipt,
        message_bytes_max=producer.message_bytes_max,
        resume=producer.mark,
    )


def _renewal(request: OpenProducer) -> Renewal | None:
    if request.epoch is None and request.next_epoch is None:
        return None
    renewal = Renewal(request.epoch or 0, request.next_epoch or 0)
    renewal.check()
    return renewal
