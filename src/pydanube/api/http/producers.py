"""Publishing over HTTP: messages from JSON, or one of them as bytes. All of it bounded."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import UNSET

from pydanube.access.rights import Action
from pydanube.api.http.answer import Answer, answer_of
from pydanube.api.http.face import Caller
from pydanube.api.http.messages import MESSAGES_AT_ONCE
from pydanube.base.errors import DanubeError, RequestInvalid
from pydanube.base.keys import check_key
from pydanube.base.limits import KEYS_HASHED_AT_ONCE_BYTES
from pydanube.base.names import parse_topic
from pydanube.operations.messages import NewMessage, Publish, Published, PublishedMessage
from pydanube.wire.batch import Batch, build

Value = TypeVar("Value")


class _Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    attributes: Mapping[str, str] | None = None
    event_time: int | None = None
    delivery_time: int | None = None


async def publish(caller: Caller, request: Publish) -> Answer:
    """Answers when all of them are as safe as the topic promises. What failed may be there in part."""
    messages = await _messages_of(caller.raw, request)
    topic, face = request.topic, caller.face
    record = await caller.session.topics.lookup(topic, create=True, action=Action.TOPIC_PUBLISH)
    partitions = record.partitions if parse_topic(topic).partition is None else 0
    rows_by_target: dict[str, list[int]] = {}
    if any(message.key is None for message in messages):
        face.turn += 1
    hashed = 0
    for at, message in enumerate(messages):
        hashed += len(message.key or b"")
        if hashed > KEYS_HASHED_AT_ONCE_BYTES:
            await asyncio.sleep(0)  # lets other tasks run
            hashed = 0
        target = topic
        if partitions:
            in_turn = record.name._replace(partition=face.turn % partitions)
            target = str(in_turn if message.key is None else record.partition_of(message.key))
        rows_by_target.setdefault(target, []).append(at)
    answered = [PublishedMessage(topic, None) for _ in messages]
    for target, rows in rows_by_target.items():
        batch = _batch_of([messages[at] for at in rows], face.clock.wall())
        first, durability = await _publish(caller, target, batch, reliable=record.reliable)
        for count, at in enumerate(rows):
            answered[at] = PublishedMessage(target, first + count if record.reliable else None)
    return answer_of(200, Published(answered, durability))


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


async def _messages_of(raw: bytes | None, request: Publish) -> list[_Row]:
    if raw is not None:
        return [_Row(None if request.key is None else check_key(request.key.encode()), raw)]
    if request.key is not None:
        raise RequestInvalid("the query parameter `key` is only for a raw body; put keys into the messages")
    messages = request.messages
    if messages is UNSET:
        raise RequestInvalid("messages is missing")
    found: list[_Row] = []
    for first in range(0, len(messages), MESSAGES_AT_ONCE):
        await asyncio.sleep(0)  # lets other tasks run
        some = messages[first : first + MESSAGES_AT_ONCE]
        found += [_row_of(at, each) for at, each in enumerate(some, first)]
    return found


def _row_of(at: int, given: NewMessage) -> _Row:
    key = _bytes_of(at, "key", given.key, given.key_base64)
    value = _bytes_of(at, "value", given.value, given.value_base64)
    key = None if key is None else check_key(key)
    return _Row(key, value, given.attributes, given.event_time, given.delivery_time)


def _bytes_of(at: int, name: str, plain: str | None, encoded: str | None) -> bytes | None:
    if plain is not None and encoded is not None:
        raise RequestInvalid(f"messages[{at}] cannot have both {name} and {name}_base64")
    if encoded is None:
        return None if plain is None else plain.encode()
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise RequestInvalid(f"messages[{at}].{name}_base64 is not valid Base64") from None


def _batch_of(rows: Sequence[_Row], now: int) -> Batch:
    keys, values, attributes, event_times, delivery_times = zip(*rows, strict=True)
    return build(
        values,
        publish_time=now,
        keys=_column(keys),
        attributes=_column(attributes),
        event_times=_column(event_times),
        delivery_times=_column(delivery_times),
    )


def _column(values: Sequence[Value]) -> Sequence[Value] | None:
    """None if no row has a value."""
    return None if all(value is None for value in values) else values
