"""What a REQUEST can ask for: all that every face can, and what needs the connection, its channels and its frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pydanube.api.native.channels import ConsumerChannel, ProducerChannel
from pydanube.api.operations.backups import VERBS as BACKUP_VERBS
from pydanube.api.operations.direct import VERBS as DIRECT_VERBS
from pydanube.api.operations.fields import check_offset, field, flag, kind_of, number, options_of, place, text
from pydanube.api.operations.pipelines import NATIVE_VERBS as PIPELINE_VERBS
from pydanube.api.operations.sinks import VERBS as SINK_VERBS
from pydanube.api.operations.storage import VERBS as PLAIN_VERBS
from pydanube.api.operations.verbs import Verb as PlainVerb
from pydanube.base.errors import ChannelInvalid, RequestInvalid
from pydanube.base.limits import READ_AHEAD_BYTES, TOPIC_WATCH_NAMESPACES_MAX, TOPIC_WATCH_SECONDS_MAX
from pydanube.broker.door.values import ConsumerHandle, Timing
from pydanube.topic.dedup import Renewal
from pydanube.wire.batch import build
from pydanube.wire.commands import encode_batches
from pydanube.wire.objects import Object

if TYPE_CHECKING:
    from pydanube.api.native.connection import NativeConnection

SIZES_MAX = 1_000  # batches in one answer about their sizes, so that it fits a control frame
Verb = Callable[["NativeConnection", Object, int], Awaitable[Object | None]]


def _plain(verb: PlainVerb) -> Verb:
    async def answer(connection: NativeConnection, fields: Object, request: int) -> Object:
        return await verb(connection.session, fields)

    return answer


VERBS: dict[str, Verb] = {
    name: _plain(verb)
    for name, verb in (PLAIN_VERBS | PIPELINE_VERBS | SINK_VERBS | DIRECT_VERBS | BACKUP_VERBS).items()
}


def verb(name: str) -> Callable[[Verb], Verb]:
    """Enters a function by the name of its verb."""

    def register(function: Verb) -> Verb:
        VERBS[name] = function
        return function

    return register


def channel_number(fields: Object) -> int:
    found: int = number(fields, "channel")
    if not 0 < found < 1 << 32:
        raise RequestInvalid(f"{found} is not a valid channel number")
    return found


def _renewal(fields: Object) -> Renewal | None:
    held, wanted = number(fields, "epoch", None), number(fields, "next_epoch", None)
    if held is None and wanted is None:
        return None
    renewal = Renewal(held or 0, wanted or 0)
    renewal.check()
    return renewal


def _consumer(connection: NativeConnection, fields: Object) -> ConsumerHandle:
    channel = connection.channels.get(channel_number(fields))
    if not isinstance(channel, ConsumerChannel) or channel.handle is None:
        raise ChannelInvalid(f"channel {fields['channel']} is not a consumer")
    return channel.handle


# -- producers and consumers -------------------------------------------------------------------------------------------


@verb("open_producer")
async def open_producer(connection: NativeConnection, fields: Object, request: int) -> Object:
    with connection.opening(channel_number(fields)):
        channel = ProducerChannel(connection, channel_number(fields))
        producer = await connection.session.open_producer(
            text(fields, "topic"),
            channel.closed,
            name=text(fields, "name", None),
            resume=text(fields, "resume", None),
            fresh=flag(fields, "fresh", False),
            temporary=flag(fields, "temporary", False),
            renewal=_renewal(fields),
            reliable=flag(fields, "reliable", True),
            create=flag(fields, "create", True),
        )
        channel.begin(producer)
        connection.add(channel)
    number, epoch, next_sequence = producer.session
    return {
        "topic": str(producer.topic),
        "partition": producer.topic.partition,
        "producer_id": number,
        "epoch": epoch,
        "next_sequence": next_sequence,
        "reliable": producer.reliable,
        "durability": producer.receipt,
        "message_bytes_max": producer.message_bytes_max,
        "resume": producer.mark,
    }


@verb("open_consumer")
async def open_consumer(connection: NativeConnection, fields: Object, request: int) -> Object:
    filters = field(fields, "filters", list, [])
    if not all(isinstance(each, str) for each in filters):
        raise RequestInvalid("filters must be strings")
    with connection.opening(channel_number(fields)):
        channel = ConsumerChannel(connection, channel_number(fields))
        handle = await connection.session.open_consumer(
            text(fields, "topic"),
            text(fields, "subscription"),
            kind_of(fields),
            channel,
            name=text(fields, "name", ""),
            start=place(fields, "start"),
            filters=[each.encode() for each in filters],
            create=flag(fields, "create", True),
            reliable=flag(fields, "reliable", None),
            resume=text(fields, "resume", None),
            options=options_of(fields),
            timing=Timing.TAKEN if flag(fields, "says_taken", False) else Timing.DELIVERED,
            takes_over=flag(fields, "takes_over", False),
        )
        channel.begin(handle)
        connection.add(channel)
    channel.top_up()
    answer = {
        "consumer": handle.id,
        "generation": handle.generation,
        "floor": handle.floor,
        "reliable": handle.reliable,
        "resume": handle.mark,
    }
    return {**answer, "ack_timeout": handle.ack_timeout} if handle.reliable else answer


@verb("close")
async def close(connection: NativeConnection, fields: Object, request: int) -> Object:
    crashed, returning = flag(fields, "crashed", False), flag(fields, "returning", False)
    channel = channel_number(fields)
    while channel in connection.channels and connection.channels[channel].unsettled:  # noqa: ASYNC110 - of this loop
        await asyncio.sleep(0)  # which sorts out some of it
    connection.close_channel(channel, crashed=crashed, returning=returning)
    return {}


@verb("seek")
async def seek(connection: NativeConnection, fields: Object, request: int) -> Object:
    consumer = _consumer(connection, fields)
    offset, time = number(fields, "offset", None), number(fields, "time", None)
    if offset is not None:
        check_offset("offset", offset)
    return {"generation": await consumer.seek(offset=offset, time=time)}


@verb("pause")
async def pause(connection: NativeConnection, fields: Object, request: int) -> Object:
    _consumer(connection, fields).pause()
    return {}


@verb("resume")
async def resume(connection: NativeConnection, fields: Object, request: int) -> Object:
    _consumer(connection, fields).resume()
    return {}


@verb("topic.watch")
async def watch_topics(connection: NativeConnection, fields: Object, request: int) -> Object:
    """Topics that changed after a revision, as soon as there are some; without one, what it is now.

    A connection has one that waits: another answers it.
    """
    named = field(fields, "namespaces", list, None)
    if named is not None and (len(named) > TOPIC_WATCH_NAMESPACES_MAX or not all(type(each) is str for each in named)):
        raise RequestInvalid(f"namespaces must be at most {TOPIC_WATCH_NAMESPACES_MAX} names")
    seconds = max(0.0, min(number(fields, "milliseconds", 0) / 1_000, TOPIC_WATCH_SECONDS_MAX))
    found = await connection.session.topics.watch(
        None if named is None else frozenset(named),
        number(fields, "revision", None),
        seconds,
        replaced=connection.replace_watch(),
    )
    return {"revision": found.revision, "topics": found.topics, "missed": found.missed}


# -- reading -----------------------------------------------------------------------------------------------------------


@verb("read")
async def read(connection: NativeConnection, fields: Object, request: int) -> Object | None:
    """With `resume`, the id of the topic that it began with, only the very same will do."""
    topic, offset, mark = text(fields, "topic"), number(fields, "offset"), text(fields, "resume", None)
    bytes_max = number(fields, "bytes_max", READ_AHEAD_BYTES)
    async with connection.reading:
        await connection.room()
        batches = await connection.session.read(topic, offset, bytes_max, resume=mark)
        if batches and request:
            connection.send(encode_batches(request, [batch.parts() for batch in batches]))
            return None
    first, end = await connection.session.bounds(topic)
    return {"first": first, "end": end}


@verb("backup.read")
async def read_backup(connection: NativeConnection, fields: Object, request: int) -> Object | None:
    """A piece of a file, as the one payload of a batch: its checksum goes with it."""
    async with connection.reading:
        await connection.room()
        name, offset, length = text(fields, "name"), number(fields, "offset"), number(fields, "length")
        data = await connection.session.backups.read(number(fields, "backup"), name, offset, length)
        if request:
            connection.send(encode_batches(request, [build([data], publish_time=0).parts()]))
            return None
    return {}


@verb("sizes")
async def sizes(connection: NativeConnection, fields: Object, request: int) -> Object:
    """First offset, messages, unpacked bytes and append time of each batch that `read` would answer with."""
    topic, offset = text(fields, "topic"), number(fields, "offset")
    bytes_max = number(fields, "bytes_max", READ_AHEAD_BYTES)
    async with connection.reading:
        batches = await connection.session.read(topic, offset, bytes_max)
    found = batches[:SIZES_MAX]
    return {
        "batches": [[each.base_offset, each.count, each.unpacked_bytes, each.append_time] for each in found],
    }
