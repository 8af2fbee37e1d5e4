"""What every face can be asked about namespaces, topics, subscriptions and offsets. It answers as the door decides.

A verb takes named fields and answers with named fields: the native protocol and REST carry the same ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from pydanube.api.operations.fields import field, flag, kind_of, number, options_of, place, text
from pydanube.base.durability import Durability
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import LISTED_BYTES_MAX, LISTED_MAX, OFFSET_MAX, TOPICS_READ_A_TURN
from pydanube.broker.door.session import Session
from pydanube.broker.door.stats import SubscriptionStats
from pydanube.broker.door.values import TopicRecord, Usage, Wanted, summary, summed
from pydanube.wire.objects import Object

Verb = Callable[[Session, Object], Awaitable[Object]]
VERBS: dict[str, Verb] = {}


def verb(name: str) -> Callable[[Verb], Verb]:
    """Registers a function under the name of its verb."""

    def register(function: Verb) -> Verb:
        VERBS[name] = function
        return function

    return register


def _dry_run(fields: Object) -> bool:
    """Whether the caller wants only the answer and not the change. It is refused if the change would be."""
    wanted: bool = flag(fields, "dry_run", False)
    return wanted


def _named(fields: Object) -> tuple[str, str]:
    """Topic and subscription."""
    return text(fields, "topic"), text(fields, "subscription")


# -- namespaces and topics ------------------------------------------------------------------------------------------


def _described(record: TopicRecord) -> Object:
    return {
        "topic": str(record.name),
        "id": record.id,
        "reliable": record.reliable,
        "partitions": record.partitions,
        "durability": record.durability.value if record.reliable else "none",
        "policies": record.policies.to_json(),
        "key_hash": record.key_hash.value,
        "dead_letters": record.dead_letters,
    }


@verb("topic")
async def topic(session: Session, fields: Object) -> Object:
    """What a client asks first: whether the topic exists, and how many partitions it has."""
    create, reliable = flag(fields, "create", False), flag(fields, "reliable", None)
    return _described(await session.topics.lookup(text(fields, "topic"), create=create, reliable=reliable))


@verb("namespace.create")
async def create_namespace(session: Session, fields: Object) -> Object:
    await session.namespaces.create(text(fields, "namespace"), field(fields, "policies", dict, {}))
    return {}


@verb("namespace.list")
async def list_namespaces(session: Session, fields: Object) -> Object:
    after, limit = text(fields, "after", ""), limit_of(fields)
    found = [name for name in session.namespaces.listed() if name > after]
    return page("namespaces", found[:limit], len(found) > limit)


@verb("namespace.policies")
async def namespace_policies(session: Session, fields: Object) -> Object:
    name, changes = text(fields, "namespace"), field(fields, "policies", dict, None)
    namespaces = session.namespaces
    policies = namespaces.policies(name) if changes is None else await namespaces.alter(name, changes)
    return {"policies": policies.to_json()}


@verb("namespace.delete")
async def delete_namespace(session: Session, fields: Object) -> Object:
    await session.namespaces.delete(text(fields, "namespace"), dry_run=_dry_run(fields))
    return {}


@verb("topic.create")
async def create_topic(session: Session, fields: Object) -> Object:
    try:
        durability = Durability(text(fields, "durability", Durability.FSYNC.value))
    except ValueError:
        raise RequestInvalid(f"durability must be one of {', '.join(each.value for each in Durability)}") from None
    record = await session.topics.create(
        text(fields, "topic"),
        reliable=flag(fields, "reliable", True),
        partitions=number(fields, "partitions", 0),
        durability=durability,
        policies=field(fields, "policies", dict, {}),
    )
    return _described(record)


@verb("topic.list")
async def list_topics(session: Session, fields: Object) -> Object:
    namespace, after, limit = text(fields, "namespace", "default"), text(fields, "after", ""), limit_of(fields)
    return await _page_of_topics(await session.topics.listed(namespace, f"/{namespace}/{after}", limit + 1), limit)


async def _page_of_topics(found: Sequence[TopicRecord], limit: int) -> Object:
    rows: list[Object] = []
    for count, record in enumerate(found[:limit], 1):
        rows.append(_described(record))
        if not count % TOPICS_READ_A_TURN:
            await asyncio.sleep(0)
    return page("topics", rows, len(found) > limit)


@verb("topic.list_all")
async def list_all_topics(session: Session, fields: Object) -> Object:
    """The topics of all namespaces; `after` is the full name of a topic."""
    limit = limit_of(fields)
    return await _page_of_topics(await session.topics.listed(None, text(fields, "after", ""), limit + 1), limit)


@verb("topic.alter")
async def alter_topic(session: Session, fields: Object) -> Object:
    record = await session.topics.alter(
        text(fields, "topic"),
        partitions=number(fields, "partitions", None),
        policies=field(fields, "policies", dict, {}),
    )
    return _described(record)


@verb("topic.delete")
async def delete_topic(session: Session, fields: Object) -> Object:
    await session.topics.delete(text(fields, "topic"), dry_run=_dry_run(fields))
    return {}


@verb("topic.describe")
async def describe_topic(session: Session, fields: Object) -> Object:
    stats = await session.topics.describe(text(fields, "topic"))
    return {
        **_described(stats.record),
        "topic": text(fields, "topic"),
        "first": stats.firsts[0] if len(stats.firsts) == 1 else None,
        "end": stats.ends[0] if len(stats.ends) == 1 else None,
        "firsts": stats.firsts,
        "ends": stats.ends,
        "bytes": stats.bytes,
        "producers": stats.producers,
        "consumers": stats.consumers,
        "subscriptions": stats.subscriptions,
        "tiers": tiers_of(stats.tiers) if stats.record.reliable else None,
        "lost_messages": summed(stats.lost)[0],
        "lost_unknown": summed(stats.lost)[1],
        "damaged": [{"partition": part, "first": first, "last": last} for part, first, last in stats.damaged],
    }


def tiers_of(usage: Usage) -> Object:
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


@verb("topic.truncate")
async def truncate_topic(session: Session, fields: Object) -> Object:
    before = number(fields, "before", None)
    messages = await session.topics.truncate(text(fields, "topic"), before, dry_run=_dry_run(fields))
    return {"messages": messages}


# -- subscriptions -----------------------------------------------------------------------------------------------------


def _listed(stats: SubscriptionStats) -> Object:
    only = len(stats.floors) == 1
    return {
        "subscription": stats.name,
        "type": stats.kind.name.lower(),
        "floor": stats.floors[0] if only else None,
        "end": stats.ends[0] if only else None,
        "generation": stats.generations[0] if only else None,
        "backlog": stats.backlog,
        "backlog_seconds": stats.backlog_seconds,
        "in_flight": stats.in_flight,
        "consumers": stats.consumers,
        "paused": stats.paused,
        "blocked": _blocked(stats),
        "unreadable": stats.unreadable,
        "delayed": stats.delayed,
        "delayed_until": stats.delayed_until,
        "stopped": stats.stopped,
    }


def _blocked(stats: SubscriptionStats) -> str | None:
    """In words, for people; `blocked_at` has the offsets."""
    found = [(number, offset) for number, offset in enumerate(stats.blocked) if offset is not None]
    if not found:
        return None
    (partition, offset), more = found[0], len(found) - 1
    where = f"at offset {offset}" if len(stats.blocked) == 1 else f"at offset {offset} of partition {partition}"
    return where + (f", and in {more} more" if more else "")


def _in_full(stats: SubscriptionStats) -> Object:
    return {
        **_listed(stats),
        "floors": stats.floors,
        "ends": stats.ends,
        "blocked_at": stats.blocked,
        "counts": stats.counts,
        "options": stats.options.to_json(),
    }


@verb("subscription.create")
async def create_subscription(session: Session, fields: Object) -> Object:
    await session.subscriptions.create(
        text(fields, "topic"),
        text(fields, "subscription"),
        kind_of(fields),
        start=place(fields, "start"),
        options=options_of(fields),
    )
    return {}


@verb("subscription.list")
async def list_subscriptions(session: Session, fields: Object) -> Object:
    found, more = await session.subscriptions.listed(text(fields, "topic"), text(fields, "after", ""), limit_of(fields))
    return page("subscriptions", [_listed(stats) for stats in found], more)


@verb("subscription.describe")
async def describe_subscription(session: Session, fields: Object) -> Object:
    named = _named(fields)
    return _in_full(await session.subscriptions.describe(*named))


@verb("subscription.alter")
async def alter_subscription(session: Session, fields: Object) -> Object:
    named = _named(fields)
    return _in_full(await session.subscriptions.alter(*named, field(fields, "options", dict)))


@verb("subscription.seek")
async def seek_subscription(session: Session, fields: Object) -> Object:
    named = _named(fields)
    to = place(fields, "to", None)
    return _in_full(await session.subscriptions.seek(*named, to, dry_run=_dry_run(fields)))


@verb("subscription.skip")
async def skip_messages(session: Session, fields: Object) -> Object:
    named = _named(fields)
    count, to = number(fields, "count", None), number(fields, "offset", None)
    skipped = await session.subscriptions.skip(*named, count=count, to=to, dry_run=_dry_run(fields))
    return {"skipped": skipped}


@verb("subscription.delete")
async def delete_subscription(session: Session, fields: Object) -> Object:
    named = _named(fields)
    await session.subscriptions.delete(*named, dry_run=_dry_run(fields))
    return {}


@verb("subscription.blocked")
async def blocked_subscriptions(session: Session, fields: Object) -> Object:
    found = await session.subscriptions.blocked()
    rows = [{"topic": topic, "subscription": name, "offset": offset} for topic, name, offset in found]
    return {"blocked": rows}


@verb("subscription.abandoned")
async def abandoned_subscriptions(session: Session, fields: Object) -> Object:
    found = await session.subscriptions.abandoned()
    rows = [{"topic": topic, "subscription": name, "backlog_seconds": seconds} for topic, name, seconds in found]
    return {"abandoned": rows}


@verb("subscription.consumers")
async def list_consumers(session: Session, fields: Object) -> Object:
    found, at, limit = (
        await session.subscriptions.consumers(*_named(fields)),
        number(fields, "after", 0),
        limit_of(fields),
    )
    return page("consumers", [each._asdict() for each in found[at : at + limit]], len(found) > at + limit)


@verb("connection.list")
async def list_connections(session: Session, fields: Object) -> Object:
    limit = limit_of(fields)
    found = session.connections(number(fields, "after", 0), limit + 1)
    return page("connections", [each._asdict() for each in found[:limit]], len(found) > limit)


@verb("status")
async def status(session: Session, fields: Object) -> Object:
    return await session.status()


@verb("dlq.redrive")
async def redrive(session: Session, fields: Object) -> Object:
    filters = field(fields, "filter", dict, {})
    if not all(isinstance(each, str) for each in filters.values()):
        raise RequestInvalid("filter must be an object with string values")
    dry_run = _dry_run(fields)
    limit = None if dry_run and "limit" not in fields else limit_of(fields)
    start, end = number(fields, "start", 0), number(fields, "end", OFFSET_MAX)
    if min(start, end) < 0:
        raise RequestInvalid("start and end must be 0 or greater")
    wanted = Wanted(limit, text(fields, "to", None), filters, dry_run, start, end)
    done = await session.topics.redrive(text(fields, "topic"), wanted)
    return {
        "redriven": done.count,
        "targets": done.targets,
        "left": done.left,
        "refused": done.refused.count,
        "refusals": done.refused.named,
        "next": done.next,
    }


@verb("explain")
async def explain(session: Session, fields: Object) -> Object:
    offset, consumer = number(fields, "offset", None), number(fields, "consumer", None)
    told = await session.subscriptions.explain(*_named(fields), offset=offset, consumer=consumer)
    return {"sentence": summary(told), "explanations": [each._asdict() for each in told]}


# -- offsets -----------------------------------------------------------------------------------------------------------


@verb("offset_of_time")
async def offset_of_time(session: Session, fields: Object) -> Object:
    topic, time = text(fields, "topic"), number(fields, "time")
    return {"offset": await session.offset_of_time(topic, time)}


@verb("bounds")
async def bounds(session: Session, fields: Object) -> Object:
    first, end = await session.bounds(text(fields, "topic"))
    return {"first": first, "end": end}


# -- pages -------------------------------------------------------------------------------------------------------------


def limit_of(fields: Object) -> int:
    limit: int = number(fields, "limit", LISTED_MAX)
    if limit < 1:
        raise RequestInvalid(f"limit must be 1 or more, got {limit}")
    return min(limit, LISTED_MAX)


def page(name: str, found: Sequence[object], more: bool) -> Object:
    """As many items as fit into a reply; the caller asks for the rest after the last of these."""
    size = 0
    for count, each in enumerate(found):
        size += len(json.dumps(each)) + 1
        if size > LISTED_BYTES_MAX:
            return {name: list(found[:count]), "more": True}
    return {name: list(found), "more": more}
