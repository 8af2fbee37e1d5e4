"""The state of a subscription in one partition, as figures for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydanube.topic.records import Cause

NO_COUNTS = (0,) * len(Cause)


class SubscriptionFigures(NamedTuple):
    """The defaults describe a subscription that keeps nothing."""

    floor: int | None = None  # everything below is done
    end: int | None = None  # one after the last message that may be seen
    generation: int | None = None
    backlog: int = 0  # messages that are not done
    in_flight: int = 0
    paused: bool = False
    counts: Sequence[int] = NO_COUNTS  # messages done or passed over, by cause
    blocked_at: int | None = None  # a message that failed too often and blocks others, or cannot be given up
    unreadable: str | None = None  # why the next messages cannot be read
    delayed: int = 0  # messages that wait for their delivery times, among those read so far
    delayed_for: int | None = None  # microseconds until the earliest of these
    stopped: int = 0  # messages held back until an operator decides about one that failed too often
