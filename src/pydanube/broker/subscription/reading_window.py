"""What a subscription reads: its position, what it has read ahead, and what it passes over.

Owned by its subscription. It decides what is read next and how far. It never decides who gets a message, hands none
out, and keeps no batch from before a seek. Whatever it frees can be read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from pydanube.base.errors import DanubeError
from pydanube.base.limits import READ_AHEAD_ALL_BYTES_MAX
from pydanube.broker.limits.rates import Throttle
from pydanube.broker.subscription.core import SubscriptionCore
from pydanube.broker.subscription.read_failures import ReadFailures
from pydanube.broker.subscription.runs import inspectable
from pydanube.topic.cursor import Range
from pydanube.topic.records import Cause
from pydanube.wire.batch import Batch

AHEAD_BATCHES_MIN = 2  # the next batches are read when no more than this many are left
Discard = Callable[[int, Range, Cause], None]  # records that these offsets need no ack: generation, range, cause
_base_offset = attrgetter("base_offset")


class Portion(NamedTuple):
    """The messages that come next: offsets `first` to `last` of a batch."""

    batch: Batch
    first: int
    last: int
    inspected: int  # how many of them are examined one by one


class ReadAheadBudget:
    """Shared by all subscriptions of a broker: the one that has not used its batches for longest frees them first."""

    def __init__(self, bytes_max: int = READ_AHEAD_ALL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  # of memory in use
        self._users: dict[ReadingWindow, int] = {}  # with the bytes of each, least recently used first

    def hold(self, user: ReadingWindow, size: int) -> None:
        """Records how many bytes this user has in memory."""
        self.bytes += size - self._users.pop(user, 0)
        if size:
            self._users[user] = size
        while self.bytes > self.bytes_max and len(self._users) > 1:  # never evict the current reader
            next(iter(self._users)).let_go()


class ReadingWindow:
    """`discard` records what is passed over. The subscription gets a turn after each read."""

    def __init__(
        self, core: SubscriptionCore, budget: ReadAheadBudget, failures: ReadFailures, discard: Discard
    ) -> None:
        self.next_offset = core.known.cursor.floor  # everything below it was offered to the engine or is done
        self.reading = False  # a read is in progress
        self.failures = failures
        self._known, self._ledger, self._lifetime = core.known, core.ledger, core.lifetime
        self._budget = budget
        self._discard = discard
        self._ahead: deque[Batch] = deque()  # to be offered next, in the order of their offsets
        self._ahead_bytes = 0  # of memory
        self._recent: Sequence[Batch] = ()  # the batches last offered, or last read for a delivery
        self._recent_bytes = 0
        self._times_emptied = 0  # a read that began before the last time is discarded

    # -- what comes next -----------------------------------------------------------------------------------------------

    def take(self, most: int, key_bytes: int, throttle: Throttle | None, now: int) -> Portion | None:
        """The next messages, at most `most` if they are inspected. None if there are none, or none in memory yet."""
        ledger, cursor = self._ledger, self._known.cursor
        if self.next_offset >= ledger.confirmed_end:
            return None  # most calls end here: no message has this offset or a later one, so there is no gap to pass
        if self.next_offset < ledger.first:  # nothing that the cursor needs is deleted, so no message has these offsets
            self.pass_gap(self.next_offset, ledger.first - 1)
            self.next_offset = ledger.first
        self.next_offset = self.pass_lost(self.next_offset)
        if self.next_offset >= min(ledger.confirmed_end, cursor.ceiling):
            return None
        batch = self._next_batch(self.next_offset)
        if batch is None:
            return None
        first = max(self.next_offset, batch.base_offset)
        if batch.base_offset > self.next_offset:
            self.pass_gap(self.pass_lost(self.next_offset), batch.base_offset - 1)
        last = min(batch.last_offset, cursor.ceiling - 1)  # only what can be acknowledged may be delivered
        if throttle is not None:
            last = min(last, first + throttle.room(last - first + 1, batch.size // batch.count, now) - 1)
        last, inspected = inspectable(batch, self._known.kind, first, last, most, key_bytes)
        if last < batch.last_offset:  # otherwise the rest would look like a gap before the next batch
            self._ahead.appendleft(batch)
            self._ahead_bytes += batch.memory
        self.next_offset = last + 1
        self.keep([batch])
        return Portion(batch, first, last, inspected)

    def _next_batch(self, offset: int) -> Batch | None:
        """The batch with that offset if it is in memory; otherwise starts a read."""
        batches = self._ahead
        while batches:
            batch = batches.popleft()
            self._ahead_bytes -= batch.memory
            if len(batches) <= AHEAD_BATCHES_MIN:
                self._read_ahead((batches[-1] if batches else batch).last_offset + 1)
            if batch.last_offset >= offset:
                return batch
        found = self._ledger.find(offset)
        if found is None:
            self._read_ahead(offset)
        return found

    def _read_ahead(self, offset: int) -> None:
        """Starts a read, unless the batch is in memory or a read is in progress."""
        offset = self._ledger.past_lost(offset)
        if not self.reading and offset < self._ledger.confirmed_end and self._ledger.find(offset) is None:
            self.reading = True
            self._lifetime.start(self._read(offset))

    async def _read(self, offset: int) -> None:
        emptied = self._times_emptied
        try:
            batches = await self._ledger.read(offset)
        except DanubeError as error:
            await self.failures.add(offset, error)
            batches = []
        else:
            self.failures.were_read(offset, batches[-1].last_offset)
        finally:
            self.reading = False
        if emptied == self._times_emptied:
            self._ahead.extend(batches)
            self._ahead_bytes += sum(batch.memory for batch in batches)
            self._budget.hold(self, self._ahead_bytes + self._recent_bytes)
        self._lifetime.wake()

    # -- what is passed over -------------------------------------------------------------------------------------------

    def pass_gap(self, first: int, last: int) -> None:
        """Passes over offsets that have no message: recovering a ledger may leave some unused."""
        if first <= last:
            self._discard(self._known.cursor.generation, (first, last), Cause.UNUSED)

    def pass_lost(self, offset: int) -> int:
        """The offset, or the next one that was not accepted as lost; passes over those in between."""
        behind = self._ledger.past_lost(offset)
        if behind > offset:
            self._discard(self._known.cursor.generation, (offset, behind - 1), Cause.LOST)
        return behind

    def skip_done(self) -> None:
        """The cursor was moved forward: nothing below its floor is read any longer."""
        self.next_offset = max(self.next_offset, self._known.cursor.floor)

    # -- memory --------------------------------------------------------------------------------------------------------

    def keep(self, recent: Sequence[Batch]) -> None:
        """Keeps these batches in place of those kept before."""
        self._recent = recent
        self._recent_bytes = sum([batch.memory for batch in recent])
        self._budget.hold(self, self._ahead_bytes + self._recent_bytes)

    def find(self, offset: int) -> Batch | None:
        """The batch with that offset, if it is in memory: one of those kept, or one in the cache."""
        at = bisect_right(self._recent, offset, key=_base_offset) - 1
        if at >= 0 and offset <= self._recent[at].last_offset:
            return self._recent[at]
        return self._ledger.find(offset)

    async def read_at(self, offset: int) -> Batch:
        """The batch with that offset, or the next one if no message has it. Keeps all batches of the same read."""
        if (found := self.find(offset)) is not None:
            return found
        emptied = self._times_emptied
        batches = await self._ledger.read(offset)
        if emptied == self._times_emptied:
            self.keep(batches)
        return batches[0]

    def let_go(self) -> None:
        """Frees the memory of all batches, including those being read."""
        self._ahead.clear()
        self._times_emptied += 1
        self._ahead_bytes = 0
        self.keep(())

    def start_again(self) -> None:
        """Called after a seek: reading begins at the cursor's floor."""
        self.next_offset = self._known.cursor.floor
        self.let_go()
        self.failures.clear()
