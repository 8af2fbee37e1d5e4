"""A topic's state ledger: records are applied at once, written together, and confirmed when they are durable (§2, §11).

It compacts itself into snapshots, which are written in parts while records are still accepted. When a write fails, no
caller is told that it succeeded, and no more records are accepted. Once the stream works again, a snapshot of the state
in memory repairs the log.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Container, Iterator

from pydanube.base.errors import (
    AcksScattered,
    DanubeError,
    NodeBusy,
    StateInvalid,
    TopicBusy,
    TopicClosed,
    TopicRecovering,
)
from pydanube.base.limits import (
    HEADERS_REPLAYED_BYTES_MAX,
    READ_AHEAD_BYTES,
    STATE_AMID_SNAPSHOT_RECORDS_MAX,
    STATE_COMPACT_BYTES,
    STATE_QUEUE_RECORDS_MAX,
)
from pydanube.base.retry import Backoff
from pydanube.broker.state.group import Group, Snapshot, first_part
from pydanube.storage.futures import Confirmations, cancel_all, danube_error
from pydanube.storage.stream.stream import Stream
from pydanube.topic.records import Record, decode, encode
from pydanube.topic.state import TopicState
from pydanube.wire.batch import Batch, build

log = logging.getLogger(__name__)
RETRY = Backoff(0.05, 5.0)


class StateLog:
    """Owned by its topic's loop. `load` must be called first."""

    def __init__(
        self,
        stream: Stream,
        state: TopicState,
        data_end: Callable[[], int],
        compact_bytes: int | None = None,
        part_bytes: int | None = None,
    ) -> None:
        self._compact_bytes = compact_bytes
        self._part_bytes = part_bytes
        self._stream = stream
        self._state = state
        self._data_end = data_end
        self._loop = asyncio.get_running_loop()
        self._filling = Group()
        self._confirmations = Confirmations(self._loop)
        self._queued = 0  # records since the last flush
        self._writing = 0  # groups that are being written
        self._newest = self._filling  # the last group that was handed to the stream
        self._scheduled = False
        self._broken: DanubeError | None = None
        self._repairing: Task[None] | None = None
        self._compacting: Task[None] | None = None  # writes a snapshot while records are still accepted
        self._amid = 0  # records written since the snapshot began
        self._trimming: Task[None] | None = None
        self.bytes = 0  # written since the last snapshot
        self._snapshot_bytes = 0
        self._data_bytes = 0  # of messages, since the last snapshot
        self._wanted = False  # a snapshot was asked for, however little was written since the last one

    async def load(self) -> None:
        """Replays everything that is durable; `StateInvalid` names the record that does not fit.

        After a part that was given up as damaged, only records that still make sense are replayed.
        """
        offset, lost = self._stream.first, self._stream.record.lost
        self._state.patched = bool(lost) and lost[-1].last >= offset
        try:
            while (offset := self._stream.past_lost(offset)) <= self._stream.confirmed:
                for batch in await self._stream.read(offset, READ_AHEAD_BYTES):
                    offset = batch.base_offset
                    for payload in batch.payloads():
                        self._state.replay(decode(payload or b""))
                        offset += 1
                    offset = batch.last_offset + 1
                    self.bytes += batch.size
            self._state.recovered()
        except (StateInvalid, AcksScattered) as error:
            raise StateInvalid(
                f"record {offset} of {self._stream.name} contradicts the records before it: {error}"
            ) from error
        if self._state.patched:
            log.error("%s: leaving out the damaged part and rewriting the rest", self._stream.title)
            self._state.patched = False
            self.compact_soon()

    def check(self) -> None:
        """Raises unless records are accepted; call it before making a decision."""
        if self._broken is not None:
            self._check_working()
        if self._queued >= STATE_QUEUE_RECORDS_MAX:
            raise TopicBusy(f"{self._queued} state records are waiting")
        if self._amid >= STATE_AMID_SNAPSHOT_RECORDS_MAX:
            raise TopicBusy(f"{self._amid} state records were written while a snapshot is being written")

    def _check_working(self) -> None:
        if self._broken is None:
            return
        if self._stream.lost or isinstance(self._broken, TopicClosed):
            raise TopicClosed(f"this broker no longer serves {self._stream.name}")
        raise TopicRecovering(f"the topic's state could not be written: {self._broken}")

    def apply(self, *records: Record) -> Future[None]:
        """Applies the records to memory at once; the future is done when they are durable."""
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
        """Done when everything applied so far is durable, for answers that add nothing to the log."""
        self._check_working()
        waiter: Future[None] = self._loop.create_future()
        if self._filling.records or self._filling.acks:
            self._filling.waiters.append(waiter)
        elif self._writing and not self._newest.settled:  # groups before it are durable too, even if not settled yet
            self._newest.waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    def note_data(self, size: int) -> None:
        """Counts appended messages. Once there are many, a snapshot bounds how many of them a restart must read."""
        self._data_bytes += size
        if self._data_bytes >= HEADERS_REPLAYED_BYTES_MAX and len(self._state.producers):
            self._schedule()

    def compact_soon(self) -> None:
        """Writes a snapshot soon. A restart then reads no messages before it, so they may be deleted."""
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
                group.floors, group.filled = self._floors(group.moved), self._state.fills.ended
                self._filling, self._queued = Group(), 0
                self._write(group)
            if self._compaction_due:
                self._compact()
        except NodeBusy:
            self._filling, self._queued = group, len(group.records)
            self._schedule(RETRY.first)
        except DanubeError as error:
            group.fail(TopicRecovering(str(error)))
            self._break(error)

    def _floors(self, subscriptions: Container[int]) -> dict[int, tuple[int, int]]:
        """Floors in memory: what replaying this group and all groups before it leads to."""
        moved = [known for known in self._state if known.id in subscriptions]
        return {known.id: (known.cursor.generation, known.cursor.floor) for known in moved}

    def _write(self, group: Group) -> None:
        """Writes one or more batches. The last one confirms all of them, because a stream confirms in order."""
        payloads = [encode(record) for record in group.records]
        last: Future[None] | None = None
        while payloads:
            part = first_part(payloads)
            stamped, last = self._stream.append(build(payloads[:part], publish_time=0))
            self.bytes += stamped.size
            self._amid += part if self._compacting is not None else 0
            del payloads[:part], group.records[:part]  # if the stream is busy, only the rest is tried again
            if payloads:
                last.add_done_callback(self._part_written)
        if last is not None:
            self._writing += 1
            self._newest = group
            last.add_done_callback(lambda done: self._written(group, done))

    def _part_written(self, done: Future[None]) -> None:
        """The rest of the group may go to another ledger, so the last batch does not show whether this one failed."""
        error = done.exception()
        if error is not None:
            self._break(danube_error(error))

    def _written(self, group: Group, done: Future[None]) -> None:
        self._writing -= 1
        error = None if done.cancelled() else done.exception()
        if error is not None:
            group.fail(TopicRecovering(str(error)))
            self._break(danube_error(error))
            return
        self._durable(group)
        group.settled = True
        self._confirmations.add(group.waiters)

    def _durable(self, written: Group | Snapshot) -> None:
        for subscription, (generation, floor) in written.floors.items():
            self._state.durable(subscription, generation, floor)
        for subscription in written.deleted:
            self._state.durable_deletion(subscription)
        self._state.fills.durable(written.filled)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    @property
    def _compaction_due(self) -> bool:
        if self._compacting is not None:
            return False
        if self._wanted or self.bytes >= max(self._compact_bytes or STATE_COMPACT_BYTES, 3 * self._snapshot_bytes):
            return True
        return self._data_bytes >= HEADERS_REPLAYED_BYTES_MAX and len(self._state.producers) > 0

    def _compact(self) -> None:
        """Begins a snapshot, in a new ledger if possible. Records applied meanwhile are written between its parts."""
        data_offset = self._data_end()
        if not self._state.producers.snapshot_ready(data_offset):
            return
        self._stream.roll()
        snapshot = Snapshot(self._state, data_offset, self._part_bytes)
        batches = snapshot.batches()
        try:
            begun = self._begin(snapshot, batches)
        except NodeBusy:
            self._schedule(RETRY.first)
            return
        self._compacting = self._loop.create_task(self._compact_on(snapshot, batches, begun))

    async def _compact_on(self, snapshot: Snapshot, batches: Iterator[Batch], begun: Future[None]) -> None:
        try:
            await self._write_on(snapshot, batches, begun)
        except Exception as error:  # whatever the error, a later snapshot must be possible
            self._compacting = None
            self._break(error)
        else:
            self._compacting = None
            self._schedule()

    def _begin(self, snapshot: Snapshot, batches: Iterator[Batch]) -> Future[None]:
        """Writes the first part at once: later records are written after it, and replayed on top of it."""
        stamped, written = self._stream.append(next(batches))
        snapshot.first = stamped.base_offset
        self.bytes = self._snapshot_bytes = stamped.size
        self._data_bytes = self._amid = 0
        self._wanted = False
        return written

    async def _write_on(self, snapshot: Snapshot, batches: Iterator[Batch], written: Future[None]) -> None:
        """Writes the other parts, each when the one before is durable. Then deletes what is older than the snapshot."""
        for batch in batches:
            await written
            written = await self._append_patiently(batch)
        await written
        self._amid = 0
        self._durable(snapshot)
        self._state.durable_snapshot(snapshot.data_offset)
        if self._trimming is None or self._trimming.done():
            self._trimming = self._loop.create_task(self._trim_quietly(snapshot.first))

    async def _append_patiently(self, batch: Batch) -> Future[None]:
        while True:
            try:
                stamped, written = self._stream.append(batch)
            except NodeBusy:
                await asyncio.sleep(RETRY.first)
                continue
            self.bytes += stamped.size
            self._snapshot_bytes += stamped.size
            return written

    async def _trim_quietly(self, before: int) -> None:
        """Makes the log begin with the snapshot, even in the middle of a ledger."""
        try:
            await self._stream.decide(lambda record: record.truncated(self._stream.epoch, before))
        except DanubeError as error:
            log.warning("%s: could not trim old state yet: %s", self._stream.name, error)

    # -- failing and repairing -----------------------------------------------------------------------------------------

    def _break(self, error: Exception) -> None:
        """Fails everyone who waits. No records are accepted until the log is repaired."""
        if self._broken is not None:
            return
        if not isinstance(error, DanubeError):
            self._report(error)
        self._broken = error if isinstance(error, DanubeError) else TopicRecovering(repr(error))
        group, self._filling, self._queued = self._filling, Group(), 0
        group.fail(TopicRecovering(str(error)))
        if self._compacting is not None:  # a snapshot without its end is ignored
            self._compacting.cancel()
            self._compacting = None
        self._repairing = self._loop.create_task(self._repair())

    def _report(self, error: Exception) -> None:
        message = f"{self._stream.name}: a snapshot of the state failed"
        self._loop.call_exception_handler({"message": message, "exception": error})

    async def _repair(self) -> None:
        """Writes a snapshot, because the log may lack some of what memory has."""
        for pause in RETRY:
            try:
                await self._stream.ready()
                data_offset = self._data_end()
                while not self._state.producers.snapshot_ready(data_offset):
                    await asyncio.sleep(RETRY.first)
                    data_offset = self._data_end()
                snapshot = Snapshot(self._state, data_offset, self._part_bytes)
                batches = snapshot.batches()
                await self._write_on(snapshot, batches, self._begin(snapshot, batches))
            except Exception as error:
                if self._stream.lost or isinstance(self._broken, TopicClosed):
                    return
                log.warning("%s: could not rewrite the state yet: %s", self._stream.name, error)
                if not isinstance(error, DanubeError):
                    self._report(error)
                await asyncio.sleep(pause)  # it grows, because failed attempts stay on disk until one succeeds
                continue
            log.info("%s: the state is complete again", self._stream.name)
            self._broken = None
            self._schedule()
            return

    async def close(self) -> None:
        """Writes what waits, and accepts no more records."""
        if self._broken is None:
            await asyncio.gather(self.barrier(), return_exceptions=True)
        self._broken = self._broken or TopicClosed(f"{self._stream.name} is closed")
        await cancel_all((self._compacting, self._repairing, self._trimming))
