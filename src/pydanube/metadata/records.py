"""One transaction as a value and as bytes, and its limits. Knows neither versions nor files.

A transaction is checked here before it is decided. Bytes that no version of this code wrote give a typed error.
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
RequestedChange = tuple[str, bytes | None]


class Entry(NamedTuple):
    """The value of a key. Its version is the revision that wrote it, so no two values have the same one."""

    value: bytes
    version: int


class KeyChange(NamedTuple):
    """A change of one key; None as a value deletes it. A key with a session is deleted when that ends."""

    key: str
    value: bytes | None
    session: int = NO_SESSION


class Transaction(NamedTuple):
    """A decided transaction, which takes effect completely or not at all."""

    revision: int
    changes: tuple[KeyChange, ...]
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


def check_transaction(checks: Sequence[Check], changes: Sequence[RequestedChange]) -> None:
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


def encode_changes(changes: Sequence[KeyChange]) -> bytes:
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


def decode_changes(payload: bytes) -> tuple[KeyChange, ...]:
    """Returns changes that `encode_changes` accepts, or raises `MetadataDamaged`, whatever the bytes are."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        position = _COUNT.size
        changes = []
        for _ in range(min(count, METADATA_OPERATIONS_MAX + 1)):
            key_bytes, value_bytes, session = _CHANGE.unpack_from(payload, position)
            position += _CHANGE.size
            key = payload[position : position + key_bytes].decode()
            position += key_bytes
            value: bytes | None = None
            if value_bytes != _GONE:
                value = payload[position : position + value_bytes]
                position += value_bytes
            changes.append(KeyChange(key, value, session))
        check_transaction((), [(change.key, change.value) for change in changes])
    except (struct.error, UnicodeDecodeError, MetadataInvalid) as error:
        raise MetadataDamaged(f"a record of the metadata log cannot be read: {error}") from None
    if position != len(payload):
        raise MetadataDamaged(f"a record of the metadata log has {len(payload)} bytes, but describes {position}")
    return tuple(changes)
