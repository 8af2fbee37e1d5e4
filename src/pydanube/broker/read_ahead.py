"""What a subscription reads from storage before its engine wants it: the batches that come next, in order.

Owned by its subscription. It never decides what is read next, and keeps no batch that was read before a seek.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from pydanube.base.errors import DanubeError
from pydanube.base.limits import UNREADABLE_OFFSETS_MAX
from pydanube.broker.hindrance import DAMAGE, Hindrance
from pydanube.ledger.topic_state import Subscription
from pydanube.storage.managed import ManagedLedger
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
AHEAD_BATCHES_MIN = 2  # of those read from disk: with fewer left, the next are read
RETRY_SECONDS = 0.2  # between attempts to read what cannot be read now


class ReadAhead:
    """Also knows which offsets could not be read, for as long as they cannot are not done."""

    def __init__(
        self,
        known: Subscription,
        ledger: ManagedLedger,
        task: Callable[[Awaitable[None]], None],
        wake: Callable[[], None],
        hindrance: Hindrance,
    ) -> None:
        self.reading = False
        self._failed: dict[int, DanubeError] = {}  # by offset, the newest last
        self._known = known
        self._ledger = ledger
        self._task = task
        self._wake = wake
        self._hindrance = hindrance
        self._batches: deque[Batch] = deque()
        self._cleared = 0  # times

    def clear(self) -> None:
        self._batches.clear()
        self._cleared += 1
        self.go_on()

    def put_back(self, batch: Batch) -> None:
        """The rest of it comes when it may."""
        self._batches.appendleft(batch)

    def take(self, offset: int) -> Batch | None:
        """The batch with that offset from memory; if it is not there, a read is under way."""
        batches = self._batches
        while batches:
            batch = batches.popleft()
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
            self._hindrance.over()

    def go_on(self) -> None:
        """Whatever failed may be read by now, or is no longer wanted."""
        self._failed.clear()
        self._hindrance.over()

    async def fail(self, offset: int, error: DanubeError) -> None:
        """Says so once, and waits before the next attempt."""
        if not self._failed:
            log.warning("subscription %s cannot read offset %d yet: %s", self._known.name, offset, error)
        self._failed.pop(offset, None)
        self._failed[offset] = error
        if len(self._failed) > UNREADABLE_OFFSETS_MAX:
            del self._failed[next(iter(self._failed))]
        self._hindrance.tell(error)
        await asyncio.sleep(RETRY_SECONDS)
