"""A batch of a producer: being filled, in flight, or finished; and the receipts of its messages."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from pydanube.base.errors import DanubeError
from pydanube.base.limits import MESSAGE_OVERHEAD_BYTES
from pydanube.client.errors import copy_of
from pydanube.wire.batch import Batch, Codec, build

Result = TypeVar("Result")


class Receipt(NamedTuple):
    """What the broker promises for one message: where it is and how durable it is."""

    topic: str  # without the partition
    partition: int | None
    offset: int | None  # None if the topic stores nothing, or if a duplicate's offset is no longer known
    durability: str  # none, buffered, fsynced or replicated:copies
    duplicate: bool = False  # its sequence was already published, so nothing was added


class BatchPartition(Protocol):
    """The partition that a batch goes to, as the batch sees it."""

    topic: str
    index: int | None
    loop: AbstractEventLoop

    def flush_soon(self, outgoing: OutgoingBatch) -> None:
        """Sends the batch soon, because someone awaits it."""
        ...

    def obstacle(self) -> DanubeError | None:
        """Why nothing gets through now."""
        ...


class OutgoingBatch:
    """One batch. It is `done` when it was acknowledged, has failed, or was split into `parts`."""

    __slots__ = (
        "attributes",
        "awaited",
        "base_offset",
        "batch",
        "bytes",
        "count",
        "deadline",
        "delivery_times",
        "done",
        "duplicate",
        "durability",
        "error",
        "event_times",
        "first_sequence",
        "keys",
        "numbered",
        "partition",
        "parts",
        "payloads",
        "reason",
        "repeated",
        "together",
        "waiters",
    )

    def __init__(self, partition: BatchPartition) -> None:
        self.partition = partition
        self.payloads: list[bytes | None] = []
        self.bytes = 0
        # Sparse: row -> value, in the order of rows, so that messages without them cost nothing.
        self.keys: dict[int, bytes] = {}
        self.attributes: dict[int, Mapping[str, str]] = {}
        self.event_times: dict[int, int] = {}
        self.delivery_times: dict[int, int] = {}
        self.batch: Batch | None = None
        self.count = 0
        self.first_sequence = 0
        self.numbered: int | None = None  # its first sequence, if the program numbers its messages
        self.repeated = False  # the program sends again what it, or an earlier process, has sent
        self.duplicate = False
        self.deadline = 0.0
        self.base_offset: int | None = None
        self.durability = "none"
        self.done = False
        self.error: DanubeError | None = None
        self.reason: DanubeError | None = None  # why the last attempt was not accepted
        self.awaited = False  # someone awaits or has awaited it, and gets the error
        self.together = False  # its messages are awaited together, not one by one
        self.parts: list[OutgoingBatch] = []  # in the order of its rows
        self.waiters: list[Future[None]] = []

    def seal(self, publish_time: int, producer_id: int, first_sequence: int, codec: Codec) -> None:
        """Builds the batch from the messages."""
        self.count = count = len(self.payloads)
        self.first_sequence = first_sequence
        self.batch = build(
            self.payloads,
            publish_time=publish_time,
            keys=_column(self.keys, count),
            attributes=_column(self.attributes, count),
            event_times=_column(self.event_times, count),
            delivery_times=_column(self.delivery_times, count),
            producer_id=producer_id,
            first_sequence=first_sequence if producer_id else 0,
            codec=codec,
        )
        self.payloads = []  # now part of the batch
        self.bytes = self.bytes or self.batch.size + count * MESSAGE_OVERHEAD_BYTES

    def renumber(self, first_sequence: int) -> None:
        """Changes the sequences; only for messages that the broker is known not to have accepted."""
        batch = self.batch
        assert batch is not None
        self.first_sequence = first_sequence
        self.batch = build(
            batch.payloads(),
            publish_time=batch.publish_time,
            keys=batch.keys(),
            attributes=batch.attributes(),
            event_times=batch.event_times(),
            delivery_times=batch.delivery_times(),
            producer_id=batch.producer_id,
            first_sequence=first_sequence,
            codec=batch.codec,
        )

    def split(self) -> list[OutgoingBatch]:
        """Splits it into smaller batches: each large message alone, runs of others together.

        Large is more than half the size of the largest, so a few rounds of splitting reach any limit.
        """
        batch = self.batch
        assert batch is not None
        sizes = [len(payload or b"") for payload in batch.payloads()]
        large = max(sizes) // 2
        first = 0
        for row in range(1, self.count + 1):
            if row == self.count or sizes[row - 1] > large or sizes[row] > large:
                self.parts.append(self._part(batch.slice(first, row - first), first))
                first = row
        self._finish()
        return self.parts

    def _part(self, batch: Batch, row: int) -> OutgoingBatch:
        part = OutgoingBatch(self.partition)
        part.batch = batch
        part.count = batch.count
        part.bytes = batch.size + batch.count * MESSAGE_OVERHEAD_BYTES
        part.first_sequence = self.first_sequence + row
        part.repeated = self.repeated
        part.deadline = self.deadline
        part.together = self.together
        part.awaited = self.awaited and self.together
        return part

    def acknowledge(self, base_offset: int | None, durability: str, *, duplicate: bool = False) -> None:
        self.base_offset = base_offset
        self.durability = durability
        self.duplicate = duplicate and self.repeated  # a resend by the client itself is not a duplicate to the program
        self._finish()

    def fail(self, error: DanubeError) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.batch = None
        if self.waiters:
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self.waiters.clear()

    def wait(self) -> Generator[Any, None, None]:
        """Waits until it is done, and raises its error. Each caller has its own future, because it may be cancelled."""
        self.awaited = True
        if not self.done:
            self.partition.flush_soon(self)
            waiter: Future[None] = self.partition.loop.create_future()
            self.waiters.append(waiter)
            yield from waiter
        if self.error is not None:
            raise copy_of(self.error)

    def wait_for(self, row: int) -> Generator[Any, None, Receipt]:
        """Waits for one message and returns its receipt, also if the batch was split."""
        yield from self.wait()
        for part in self.parts:
            if row < part.count:
                return (yield from part.wait_for(row))
            row -= part.count
        return self.receipt(row)

    def wait_for_all(self) -> Generator[Any, None, list[OutgoingBatch]]:
        """Waits until all messages are published, and returns the batches that they were published in."""
        yield from self.wait()
        went: list[OutgoingBatch] = []
        for part in self.parts:
            went += yield from part.wait_for_all()
        return went or [self]

    def current_batch(self, row: int) -> OutgoingBatch:
        """The batch that the message is in now."""
        for part in self.parts:
            if row < part.count:
                return part.current_batch(row)
            row -= part.count
        return self

    def receipt(self, row: int) -> Receipt:
        offset = None if self.base_offset is None else self.base_offset + row
        return Receipt(self.partition.topic, self.partition.index, offset, self.durability, self.duplicate)


def _column(sparse: Mapping[int, Any], count: int) -> list[Any] | None:
    if not sparse:
        return None
    if len(sparse) == count:
        return list(sparse.values())
    return [sparse.get(row) for row in range(count)]
