"""Consuming over HTTP: messages under leases, as JSON or a single one as bytes; and acking, nacking and extending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from pydanube.api.http.answer import Answer, answer_of
from pydanube.api.http.face import Caller
from pydanube.api.http.messages import MESSAGES_AT_ONCE, shown, wait_of, within
from pydanube.api.http.router import RAW
from pydanube.api.operations.fields import field, text
from pydanube.base.errors import BatchDamaged, BatchInvalid, RequestInvalid
from pydanube.base.limits import (
    DECODED_BYTES,
    KIB,
    LEASE_SECONDS_MAX,
    LEASES_AT_ONCE_MAX,
    RECEIVED_BYTES_MAX,
    TOPIC_NAME_CHARACTERS_MAX,
)
from pydanube.broker.door.leasing import Lease, Received
from pydanube.broker.door.values import Delivery
from pydanube.wire.batch import Codec, Message
from pydanube.wire.objects import Object

RECEIVED_DEFAULT = 10  # messages, unless the request says how many
_KEY_HEADER_BYTES_MAX = 4 * KIB  # HTTP clients refuse long header lines; JSON can have keys of any length


class _Leased(NamedTuple):
    lease: Lease
    topic: str
    message: Message


async def receive(caller: Caller, fields: Object) -> Answer:
    raw = "raw_answer" in fields
    limit = within(fields, "limit", 1 if raw else RECEIVED_DEFAULT, 1, 1 if raw else LEASES_AT_ONCE_MAX)
    wait, lease_seconds = wait_of(fields), within(fields, "lease_seconds", None, 1, LEASE_SECONDS_MAX)
    consumer = text(fields, "consumer", "")
    if len(consumer) > TOPIC_NAME_CHARACTERS_MAX:
        raise RequestInvalid(f"consumer has {len(consumer)} characters; the maximum is {TOPIC_NAME_CHARACTERS_MAX}")
    leasing = caller.session.leases
    with caller.face.waits():
        parts = await leasing.receive(
            text(fields, "topic"),
            text(fields, "subscription"),
            consumer=consumer,
            limit=limit,
            wait=wait,
            lease_seconds=lease_seconds,
        )
    leases = [lease for part in parts for lease in part.leases]
    try:
        await caller.face.turns.begin()  # many requests may have waited for the same messages
        found = await _messages_of(caller, parts)
        answer = await _as_bytes(found) if raw else await _as_json(caller, found)
    except BaseException:
        leasing.release(leases)
        raise
    taken = {each.lease for each in found}
    leasing.release([lease for lease in leases if lease not in taken])
    return answer


async def _messages_of(caller: Caller, parts: Sequence[Received]) -> list[_Leased]:
    """Messages until the answer is large enough. Batches that are expensive to unpack are unpacked off the loop."""
    found: list[_Leased] = []
    leasing, offload = caller.session.leases, caller.face.door.offload
    size = 0
    for topic, delivery, leases in parts:
        if size >= RECEIVED_BYTES_MAX:
            break
        batch = delivery.batch
        heavy = batch.codec is not Codec.NONE or batch.size > DECODED_BYTES or batch.count > MESSAGES_AT_ONCE
        try:
            messages = await offload.run(_cut, delivery) if heavy else _cut(delivery)
        except (BatchInvalid, BatchDamaged) as error:  # the producer sent an invalid batch: others must not wait for it
            leasing.fail(leases, str(error))
            continue
        for lease, message in zip(leases, messages, strict=True):
            if leasing.is_open(lease) and size < RECEIVED_BYTES_MAX:
                found.append(_Leased(lease, str(topic), message))
                size += len(message.payload or b"") + len(message.key or b"")
    return found


def _cut(delivery: Delivery) -> list[Message]:
    return list(delivery.cut().messages())


async def _as_json(caller: Caller, found: Sequence[_Leased]) -> Answer:
    return await caller.face.door.offload.run(_json_of, found) if len(found) > 1 else _json_of(found)


def _json_of(found: Sequence[_Leased]) -> Answer:
    messages = [
        {"lease": str(each.lease.token), "topic": each.topic, "attempt": each.lease.attempt, **shown(each.message)}
        for each in found
    ]
    return answer_of(200, {"messages": messages})


async def _as_bytes(found: Sequence[_Leased]) -> Answer:
    if not found:
        return Answer(204, b"")
    [(lease, topic, message)] = found
    headers = {
        "Danube-Lease": str(lease.token),
        "Danube-Topic": topic,
        "Danube-Offset": str(message.offset),
        "Danube-Attempt": str(lease.attempt),
    }
    key = None if message.key is None else quote_from_bytes(message.key, safe="")
    if key is not None and len(key) <= _KEY_HEADER_BYTES_MAX:
        headers["Danube-Key"] = key
    if message.payload is None:
        headers["Danube-Tombstone"] = "true"
    return Answer(200, message.payload or b"", RAW, headers)


# -- what becomes of them ----------------------------------------------------------------------------------------------


async def ack(caller: Caller, fields: Object) -> Answer:
    leases = _leases_of(fields)
    ended = await caller.session.leases.ack(text(fields, "topic"), text(fields, "subscription"), leases)
    return answer_of(200, {"acked": len(leases) - len(ended), "ended": ended})


async def nack(caller: Caller, fields: Object) -> Answer:
    leases, delay = _leases_of(fields), within(fields, "delay_seconds", 0, 0, LEASE_SECONDS_MAX)
    named, reason = (text(fields, "topic"), text(fields, "subscription")), text(fields, "reason", "")
    ended = caller.session.leases.nack(*named, leases, delay, reason)
    return answer_of(200, {"nacked": len(leases) - len(ended), "ended": ended})


async def extend(caller: Caller, fields: Object) -> Answer:
    leases, seconds = _leases_of(fields), within(fields, "lease_seconds", ..., 1, LEASE_SECONDS_MAX)
    ended = caller.session.leases.extend(text(fields, "topic"), text(fields, "subscription"), leases, seconds)
    return answer_of(200, {"extended": len(leases) - len(ended), "ended": ended})


def _leases_of(fields: Object) -> list[str]:
    one, several = text(fields, "lease", None), field(fields, "leases", list, None)
    if (one is None) == (several is None):
        raise RequestInvalid("give either `lease` in the query or `leases` in the body")
    found = [one] if several is None else several
    if not 1 <= len(found) <= LEASES_AT_ONCE_MAX or not all(isinstance(each, str) for each in found):
        raise RequestInvalid(f"leases must be 1 to {LEASES_AT_ONCE_MAX} strings")
    return list(dict.fromkeys(found))
