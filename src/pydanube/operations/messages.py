"""Operations on messages over HTTP: publishing, looking at them, and receiving them under leases."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pydanube.base.limits import (
    LEASE_SECONDS_MAX,
    LEASES_AT_ONCE_MAX,
    PEEK_WAIT_SECONDS_MAX,
    PEEKED_MESSAGES_MAX,
    PUBLISHED_MESSAGES_MAX,
    TOPIC_NAME_CHARACTERS_MAX,
)
from pydanube.operations.fields import End, Offset
from pydanube.operations.operation import Answer, Request, operation

RECEIVED_DEFAULT = 10  # messages, unless the request says how many

Time = Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="microseconds since 1970")]
Wait = Annotated[int, Meta(ge=0, le=int(PEEK_WAIT_SECONDS_MAX), description="seconds to wait for the first message")]
Lease = Annotated[str, Meta(description="lease of one message")]
Leases = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=LEASES_AT_ONCE_MAX,
        description="leases of messages, instead of `lease` in the query",
    ),
]


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish. Bytes that are not UTF-8 are in `key_base64` and `value_base64`."""

    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    attributes: dict[str, str] | None = None
    event_time: Time | None = None
    delivery_time: Time | None = None


NewMessages = Annotated[list[NewMessage], Meta(min_length=1, max_length=PUBLISHED_MESSAGES_MAX)]


class PublishedMessage(Answer):
    topic: Annotated[str, Meta(description="the topic or partition that has it")]
    offset: Annotated[int | None, Meta(description="null if the topic is not reliable")]


class Published(Answer):
    messages: list[PublishedMessage]
    durability: Annotated[str, Meta(description="what is certain about these messages")]


class StoredMessage(Answer, kw_only=True):
    """A message as JSON, over HTTP and in the command line.

    `topic` names its partition, if it has one. Bytes that are not UTF-8 are in `key_base64` and `value_base64`.
    """

    topic: str
    offset: int
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    value_cut_from_bytes: Annotated[
        int | UnsetType, Meta(description="bytes of the value, if only its beginning is shown")
    ] = UNSET
    attributes: dict[str, str]
    publish_time: Annotated[int, Meta(description="when the producer sent it, in microseconds since 1970")]
    append_time: Annotated[int, Meta(description="when the broker stored it, in microseconds since 1970")]
    event_time: Annotated[int | None, Meta(description="as the producer states it, in microseconds since 1970")]
    delivery_time: Annotated[int | None, Meta(description="not delivered earlier, in microseconds since 1970")]
    producer: Annotated[int, Meta(description="number of the producer")]
    sequence: Annotated[int, Meta(description="number of the message in its producer's order")]


class Peeked(Answer):
    messages: list[StoredMessage]
    next: Annotated[int, Meta(description="the offset after the last of these messages")]
    first: Annotated[int, Meta(description="the first offset that still exists")]
    end: Annotated[int, Meta(description="the offset after the last message")]


class ReceivedMessage(StoredMessage, kw_only=True):
    lease: Annotated[str, Meta(description="acknowledges, nacks or extends this message")]
    attempt: Annotated[int, Meta(description="how often it was delivered before")]


class Received(Answer):
    messages: list[ReceivedMessage]


class Acked(Answer):
    acked: Annotated[int, Meta(description="number of messages")]
    ended: Annotated[list[str], Meta(description="leases that had already ended")]


class Nacked(Answer):
    nacked: Annotated[int, Meta(description="number of messages")]
    ended: Annotated[list[str], Meta(description="leases that had already ended")]


class Extended(Answer):
    extended: Annotated[int, Meta(description="number of messages")]
    ended: Annotated[list[str], Meta(description="leases that had already ended")]


class ReadMessage(Protocol):
    """What the broker and the client agree on in their classes of messages: everything but key and payload."""

    @property
    def offset(self) -> int: ...
    @property
    def attributes(self) -> Mapping[str, str] | None: ...
    @property
    def publish_time(self) -> int: ...
    @property
    def append_time(self) -> int: ...
    @property
    def event_time(self) -> int | None: ...
    @property
    def delivery_time(self) -> int | None: ...
    @property
    def producer(self) -> int: ...
    @property
    def sequence(self) -> int: ...


def stored_fields(topic: str, message: ReadMessage, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """The fields of a `StoredMessage`."""
    return {
        "topic": topic,
        "offset": message.offset,
        **text_or_base64("key", key),
        **text_or_base64("value", value),
        "attributes": dict(message.attributes or {}),
        "publish_time": message.publish_time,
        "append_time": message.append_time,
        "event_time": message.event_time,
        "delivery_time": message.delivery_time,
        "producer": message.producer,
        "sequence": message.sequence,
    }


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | UnsetType | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {name: UNSET, f"{name}_base64": b64encode(data).decode("ascii")}


@operation("publish", "Publish messages and wait until they are durable", changes=True)
class Publish(Request[Published]):
    topic: str
    key: Annotated[str, Meta(description="key of the message, if the body is its raw bytes")] | None = None
    messages: NewMessages | UnsetType = UNSET


@operation("peek", "Read messages without a subscription")
class Peek(Request[Peeked]):
    topic: str
    offset: Annotated[End | Offset, Meta(description="`earliest` (the default), `latest`, or an offset")] = "earliest"
    limit: Annotated[int, Meta(ge=1, le=PEEKED_MESSAGES_MAX, description="maximum number of messages")] = 10
    wait: Wait = 0


@operation("receive", "Receive messages under a lease", changes=True)
class Receive(Request[Received]):
    topic: str
    subscription: str
    limit: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=LEASES_AT_ONCE_MAX,
                description=f"maximum number of messages; default {RECEIVED_DEFAULT}, and 1 as bytes",
            ),
        ]
        | None
    ) = None
    wait: Wait = 0
    lease_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=LEASE_SECONDS_MAX,
                description="duration of the lease in seconds; default: the ack timeout",
            ),
        ]
        | None
    ) = None
    consumer: Annotated[
        str,
        Meta(
            max_length=TOPIC_NAME_CHARACTERS_MAX,
            description="name of the consumer; requests with the same name count as one",
        ),
    ] = ""


@operation("ack", "Acknowledge messages by their leases", changes=True)
class AckLeases(Request[Acked]):
    topic: str
    subscription: str
    lease: Lease | None = None
    leases: Leases | None = None


@operation("nack", "Negatively acknowledge messages, to be delivered again", changes=True)
class NackLeases(Request[Nacked]):
    topic: str
    subscription: str
    lease: Lease | None = None
    leases: Leases | None = None
    delay_seconds: Annotated[
        int, Meta(ge=0, le=LEASE_SECONDS_MAX, description="seconds to wait before redelivery, at least")
    ] = 0
    reason: Annotated[str, Meta(description="why they failed; recorded in the dead letter")] = ""


@operation("extend", "Extend leases", changes=True)
class ExtendLeases(Request[Extended]):
    topic: str
    subscription: str
    lease_seconds: Annotated[
        int,
        Meta(ge=1, le=LEASE_SECONDS_MAX, description="new duration of the leases in seconds, from now"),
    ]
    lease: Lease | None = None
    leases: Leases | None = None
