"""One transaction as a value and as bytes. Owns what a transaction may be; knows neither versions nor files.

Whoever decides a transaction checks it here first, and whoever reads one back gets a typed error for bytes that no
version wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pydanube.base.errors import MetadataDamaged, MetadataInvalid
from pydanube.base.limits import (
    METADATA_KEY_BYTES_MAX,
    METADATA_OPERATIONS_MAX,
    METADATA_TRANSACTION_BYTES_MAX,
    METADATA_VALUE_BYTES_MAX,
)

NO_SESSION = 0
_COUNT = struct.Struct("<I")
_CHANGE = struct.Struct("<HIQ")  # bytes of the key, bytes of the value or GONE, session
_GONE = 0xFFFFFFFF

Check = tuple[str, int]
ChangeAsked = tuple[str, bytes | None]


class Entry(NamedTuple):
    """What a key holds. The version is the revision that wrote it, so that no two values ever share one."""

    value: bytes
    version: int


class Change(NamedTuple):
    """One key of a transaction; no value deletes it. It goes with its session, if it has one."""

    key: str
    value: bytes | None
    session: int = NO_SESSION


class Transaction(NamedTuple):
    """A decided transaction: it happens as a whole, and it is revision `revision`."""

    revision: int
    changes: tuple[Change, ...]
    payload: bytes  # the changes as they are logged


def check_key(key: str) -> None:
    if not isinstance(key, str):
        raise MetadataInvalid(f"a key must be a string, got {type(key).__name__}")
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise MetadataInvalid("a key is not UTF-8") from None
    if not 1 <= length <= METADATA_KEY_BYTES_MAX:
        raise MetadataInvalid(f"a key must have 1 to {METADATA_KEY_BYTES_MAX} bytes, got {length}")


def check_transaction(checks: Sequence[Check], changes: Sequence[ChangeAsked]) -> None:
    if len(checks) + len(changes) > METADATA_OPERATIONS_MAX:
        raise MetadataInvalid(
            f"{len(checks)} checks and {len(changes)} changes; the maximum is {METADATA_OPERATIONS_MAX}"
        )
    for key, version in checks:
        check_key(key)
        if version < 0:
            raise MetadataInvalid(f"{version} is not a valid version")
    for key, value in changes:
        check_key(key)
        if value is None:
            continue
        if not isinstance(value, bytes):
            raise MetadataInvalid(f"the value of {key!r} must be bytes, got {type(value).__name__}")
        if len(value) > METADATA_VALUE_BYTES_MAX:
            raise MetadataInvalid(
                f"the value of {key!r} has {len(value)} bytes; the maximum is {METADATA_VALUE_BYTES_MAX}"
            )
    if len({key for key, _ in changes}) < len(changes):
        raise MetadataInvalid("a transaction can change a key only once")


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Raises `MetadataInvalid` if they are too large together."""
    parts = [_COUNT.pack(len(changes))]
    for key, value, session in changes:
        name = key.encode()
        parts.append(_CHANGE.pack(len(name), _GONE if value is None else len(value), session))
        parts.append(name)
        if value is not None:
            parts.append(value)
    payload = b"".join(parts)
    if len(payload) > METADATA_TRANSACTION_BYTES_MAX:
        raise MetadataInvalid(
            f"the transaction has {len(payload)} bytes; the maximum is {METADATA_TRANSACTION_BYTES_MAX}"
        )
    return payload


def decode_changes(payload: bytes) -> tuple[Change, ...]:
    """Whatever the bytes are, either changes that `encode_changes` could have got, or `MetadataDamaged`."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        place = _COUNT.size
        changes = []
        for _ in range(min(count, METADATA_OPERATIONS_MAX + 1)):
            key_bytes, value_bytes, session = _CHANGE.unpack_from(payload, place)
            place += _CHANGE.size
            key = payload[place : place + key_bytes].decode()
            place += key_bytes
            value: bytes | None = None
            if value_bytes != _GONE:
                value = payload[place : place + value_bytes]
                place += value_bytes
            changes.append(Change(key, value, session))
        check_transaction((), [(change.key, change.value) for change in changes])
    except (struct.error, UnicodeDecodeError, MetadataInvalid) as error:
        raise MetadataDamaged(f"a record of the metadata log cannot be read: {error}") from None
    if place != len(payload):
        raise MetadataDamaged(f"a record of the metadata log has {len(payload)} bytes, but describes {place}")
    return tuple(changes)
