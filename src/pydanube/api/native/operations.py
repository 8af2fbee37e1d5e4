"""What a REQUEST can ask for: any operation, and requests that need the connection, its channels or frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydanube.api.native.consumers import open_consumer, pause, resume, seek
from pydanube.api.native.producers import open_producer
from pydanube.base.limits import TOPIC_WATCH_SECONDS_MAX
from pydanube.broker.door.session import CARRIED_OUT
from pydanube.operations.backups import ReadBackup
from pydanube.operations.channels import (
    BatchSizes,
    CloseChannel,
    GetSizes,
    OpenConsumer,
    OpenProducer,
    Pause,
    Read,
    Resume,
    Seek,
)
from pydanube.operations.operation import Answer, Done, Request
from pydanube.operations.topics import Bounds, TopicChanges, WatchTopics
from pydanube.wire.batch import build
from pydanube.wire.commands import encode_batches

if TYPE_CHECKING:
    from pydanube.api.native.connection import NativeConnection

SIZES_MAX = 1_000  # batches in one answer about their sizes, so that it fits a control frame
Verb = Callable[["NativeConnection", Any, int], Awaitable[Answer | None]]  # takes the number of the REQUEST too


async def _carry_out(connection: NativeConnection, request: Request[Any], number: int) -> Answer:
    answer: Answer = await connection.session.carry_out(request)
    return answer


async def close(connection: NativeConnection, request: CloseChannel, number: int) -> Done:
    channel = request.channel
    while channel in connection.channels and connection.channels[channel].unsettled:  # noqa: ASYNC110 - of this loop
        await asyncio.sleep(0)  # in each turn, some of its acks are processed
    connection.close_channel(channel, crashed=request.crashed, returning=request.returning)
    return Done()


async def watch_topics(connection: NativeConnection, request: WatchTopics, number: int) -> TopicChanges:
    """Waits for topics that changed after a revision; without a revision, returns the present one.

    Only one such request waits on each connection: a new one ends the one before.
    """
    namespaces = request.namespaces
    found = await connection.session.topics.watch(
        None if namespaces is None else frozenset(namespaces),
        request.revision,
        min(request.milliseconds / 1_000, TOPIC_WATCH_SECONDS_MAX),
        replaced=connection.replace_watch(),
    )
    return TopicChanges(found.revision, found.topics, found.missed)


# -- reading -----------------------------------------------------------------------------------------------------------


async def read(connection: NativeConnection, request: Read, number: int) -> Bounds | None:
    """With `resume`, the id of the topic where the reader began, only the same topic is accepted."""
    session, topic = connection.session, request.topic
    async with connection.reading:
        await connection.room()
        batches = await session.read(topic, request.offset, request.bytes_max, resume=request.resume)
        if batches and number:
            connection.send(encode_batches(number, [batch.parts() for batch in batches]))
            return None
    return Bounds(*await session.bounds(topic))


async def read_backup(connection: NativeConnection, request: ReadBackup, number: int) -> Done | None:
    """A piece of a file as the only payload of a batch, so that it comes with a checksum."""
    async with connection.reading:
        await connection.room()
        backups = connection.session.backups
        data = await backups.read(request.backup, request.name, request.offset, request.length)
        if number:
            connection.send(encode_batches(number, [build([data], publish_time=0).parts()]))
            return None
    return Done()


async def sizes(connection: NativeConnection, request: GetSizes, number: int) -> BatchSizes:
    """First offset, messages, unpacked bytes and append time of each batch that `read` would return."""
    async with connection.reading:
        batches = await connection.session.read(request.topic, request.offset, request.bytes_max)
    found = batches[:SIZES_MAX]
    return BatchSizes([(each.base_offset, each.count, each.unpacked_bytes, each.append_time) for each in found])


_OF_CONNECTIONS: dict[type[Request[Any]], Verb] = {
    OpenProducer: open_producer,
    OpenConsumer: open_consumer,
    CloseChannel: close,
    Seek: seek,
    Pause: pause,
    Resume: resume,
    WatchTopics: watch_topics,
    Read: read,
    ReadBackup: read_backup,
    GetSizes: sizes,
}
VERBS: dict[str, tuple[type[Request[Any]], Verb]] = {
    request.operation: (request, verb)
    for request, verb in (dict.fromkeys(CARRIED_OUT, _carry_out) | _OF_CONNECTIONS).items()
}
