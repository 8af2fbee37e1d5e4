"""Topics and subscriptions in numbers, as they are now, over all partitions; read from what is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydanube.base.errors import RequestInvalid, SubscriptionNotFound
from pydanube.broker.cold.storage_admin import StorageAdmin, Usage, total
from pydanube.broker.directory.directory import TopicRecord
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.figures import SubscriptionFigures
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.storage.stream.stream import Stream
from pydanube.stream.record import LostRange
from pydanube.topic.records import Cause, SubscriptionKind

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic, or one partition of it, as it is now. Lists have one value for each partition, in order."""

    record: TopicRecord
    firsts: list[int]  # the first offset that still exists
    ends: list[int]  # the offset after the last visible one
    bytes: int  # of one copy, approximately
    producers: int
    consumers: int
    subscriptions: int
    tiers: Usage  # how much is stored in which tier
    lost: list[LostRange]  # damaged ranges of all partitions whose loss was accepted
    damaged: list[tuple[int | None, int, int]]  # partition, first and last offset of damage that was not accepted yet


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription as it is now. Lists have one value for each partition, in order; None where it does not exist."""

    name: str
    kind: SubscriptionKind
    options: SubscriptionOptions
    floors: list[int | None]  # everything below is done
    ends: list[int | None]
    generations: list[int | None]
    backlog: int  # messages that are not done
    in_flight: int
    consumers: int
    paused: bool  # in some partition
    counts: dict[str, int]  # messages done or skipped, by cause
    blocked: list[int | None]  # the message that exhausted its retries and blocks others, or cannot be set aside
    unreadable: str | None = None  # why the next messages of some partition cannot be read
    backlog_seconds: float | None = (
        None  # age of the oldest message that is not done; None unless it is known for all partitions
    )
    delayed: int = 0  # messages that wait for their delivery times, among those read so far
    delayed_until: int | None = None  # the earliest of these times, in microseconds since 1970
    stopped: int = 0  # messages that are held back until an operator decides about one that failed too often


def topic_stats(places: Sequence[OpenTopic], tiers: StorageAdmin, now: int) -> TopicStats:
    bounds, streams = [each.topic.bounds for each in places], streams_of(places)
    names = dict.fromkeys(subscription for each in places for subscription in each.topic.subscriptions)
    return TopicStats(
        places[0].record,
        [first for first, _ in bounds],
        [end for _, end in bounds],
        sum(each.topic.stored_bytes for each in places),
        sum(len(each.producers) for each in places),
        sum(len(each.consumers) for each in places),
        len(names),
        usage_of(places, tiers, now),
        [lost for stream in streams for lost in stream.record.lost],
        [
            (each.name.partition, first, last)
            for each in places
            for stream in streams_of([each])
            for first, last in sorted(stream.damaged.items())
        ],
    )


def usage_of(places: Sequence[OpenTopic], tiers: StorageAdmin, now: int) -> Usage:
    """How much a topic, or one partition, stores in each tier."""
    found = [(each, tiers.usage(each.reliable, now)) for each in places if each.topic.reliable]
    return found[0][1] if len(found) == 1 else total((str(each.name), usage) for each, usage in found)


def only(found: Sequence[Found], what: str) -> Found:
    if len(found) != 1:
        raise RequestInvalid(f"{what} needs a single partition, as in orders-part-0; the topic has {len(found)}")
    return found[0]


def streams_of(places: Sequence[OpenTopic]) -> list[Stream]:
    """The streams of the places that store messages."""
    return [each.reliable.ledger.stream for each in places if each.topic.reliable]


def subscription_stats(
    name: str, places: Sequence[OpenTopic | None], now: int, damage: str | None = None
) -> SubscriptionStats:
    """The statistics of one subscription. `damage` says why a place is None."""
    hosts = [None if each is None else each.topic.subscriptions.get(name) for each in places]
    there = [host for host in hosts if host is not None]
    if not there:
        [whole, *_] = [each.record.name for each in places if each is not None]
        raise SubscriptionNotFound(f"{whole} has no subscription {name!r}")
    found = [SubscriptionFigures() if host is None else host.describe() for host in hosts]
    return SubscriptionStats(
        name,
        there[0].kind,
        there[0].options,
        [each.floor for each in found],
        [each.end for each in found],
        [each.generation for each in found],
        sum(each.backlog for each in found),
        sum(each.in_flight for each in found),
        sum(len(host.consumers) for host in there),
        any(each.paused for each in found),
        {cause.name.lower(): sum(each.counts[cause] for each in found) for cause in Cause},
        [each.blocked_at for each in found],
        damage or next((each.unreadable for each in found if each.unreadable is not None), None),
        delayed=sum(each.delayed for each in found),
        delayed_until=min((now + each.delayed_for for each in found if each.delayed_for is not None), default=None),
        stopped=sum(each.stopped for each in found),
    )


async def aged(stats: SubscriptionStats, places: Sequence[OpenTopic | None], ages: BacklogAges) -> SubscriptionStats:
    """The same statistics, with the age of the oldest message of all partitions."""
    oldest = 0.0
    for topic in [each.topic for each in places if each is not None and each.topic.reliable]:
        if (host := topic.subscriptions.get(stats.name)) is None:
            continue
        seconds = await ages.seconds(topic, host)
        if seconds is None:
            return stats
        oldest = max(oldest, seconds)
    return replace(stats, backlog_seconds=oldest)
