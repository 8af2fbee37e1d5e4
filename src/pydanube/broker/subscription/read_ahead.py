"""What a subscription has in memory of what it reads: the batches that come next, in order, and those it used last.

Owned by its subscription. It never decides what is read next, and keeps no batch that was read before a seek. Of all
subscriptions of a broker the batches share one bound of memory; whatever goes can be read again.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter

from pydanube.base.errors import DanubeError
from pydanube.base.limits import READ_AHEAD_ALL_BYTES_MAX, UNREADABLE_OFFSETS_MAX
from pydanube.broker.subscription.damage_notices import DAMAGE, DamageNotices
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
AHEAD_BATCHES_MIN = 2  # of those read from disk: with fewer left, the next are read
RETRY_SECONDS = 0.2  # between attempts to read what cannot be read now
_base_offset = attrgetter("base_offset")


class Shelf:
    """Shared by all subscriptions of a broker: who has not used its batches for longest lets go of them first."""

    def __init__(self, bytes_max: int = READ_AHEAD_ALL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  # of memory
        self._users: dict[ReadAhead, int] = {}  # with what each has, in the order of use

    def hold(self, user: ReadAhead, size: int) -> None:
        """It uses so much from now on."""
        self.bytes += size - self._users.pop(user, 0)
        if size:
            self._users[user] = size
        while self.bytes > self.bytes_max and len(self._users) > 1:  # the one that is at work needs what it has
            next(iter(self._users)).let_go()


class ReadAhead:
    """Also knows which offsets could not be read, for as long as they cannot are not done."""

    def __init__(
        self,
        shelf: Shelf,
        known: Subscription,
        ledger: ManagedLedger,
        task: Callable[[Awaitable[None]], None],
        wake: Callable[[], None],
        notices: DamageNotices,
    ) -> None:
        self.reading = False
        self._failed: dict[int, DanubeError] = {}  # by offset, the newest last
        self._shelf = shelf
        self._known = known
        self._ledger = ledger
        self._task = task
        self._wake = wake
        self._notices = notices
        self._batches: deque[Batch] = deque()
        self._ahead_bytes = 0  # of memory, of these
        self._recent: Sequence[Batch] = ()  # what was offered or read for the outbox last
        self._recent_bytes = 0
        self._cleared = 0  # times

    def clear(self) -> None:
        self.let_go()
        self.go_on()

    def let_go(self) -> None:
        """Of all batches, also of those that are being read."""
        self._batches.clear()
        self._cleared += 1
        self._ahead_bytes = 0
        self.keep(())

    def keep(self, recent: Sequence[Batch]) -> None:
        """These are used, in place of those before."""
        self._recent = recent
        self._recent_bytes = sum([batch.memory for batch in recent])
        self._shelf.hold(self, self._ahead_bytes + self._recent_bytes)

    def find(self, offset: int) -> Batch | None:
        """The batch with that offset, if it is in memory: one that was used last, or the cache has."""
        at = bisect_right(self._recent, offset, key=_base_offset) - 1
        if at >= 0 and offset <= self._recent[at].last_offset:
            return self._recent[at]
        return self._ledger.find(offset)

    async def at(self, offset: int) -> Batch:
        """The batch with that offset, or the next one: a buffered topic may have lost some. Some more are kept."""
        if (found := self.find(offset)) is not None:
            return found
        cleared = self._cleared
        batches = await self._ledger.read(offset)
        if cleared == self._cleared:
            self.keep(batches)
        return batches[0]

    def put_back(self, batch: Batch) -> None:
        """The rest of it comes when it may."""
        self._batches.appendleft(batch)
        self._ahead_bytes += batch.memory

    def take(self, offset: int) -> Batch | None:
        """The batch with that offset from memory; if it is not there, a read is under way."""
        batches = self._batches
        while batches:
            batch = batches.popleft()
            self._ahead_bytes -= batch.memory
            if len(batches) <= AHEAD_BATCHES_MIN:
                self._begin((batches[-1] if batches else batch).last_offset + 1)
            if batch.last_offset >= offset:
                return batch
        found = self._ledger.find(offset)
        if found is None:
            self._begin(offset)
        return found

    def _begin(self, offset: int) -> None:
        """Unless it is in memory, or a read is under way."""
        offset = self._ledger.past_lost(offset)
        if not self.reading and offset < self._ledger.confirmed_end and self._ledger.find(offset) is None:
            self.reading = True
            self._task(self._read(offset))

    async def _read(self, offset: int) -> None:
        cleared = self._cleared
        try:
            batches = await self._ledger.read(offset)
        except DanubeError as error:
            await self.fail(offset, error)
            batches = []
        else:
            self.could_read(offset, batches[-1].last_offset)
        finally:
            self.reading = False
        if cleared == self._cleared:
            self._batches.extend(batches)
            self._ahead_bytes += sum(batch.memory for batch in batches)
            self._shelf.hold(self, self._ahead_bytes + self._recent_bytes)
        self._wake()

    @property
    def error(self) -> DanubeError | None:
        """Why something that is wanted cannot be read, while it cannot."""
        return next(reversed(self._failed.values()), None)

    def could_read(self, first: int, last: int) -> None:
        """What failed elsewhere, and is still wanted, is no better for it."""
        if not self._failed:
            return
        self._failed = {
            offset: error
            for offset, error in self._failed.items()
            if not first <= offset <= last and self._known.cursor.pending(offset, offset)
        }
        if not any(isinstance(error, DAMAGE) for error in self._failed.values()):
            self._notices.withdraw()

    def go_on(self) -> None:
        """Whatever failed may be read by now, or is no longer wanted."""
        self._failed.clear()
        self._notices.withdraw()

    async def fail(self, offset: int, error: DanubeError) -> None:
        """Says so once, and waits before the next attempt."""
        if not self._failed:
            log.warning("subscription %s cannot read offset %d yet: %s", self._known.name, offset, error)
        self._failed.pop(offset, None)
        self._failed[offset] = error
        if len(self._failed) > UNREADABLE_OFFSETS_MAX:
            del self._failed[next(iter(self._failed))]
        self._notices.send(error)
        await asyncio.sleep(RETRY_SECONDS)
