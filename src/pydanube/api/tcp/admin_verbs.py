"""What a REQUEST can ask for about namespaces, topics and subscriptions. It answers as the service decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydanube.api.tcp.requests import Verb, field, flag, kind_of, number, options_of, place, registrar, text
from pydanube.base.durability import Durability
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import LISTED_BYTES_MAX, LISTED_MAX
from pydanube.broker.admin import SubscriptionStats
from pydanube.broker.directory import TopicRecord
from pydanube.wire.objects import Object

if TYPE_CHECKING:
    from pydanube.api.tcp.connection import NativeConnection

ADMIN_VERBS: dict[str, Verb] = {}
verb = registrar(ADMIN_VERBS)


# -- namespaces and topics ------------------------------------------------------------------------------------------


def _described(record: TopicRecord) -> Object:
    return {
        "topic": str(record.name),
        "id": record.id,
        "reliable": record.reliable,
        "partitions": record.partitions,
        "durability": record.durability.value,
        "policies": record.policies.to_json(),
    }


@verb("topic")
async def topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    """What a client asks first: is it there, and how many partitions has it?"""
    record = await connection.service.topic(
        connection.principal,
        text(fields, "topic"),
        create=flag(fields, "create", False),
        reliable=flag(fields, "reliable", None),
    )
    return _described(record)


@verb("namespace.create")
async def create_namespace(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.create_namespace(
        connection.principal, text(fields, "namespace"), field(fields, "policies", dict, {})
    )
    return {}


@verb("namespace.list")
async def list_namespaces(connection: NativeConnection, fields: Object, request: int) -> Object:
    after, limit = text(fields, "after", ""), _limit(fields)
    found = [name for name in connection.service.namespaces(connection.principal) if name > after]
    return _page("namespaces", found[:limit], len(found) > limit)


@verb("namespace.policies")
async def namespace_policies(connection: NativeConnection, fields: Object, request: int) -> Object:
    name, changes = text(fields, "namespace"), field(fields, "policies", dict, None)
    policies = await connection.service.namespace_policies(connection.principal, name, changes)
    return {"policies": policies.to_json()}


@verb("namespace.delete")
async def delete_namespace(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.delete_namespace(connection.principal, text(fields, "namespace"))
    return {}


@verb("topic.create")
async def create_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    try:
        durability = Durability(text(fields, "durability", Durability.FSYNC.value))
    except ValueError:
        raise RequestInvalid(f"durability is one of {[each.value for each in Durability]}") from None
    record = await connection.service.create_topic(
        connection.principal,
        text(fields, "topic"),
        reliable=flag(fields, "reliable", True),
        partitions=number(fields, "partitions", 0),
        durability=durability,
        policies=field(fields, "policies", dict, {}),
    )
    return _described(record)


@verb("topic.list")
async def list_topics(connection: NativeConnection, fields: Object, request: int) -> Object:
    namespace, after, limit = text(fields, "namespace", "default"), text(fields, "after", ""), _limit(fields)
    known = connection.service.topics(connection.principal, namespace)
    found = [record for record in known if record.name.name > after]
    return _page("topics", [_described(record) for record in found[:limit]], len(found) > limit)


@verb("topic.alter")
async def alter_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    record = await connection.service.alter_topic(
        connection.principal,
        text(fields, "topic"),
        partitions=number(fields, "partitions", None),
        policies=field(fields, "policies", dict, {}),
    )
    return _described(record)


@verb("topic.delete")
async def delete_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.delete_topic(connection.principal, text(fields, "topic"))
    return {}


@verb("topic.describe")
async def describe_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    stats = await connection.service.admin.describe_topic(connection.principal, text(fields, "topic"))
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
    }


@verb("topic.truncate")
async def truncate_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    before = number(fields, "before", None)
    await connection.service.admin.truncate(connection.principal, text(fields, "topic"), before)
    return {}


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
        "in_flight": stats.in_flight,
        "consumers": stats.consumers,
    }


def _in_full(stats: SubscriptionStats) -> Object:
    return {
        **_listed(stats),
        "floors": stats.floors,
        "ends": stats.ends,
        "counts": stats.counts,
        "options": stats.options.to_json(),
    }


@verb("subscription.create")
async def create_subscription(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.admin.subscribe(
        connection.principal,
        text(fields, "topic"),
        text(fields, "subscription"),
        kind_of(fields),
        start=place(fields, "start"),
        options=options_of(fields),
    )
    return {}


@verb("subscription.list")
async def list_subscriptions(connection: NativeConnection, fields: Object, request: int) -> Object:
    found, more = await connection.service.admin.subscriptions(
        connection.principal, text(fields, "topic"), text(fields, "after", ""), _limit(fields)
    )
    return _page("subscriptions", [_listed(stats) for stats in found], more)


@verb("subscription.describe")
async def describe_subscription(connection: NativeConnection, fields: Object, request: int) -> Object:
    admin, named = connection.service.admin, (text(fields, "topic"), text(fields, "subscription"))
    return _in_full(await admin.describe_subscription(connection.principal, *named))


@verb("subscription.alter")
async def alter_subscription(connection: NativeConnection, fields: Object, request: int) -> Object:
    admin, named = connection.service.admin, (text(fields, "topic"), text(fields, "subscription"))
    return _in_full(await admin.alter_subscription(connection.principal, *named, field(fields, "options", dict)))


@verb("subscription.seek")
async def seek_subscription(connection: NativeConnection, fields: Object, request: int) -> Object:
    admin, named = connection.service.admin, (text(fields, "topic"), text(fields, "subscription"))
    return _in_full(await admin.seek(connection.principal, *named, place(fields, "to", None)))


@verb("subscription.skip")
async def skip_messages(connection: NativeConnection, fields: Object, request: int) -> Object:
    admin, named = connection.service.admin, (text(fields, "topic"), text(fields, "subscription"))
    count, to = number(fields, "count", None), number(fields, "offset", None)
    return {"skipped": await admin.skip(connection.principal, *named, count=count, to=to)}


@verb("subscription.delete")
async def delete_subscription(connection: NativeConnection, fields: Object, request: int) -> Object:
    admin = connection.service.admin
    await admin.unsubscribe(connection.principal, text(fields, "topic"), text(fields, "subscription"))
    return {}


# -- pages -------------------------------------------------------------------------------------------------------------


def _limit(fields: Object) -> int:
    limit: int = number(fields, "limit", LISTED_MAX)
    if limit < 1:
        raise RequestInvalid(f"limit is {limit}, not 1 or more")
    return min(limit, LISTED_MAX)


def _page(name: str, found: Sequence[object], more: bool) -> Object:
    """As many as fit a reply; the others are asked for after the last of these."""
    size = 0
    for count, each in enumerate(found):
        size += len(json.dumps(each)) + 1
        if size > LISTED_BYTES_MAX:
            return {name: list(found[:count]), "more": True}
    return {name: list(found), "more": more}
