"""Messages over HTTP: published from JSON or as bytes, and looked at without a subscription. All of it bounded."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode, b64encode
from typing import Any

from pydanube.api.http.answer import Answer, answer_of
from pydanube.api.http.door import Door
from pydanube.api.operations.fields import field, number, text
from pydanube.base.errors import DanubeError, RequestInvalid
from pydanube.base.keys import check_key
from pydanube.base.limits import (
    KEYS_HASHED_AT_ONCE_BYTES,
    OFFSET_MAX,
    PEEK_WAIT_SECONDS_MAX,
    PEEKED_BYTES_MAX,
    PEEKED_MESSAGES_MAX,
    PEEKED_VALUE_BYTES_MAX,
    PUBLISHED_MESSAGES_MAX,
    READ_AHEAD_BYTES,
)
from pydanube.base.names import parse_topic
from pydanube.broker.topic.served import EARLIEST, LATEST
from pydanube.wire.batch import Batch, Codec, Message, build
from pydanube.wire.objects import Object

MESSAGES_AT_ONCE = 200  # read or shown in one turn of the loop: some milliseconds
_TIME_MAX = (1 << 63) - 1
_FIELDS = ("key", "key_base64", "value", "value_base64", "attributes", "event_time", "delivery_time")

# -- publishing --------------------------------------------------------------------------------------------------------


async def publish(door: Door, fields: Object) -> Answer:
    """Answers when all of them are as safe as the topic promises. What failed may be there in part."""
    messages = await _messages_of(fields)
    topic = text(fields, "topic")
    record = await door.service.topic(door.principal, topic, create=True)
    partitions = record.partitions if parse_topic(topic).partition is None else 0
    places: dict[str, list[int]] = {}
    if any(message["key"] is None for message in messages):
        door.turn += 1
    hashed = 0
    for at, message in enumerate(messages):
        hashed += len(message["key"] or b"")
        if hashed > KEYS_HASHED_AT_ONCE_BYTES:
            await asyncio.sleep(0)  # the others of the loop first
            hashed = 0
        place = topic
        if partitions:
            in_turn = record.name._replace(partition=door.turn % partitions)
            place = str(in_turn if message["key"] is None else record.partition_of(message["key"]))
        places.setdefault(place, []).append(at)
    answered: list[Object] = [{} for _ in messages]
    for place, rows in places.items():
        batch = _batch_of([messages[at] for at in rows], door.clock.wall())
        first, durability = await _publish(door, place, batch, reliable=record.reliable)
        for count, at in enumerate(rows):
            answered[at] = {"topic": place, "offset": first + count if record.reliable else None}
    return answer_of(200, {"messages": answered, "durability": durability})


async def _publish(door: Door, topic: str, batch: Batch, *, reliable: bool) -> tuple[int, str]:
    service = door.service
    producer = await service.open_producer(door.principal, topic, _ended, reliable=reliable)
    try:
        receipt = service.publish(producer, batch)
        door.account.add(batch.size)
        (receipt.written or receipt.confirmed).add_done_callback(lambda _: door.account.remove(batch.size))
        await receipt.confirmed
        return receipt.offset, producer.open.topic.receipt
    finally:
        producer.let_go(lost=False)


def _ended(error: DanubeError) -> None:
    """The topic goes: the publish itself fails, or was quicker."""


async def _messages_of(fields: Object) -> list[Object]:
    if "raw" in fields:
        key = text(fields, "key", None)
        return [_message_of({"key": key} if key is not None else {}) | {"value": fields["raw"]}]
    if "key" in fields:
        raise RequestInvalid("the query parameter `key` is only for a raw body; put keys into the messages")
    messages = field(fields, "messages", list)
    if not 0 < len(messages) <= PUBLISHED_MESSAGES_MAX:
        raise RequestInvalid(f"a request can publish 1 to {PUBLISHED_MESSAGES_MAX} messages, got {len(messages)}")
    found: list[Object] = []
    for first in range(0, len(messages), MESSAGES_AT_ONCE):
        await asyncio.sleep(0)  # the others of the loop first
        found += [_message_of(each) for each in messages[first : first + MESSAGES_AT_ONCE]]
    return found


def _message_of(given: Any) -> Object:
    if not isinstance(given, dict):
        raise RequestInvalid("each message must be a JSON object")
    for name in given:
        if name not in _FIELDS:
            raise RequestInvalid(f"unknown field {name[:50]!r} in a message; known fields: {', '.join(_FIELDS)}")
    attributes = field(given, "attributes", dict, None)
    if attributes is not None and not all(isinstance(each, str) for each in attributes.values()):
        raise RequestInvalid("attributes must be an object with string values")
    key = _bytes_of(given, "key")
    return {
        "key": None if key is None else check_key(key),
        "value": _bytes_of(given, "value"),
        "attributes": attributes,
        "event_time": _time_of(given, "event_time"),
        "delivery_time": _time_of(given, "delivery_time"),
    }


def _bytes_of(given: Object, name: str) -> bytes | None:
    plain, encoded = text(given, name, None), text(given, f"{name}_base64", None)
    if plain is not None and encoded is not None:
        raise RequestInvalid(f"a message cannot have both {name} and {name}_base64")
    if encoded is None:
        return None if plain is None else plain.encode()
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise RequestInvalid(f"{name}_base64 is not valid Base64") from None


def _time_of(given: Object, name: str) -> int | None:
    time: int | None = number(given, name, None)
    if time is not None and not 0 <= time <= _TIME_MAX:
        raise RequestInvalid(f"{name} must be microseconds since 1970, got {time}")
    return time


def _batch_of(messages: list[Object], now: int) -> Batch:
    def column(name: str) -> list[Any] | None:
        values = [message[name] for message in messages]
        return None if all(value is None for value in values) else values

    return build(
        [message["value"] for message in messages],
        publish_time=now,
        keys=column("key"),
        attributes=column("attributes"),
        event_times=column("event_time"),
        delivery_times=column("delivery_time"),
    )


# -- looking -----------------------------------------------------------------------------------------------------------


async def peek(door: Door, fields: Object) -> Answer:
    """Messages from an offset on, as they are stored; nobody's place changes by it."""
    service, topic = door.service, text(fields, "topic")
    limit, wait = within(fields, "limit", 10, 1, PEEKED_MESSAGES_MAX), wait_of(fields)
    first, end = await service.bounds(door.principal, topic)
    offset = _offset_of(fields.get("offset", EARLIEST), first, end)
    if wait:
        with door.waits():
            await service.wait_beyond(door.principal, topic, offset, wait)
        await door.turns.begin()  # many may have waited for the same message
    found: list[Object] = []
    size, following = 0, offset
    while len(found) < limit and size < PEEKED_BYTES_MAX:
        batches = await service.read(door.principal, topic, following, READ_AHEAD_BYTES)
        if not batches:
            break
        for batch in batches:
            start = max(following, batch.base_offset)
            count = min(batch.last_offset - start + 1, limit - len(found))
            if start > batch.last_offset or count < 1:
                continue
            shown, shown_bytes = await _shown_of(door, batch, start - batch.base_offset, count, PEEKED_BYTES_MAX - size)
            found += shown
            following = found[-1]["offset"] + 1
            size += shown_bytes
            if len(found) >= limit or size >= PEEKED_BYTES_MAX:
                break
        await asyncio.sleep(0)  # the others of the loop first
    first, end = await service.bounds(door.principal, topic)
    return answer_of(200, {"messages": found, "next": following, "first": first, "end": end})


def wait_of(fields: Object) -> float:
    return float(within(fields, "wait", 0, 0, int(PEEK_WAIT_SECONDS_MAX)))


def within(fields: Object, name: str, default: Any, least: int, most: int) -> Any:
    """A number of the request, which has its bounds; or what is meant without it."""
    found = number(fields, name, default)
    if found is not default and not least <= found <= most:
        raise RequestInvalid(f"{name} must be {least} to {most}, not {found}")
    return found


async def _shown_of(door: Door, batch: Batch, first: int, count: int, most: int) -> tuple[list[Object], int]:
    """Messages of a batch as they are shown, and the bytes they have: up to the one that makes it `most`.

    What is compressed is unpacked beside the loop: a few hundred bytes may become 16 MiB.
    """
    if batch.codec is not Codec.NONE:
        return await door.service.offload.run(_show, batch, first, count, most)
    await asyncio.sleep(0)  # many small batches are much, too
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
    """As JSON has it; a longer value is cut, and says so."""
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
