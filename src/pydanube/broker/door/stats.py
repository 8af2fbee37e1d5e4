"""Topics and subscriptions as they are now, in numbers: read from what is open, over all partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydanube.base.errors import NotReliable, RequestInvalid, SubscriptionNotFound
from pydanube.broker.cold.storage_admin import StorageAdmin, Usage, total
from pydanube.broker.directory.directory import TopicRecord
from pydanube.broker.serving.open_topic import AnySubscription, OpenTopic
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.broker.topic.best_effort_subscription import BestEffortSubscription
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.explain import Cause as Why
from pydanube.storage.stream.stream import Stream
from pydanube.stream.record import LostRange
from pydanube.topic.records import Cause, SubscriptionKind

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic, or one partition of it, as it is now. Lists have one value for each partition, in order."""

    record: TopicRecord
    firsts: list[int]  # the first offset that is there
    ends: list[int]  # one after the last that may be seen
    bytes: int  # about; of one copy
    producers: int
    consumers: int
    subscriptions: int
    tiers: Usage  # what lies where
    lost: list[LostRange]  # given up as damaged, of all partitions
    damaged: list[tuple[int | None, int, int]]  # partition, first and last offset of what was found, and not given up


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription as it is now. Lists have one value for each partition, in order; None where it is not."""

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
    counts: dict[str, int]  # messages done or passed over, by cause
    blocked: list[int | None]  # where a message whose retries are exhausted stops others, or cannot be given up
    unreadable: str | None = None  # why what comes next cannot be read, in some partition
    backlog_seconds: float | None = (
        None  # age of the oldest message that is not done; None if not known in all partitions
    )
    delayed: int = 0  # messages that wait for their delivery times, as far as they were read
    delayed_until: int | None = None  # the earliest of these, in microseconds since 1970
    stopped: int = 0  # messages that nobody gets until somebody decides about one that failed too often


def topic_stats(places: Sequence[OpenTopic], tiers: StorageAdmin, now: int) -> TopicStats:
    bounds = [bounds_of(each) for each in places]
    names = dict.fromkeys(subscription for each in places for subscription in each.topic.subscriptions)
    return TopicStats(
        places[0].record,
        [first for first, _ in bounds],
        [end for _, end in bounds],
        sum(stream.bytes for stream in _streams(places)),
        sum(len(each.producers) for each in places),
        sum(len(each.consumers) for each in places),
        len(names),
        usage_of(places, tiers, now),
        [lost for stream in _streams(places) for lost in stream.record.lost],
        [
            (each.name.partition, first, last)
            for each in places
            if isinstance(each.topic, Topic)
            for first, last in sorted(each.topic.ledger.stream.damaged.items())
        ],
    )


def usage_of(places: Sequence[OpenTopic], tiers: StorageAdmin, now: int) -> Usage:
    """What a topic, or one partition, has in which tier."""
    found = [(each, tiers.usage(each.topic, now)) for each in places if isinstance(each.topic, Topic)]
    return found[0][1] if len(found) == 1 else total((str(each.name), usage) for each, usage in found)


def only(found: Sequence[Found], what: str) -> Found:
    if len(found) != 1:
        raise RequestInvalid(f"{what} needs a single partition, as in orders-part-0; the topic has {len(found)}")
    return found[0]


def kept(opened: OpenTopic, host: AnySubscription) -> SubscriptionHost:
    if isinstance(host, BestEffortSubscription):
        raise NotReliable(f"{opened.name} is not reliable, so its subscriptions have no options")
    return host


def _streams(places: Sequence[OpenTopic]) -> list[Stream]:
    return [each.topic.ledger.stream for each in places if isinstance(each.topic, Topic)]


def bounds_of(opened: OpenTopic) -> tuple[int, int]:
    topic = opened.topic
    return (topic.ledger.first, topic.ledger.confirmed_end) if isinstance(topic, Topic) else (topic.published,) * 2


def subscription_stats(
    name: str, places: Sequence[OpenTopic | None], now: int, damage: str | None = None
) -> SubscriptionStats:
    """`damage` says why some place is None."""
    hosts = [None if each is None else each.topic.subscriptions.get(name) for each in places]
    there = [host for host in hosts if host is not None]
    if not there:
        [whole, *_] = [each.record.name for each in places if each is not None]
        raise SubscriptionNotFound(f"{whole} has no subscription {name!r}")
    kept = [host if isinstance(host, SubscriptionHost) else None for host in hosts]
    cursors = [None if host is None else host.known.cursor for host in kept]
    ends = [
        bounds_of(each)[1] if each is not None and cursor is not None else None
        for each, cursor in zip(places, cursors, strict=True)
    ]
    left = [backlog_of(host, end or 0) for host, end in zip(kept, ends, strict=True) if host is not None]
    some, found = there[0], [host for host in kept if host is not None]
    known = [host.known for host in found]
    dues = [due - host.now + now for host in found if (due := host.engine.delayed_until) is not None]
    return SubscriptionStats(
        name,
        some.kind if isinstance(some, BestEffortSubscription) else some.known.kind,
        SubscriptionOptions.decode(known[0].options) if known else SubscriptionOptions(),
        [None if cursor is None else cursor.floor for cursor in cursors],
        ends,
        [None if cursor is None else cursor.generation for cursor in cursors],
        sum(left),
        sum(host.engine.in_flight for host in found),
        sum(len(host.consumers) for host in there),
        any(host.engine.paused for host in found),
        {cause.name.lower(): sum(each.counts[cause] for each in known) for cause in Cause},
        [None if host is None else host.engine.blocked_at for host in kept],
        damage or next((what for host in found if (what := _unreadable(host)) is not None), None),
        delayed=sum(host.engine.delayed for host in found),
        delayed_until=min(dues, default=None),
        stopped=sum(map(_stopped, found, left)),
    )


def backlog_of(host: SubscriptionHost, end: int) -> int:
    """Messages that are not done, of one partition that ends there."""
    return end - host.known.cursor.floor - host.known.cursor.above.count


def _stopped(host: SubscriptionHost, backlog: int) -> int:
    """What is not read yet counts if nothing is read any more."""
    engine = host.engine
    unread = backlog - engine.waiting - engine.in_flight if engine.is_stalled else 0
    return engine.stopped + max(0, unread)


def _unreadable(host: SubscriptionHost) -> str | None:
    held_up = host.explain_reading()
    return held_up.what if held_up is not None and held_up.cause is Why.UNREADABLE else None


async def aged(stats: SubscriptionStats, places: Sequence[OpenTopic | None], ages: BacklogAges) -> SubscriptionStats:
    """With the age of the oldest message of all partitions."""
    oldest = 0.0
    for topic in [each.topic for each in places if each is not None and isinstance(each.topic, Topic)]:
        if (host := topic.subscriptions.get(stats.name)) is None:
            continue
        seconds = await ages.seconds(topic, host)
        if seconds is None:
            return stats
        oldest = max(oldest, seconds)
    return replace(stats, backlog_seconds=oldest)
