"""Many messages at once: cut into batches, all of which are made before the first one goes.

So a list that cannot be sent is refused as a whole, and nothing of it is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.client.outgoing import Outgoing
from pydanube.client.values import payload_of

if TYPE_CHECKING:
    from pydanube.client.lane import Lane
    from pydanube.client.producer import Producer

Names = list[bytes | None] | None


class Bulk:
    """One call of `send_many`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._batches: list[tuple[Lane, Outgoing]] = []
        self._begun: dict[Lane, int] = {}  # the sequence that each lane had before

    def send(self, values: list[Any], total: int, names: Names, sequence: int | None) -> list[Outgoing]:
        """`total` is the bytes of the payloads; `sequence` the first message's, if the application numbers them."""
        try:
            self._prepare(values, total, names, sequence)
            for lane, outgoing in self._batches:
                lane.put(outgoing)
        except BaseException:
            for lane, begun in self._begun.items():
                lane.next_sequence = begun
            raise
        finally:
            for lane in self._begun:
                lane.pump()  # also what was being filled before
        return [outgoing for _, outgoing in self._batches]

    def _prepare(self, values: list[Any], total: int, names: Names, sequence: int | None) -> None:
        known = 0  # of the first messages, those that were sent before: each goes alone, however they were cut then
        if sequence is not None:
            lane = self._producer.lane_of(None)
            known = min(len(values), self._producer.expect(lane, sequence, keyed=False) - sequence)
            for row in range(known):
                one = slice(row, row + 1)
                self._add(lane, values[one], names and names[one], sequence + row, again=True)
            values, names = values[known:], names and names[known:]
        for lane, first, last in self._cuts(total, len(values), names):
            numbered = None if sequence is None else sequence + known + first
            self._add(lane, values[first:last], names and names[first:last], numbered)

    def _cuts(self, total: int, count: int, names: Names) -> Iterator[tuple[Lane, int, int]]:
        """Rows that go the same way, about as many as make a batch."""
        producer = self._producer
        each = producer.batch_messages
        if total > producer.batch_bytes:
            each = max(1, min(each, producer.batch_bytes * count // total))
        if names is None or not producer.partitioned:
            for first in range(0, count, each):
                yield producer.lane_of(None), first, min(first + each, count)
            return
        first = 0
        while first < count:
            lane = producer.lane_of(names[first])
            last = first + 1
            while last < count and last - first < each and producer.lane_of(names[last]) is lane:
                last += 1
            yield lane, first, last
            first = last

    def _add(self, lane: Lane, values: list[Any], names: Names, sequence: int | None, *, again: bool = False) -> None:
        """A batch of its own, checked as it is made; of messages of very different sizes, several."""
        if lane.filling.payloads:
            lane.seal()
        self._begun.setdefault(lane, lane.next_sequence)
        outgoing = Outgoing(lane)
        outgoing.payloads = values
        outgoing.together = True
        outgoing.numbered, outgoing.again = sequence, again
        if names is not None:
            outgoing.keys = {row: name for row, name in enumerate(names) if name is not None}
        try:
            lane.number_next(outgoing)
        except BatchTooLarge:
            if len(values) == 1:
                raise
            half = len(values) // 2
            self._add(lane, values[:half], names and names[:half], sequence)
            behind = None if sequence is None else sequence + half
            self._add(lane, values[half:], names and names[half:], behind)
            return
        except BatchInvalid:  # not all are bytes: text may be sent, and the rest is refused as `send` does it
            plain = list(map(payload_of, values))
            if plain == values:
                raise
            self._add(lane, plain, names, sequence, again=again)
            return
        self._batches.append((lane, outgoing))
        self._producer.rotate(lane)
