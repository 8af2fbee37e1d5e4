"""Checks and converts the arguments that programs pass to the client.

What cannot be sent is refused here, by the call itself, so that it does not spoil other messages of its batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pydanube.base import units
from pydanube.base.errors import ArgumentInvalid, BatchInvalid, PolicyInvalid, SubscriptionOptionInvalid
from pydanube.base.keys import check_key
from pydanube.base.limits import SECOND
from pydanube.base.units import Duration as Duration
from pydanube.base.units import Size as Size
from pydanube.operations.operation import read
from pydanube.operations.options import OptionChanges
from pydanube.operations.policies import PolicyChanges
from pydanube.wire.batch import Codec

When = int | datetime


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
        return check_key(key)
    if not isinstance(key, str):
        raise TypeError(f"a key must be a string or bytes, got {type(key).__name__}")
    return check_key(key.encode("utf-8", "surrogateescape"))


def attributes_of(attributes: Mapping[Any, Any]) -> dict[str, str]:
    texts = dict(attributes)
    for name, text in texts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"attributes must map strings to strings; {name!r} does not")
        name.encode()  # raises for a lone surrogate, which cannot be sent
        text.encode()
    return texts


def seconds_of(duration: Duration) -> float:
    """A duration in seconds. Numbers are not checked: 0 may mean not to wait, infinity to wait forever."""
    if isinstance(duration, int | float):
        return duration
    try:
        return units.seconds_of(duration)
    except ValueError as error:
        raise ArgumentInvalid(str(error)) from None


def size_of(size: Size) -> int:
    try:
        return units.bytes_of(size)
    except ValueError as error:
        raise ArgumentInvalid(str(error)) from None


def policies_of(given: Mapping[str, Any] | None) -> PolicyChanges:
    """Policies by name, checked. Raises `PolicyInvalid`."""
    return read(PolicyChanges, _plain(given or {}), PolicyInvalid)


def options_of(given: Mapping[str, Any] | None) -> OptionChanges:
    """Options of a subscription by name, checked. Raises `SubscriptionOptionInvalid`."""
    return read(OptionChanges, _plain(given or {}), SubscriptionOptionInvalid)


def definition_of(given: str | Mapping[str, Any]) -> str:
    """The text of a definition, which may be given as the value that it is in JSON."""
    if isinstance(given, str):
        return given
    try:
        return json.dumps(given, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentInvalid(f"the definition cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """The values with each `timedelta` as seconds."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    return {each: _plain(inner) for each, inner in value.items()} if isinstance(value, Mapping) else value


def microseconds_of(time: When) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise TypeError("a datetime needs a time zone")
        return round(time.timestamp() * SECOND)
    if not isinstance(time, int):
        raise ArgumentInvalid(f"a time must be microseconds since 1970 or a datetime with a time zone, got {time!r}")
    if not -(1 << 63) <= time < 1 << 63:
        raise BatchInvalid(f"{time} is not a valid time in microseconds")
    return time
