"""Messages over HTTP as JSON, and reading them without a subscription; all within bounds."""

from __future__ import annotations

import asyncio

from pydanube.api.http.answer import Answer, answer_of
from pydanube.api.http.face import Caller
from pydanube.base.limits import (
    PEEKED_BYTES_MAX,
    PEEKED_VALUE_BYTES_MAX,
    READ_AHEAD_BYTES,
)
from pydanube.broker.door.values import EARLIEST, LATEST
from pydanube.operations.messages import Peek, Peeked, StoredMessage, stored_fields
from pydanube.wire.batch import Batch, Codec, Message
from pydanube.wire.objects import Object

MESSAGES_AT_ONCE = 200  # read or shown in one turn of the loop: some milliseconds


async def peek(caller: Caller, request: Peek) -> Answer:
    """Messages from an offset on, as they are stored; no subscription is affected."""
    face, session, topic, limit = caller.face, caller.session, request.topic, request.limit
    first, end = await session.bounds(topic)
    offset = _offset_of(request.offset, first, end)
    if request.wait:
        with face.waits():
            await session.wait_beyond(topic, offset, float(request.wait))
        await face.turns.begin()  # many requests may have waited for the same message
    found: list[StoredMessage] = []
    size, following = 0, offset
    while len(found) < limit and size < PEEKED_BYTES_MAX:
        batches = await session.read(topic, following, READ_AHEAD_BYTES)
        if not batches:
            break
        for batch in batches:
            start = max(following, batch.base_offset)
            count = min(batch.last_offset - start + 1, limit - len(found))
            if start > batch.last_offset or count < 1:
                continue
            shown, shown_bytes = await _shown_of(
                caller, topic, batch, start - batch.base_offset, count, PEEKED_BYTES_MAX - size
            )
            found += shown
            following = found[-1].offset + 1
            size += shown_bytes
            if len(found) >= limit or size >= PEEKED_BYTES_MAX:
                break
        await asyncio.sleep(0)  # lets other tasks run
    first, end = await session.bounds(topic)
    return answer_of(200, Peeked(found, following, first, end))


async def _shown_of(
    caller: Caller, topic: str, batch: Batch, first: int, count: int, most: int
) -> tuple[list[StoredMessage], int]:
    """Messages of a batch, and their bytes, up to the message that reaches `most`.

    Compressed batches are unpacked off the loop: a few hundred bytes may become 16 MiB.
    """
    if batch.codec is not Codec.NONE:
        return await caller.face.door.offload.run(_show, topic, batch, first, count, most)
    await asyncio.sleep(0)  # many small batches take time too
    return _show(topic, batch, first, count, most)


def _show(topic: str, batch: Batch, first: int, count: int, most: int) -> tuple[list[StoredMessage], int]:
    found, size = list[StoredMessage](), 0
    for message in batch.slice(first, count).messages():
        found.append(StoredMessage(**shown(topic, message, PEEKED_VALUE_BYTES_MAX)))
        size += len(message.payload or b"") + len(message.key or b"")
        if size >= most:
            break
    return found, size


def _offset_of(position: str | int, first: int, end: int) -> int:
    if isinstance(position, int):
        return max(position, first)
    return {EARLIEST: first, LATEST: end}[position]


def shown(topic: str, message: Message, value_bytes_max: int | None = None) -> Object:
    """The fields of a `StoredMessage`; a value that is too long is cut, and marked as such."""
    payload = message.payload
    found = stored_fields(topic, message, message.key, payload if payload is None else payload[:value_bytes_max])
    if payload is not None and value_bytes_max is not None and len(payload) > value_bytes_max:
        found["value_cut_from_bytes"] = len(payload)
    return found
