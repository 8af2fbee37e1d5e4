"""The bytes of a snapshot of the metadata: members and sessions first, then every key in order."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from pydanube.base.errors import MetadataDamaged
from pydanube.metadata.records import Entry
from pydanube.raft.entries import Members

_HEAD = struct.Struct("<I")  # bytes of the head
_ROW = struct.Struct("<HIQQ")  # bytes of key and value, version, session
ROW_BYTES = _ROW.size

Row = tuple[str, Entry, int]  # a key, its value and version, and its session


class SessionRow(msgspec.Struct, frozen=True, array_like=True):
    """A session, and the answers that it may ask for again."""

    identity: int
    seconds: float
    holder: str
    answered: int
    answers: dict[int, int]  # revision by number


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    members: Members
    sessions: tuple[SessionRow, ...] = ()

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return _HEAD.pack(len(body)) + body


class SnapshotContent(NamedTuple):
    head: SnapshotHead
    rows: list[Row]


def encode_rows(rows: Iterable[Row]) -> bytes:
    parts: list[bytes] = []
    for key, entry, session in rows:
        name = key.encode()
        parts += (_ROW.pack(len(name), len(entry.value), entry.version, session), name, entry.value)
    return b"".join(parts)


def decode_snapshot(snapshot: bytes) -> SnapshotContent:
    """Reads bytes that are known to be undamaged."""
    head, rows_at = decode_head(snapshot)
    return SnapshotContent(head, list(decode_rows(snapshot, rows_at)))


def decode_head(snapshot: bytes | bytearray) -> tuple[SnapshotHead, int]:
    """The head, and where the rows begin. Raises `MetadataDamaged` for anything that `encode` does not write."""
    try:
        (size,) = _HEAD.unpack_from(snapshot)
        rows_at = _HEAD.size + size
        return msgspec.msgpack.decode(snapshot[_HEAD.size : rows_at], type=SnapshotHead), rows_at
    except (struct.error, ValueError) as error:
        raise MetadataDamaged(f"the head of a snapshot of the metadata cannot be read: {error}") from None


def decode_rows(snapshot: bytes | bytearray, position: int) -> Iterator[Row]:
    """The rows, one by one."""
    try:
        yield from _rows(snapshot, position)
    except (struct.error, ValueError) as error:
        raise MetadataDamaged(f"the snapshot of the metadata cannot be read: {error}") from None


def _rows(snapshot: bytes | bytearray, position: int) -> Iterator[Row]:
    end = len(snapshot)
    while position < end:
        key_bytes, value_bytes, version, session = _ROW.unpack_from(snapshot, position)
        middle = position + _ROW.size + key_bytes
        after = middle + value_bytes
        key = snapshot[position + _ROW.size : middle].decode()
        yield key, Entry(bytes(snapshot[middle:after]), version), session
        position = after
