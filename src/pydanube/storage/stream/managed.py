"""A topic's messages: reads its stream and the tail cache as one, from any offset or time.

It knows nothing of subscriptions: its caller passes what they still need.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from functools import partial

from pydanube.base.errors import BatchInvalid, DanubeError, OffsetNotConfirmed, OffsetsDamaged, QuorumLost
from pydanube.base.limits import READ_AHEAD_BYTES
from pydanube.storage.futures import settle
from pydanube.storage.stream.stream import Stream
from pydanube.storage.stream.tail import TailCache
from pydanube.stream.retention import RetentionPolicy, trim_before
from pydanube.wire.batch import Batch


class ManagedLedger:
    """Appends and reads for one topic. `changed` is called when more is confirmed, or with the error of an append."""

    def __init__(self, stream: Stream, cache: TailCache, changed: Callable[[BaseException | None], None]) -> None:
        self.stream, self.past_lost = stream, stream.past_lost
        self._tail = cache.tail()
        self._changed = changed
        self._create_future = asyncio.get_running_loop().create_future
        self._pending: deque[Batch] = deque()  # appended, not confirmed yet
        self.hidden_from: int | None = None  # messages from here on are not visible yet

    @property
    def confirmed_end(self) -> int:
        """Offsets below it are visible; the next message gets this offset or a higher one."""
        end = self.written_end
        return end if self.hidden_from is None else min(end, self.hidden_from)

    @property
    def written_end(self) -> int:
        """Offsets below it are durable, whether or not they are visible yet."""
        return self.stream.confirmed + 1

    @property
    def first(self) -> int:
        """The first offset that still exists, or the next one if there is none. A gap may follow it after trimming."""
        return min(self.stream.first, self.confirmed_end)

    def append(self, batch: Batch) -> tuple[Batch, Future[None]]:
        """The batch with its offsets, and a future that belongs to the caller: cancelling it affects no one else."""
        try:
            stamped, confirmed = self.stream.append(batch)
        except DanubeError as error:
            raise _for_publishers(error) from error
        answer: Future[None] = self._create_future()
        self._pending.append(stamped)
        confirmed.add_done_callback(partial(self._settled, answer))
        return stamped, answer

    def _settled(self, answer: Future[None], confirmed: Future[None]) -> None:
        failure = confirmed.exception()
        error = None if failure is None else _for_publishers(failure)
        settle(answer, error)
        if error is not None:
            self._pending.clear()  # recovery decides whether they were stored; if so, they are read from the stream
            self._changed(error)
            return
        end = self.stream.confirmed + 1
        pending = self._pending
        while pending and pending[0].base_offset < end:
            self._tail.add(pending.popleft())
        self._changed(None)

    def find(self, offset: int) -> Batch | None:
        """The visible batch with this offset, if it is in the cache."""
        return None if self._hides(offset) else self._tail.find(offset)

    async def read(self, offset: int, bytes_max: int = READ_AHEAD_BYTES) -> list[Batch]:
        """Visible batches from the one that contains `offset` on, or from the next one if it was never used."""
        if self._hides(offset):
            raise OffsetNotConfirmed(f"offset {offset} of {self.stream.name} is not visible yet")
        cached = self._tail.find(offset)
        if cached is not None:
            return [cached]
        batches = await self.stream.read(offset, bytes_max)
        if self.hidden_from is None:
            return batches
        shown = [batch for batch in batches if not self._hides(batch.base_offset)]
        if not shown:
            raise OffsetNotConfirmed(f"offset {offset} of {self.stream.name} is not visible yet")
        return shown

    async def read_around(self, offset: int) -> tuple[list[Batch], int]:
        """Batches from `offset` on, visible or not, and the offset after them; none where they are damaged."""
        try:
            cached = self._tail.find(offset)
            batches = [cached] if cached is not None else await self.stream.read(offset, READ_AHEAD_BYTES)
        except OffsetsDamaged as damage:
            return [], damage.last + 1
        return batches, batches[-1].last_offset + 1

    def _hides(self, offset: int) -> bool:
        return self.hidden_from is not None and offset >= self.hidden_from

    async def find_time(self, time: int) -> int:
        """The first offset appended at or after `time`; the confirmed end if there is none."""
        low, high = self.first, self.confirmed_end
        while low < high:
            middle = (low + high) // 2
            if self.past_lost(middle) >= self.confirmed_end:
                high = middle
                continue
            batch = (await self.read(middle, 1))[0]
            if self.stream.record.latest_time(batch.base_offset, batch.append_time) >= time:
                high = min(middle, batch.base_offset)
            else:
                low = batch.last_offset + 1
        return await self._skip_gap(low)

    async def _skip_gap(self, offset: int) -> int:
        """The offset of the first message at or after `offset`; the confirmed end if there is none."""
        if self.past_lost(offset) >= self.confirmed_end:
            return self.confirmed_end
        return max(offset, (await self.read(offset, 1))[0].base_offset)

    def trim_before(
        self,
        policy: RetentionPolicy | None,
        deletable_before: int | None,
        now: int,
        *,
        clock_trusted: bool,
        needed_from: int | None,
    ) -> int:
        """The first offset to keep, by the policy and by what subscriptions still need."""
        record = self.stream.record
        before = trim_before(
            record.sealed_parts(),
            policy,
            deletable_before,
            now,
            total_bytes=record.bytes,
            clock_trusted=clock_trusted,
            needed_from=needed_from,
        )
        return before if self.hidden_from is None else min(before, self.hidden_from)


def _for_publishers(error: BaseException) -> DanubeError:
    """Whatever made a ledger fail, the batch can be sent again: the stream continues in a new ledger."""
    if isinstance(error, DanubeError) and (error.retriable or isinstance(error, BatchInvalid)):
        return error
    return QuorumLost(str(error))
