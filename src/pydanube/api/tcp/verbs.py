"""What a REQUEST can ask for: each verb reads its fields, calls the service, and says what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydanube.api.tcp.channels import ConsumerChannel, ProducerChannel
from pydanube.base.durability import Durability
from pydanube.base.errors import ChannelInvalid, RequestInvalid
from pydanube.base.limits import READ_AHEAD_BYTES
from pydanube.broker.directory import TopicRecord
from pydanube.broker.options import SubscriptionOptions
from pydanube.broker.subscription import SubscriptionHost
from pydanube.broker.topic import LATEST, Topic
from pydanube.ledger.dedup import Renewal
from pydanube.ledger.state_records import SubscriptionKind
from pydanube.wire.commands import encode_batches
from pydanube.wire.objects import Object

if TYPE_CHECKING:
    from pydanube.api.tcp.connection import NativeConnection

Verb = Callable[["NativeConnection", Object, int], Awaitable[Object | None]]
VERBS: dict[str, Verb] = {}


def verb(name: str) -> Callable[[Verb], Verb]:
    def register(function: Verb) -> Verb:
        VERBS[name] = function
        return function

    return register


# -- fields ------------------------------------------------------------------------------------------------------------


def _field(fields: Object, name: str, kind: type, default: Any = ...) -> Any:
    value = fields.get(name, default)
    if value is ...:
        raise RequestInvalid(f"{name} is missing")
    if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise RequestInvalid(f"{name} is {kind.__name__}, not {type(value).__name__}")
    return value


def _text(fields: Object, name: str, default: Any = ...) -> Any:
    return _field(fields, name, str, default)


def _number(fields: Object, name: str, default: Any = ...) -> Any:
    return _field(fields, name, int, default)


def _flag(fields: Object, name: str, default: Any = ...) -> Any:
    return _field(fields, name, bool, default)


def _channel(fields: Object) -> int:
    number: int = _number(fields, "channel")
    if not 0 < number < 1 << 32:
        raise RequestInvalid(f"no channel has number {number}")
    return number


def _kind(text: str) -> SubscriptionKind:
    try:
        return SubscriptionKind[text.upper().replace("-", "_")]
    except KeyError:
        raise RequestInvalid(f"no subscription is of type {text[:50]!r}") from None


def _start(fields: Object) -> str | int | Mapping[str, int]:
    start = fields.get("start", LATEST)
    if isinstance(start, bool) or not isinstance(start, str | int | dict):
        raise RequestInvalid("start is `earliest`, `latest`, an offset, or {'time': microseconds}")
    return start


def _renewal(fields: Object) -> Renewal | None:
    held, wanted = _number(fields, "epoch", None), _number(fields, "next_epoch", None)
    if held is None and wanted is None:
        return None
    renewal = Renewal(held or 0, wanted or 0)
    renewal.check()
    return renewal


def _consumer(connection: NativeConnection, fields: Object) -> ConsumerChannel:
    channel = connection.channels.get(_channel(fields))
    if not isinstance(channel, ConsumerChannel) or channel.hold is None:
        raise ChannelInvalid(f"channel {fields['channel']} is no consumer")
    return channel


# -- producers and consumers -------------------------------------------------------------------------------------------


@verb("open_producer")
async def open_producer(connection: NativeConnection, fields: Object, request: int) -> Object:
    number = _channel(fields)
    connection.check_new(number)
    producer = await connection.service.open_producer(
        connection.principal,
        _text(fields, "topic"),
        name=_text(fields, "name", None),
        fresh=_flag(fields, "fresh", False),
        renewal=_renewal(fields),
        reliable=_flag(fields, "reliable", True),
        create=_flag(fields, "create", True),
    )
    connection.add(number, ProducerChannel(connection, number, producer))
    session, name = producer.session, producer.open.name
    return {
        "topic": str(name),
        "partition": name.partition,
        "producer_id": session.producer if session is not None else 0,
        "epoch": session.epoch if session is not None else 0,
        "next_sequence": session.next_sequence if session is not None else 0,
        "reliable": producer.open.record.reliable,
        "durability": producer.open.topic.receipt,
    }


@verb("open_consumer")
async def open_consumer(connection: NativeConnection, fields: Object, request: int) -> Object:
    number = _channel(fields)
    connection.check_new(number)
    filters = _field(fields, "filters", list, [])
    if not all(isinstance(each, str) for each in filters):
        raise RequestInvalid("filters are texts")
    options = _field(fields, "options", dict, None)
    channel = ConsumerChannel(connection, number)
    hold = await connection.service.open_consumer(
        connection.principal,
        _text(fields, "topic"),
        _text(fields, "subscription"),
        _kind(_text(fields, "type", "exclusive")),
        channel,
        name=_text(fields, "name", ""),
        start=_start(fields),
        filters=[each.encode() for each in filters],
        create=_flag(fields, "create", True),
        reliable=_flag(fields, "reliable", None),
        options=None if options is None else SubscriptionOptions.from_json(options),
    )
    channel.hold = hold
    connection.add(number, channel)
    channel.top_up()
    if isinstance(hold.host, SubscriptionHost):
        cursor = hold.host.known.cursor
        return {"generation": cursor.generation, "consumer": hold.consumer.id, "floor": cursor.floor, "reliable": True}
    return {"generation": 0, "consumer": hold.consumer.id, "floor": 0, "reliable": False}


@verb("close")
async def close(connection: NativeConnection, fields: Object, request: int) -> Object:
    channel = connection.channels.pop(_channel(fields), None)
    if channel is None:
        raise ChannelInvalid(f"channel {fields['channel']} is not open")
    channel.close(crashed=_flag(fields, "crashed", False))
    return {}


@verb("seek")
async def seek(connection: NativeConnection, fields: Object, request: int) -> Object:
    channel = _consumer(connection, fields)
    assert channel.hold is not None
    offset, time = _number(fields, "offset", None), _number(fields, "time", None)
    return {"generation": await connection.service.seek(channel.hold, offset=offset, time=time)}


@verb("pause")
async def pause(connection: NativeConnection, fields: Object, request: int) -> Object:
    channel = _consumer(connection, fields)
    assert channel.hold is not None
    connection.service.pause(channel.hold)
    return {}


@verb("resume")
async def resume(connection: NativeConnection, fields: Object, request: int) -> Object:
    channel = _consumer(connection, fields)
    assert channel.hold is not None
    connection.service.resume(channel.hold)
    return {}


@verb("explain")
async def explain(connection: NativeConnection, fields: Object, request: int) -> Object:
    sentence = await connection.service.explain(
        connection.principal,
        _text(fields, "topic"),
        _text(fields, "subscription"),
        offset=_number(fields, "offset", None),
        consumer=_number(fields, "consumer", None),
    )
    return {"sentence": sentence}


# -- reading -----------------------------------------------------------------------------------------------------------


@verb("read")
async def read(connection: NativeConnection, fields: Object, request: int) -> Object | None:
    topic, offset = _text(fields, "topic"), _number(fields, "offset")
    bytes_max = _number(fields, "bytes_max", READ_AHEAD_BYTES)
    batches = await connection.service.read(connection.principal, topic, offset, bytes_max)
    if batches and request:
        connection.send(encode_batches(request, [batch.parts() for batch in batches]))
        return None
    first, end = await connection.service.bounds(connection.principal, topic)
    return {"first": first, "end": end}


@verb("offset_of_time")
async def offset_of_time(connection: NativeConnection, fields: Object, request: int) -> Object:
    topic, time = _text(fields, "topic"), _number(fields, "time")
    return {"offset": await connection.service.offset_of_time(connection.principal, topic, time)}


@verb("bounds")
async def bounds(connection: NativeConnection, fields: Object, request: int) -> Object:
    first, end = await connection.service.bounds(connection.principal, _text(fields, "topic"))
    return {"first": first, "end": end}


# -- namespaces, topics, subscriptions ---------------------------------------------------------------------------------


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
        _text(fields, "topic"),
        create=_flag(fields, "create", False),
        reliable=_flag(fields, "reliable", None),
    )
    return _described(record)


@verb("namespace.create")
async def create_namespace(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.create_namespace(
        connection.principal, _text(fields, "namespace"), _field(fields, "policies", dict, {})
    )
    return {}


@verb("namespace.list")
async def list_namespaces(connection: NativeConnection, fields: Object, request: int) -> Object:
    return {"namespaces": connection.service.namespaces(connection.principal)}


@verb("namespace.policies")
async def namespace_policies(connection: NativeConnection, fields: Object, request: int) -> Object:
    name, changes = _text(fields, "namespace"), _field(fields, "policies", dict, None)
    policies = await connection.service.namespace_policies(connection.principal, name, changes)
    return {"policies": policies.to_json()}


@verb("namespace.delete")
async def delete_namespace(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.delete_namespace(connection.principal, _text(fields, "namespace"))
    return {}


@verb("topic.create")
async def create_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    try:
        durability = Durability(_text(fields, "durability", Durability.FSYNC.value))
    except ValueError:
        raise RequestInvalid(f"durability is one of {[each.value for each in Durability]}") from None
    record = await connection.service.create_topic(
        connection.principal,
        _text(fields, "topic"),
        reliable=_flag(fields, "reliable", True),
        partitions=_number(fields, "partitions", 0),
        durability=durability,
        policies=_field(fields, "policies", dict, {}),
    )
    return _described(record)


@verb("topic.list")
async def list_topics(connection: NativeConnection, fields: Object, request: int) -> Object:
    namespace = _text(fields, "namespace", "default")
    after, most = _text(fields, "after", ""), min(_number(fields, "limit", 500), 500)
    found = [
        record for record in connection.service.topics(connection.principal, namespace) if record.name.name > after
    ]
    return {"topics": [_described(record) for record in found[:most]], "more": len(found) > most}


@verb("topic.alter")
async def alter_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    record = await connection.service.alter_topic(
        connection.principal,
        _text(fields, "topic"),
        partitions=_number(fields, "partitions", None),
        policies=_field(fields, "policies", dict, {}),
    )
    return _described(record)


@verb("topic.delete")
async def delete_topic(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.delete_topic(connection.principal, _text(fields, "topic"))
    return {}


@verb("subscription.create")
async def create_subscription(connection: NativeConnection, fields: Object, request: int) -> Object:
    options = _field(fields, "options", dict, None)
    await connection.service.subscribe(
        connection.principal,
        _text(fields, "topic"),
        _text(fields, "subscription"),
        _kind(_text(fields, "type", "exclusive")),
        start=_start(fields),
        options=None if options is None else SubscriptionOptions.from_json(options),
    )
    return {}


@verb("subscription.list")
async def list_subscriptions(connection: NativeConnection, fields: Object, request: int) -> Object:
    opened = await connection.service.open(connection.principal, _text(fields, "topic"))
    if not isinstance(opened.topic, Topic):
        return {"subscriptions": [{"subscription": name} for name in opened.topic.subscriptions]}
    end = opened.topic.ledger.confirmed_end
    found = []
    for name, host in opened.topic.subscriptions.items():
        cursor = host.known.cursor
        found.append(
            {
                "subscription": name,
                "type": host.known.kind.name.lower(),
                "floor": cursor.floor,
                "end": end,
                "generation": cursor.generation,
                "backlog": end - cursor.floor - cursor.above.count,
                "in_flight": host.engine.in_flight,
                "consumers": len(host.consumers),
            }
        )
    return {"subscriptions": found[:500]}


@verb("subscription.delete")
async def delete_subscription(connection: NativeConnection, fields: Object, request: int) -> Object:
    await connection.service.unsubscribe(connection.principal, _text(fields, "topic"), _text(fields, "subscription"))
    return {}
