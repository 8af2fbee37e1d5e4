"""The offsets that a subscription needs but could not read, and why; consumers are told if they are damaged.

Owned by its reading window. Waiting does not repair damage, and without a notice its consumers would wait in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pydanube.base.errors import DanubeError, OffsetsDamaged, SegmentDamaged, SegmentMissing
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DAMAGE_NOTICE_SECONDS, SECOND, UNREADABLE_OFFSETS_MAX
from pydanube.broker.subscription.core import SubscriptionCore

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.2  # between attempts to read
DAMAGE = (OffsetsDamaged, SegmentDamaged, SegmentMissing)  # errors that do not go away by waiting
REPEATED = DAMAGE_NOTICE_SECONDS * SECOND


class ReadFailures:
    """Remembers an offset until it is read or no longer needed. Tells those consumers of damage that wait for messages,
    according to `waits`."""

    __slots__ = ("_core", "_failed", "_notified", "_waits")

    def __init__(self, core: SubscriptionCore, waits: Callable[[ConsumerId], bool]) -> None:
        self._core = core
        self._waits = waits
        self._failed: dict[int, DanubeError] = {}  # by offset, the newest last
        self._notified: dict[ConsumerId, int] = {}  # when, in microseconds

    @property
    def newest(self) -> DanubeError | None:
        """Why something that is needed cannot be read; None if everything can."""
        return next(reversed(self._failed.values()), None)

    async def add(self, offset: int, error: DanubeError) -> None:
        """Remembers the error, logs the first one, and waits before the caller tries again."""
        if not self._failed:
            log.warning("subscription %s cannot read offset %d yet: %s", self._core.known.name, offset, error)
        self._failed.pop(offset, None)
        self._failed[offset] = error
        if len(self._failed) > UNREADABLE_OFFSETS_MAX:
            del self._failed[next(iter(self._failed))]
        if isinstance(error, DAMAGE):
            self._notify(error)
        await asyncio.sleep(RETRY_SECONDS)

    def were_read(self, first: int, last: int) -> None:
        """Forgets failures of these offsets, and of those that are done; other offsets still fail."""
        if not self._failed:
            return
        self._failed = {
            offset: error
            for offset, error in self._failed.items()
            if not first <= offset <= last and self._core.known.cursor.pending(offset, offset)
        }
        if not any(isinstance(error, DAMAGE) for error in self._failed.values()):
            self._withdraw_notices()

    def clear(self) -> None:
        """Forgets all failures: these offsets may be readable by now, or are no longer needed."""
        self._failed.clear()
        self._withdraw_notices()

    def _notify(self, error: DanubeError) -> None:
        """Tells the consumers that wait, unless they were told a moment ago."""
        now, before = self._core.lifetime.now, self._notified
        consumers = list(self._core.consumers.values())
        self._notified = {each.id: before[each.id] for each in consumers if each.id in before}
        for consumer in consumers:
            notified = before.get(consumer.id)
            if (notified is None or now - notified >= REPEATED) and self._waits(consumer.id):
                self._notified[consumer.id] = now
                consumer.sink.unreadable(error)

    def _withdraw_notices(self) -> None:
        """Tells the consumers that were notified that reading works again."""
        notified, self._notified = self._notified, {}
        for consumer in list(self._core.consumers.values()) if notified else ():
            if consumer.id in notified:
                consumer.sink.unreadable(None)


def in_words(error: Exception) -> str:
    """The error, without a full stop, and with its advice if waiting does not help."""
    if not isinstance(error, DanubeError):
        return f"{type(error).__name__}: {error}"
    return str(error) if error.retriable else f"{error}. {error.help}".removesuffix(".")
