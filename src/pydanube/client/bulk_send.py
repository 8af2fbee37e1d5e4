"""Sends a list of messages. All batches are built before the first one is sent.

So a list with a message that cannot be sent is refused as a whole, and nothing of it is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.client.arguments import payload_of
from pydanube.client.outgoing_batch import OutgoingBatch

if TYPE_CHECKING:
    from pydanube.client.partition_producer import PartitionProducer
    from pydanube.client.producer import Producer

Names = list[bytes | None] | None


class BulkSend:
    """One call of `send_many`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._batches: list[tuple[PartitionProducer, OutgoingBatch]] = []
        self._begun: dict[PartitionProducer, int] = {}  # the next sequence of each partition before the call

    def send(self, values: list[Any], total: int, names: Names, sequence: int | None) -> list[OutgoingBatch]:
        """`total` is the size of all payloads, `sequence` that of the first message, if the program gives one."""
        try:
            self._prepare(values, total, names, sequence)
            for partition, outgoing in self._batches:
                partition.put(outgoing)
        except BaseException:
            for partition, begun in self._begun.items():
                partition.next_sequence = begun
            raise
        finally:
            for partition in self._begun:
                partition.pump()  # also sends what was being filled before
        return [outgoing for _, outgoing in self._batches]

    def _prepare(self, values: list[Any], total: int, names: Names, sequence: int | None) -> None:
        known = 0  # leading messages that were sent before; each goes alone, because their old batches are not known
        if sequence is not None:
            partition = self._producer.partition_for(None)
            known = min(len(values), self._producer.expect(partition, sequence, keyed=False) - sequence)
            for row in range(known):
                one = slice(row, row + 1)
                self._add(partition, values[one], names and names[one], sequence + row, repeated=True)
            values, names = values[known:], names and names[known:]
        for partition, first, last in self._cuts(total, len(values), names):
            numbered = None if sequence is None else sequence + known + first
            self._add(partition, values[first:last], names and names[first:last], numbered)

    def _cuts(self, total: int, count: int, names: Names) -> Iterator[tuple[PartitionProducer, int, int]]:
        """Yields runs of rows for the same partition, about as many as make a batch."""
        producer = self._producer
        each = producer.batch_messages
        if total > producer.batch_bytes:
            each = max(1, min(each, producer.batch_bytes * count // total))
        if names is None or not producer.partitioned:
            for first in range(0, count, each):
                yield producer.partition_for(None), first, min(first + each, count)
            return
        first = 0
        while first < count:
            partition = producer.partition_for(names[first])
            last = first + 1
            while last < count and last - first < each and producer.partition_for(names[last]) is partition:
                last += 1
            yield partition, first, last
            first = last

    def _add(
        self,
        partition: PartitionProducer,
        values: list[Any],
        names: Names,
        sequence: int | None,
        *,
        repeated: bool = False,
    ) -> None:
        """Adds a batch, or several if the sizes of the messages differ so much that one would be too large."""
        if partition.filling.payloads:
            partition.seal()
        self._begun.setdefault(partition, partition.next_sequence)
        outgoing = OutgoingBatch(partition)
        outgoing.payloads = values
        outgoing.together = True
        outgoing.numbered, outgoing.repeated = sequence, repeated
        if names is not None:
            outgoing.keys = {row: name for row, name in enumerate(names) if name is not None}
        try:
            partition.number_next(outgoing)
        except BatchTooLarge:
            if len(values) == 1:
                raise
            half = len(values) // 2
            self._add(partition, values[:half], names and names[:half], sequence)
            behind = None if sequence is None else sequence + half
            self._add(partition, values[half:], names and names[half:], behind)
            return
        except BatchInvalid:  # some are not bytes: convert text, and refuse the rest like `send`
            plain = list(map(payload_of, values))
            if plain == values:
                raise
            self._add(partition, plain, names, sequence, repeated=repeated)
            return
        self._batches.append((partition, outgoing))
        self._producer.rotate(partition)
