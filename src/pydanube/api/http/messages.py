"""Messages over HTTP as JSON, and reading them without a subscription; all within bounds."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

from pydanube.api.http.answer import Answer, answer_of
from pydanube.api.http.face import Caller
from pydanube.api.operations.fields import number, text
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import (
    OFFSET_MAX,
    PEEK_WAIT_SECONDS_MAX,
    PEEKED_BYTES_MAX,
    PEEKED_MESSAGES_MAX,
    PEEKED_VALUE_BYTES_MAX,
    READ_AHEAD_BYTES,
)
from pydanube.broker.door.values import EARLIEST, LATEST
from pydanube.wire.batch import Batch, Codec, Message
from pydanube.wire.objects import Object

MESSAGES_AT_ONCE = 200  # read or shown in one turn of the loop: some milliseconds


async def peek(caller: Caller, fields: Object) -> Answer:
    """Messages from an offset on, as they are stored; no subscription is affected."""
    face, session, topic = caller.face, caller.session, text(fields, "topic")
    limit, wait = within(fields, "limit", 10, 1, PEEKED_MESSAGES_MAX), wait_of(fields)
    first, end = await session.bounds(topic)
    offset = _offset_of(fields.get("offset", EARLIEST), first, end)
    if wait:
        with face.waits():
            await session.wait_beyond(topic, offset, wait)
        await face.turns.begin()  # many requests may have waited for the same message
    found: list[Object] = []
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
                caller, batch, start - batch.base_offset, count, PEEKED_BYTES_MAX - size
            )
            found += shown
            following = found[-1]["offset"] + 1
            size += shown_bytes
            if len(found) >= limit or size >= PEEKED_BYTES_MAX:
                break
        await asyncio.sleep(0)  # lets other tasks run
    first, end = await session.bounds(topic)
    return answer_of(200, {"messages": found, "next": following, "first": first, "end": end})


def wait_of(fields: Object) -> float:
    return float(within(fields, "wait", 0, 0, int(PEEK_WAIT_SECONDS_MAX)))


def within(fields: Object, name: str, default: Any, least: int, most: int) -> Any:
    """A number of the request, which must be within bounds; or its default."""
    found = number(fields, name, default)
    if found is not default and not least <= found <= most:
        raise RequestInvalid(f"{name} must be {least} to {most}, not {found}")
    return found


async def _shown_of(caller: Caller, batch: Batch, first: int, count: int, most: int) -> tuple[list[Object], int]:
    """Messages of a batch as JSON, and their bytes, up to the message that reaches `most`.

    Compressed batches are unpacked off the loop: a few hundred bytes may become 16 MiB.
    """
    if batch.codec is not Codec.NONE:
        return await caller.face.door.offload.run(_show, batch, first, count, most)
    await asyncio.sleep(0)  # many small batches take time too
    return _show(batch, first, count, most)


def _show(batch: Batch, first: int, count: int, most: int) -> tuple[list[Object], int]:
    found, size = [], 0
    for message in batch.slice(first, count).messages():
        found.append(shown(message, PEEKED_VALUE_BYTES_MAX))
        size += len(message.payload or b"") + len(message.key or b"")
        if size >= most:
            break
    return found, size


def _offset_of(place: Any, first: int, end: int) -> int:
    if isinstance(place, int) and 0 <= place <= OFFSET_MAX:
        return max(place, first)
    named: int | None = {EARLIEST: first, LATEST: end}.get(place)
    if named is None:
        raise RequestInvalid(f"offset must be `{EARLIEST}`, `{LATEST}`, or a number, 0 or greater")
    return named


def shown(message: Message, value_bytes_max: int | None = None) -> Object:
    """The message as JSON; a value that is too long is cut, and marked as such."""
    payload = message.payload
    found: Object = {"offset": message.offset, **_text_or_base64("key", message.key)}
    found |= _text_or_base64("value", payload if payload is None else payload[:value_bytes_max])
    if payload is not None and value_bytes_max is not None and len(payload) > value_bytes_max:
        found["value_cut_from_bytes"] = len(payload)
    return found | {
        "attributes": message.attributes or {},
        "publish_time": message.publish_time,
        "append_time": message.append_time,
        "event_time": message.event_time,
        "delivery_time": message.delivery_time,
        "producer": message.producer,
        "sequence": message.sequence,
    }


def _text_or_base64(name: str, data: bytes | None) -> Object:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode("ascii")}
