"""Finds problems in open topics that need a person's attention, in slices, because there may be many topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from pydanube.base.limits import ABANDONED_SECONDS, AGE_READS_MAX, BLOCKED_LISTED_MAX, METRIC_SLICE
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.broker.topic.served import ServedSubscription, ServedTopic
from pydanube.operations.subscriptions import BlockedSubscription

Found = TypeVar("Found")


class Attention(NamedTuple):
    """Problems that need a person's attention although the broker is ready."""

    publishing_refused: bool
    failing: list[tuple[str, str]]  # background tasks whose last round failed, and why
    blocked: list[BlockedSubscription]


async def find_blocked(topics: OpenTopics) -> list[tuple[str, str, int]]:
    """Topic, subscription and offset of the first messages that failed too often and block their subscriptions."""

    async def blocked_at(topic: ServedTopic, host: ServedSubscription) -> int | None:
        return host.describe().blocked_at

    return await _find(topics, blocked_at)


async def find_abandoned(topics: OpenTopics, now: int) -> list[tuple[str, str, float]]:
    """Topic, subscription and age of its oldest message, where that is days old and no consumer is connected."""
    ages = BacklogAges(now, AGE_READS_MAX)

    async def abandoned_for(topic: ServedTopic, host: ServedSubscription) -> float | None:
        seconds = None if host.consumers else await ages.seconds(topic, host)
        return None if seconds is None or seconds < ABANDONED_SECONDS else seconds

    return await _find(topics, abandoned_for)


async def _find(
    topics: OpenTopics, trouble: Callable[[ServedTopic, ServedSubscription], Awaitable[Found | None]]
) -> list[tuple[str, str, Found]]:
    """The first subscriptions that have this problem, with its details."""
    found: list[tuple[str, str, Found]] = []
    for number, opened in enumerate(topics.opened(), 1):
        for name, host in list(opened.topic.subscriptions.items()):
            if (has := await trouble(opened.topic, host)) is not None:
                found.append((str(opened.name), name, has))
        if len(found) >= BLOCKED_LISTED_MAX:
            break
        if not number % METRIC_SLICE:
            await asyncio.sleep(0)  # lets other tasks run
    return found[:BLOCKED_LISTED_MAX]
