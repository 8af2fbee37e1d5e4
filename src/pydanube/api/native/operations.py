"""What a REQUEST can ask for: what every face can be asked, and what needs the connection, its channels or frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pydanube.api.native.consumers import VERBS as CONSUMER_VERBS
from pydanube.api.native.fields import channel_number
from pydanube.api.native.producers import VERBS as PRODUCER_VERBS
from pydanube.api.operations.backups import VERBS as BACKUP_VERBS
from pydanube.api.operations.direct import VERBS as DIRECT_VERBS
from pydanube.api.operations.fields import field, flag, number, text
from pydanube.api.operations.pipelines import NATIVE_VERBS as PIPELINE_VERBS
from pydanube.api.operations.sinks import VERBS as SINK_VERBS
from pydanube.api.operations.storage import VERBS as PLAIN_VERBS
from pydanube.api.operations.verbs import Verb as PlainVerb
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import READ_AHEAD_BYTES, TOPIC_WATCH_NAMESPACES_MAX, TOPIC_WATCH_SECONDS_MAX
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


async def close(connection: NativeConnection, fields: Object, request: int) -> Object:
    crashed, returning = flag(fields, "crashed", False), flag(fields, "returning", False)
    channel = channel_number(fields)
    while channel in connection.channels and connection.channels[channel].unsettled:  # noqa: ASYNC110 - of this loop
        await asyncio.sleep(0)  # in each turn, some of its acks are processed
    connection.close_channel(channel, crashed=crashed, returning=returning)
    return {}


async def watch_topics(connection: NativeConnection, fields: Object, request: int) -> Object:
    """Waits for topics that changed after a revision; without a revision, returns the present one.

    Only one such request waits on each connection: a new one ends the one before.
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


async def read(connection: NativeConnection, fields: Object, request: int) -> Object | None:
    """With `resume`, the id of the topic where the reader began, only the same topic is accepted."""
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


async def read_backup(connection: NativeConnection, fields: Object, request: int) -> Object | None:
    """A piece of a file as the only payload of a batch, so that it comes with a checksum."""
    async with connection.reading:
        await connection.room()
        name, offset, length = text(fields, "name"), number(fields, "offset"), number(fields, "length")
        data = await connection.session.backups.read(number(fields, "backup"), name, offset, length)
        if request:
            connection.send(encode_batches(request, [build([data], publish_time=0).parts()]))
            return None
    return {}


async def sizes(connection: NativeConnection, fields: Object, request: int) -> Object:
    """First offset, messages, unpacked bytes and append time of each batch that `read` would return."""
    topic, offset = text(fields, "topic"), number(fields, "offset")
    bytes_max = number(fields, "bytes_max", READ_AHEAD_BYTES)
    async with connection.reading:
        batches = await connection.session.read(topic, offset, bytes_max)
    found = batches[:SIZES_MAX]
    return {
        "batches": [[each.base_offset, each.count, each.unpacked_bytes, each.append_time] for each in found],
    }


VERBS: dict[str, Verb] = {
    **{
        name: _plain(verb)
        for name, verb in (PLAIN_VERBS | PIPELINE_VERBS | SINK_VERBS | DIRECT_VERBS | BACKUP_VERBS).items()
    },
    **PRODUCER_VERBS,
    **CONSUMER_VERBS,
    "close": close,
    "topic.watch": watch_topics,
    "read": read,
    "backup.read": read_backup,
    "sizes": sizes,
}
