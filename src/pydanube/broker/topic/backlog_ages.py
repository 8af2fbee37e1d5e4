"""The age of the oldest message in a subscription's backlog: found in memory, remembered from an earlier look, or read.

The number of reads for one answer is bounded; an age beyond that is unknown. Only what is remembered changes.
"""

from __future__ import annotations

from pydanube.base.errors import DanubeError
from pydanube.base.limits import SECOND
from pydanube.broker.topic.served import ServedSubscription, ServedTopic


class BacklogAges:
    """For one answer, at the time `wall`, in microseconds."""

    def __init__(self, wall: int, reads_max: int) -> None:
        self._wall = wall
        self._reads_left = reads_max

    async def seconds(
        self, topic: ServedTopic, subscription: ServedSubscription, *, may_read: bool = True
    ) -> float | None:
        """Of the first message that is not acknowledged: 0 if all are, None if it is unknown or nothing is stored."""
        if not topic.reliable:
            return None
        ledger, host = topic.as_reliable().ledger, subscription.as_reliable()
        floor = ledger.past_lost(host.floor)
        if floor >= ledger.confirmed_end:
            return 0.0
        cached = ledger.find(floor)
        if cached is not None:
            host.oldest = (floor, cached.append_time)
        elif host.oldest is None or host.oldest[0] != floor:
            if not may_read or not self._reads_left:
                return None
            self._reads_left -= 1
            try:
                batches = await ledger.read(max(floor, ledger.first), 1)
            except DanubeError:
                return None
            if not batches:  # the topic was truncated meanwhile
                return None
            host.oldest = (floor, batches[0].append_time)
        return max(0, self._wall - host.oldest[1]) / SECOND
