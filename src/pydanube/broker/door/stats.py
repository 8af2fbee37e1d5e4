"""Topics and subscriptions in numbers, as they are now, over all partitions; read from what is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydanube.base.errors import RequestInvalid, SubscriptionNotFound
from pydanube.broker.cold.storage_admin import StorageAdmin, Usage, total
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.salvage import summed
from pydanube.broker.subscription.figures import SubscriptionFigures
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.operations.storage import TierUsage
from pydanube.operations.subscriptions import Subscription, SubscriptionDescription
from pydanube.operations.topics import DamagedOffsets, Topic, TopicDescription
from pydanube.storage.stream.stream import Stream
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import Cause

Found = TypeVar("Found")


def topic_answer(record: TopicRecord) -> Topic:
    return Topic(**_facts(record))


def _facts(record: TopicRecord) -> dict[str, Any]:
    return {
        "topic": str(record.name),
        "id": record.id,
        "reliable": record.reliable,
        "partitions": record.partitions,
        "durability": record.durability.value if record.reliable else "none",
        "policies": record.policies,
        "key_hash": record.key_hash.value,
        "dead_letters": record.dead_letters,
    }


def describe_topic(name: str, partitions: Sequence[OpenTopic], tiers: StorageAdmin, now: int) -> TopicDescription:
    """A topic, or one partition of it, as it is now."""
    bounds, streams = [each.topic.bounds for each in partitions], streams_of(partitions)
    subscriptions = {subscription for each in partitions for subscription in each.topic.subscriptions}
    lost_messages, lost_unknown = summed([lost for stream in streams for lost in stream.record.lost])
    record, single = partitions[0].record, len(partitions) == 1
    return TopicDescription(
        **{**_facts(record), "topic": name},
        first=bounds[0][0] if single else None,
        end=bounds[0][1] if single else None,
        firsts=[first for first, _ in bounds],
        ends=[end for _, end in bounds],
        bytes=sum(each.topic.stored_bytes for each in partitions),
        producers=sum(len(each.producers) for each in partitions),
        consumers=sum(len(each.consumers) for each in partitions),
        subscriptions=len(subscriptions),
        tiers=TierUsage(**usage_facts(usage_of(partitions, tiers, now))) if record.reliable else None,
        lost_messages=lost_messages,
        lost_unknown=lost_unknown,
        damaged=[
            DamagedOffsets(each.name.partition, first, last)
            for each in partitions
            for stream in streams_of([each])
            for first, last in sorted(stream.damaged.items())
        ],
    )


def usage_facts(usage: Usage) -> dict[str, Any]:
    return {
        "bytes": usage.bytes,
        "local_bytes": usage.local,
        "object_bytes": usage.objects,
        "segments": usage.segments,
        "waiting_bytes": usage.waiting,
        "doomed_objects": usage.doomed,
        "lag_seconds": usage.lag_seconds,
        "troubles": list(usage.troubles),
    }


def usage_of(partitions: Sequence[OpenTopic], tiers: StorageAdmin, now: int) -> Usage:
    """How much a topic, or one partition, stores in each tier."""
    found = [(each, tiers.usage(each.reliable, now)) for each in partitions if each.topic.reliable]
    return found[0][1] if len(found) == 1 else total((str(each.name), usage) for each, usage in found)


def only(found: Sequence[Found], what: str) -> Found:
    if len(found) != 1:
        raise RequestInvalid(f"{what} needs a single partition, as in orders-part-0; the topic has {len(found)}")
    return found[0]


def streams_of(partitions: Sequence[OpenTopic]) -> list[Stream]:
    """The streams of the partitions that store messages."""
    return [each.reliable.ledger.stream for each in partitions if each.topic.reliable]


def describe_subscription(
    name: str, partitions: Sequence[OpenTopic | None], now: int, damage: str | None = None
) -> SubscriptionDescription:
    """A subscription as it is now. `damage` says why a partition is None."""
    hosts = [None if each is None else each.topic.subscriptions.get(name) for each in partitions]
    there = [host for host in hosts if host is not None]
    if not there:
        [whole, *_] = [each.record.name for each in partitions if each is not None]
        raise SubscriptionNotFound(f"{whole} has no subscription {name!r}")
    found = [SubscriptionFigures() if host is None else host.describe() for host in hosts]
    single = found[0] if len(found) == 1 else SubscriptionFigures()
    return SubscriptionDescription(
        subscription=name,
        type=there[0].kind.name.lower(),
        floor=single.floor,
        end=single.end,
        generation=single.generation,
        backlog=sum(each.backlog for each in found),
        backlog_seconds=None,
        in_flight=sum(each.in_flight for each in found),
        consumers=sum(len(host.consumers) for host in there),
        paused=any(each.paused for each in found),
        blocked=_blocked([each.blocked_at for each in found]),
        unreadable=damage or next((each.unreadable for each in found if each.unreadable is not None), None),
        delayed=sum(each.delayed for each in found),
        delayed_until=min((now + each.delayed_for for each in found if each.delayed_for is not None), default=None),
        stopped=sum(each.stopped for each in found),
        floors=[each.floor for each in found],
        ends=[each.end for each in found],
        blocked_at=[each.blocked_at for each in found],
        counts={cause.name.lower(): sum(each.counts[cause] for each in found) for cause in Cause},
        options=there[0].options.described(),
    )


def _blocked(offsets: Sequence[int | None]) -> str | None:
    """In words, for people."""
    found = [(number, offset) for number, offset in enumerate(offsets) if offset is not None]
    if not found:
        return None
    (partition, offset), more = found[0], len(found) - 1
    where = f"at offset {offset}" if len(offsets) == 1 else f"at offset {offset} of partition {partition}"
    return where + (f", and in {more} more" if more else "")


def in_brief(found: SubscriptionDescription) -> Subscription:
    """What a list says of it."""
    return Subscription(*(getattr(found, name) for name in Subscription.__struct_fields__))


async def aged(
    found: SubscriptionDescription, partitions: Sequence[OpenTopic | None], ages: BacklogAges
) -> SubscriptionDescription:
    """The same subscription with the age of its oldest message, unless that of some partition is unknown."""
    oldest = 0.0
    for topic in [each.topic for each in partitions if each is not None and each.topic.reliable]:
        if (host := topic.subscriptions.get(found.subscription)) is None:
            continue
        seconds = await ages.seconds(topic, host)
        if seconds is None:
            return found
        oldest = max(oldest, seconds)
    found.backlog_seconds = oldest
    return found
