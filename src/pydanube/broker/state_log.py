"""A topic's state ledger: records are applied at once, written together, and confirmed when they are durable (§2, §11).

It compacts itself into snapshots. When a write fails, nobody is told that it worked and nothing more is taken; once the
stream goes on, a snapshot of memory makes the log whole again.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from pydanube.base.errors import DanubeError, NodeBusy, StateInvalid, TopicBusy, TopicClosed, TopicRecovering
from pydanube.base.limits import (
    ACK_RANGES_MAX,
    GROUP_BYTES_TARGET,
    HEADERS_REPLAYED_BYTES_MAX,
    READ_AHEAD_BYTES,
    STATE_COMPACT_BYTES,
    STATE_QUEUE_RECORDS_MAX,
)
from pydanube.ledger.cursor import Range, merged
from pydanube.ledger.state_records import Acked, Cause, Moved, Record, SubscriptionDeleted, decode, encode
from pydanube.ledger.topic_state import TopicState
from pydanube.storage.stream import Stream
from pydanube.wire.batch import build

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.05


@dataclass(slots=True)
class _Group:
    """Records that become durable together, who waits for them, and what is true once they are."""

    records: list[Record] = field(default_factory=list)
    acks: dict[int, tuple[int, Cause, list[Range]]] = field(default_factory=dict)  # the newest of each subscription
    waiters: list[Future[None]] = field(default_factory=list)
    moved: dict[int, None] = field(default_factory=dict)  # subscriptions whose cursors they change
    floors: dict[int, tuple[int, int]] = field(default_factory=dict)  # of those: generation and floor after them
    deleted: list[int] = field(default_factory=list)
    snapshot: int | None = None  # data offset

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
        """Many acks of a moment are one record, but never across one of another cause or a move.

        Whether an ack fits a cursor depends on where the ones before it have brought the floor: a log in another order
        might not replay. Cursors are independent of each other, and within one record the lowest offsets come first.
        """
        for subscription in list(self.acks):
            self._merge(subscription)

    def _merge(self, subscription: int) -> None:
        generation, cause, ranges = self.acks.pop(subscription)
        self.moved[subscription] = None
        done = merged(ranges)
        for at in range(0, len(done), ACK_RANGES_MAX):
            self.records.append(Acked(subscription, generation, tuple(done[at : at + ACK_RANGES_MAX]), cause))

    def settle(self, error: DanubeError | None) -> None:
        for waiter in self.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
                waiter.exception()  # whoever waits still gets it


class StateLog:
    """Owned by its topic's loop. `load` first."""

    def __init__(self, stream: Stream, state: TopicState, data_end: Callable[[], int]) -> None:
        self._stream = stream
        self._state = state
        self._data_end = data_end
        self._loop = asyncio.get_running_loop()
        self._filling = _Group()
        self._queued = 0  # records since the last flush
        self._writing = 0  # groups on their way
        self._newest = self._filling  # of those
        self._scheduled = False
        self._broken: DanubeError | None = None
        self._mending: Task[None] | None = None
        self._trimming: Task[None] | None = None
        self.bytes = 0  # written since the last snapshot
        self._snapshot_bytes = 0
        self._data_bytes = 0  # of messages since the last snapshot
        self._wanted = False  # a snapshot, whatever was written since the last one

    async def load(self) -> None:
        """Replays everything that is durable."""
        offset = self._stream.first
        while offset <= self._stream.confirmed:
            for batch in await self._stream.read(offset, READ_AHEAD_BYTES):
                for row, payload in enumerate(batch.payloads()):
                    try:
                        self._state.replay(decode(payload or b""))
                    except DanubeError as error:
                        place = f"record {batch.base_offset + row} of {self._stream.name}"
                        raise StateInvalid(f"{place} does not fit those before it: {error}") from error
                offset = batch.last_offset + 1
                self.bytes += batch.size
        self._state.recovered()

    def check(self) -> None:
        """Raises unless records can be taken: to be asked before a decision is made."""
        if self._broken is not None:
            self._check_whole()
        if self._queued >= STATE_QUEUE_RECORDS_MAX:
            raise TopicBusy(f"{self._queued} state records wait")

    def _check_whole(self) -> None:
        if self._broken is None:
            return
        if self._stream.lost or isinstance(self._broken, TopicClosed):
            raise TopicClosed(f"{self._stream.name} is not served here any more")
        raise TopicRecovering(f"the topic's state could not be written: {self._broken}")

    def apply(self, *records: Record) -> Future[None]:
        """Memory has them when this returns, the disk when the future is done."""
        self.check()
        group = self._filling
        for record in records:
            self._state.replay(record)
            group.add(record)
        self._queued += len(records)
        waiter: Future[None] = self._loop.create_future()
        group.waiters.append(waiter)
        if not self._scheduled:
            self._schedule()
        return waiter

    def barrier(self) -> Future[None]:
        """Done when everything applied so far is durable: for an answer that adds nothing to the log."""
        self._check_whole()
        waiter: Future[None] = self._loop.create_future()
        if self._filling.records or self._filling.acks:
            self._filling.waiters.append(waiter)
        elif self._writing:
            self._newest.waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    def note_data(self, size: int) -> None:
        """Messages were appended; now and then a snapshot keeps short what a restart must read of them."""
        self._data_bytes += size
        if self._data_bytes >= HEADERS_REPLAYED_BYTES_MAX and len(self._state.producers):
            self._schedule()

    def compact_soon(self) -> None:
        """A snapshot is due: a restart then reads nothing of the messages before it, so they may go."""
        self._wanted = True
        self._schedule()

    # -- writing -----------------------------------------------------------------------------------------------------

    def _schedule(self, delay: float = 0.0) -> None:
        if self._scheduled or self._broken is not None:
            return
        self._scheduled = True
        if delay:
            self._loop.call_later(delay, self._flush)
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._broken is not None:
            return
        group = self._filling
        try:
            if group.records or group.acks:
                group.merge_acks()
                group.floors = self._floors(group.moved)
                self._filling, self._queued = _Group(), 0
                self._write(group)
            if self._compaction_due:
                self._compact()
        except NodeBusy:
            self._filling, self._queued = group, len(group.records)
            self._schedule(RETRY_SECONDS)
        except DanubeError as error:
            group.settle(TopicRecovering(str(error)))
            self._break(error)

    def _floors(self, subscriptions: Container[int]) -> dict[int, tuple[int, int]]:
        """As memory has them: what is written with or before them says the same."""
        moved = [known for known in self._state if known.id in subscriptions]
        return {known.id: (known.cursor.generation, known.cursor.floor) for known in moved}

    def _write(self, group: _Group) -> None:
        """One batch or several; the last one's confirmation is that of all, for a stream confirms in order."""
        payloads = [encode(record) for record in group.records]
        last: Future[None] | None = None
        while payloads:
            part = _first_part(payloads)
            stamped, last = self._stream.append(build(payloads[:part], publish_time=0))
            self.bytes += stamped.size
            if group.snapshot is not None:
                self._snapshot_bytes += stamped.size
            del payloads[:part], group.records[:part]  # what is left is tried again if the stream is busy
            if payloads:
                last.add_done_callback(self._part_written)
        if last is not None:
            self._writing += 1
            self._newest = group
            last.add_done_callback(lambda done: self._written(group, done))

    def _part_written(self, done: Future[None]) -> None:
        """The rest of its group may go to another ledger, so nobody else would see that this part is missing."""
        error = done.exception()
        if error is not None:
            self._break(error if isinstance(error, DanubeError) else DanubeError(str(error)))

    def _written(self, group: _Group, done: Future[None]) -> None:
        self._writing -= 1
        error = None if done.cancelled() else done.exception()
        if error is not None:
            group.settle(TopicRecovering(str(error)))
            self._break(error if isinstance(error, DanubeError) else DanubeError(str(error)))
            return
        for subscription, (generation, floor) in group.floors.items():
            self._state.durable(subscription, generation, floor)
        for subscription in group.deleted:
            self._state.durable_deletion(subscription)
        if group.snapshot is not None:
            self._state.durable_snapshot(group.snapshot)
        group.settle(None)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    @property
    def _compaction_due(self) -> bool:
        if self._wanted or self.bytes >= max(STATE_COMPACT_BYTES, 3 * self._snapshot_bytes):
            return True
        return self._data_bytes >= HEADERS_REPLAYED_BYTES_MAX and len(self._state.producers) > 0

    def _compact(self) -> None:
        """All state in a new ledger; when that is durable, the ledgers before it go."""
        data_offset = self._data_end()
        if not self._state.producers.snapshot_ready(data_offset):
            return
        self._stream.roll()
        first = self._stream.next_offset
        group = self._snapshot(data_offset)
        waiter: Future[None] = self._loop.create_future()
        waiter.add_done_callback(lambda done: None if done.exception() else self._trim(first))
        group.waiters.append(waiter)
        try:
            self._write(group)
        except NodeBusy:  # what was written of it has no end, so it counts for nothing
            self.bytes = 3 * self._snapshot_bytes + STATE_COMPACT_BYTES
            self._schedule(RETRY_SECONDS)

    def _snapshot(self, data_offset: int) -> _Group:
        self.bytes = self._snapshot_bytes = self._data_bytes = 0
        self._wanted = False
        floors = {known.id: (known.cursor.generation, known.cursor.floor) for known in self._state}
        records, deleted = self._state.snapshot(data_offset), self._state.deleted()
        return _Group(records=records, floors=floors, deleted=deleted, snapshot=data_offset)

    def _trim(self, before: int) -> None:
        if self._trimming is None or self._trimming.done():
            self._trimming = self._loop.create_task(self._trim_quietly(before))

    async def _trim_quietly(self, before: int) -> None:
        try:
            await self._stream.trim(before)
        except DanubeError as error:
            log.warning("%s: old state was not trimmed yet: %s", self._stream.name, error)

    # -- failing and mending -----------------------------------------------------------------------------------------

    def _break(self, error: DanubeError) -> None:
        """Whoever waits is told; nobody adds to it until the log is whole again."""
        if self._broken is not None:
            return
        self._broken = error
        group, self._filling, self._queued = self._filling, _Group(), 0
        group.settle(TopicRecovering(str(error)))
        self._mending = self._loop.create_task(self._mend())

    async def _mend(self) -> None:
        """Some of what memory has was perhaps not written: a snapshot says all of it again."""
        while True:
            try:
                await self._stream.ready()
                data_offset = self._data_end()
                while not self._state.producers.snapshot_ready(data_offset):
                    await asyncio.sleep(RETRY_SECONDS)
                    data_offset = self._data_end()
                group = self._snapshot(data_offset)
                waiter: Future[None] = self._loop.create_future()
                group.waiters.append(waiter)
                self._write(group)
                await waiter
            except DanubeError as error:
                if self._stream.lost or isinstance(self._broken, TopicClosed):
                    return
                log.warning("%s: the state is not written again yet: %s", self._stream.name, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            log.info("%s: the state is whole again", self._stream.name)
            self._broken = None
            self._schedule()
            return

    async def close(self) -> None:
        """Writes what waits, then takes no more."""
        if self._broken is None:
            await asyncio.gather(self.barrier(), return_exceptions=True)
        self._broken = self._broken or TopicClosed(f"{self._stream.name} is closed")
        for task in (self._mending, self._trimming):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _first_part(payloads: list[bytes]) -> int:
    """How many records one batch takes."""
    size = 0
    for count, payload in enumerate(payloads, 1):
        size += len(payload)
        if size >= GROUP_BYTES_TARGET or count == STATE_QUEUE_RECORDS_MAX:
            return count
    return len(payloads)
