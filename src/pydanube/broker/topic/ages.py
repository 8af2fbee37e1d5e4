"""How old the oldest message of a backlog is: found in memory, remembered by its subscription, or read.

Reading is bounded for each answer; what would go beyond is not known. Changes nothing but what is remembered.
"""

from __future__ import annotations

from pydanube.base.errors import DanubeError
from pydanube.base.limits import SECOND
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.topic import Topic


class Ages:
    """For one answer, at the time `wall`."""

    def __init__(self, wall: int, reads_max: int) -> None:
        self._wall = wall
        self._reads_left = reads_max

    async def seconds(self, topic: Topic, host: SubscriptionHost, *, may_read: bool = True) -> float | None:
        """Of the first message that is not acknowledged: 0 if all are, None if it is not known."""
        floor = topic.ledger.past_lost(host.known.cursor.floor)
        if floor >= topic.ledger.confirmed_end:
            return 0.0
        cached = topic.ledger.find(floor)
        if cached is not None:
            host.oldest = (floor, cached.append_time)
        elif host.oldest is None or host.oldest[0] != floor:
            if not may_read or not self._reads_left:
                return None
            self._reads_left -= 1
            try:
                batches = await topic.ledger.read(max(floor, topic.ledger.first), 1)
            except DanubeError:
                return None
            if not batches:  # truncated meanwhile
                return None
            host.oldest = (floor, batches[0].append_time)
        return max(0, self._wall - host.oldest[1]) / SECOND
