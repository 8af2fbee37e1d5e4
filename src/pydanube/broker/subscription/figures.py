"""How a subscription is doing in one partition, in figures that people and programs are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydanube.dispatch.engine import Engine
from pydanube.topic.records import Cause
from pydanube.topic.state import Subscription

NO_COUNTS = (0,) * len(Cause)


class SubscriptionFigures(NamedTuple):
    """The defaults are those of a subscription that keeps nothing."""

    floor: int | None = None  # everything below is done
    end: int | None = None  # one after the last message that may be seen
    generation: int | None = None
    backlog: int = 0  # messages that are not done
    in_flight: int = 0
    paused: bool = False
    counts: Sequence[int] = NO_COUNTS  # messages done or passed over, by cause
    blocked_at: int | None = None  # where a message that failed too often stops others, or cannot be given up
    unreadable: str | None = None  # why what comes next cannot be read
    delayed: int = 0  # messages that wait for their delivery times, as far as they were read
    delayed_for: int | None = None  # microseconds until the earliest of these
    stopped: int = 0  # messages that nobody gets until somebody decides about one that failed too often


def figures_of(
    known: Subscription, engine: Engine[Any], end: int, now: int, unreadable: str | None
) -> SubscriptionFigures:
    """Of a partition that ends at `end`; `now` is the engine's time."""
    cursor = known.cursor
    backlog, due = end - cursor.floor - cursor.above.count, engine.delayed_until
    unread = backlog - engine.waiting - engine.in_flight if engine.is_stalled else 0
    return SubscriptionFigures(
        cursor.floor,
        end,
        cursor.generation,
        backlog,
        engine.in_flight,
        engine.paused,
        known.counts,
        engine.blocked_at,
        unreadable,
        engine.delayed,
        None if due is None else due - now,
        engine.stopped + max(0, unread),  # what is not read yet is stopped too if nothing is read any more
    )
