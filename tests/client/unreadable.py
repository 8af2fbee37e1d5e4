"""A batch that says of itself what it is not, as a client of somebody else's making may publish it."""

from __future__ import annotations

import asyncio

from client.broker import TOPIC
from pydanube.client import Client
from pydanube.operations.channels import OpenProducer
from pydanube.wire.batch import Batch, Codec, build
from pydanube.wire.commands import encode_publish
from pydanube.wire.content import content_check
from pydanube.wire.header import make_stamp

CODEC_AT = 9  # in a content


def poisoned(count: int) -> Batch:
    """Its payloads are said to be compressed, and are not."""
    content = bytearray(build([b"x"] * count, publish_time=1).content)
    content[CODEC_AT] = Codec.LZ4  # which says nothing of itself that a broker could check
    crc = content_check(bytes(content))
    content[:4] = crc.to_bytes(4, "little")
    return Batch.from_parts(make_stamp(0, 0, 0, crc), bytes(content))


async def poison(client: Client, count: int, topic: str = TOPIC) -> None:
    _, end = await client.bounds(topic)
    connection = await client.connection()
    channel = connection.add_channel(None)  # type: ignore[arg-type]
    await client.ask(OpenProducer(channel, topic))
    connection.remove_channel(channel)
    connection.write(encode_publish(channel, connection.next_request(), *poisoned(count).parts()))
    async with asyncio.timeout(5):
        while (await client.bounds(topic))[1] < end + count:
            pass
