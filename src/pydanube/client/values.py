"""What a program hands to a producer, as a batch takes it. Whatever cannot be sent is refused here, by the call.

So it spoils no other message of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pydanube.base.errors import ArgumentInvalid, BatchInvalid
from pydanube.wire.batch import Codec

When = int | datetime
Duration = float | timedelta  # a number is seconds


def codec_of(name: str) -> Codec:
    try:
        return Codec[name.upper()]
    except KeyError:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise BatchInvalid(f"unknown compression {name!r}; choose {known}") from None


def payload_of(payload: Any) -> bytes | None:
    if payload is None or isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    kind = type(payload).__name__
    raise TypeError(f"a payload must be bytes or a string, got {kind}; give the producer a serializer for other values")


def key_of(key: str | bytes) -> bytes:
    if isinstance(key, bytes):
        return key
    if not isinstance(key, str):
        raise TypeError(f"a key must be a string or bytes, got {type(key).__name__}")
    return key.encode("utf-8", "surrogateescape")


def attributes_of(attributes: Mapping[Any, Any]) -> dict[str, str]:
    texts = dict(attributes)
    for name, text in texts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"attributes must map strings to strings; {name!r} does not")
        name.encode()  # a lone surrogate cannot be sent, and must not spoil the batch of others
        text.encode()
    return texts


def seconds_of(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def plain(value: Any, name: str = "") -> Any:
    """Policies and options as the broker takes them: a `timedelta` in seconds if its name says so, or microseconds."""
    if isinstance(value, timedelta):
        return value // timedelta(seconds=1) if name.endswith("_seconds") else value // timedelta(microseconds=1)
    return {each: plain(inner, each) for each, inner in value.items()} if isinstance(value, Mapping) else value


def microseconds_of(time: When) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise TypeError("a datetime needs a time zone")
        return round(time.timestamp() * 1_000_000)
    if not isinstance(time, int):
        raise ArgumentInvalid(f"a time must be microseconds since 1970 or a datetime with a time zone, got {time!r}")
    if not -(1 << 63) <= time < 1 << 63:
        raise BatchInvalid(f"{time} is not a valid time in microseconds")
    return time
