"""Publishing over HTTP: messages from JSON, or one of them as bytes. All of it bounded."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from typing import Any

from pydanube.access.rights import Action
from pydanube.api.http.answer import Answer, answer_of
from pydanube.api.http.face import Caller
from pydanube.api.http.messages import MESSAGES_AT_ONCE
from pydanube.api.operations.fields import field, number, text
from pydanube.base.errors import DanubeError, RequestInvalid
from pydanube.base.keys import check_key
from pydanube.base.limits import KEYS_HASHED_AT_ONCE_BYTES, PUBLISHED_MESSAGES_MAX
from pydanube.base.names import parse_topic
from pydanube.wire.batch import Batch, build
from pydanube.wire.objects import Object

_TIME_MAX = (1 << 63) - 1
_FIELDS = ("key", "key_base64", "value", "value_base64", "attributes", "event_time", "delivery_time")


async def publish(caller: Caller, fields: Object) -> Answer:
    """Answers when all of them are as safe as the topic promises. What failed may be there in part."""
    messages = await _messages_of(fields)
    topic, face = text(fields, "topic"), caller.face
    record = await caller.session.topics.lookup(topic, create=True, action=Action.TOPIC_PUBLISH)
    partitions = record.partitions if parse_topic(topic).partition is None else 0
    places: dict[str, list[int]] = {}
    if any(message["key"] is None for message in messages):
        face.turn += 1
    hashed = 0
    for at, message in enumerate(messages):
        hashed += len(message["key"] or b"")
        if hashed > KEYS_HASHED_AT_ONCE_BYTES:
            await asyncio.sleep(0)  # lets other tasks run
            hashed = 0
        place = topic
        if partitions:
            in_turn = record.name._replace(partition=face.turn % partitions)
            place = str(in_turn if message["key"] is None else record.partition_of(message["key"]))
        places.setdefault(place, []).append(at)
    answered: list[Object] = [{} for _ in messages]
    for place, rows in places.items():
        batch = _batch_of([messages[at] for at in rows], face.clock.wall())
        first, durability = await _publish(caller, place, batch, reliable=record.reliable)
        for count, at in enumerate(rows):
            answered[at] = {"topic": place, "offset": first + count if record.reliable else None}
    return answer_of(200, {"messages": answered, "durability": durability})


async def _publish(caller: Caller, topic: str, batch: Batch, *, reliable: bool) -> tuple[int, str]:
    account = caller.face.account
    producer = await caller.session.open_producer(topic, _ended, reliable=reliable)
    try:
        receipt = producer.publish(batch)
        account.add(batch.size)
        (receipt.written or receipt.confirmed).add_done_callback(lambda _: account.remove(batch.size))
        await receipt.confirmed
        return receipt.offset, producer.receipt
    finally:
        producer.close(lost=False)


def _ended(error: DanubeError) -> None:
    """Nothing to do if the topic ends: the publish itself fails, or has already succeeded."""


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
        await asyncio.sleep(0)  # lets other tasks run
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
