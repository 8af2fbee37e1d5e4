"""Consuming over HTTP: messages under leases, as JSON or a single one as bytes; and acking, nacking and extending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from pydanube.api.http.answer import RAW, Answer, answer_of
from pydanube.api.http.face import Caller
from pydanube.api.http.messages import MESSAGES_AT_ONCE, shown
from pydanube.api.http.router import OtherAnswer
from pydanube.base.errors import BatchDamaged, BatchInvalid, RequestInvalid
from pydanube.base.limits import (
    DECODED_BYTES,
    KIB,
    RECEIVED_BYTES_MAX,
)
from pydanube.broker.door.leasing import Lease
from pydanube.broker.door.leasing import Received as ReceivedPart
from pydanube.broker.door.values import Delivery
from pydanube.operations.messages import (
    RECEIVED_DEFAULT,
    Acked,
    AckLeases,
    Extended,
    ExtendLeases,
    Nacked,
    NackLeases,
    Receive,
    Received,
    ReceivedMessage,
)
from pydanube.wire.batch import Codec, Message

_KEY_HEADER_BYTES_MAX = 4 * KIB  # HTTP clients refuse long header lines; JSON can have keys of any length


AS_BYTES = OtherAnswer(
    RAW,
    {
        "Danube-Lease": "lease of the message",
        "Danube-Topic": "its topic or partition",
        "Danube-Offset": "its offset",
        "Danube-Attempt": "how often it was delivered before",
        "Danube-Key": "its key, percent-encoded; absent without a key, and for one of more than 4 KiB",
        "Danube-Tombstone": "`true` if the message has no value",
    },
    "No message arrived in time.",
)


class _Leased(NamedTuple):
    lease: Lease
    topic: str
    message: Message


async def receive(caller: Caller, request: Receive) -> Answer:
    raw, limit = caller.wants_raw, request.limit
    if raw and limit not in (None, 1):
        raise RequestInvalid(f"limit must be 1 if the answer is bytes, not {limit}")
    leasing = caller.session.leases
    with caller.face.waits():
        parts = await leasing.receive(
            request.topic,
            request.subscription,
            consumer=request.consumer,
            limit=1 if raw else limit or RECEIVED_DEFAULT,
            wait=float(request.wait),
            lease_seconds=request.lease_seconds,
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


async def _messages_of(caller: Caller, parts: Sequence[ReceivedPart]) -> list[_Leased]:
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
        ReceivedMessage(lease=str(each.lease.token), attempt=each.lease.attempt, **shown(each.topic, each.message))
        for each in found
    ]
    return answer_of(200, Received(messages))


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


async def ack(caller: Caller, request: AckLeases) -> Answer:
    leases = _leases_of(request)
    ended = await caller.session.leases.ack(request.topic, request.subscription, leases)
    return answer_of(200, Acked(len(leases) - len(ended), ended))


async def nack(caller: Caller, request: NackLeases) -> Answer:
    leases, delay = _leases_of(request), request.delay_seconds
    ended = caller.session.leases.nack(request.topic, request.subscription, leases, delay, request.reason)
    return answer_of(200, Nacked(len(leases) - len(ended), ended))


async def extend(caller: Caller, request: ExtendLeases) -> Answer:
    leases = _leases_of(request)
    ended = caller.session.leases.extend(request.topic, request.subscription, leases, request.lease_seconds)
    return answer_of(200, Extended(len(leases) - len(ended), ended))


def _leases_of(request: AckLeases | NackLeases | ExtendLeases) -> list[str]:
    if (request.lease is None) == (request.leases is None):
        raise RequestInvalid("give either `lease` in the query or `leases` in the body")
    return list(dict.fromkeys(request.leases or [request.lease or ""]))
