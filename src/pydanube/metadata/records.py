"""What is logged: decided transactions, and sessions that begin and end; as values, as bytes, and their limits.

A transaction is checked here before it is decided. Bytes that this version cannot read give a typed error.
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
_CHANGES, _SESSION_OPENED, _SESSION_ENDED = range(1, 4)  # the first byte of a record
_CHANGES_HEAD = struct.Struct("<BQQQI")  # session, number and answered of a repeat; number of changes
_OPENED = struct.Struct("<Bd")  # seconds; the holder follows
_ENDED = struct.Struct("<BQ")  # session
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


class Repeat(NamedTuple):
    """Names a transaction, so that it is made once although it is asked for again after a lost answer."""

    session: int
    number: int  # from 1, and higher for each transaction of the session
    answered: int = 0  # the answers to all up to this number have arrived, so they need not be remembered


class Changes(NamedTuple):
    """A decided transaction, which takes effect completely or not at all."""

    changes: tuple[KeyChange, ...]
    repeat: Repeat | None = None


class SessionOpened(NamedTuple):
    """A session begins. Its number is the index of this record in the log, so no two sessions have the same."""

    seconds: float  # after which it ends, unless it is kept alive
    holder: str  # the node that opened it; empty if it is none


class SessionEnded(NamedTuple):
    """A session ends, and all keys that are bound to it are deleted."""

    session: int


Record = Changes | SessionOpened | SessionEnded


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
    total = 0
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
        total += len(value)
    if total > METADATA_TRANSACTION_BYTES_MAX:
        raise MetadataInvalid(f"the transaction has {total} bytes; the maximum is {METADATA_TRANSACTION_BYTES_MAX}")
    if len({key for key, _ in changes}) < len(changes):
        raise MetadataInvalid("a transaction can change a key only once")


def encode(record: Record) -> bytes:
    match record:
        case Changes(changes, repeat):
            return _encode_changes(changes, repeat or Repeat(NO_SESSION, 0))
        case SessionOpened(seconds, holder):
            return _OPENED.pack(_SESSION_OPENED, seconds) + holder.encode()
        case SessionEnded(session):
            return _ENDED.pack(_SESSION_ENDED, session)


def _encode_changes(changes: Sequence[KeyChange], repeat: Repeat) -> bytes:
    parts = [_CHANGES_HEAD.pack(_CHANGES, *repeat, len(changes))]
    for key, value, session in changes:
        name = key.encode()
        parts.append(_CHANGE.pack(len(name), _GONE if value is None else len(value), session))
        parts.append(name)
        if value is not None:
            parts.append(value)
    return b"".join(parts)


def decode(payload: bytes) -> Record:
    """Returns what `encode` accepts, or raises `MetadataDamaged`, whatever the bytes are."""
    kind = payload[0] if payload else 0
    try:
        if kind == _CHANGES:
            return _decode_changes(payload)
        if kind == _SESSION_OPENED:
            _, seconds = _OPENED.unpack_from(payload)
            return SessionOpened(seconds, payload[_OPENED.size :].decode())
        if kind == _SESSION_ENDED:
            return SessionEnded(_ENDED.unpack(payload)[1])
    except (struct.error, UnicodeDecodeError, MetadataInvalid) as error:
        raise MetadataDamaged(f"a record of the metadata log cannot be read: {error}") from None
    raise MetadataDamaged(f"this version does not know records of kind {kind}; a newer one may have written the log")


def _decode_changes(payload: bytes) -> Changes:
    _, session_of_repeat, number, answered, count = _CHANGES_HEAD.unpack_from(payload)
    position = _CHANGES_HEAD.size
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
    if position != len(payload):
        raise MetadataDamaged(f"a record of the metadata log has {len(payload)} bytes, but describes {position}")
    return Changes(tuple(changes), Repeat(session_of_repeat, number, answered) if number else None)
