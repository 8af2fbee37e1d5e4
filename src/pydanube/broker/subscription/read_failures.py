"""The offsets that a subscription could not read and still needs, and why.

Owned by its reading window. It reads nothing itself; consumers hear of damage through its notices.
"""

from __future__ import annotations

import asyncio
import logging

from pydanube.base.errors import DanubeError
from pydanube.base.limits import UNREADABLE_OFFSETS_MAX
from pydanube.broker.subscription.damage_notices import DAMAGE, DamageNotices
from pydanube.topic.state import Subscription

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.2  # between attempts to read what cannot be read now


class ReadFailures:
    """Remembered until the offset could be read, or is no longer needed."""

    __slots__ = ("_failed", "_known", "_notices")

    def __init__(self, known: Subscription, notices: DamageNotices) -> None:
        self._known = known
        self._notices = notices
        self._failed: dict[int, DanubeError] = {}  # by offset, the newest last

    @property
    def newest(self) -> DanubeError | None:
        """Why something that is needed cannot be read, if anything cannot."""
        return next(reversed(self._failed.values()), None)

    async def add(self, offset: int, error: DanubeError) -> None:
        """Remembers it, logs the first, and waits before the caller tries again."""
        if not self._failed:
            log.warning("subscription %s cannot read offset %d yet: %s", self._known.name, offset, error)
        self._failed.pop(offset, None)
        self._failed[offset] = error
        if len(self._failed) > UNREADABLE_OFFSETS_MAX:
            del self._failed[next(iter(self._failed))]
        self._notices.send(error)
        await asyncio.sleep(RETRY_SECONDS)

    def were_read(self, first: int, last: int) -> None:
        """Forgets these offsets, and those that are done; what failed elsewhere still fails."""
        if not self._failed:
            return
        self._failed = {
            offset: error
            for offset, error in self._failed.items()
            if not first <= offset <= last and self._known.cursor.pending(offset, offset)
        }
        if not any(isinstance(error, DAMAGE) for error in self._failed.values()):
            self._notices.withdraw()

    def clear(self) -> None:
        """What failed may be readable by now, or is no longer needed."""
        self._failed.clear()
        self._notices.withdraw()
