"""What a topic's state log writes together: records applied at about the same time, or a part of a snapshot."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydanube.base.errors import DanubeError
from pydanube.base.limits import ACK_RANGES_MAX, GROUP_BYTES_TARGET, STATE_QUEUE_RECORDS_MAX
from pydanube.storage.futures import settle
from pydanube.topic.cursor import Range, merged
from pydanube.topic.records import Acked, Cause, Moved, Record, SubscriptionDeleted, encode
from pydanube.topic.state import TopicState
from pydanube.wire.batch import Batch, build


@dataclass(slots=True)
class Group:
    """Records that become durable together, the futures that wait for them, and what is true once they are durable."""

    records: list[Record] = field(default_factory=list)
    acks: dict[int, tuple[int, Cause, list[Range]]] = field(default_factory=dict)  # the latest of each subscription
    waiters: list[Future[None]] = field(default_factory=list)
    moved: dict[int, None] = field(default_factory=dict)  # subscriptions whose cursors these records change
    floors: dict[int, tuple[int, int]] = field(default_factory=dict)  # generation and floor of these after the records
    deleted: list[int] = field(default_factory=list)
    filled: int = 0  # how many parts of jobs' batches are filled after the records
    settled: bool = False  # the waiters were told, so there must not be any more

    def add(self, record: Record) -> None:
        if type(record) is Acked:
            subscription, generation, ranges, cause = record
            newest = self.acks.get(subscription)
            if newest is not None and newest[0] == generation and newest[1] is cause:
                newest[2].extend(ranges)
                return
            if newest is not None:
                self._merge(subscription)
            self.acks[subscription] = (generation, cause, [*ranges])
            return
        self.merge_acks()
        self.records.append(record)
        if isinstance(record, Moved):
            self.moved[record.subscription] = None
        elif isinstance(record, SubscriptionDeleted):
            self.deleted.append(record.subscription)

    def merge_acks(self) -> None:
        """Combines consecutive acks of a subscription into one record, but never past an ack with another cause or a
        move.

        Whether an ack fits a cursor depends on where the acks before it have brought the floor, so a log in another
        order might not replay. Cursors are independent of each other, and within one record the lowest offsets come
        first.
        """
        for subscription in list(self.acks):
            self._merge(subscription)

    def _merge(self, subscription: int) -> None:
        generation, cause, ranges = self.acks.pop(subscription)
        self.moved[subscription] = None
        done = merged(ranges)
        for at in range(0, len(done), ACK_RANGES_MAX):
            self.records.append(Acked(subscription, generation, tuple(done[at : at + ACK_RANGES_MAX]), cause))

    def fail(self, error: DanubeError) -> None:
        self.settled = True
        for waiter in self.waiters:
            settle(waiter, error)


class Snapshot:
    """The whole state at the time of construction, in batches of bounded size."""

    def __init__(self, state: TopicState, data_offset: int, part_bytes: int | None = None) -> None:
        self._part_bytes = part_bytes
        self.data_offset = data_offset
        self.floors = {known.id: (known.cursor.generation, known.cursor.floor) for known in state}
        self.deleted = state.deleted()
        self.filled = state.fills.ended
        self.first = 0  # its offset in the log, once it was begun
        self._records = state.snapshot(data_offset)

    def batches(self) -> Iterator[Batch]:
        """Encodes each batch when it is asked for."""
        payloads: list[bytes] = []
        size, most = 0, self._part_bytes or GROUP_BYTES_TARGET
        for record in self._records:
            payloads.append(encode(record))
            size += len(payloads[-1])
            if size >= most:
                yield build(payloads, publish_time=0)
                payloads, size = [], 0
        if payloads:
            yield build(payloads, publish_time=0)


def first_part(payloads: list[bytes]) -> int:
    """How many of the records fit into one batch."""
    size = 0
    for count, payload in enumerate(payloads, 1):
        size += len(payload)
        if size >= GROUP_BYTES_TARGET or count == STATE_QUEUE_RECORDS_MAX:
            return count
    return len(payloads)
