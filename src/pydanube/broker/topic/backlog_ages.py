"""The age of the oldest message in a subscription's backlog: in memory, remembered from an earlier call, or read.

Each answer has a limited number of reads; ages beyond that are unknown. Changes nothing but what is remembered.
"""

from __future__ import annotations

from pydanube.base.errors import DanubeError
from pydanube.base.limits import SECOND
from pydanube.broker.topic.served import ServedSubscription, ServedTopic


class BacklogAges:
    """The ages for one answer, at the time `wall`, in microseconds."""

    def __init__(self, wall: int, reads_max: int) -> None:
        self._wall = wall
        self._reads_left = reads_max

    async def seconds(
        self, topic: ServedTopic, subscription: ServedSubscription, *, may_read: bool = True
    ) -> float | None:
        """Age of the first unacknowledged message: 0 if all are acknowledged, None if it is unknown or nothing is
        stored."""
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
