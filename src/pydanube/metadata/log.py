"""The bytes of a metadata file: a header, a snapshot, then groups of records, each group one write and one sync.

A record is a Raft entry: term, index, the hash of all before it and itself, cluster and node. Groups start on a block
and are written one at a time, each synced before the next, so a whole group proves that those before it were durable.
A sector is written completely or not at all, and was zero before. That distinguishes a torn tail, which is cut off,
from damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from pydanube.base.checksum import crc32c
from pydanube.base.errors import MetadataDamaged
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import BLOCK_BYTES, METADATA_SNAPSHOT_CHUNK_BYTES
from pydanube.metadata.records import Entry, KeyChange, decode_changes

_FILE_MAGIC = b"DML1"
_GROUP_MAGIC = (
    b"DMG1"  # at the end of the header, and its last byte is not zero: a header that was not written ends with zero
)
_TRAILER = b"DMT1"
_FILE = struct.Struct("<4sIQQ16s16sQQQ16sQQ16s")  # magic, crc, then `LogHeader`
_GROUP = struct.Struct("<IIQQII4s")  # crc, records, salt, index before it, bytes of records, zero, magic
_RECORD = struct.Struct("<IQQ16s16s")  # bytes of the payload, term, index, cluster, node; then the hash
_ROW = struct.Struct("<HIQQ")  # bytes of key and value, version, session
ROW_BYTES = _ROW.size
HASH_BYTES = 16
SECTOR_BYTES = 512
NO_HASH = bytes(HASH_BYTES)


class LogPoint(NamedTuple):
    """A point of the log: the last revision, which is its Raft index, its term, and the hash of everything so far."""

    term: int = 0
    revision: int = 0
    chain: bytes = NO_HASH


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The header of one file. `start` is the point that its snapshot was taken at."""

    generation: int
    salt: int  # random; every group repeats it, so that no value can pose as a group of this file
    cluster: bytes
    node: NodeIdentity
    capacity: int  # bytes reserved before it got its name; a shorter file was truncated
    start: LogPoint
    keys: int
    snapshot_bytes: int
    digest: bytes  # of the snapshot

    @property
    def log_start(self) -> int:
        return blocks(BLOCK_BYTES + self.snapshot_bytes)

    def encode(self) -> bytes:
        fields = (self.capacity, *self.start, self.keys, self.snapshot_bytes, self.digest)
        body = _FILE.pack(_FILE_MAGIC, 0, self.generation, self.salt, self.cluster, bytes.fromhex(self.node), *fields)
        body = body.ljust(BLOCK_BYTES, b"\0")
        return body[:4] + crc32c(body[8:]).to_bytes(4, "little") + body[8:]


@dataclass(slots=True)
class LogContent:
    """The content of a file, all of it checked."""

    header: LogHeader
    rows: list[tuple[str, Entry, int]]
    records: list[tuple[int, tuple[KeyChange, ...]]]  # revision and changes
    point: LogPoint  # after the last record
    last: int  # where the last group starts, which nothing after it proves durable; `end` if there is none
    covered: bool  # the last group is a mark, or there is no group
    end: int  # where the next group goes
    torn: int  # the end of a partly written group that was never acknowledged; `end` if there is none


def blocks(length: int) -> int:
    """`length` rounded up to whole blocks."""
    return -(-length // BLOCK_BYTES) * BLOCK_BYTES


# -- writing -----------------------------------------------------------------------------------------------------------


def encode_record(header: LogHeader, term: int, before: LogPoint, payload: bytes) -> tuple[bytes, LogPoint]:
    """The record after `before`, and the point after it."""
    index = before.revision + 1
    head = _RECORD.pack(len(payload), term, index, header.cluster, bytes.fromhex(header.node))
    chain = blake2b(before.chain + head + payload, digest_size=HASH_BYTES).digest()
    return head + chain + payload, LogPoint(term, index, chain)


def group_length(record_bytes: int) -> int:
    return blocks(_GROUP.size + record_bytes + len(_TRAILER))


def record_length(payload: bytes) -> int:
    return _RECORD.size + HASH_BYTES + len(payload)


def encode_group(header: LogHeader, index: int, records: Sequence[bytes]) -> bytes:
    """One write: records that follow `index`. Without records it is a mark, which covers the group before it."""
    body = b"".join(records)
    rest = _GROUP.pack(0, len(records), header.salt, index, len(body), 0, _GROUP_MAGIC)[4:]
    group = crc32c(rest).to_bytes(4, "little") + rest + body + _TRAILER
    return group.ljust(group_length(len(body)), b"\0")


def encode_snapshot(rows: Iterable[tuple[str, Entry, int]]) -> Iterator[bytes]:
    """In chunks, so that encoding does not block the loop for long."""
    parts: list[bytes] = []
    size = 0
    for key, entry, session in rows:
        name = key.encode()
        parts += [_ROW.pack(len(name), len(entry.value), entry.version, session), name, entry.value]
        size += _ROW.size + len(name) + len(entry.value)
        if size >= METADATA_SNAPSHOT_CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


# -- reading -----------------------------------------------------------------------------------------------------------


def decode_header(data: bytes, generation: int) -> LogHeader:
    """The header of the file with that number, from its first block."""
    if len(data) < BLOCK_BYTES:
        raise MetadataDamaged(f"file {generation} of the metadata log is cut")
    magic, crc, number, salt, cluster, node, capacity, term, index, chain, keys, size, digest = _FILE.unpack_from(data)
    if magic != _FILE_MAGIC or crc != crc32c(data[8:BLOCK_BYTES]):
        raise MetadataDamaged(f"the header of file {generation} of the metadata log is damaged")
    if number != generation:
        raise MetadataDamaged(f"file {generation} of the metadata log is file {number} under another name")
    start = LogPoint(term, index, chain)
    return LogHeader(generation, salt, cluster, NodeIdentity(node.hex()), capacity, start, keys, size, digest)


def decode_file(data: bytes, generation: int) -> LogContent:
    """The whole file, or `MetadataDamaged`: no part of it is served if another cannot be trusted."""
    header = decode_header(data, generation)
    if len(data) < header.capacity:
        raise MetadataDamaged(f"the metadata log is cut: {len(data)} of {header.capacity} bytes are left")
    snapshot = data[BLOCK_BYTES : BLOCK_BYTES + header.snapshot_bytes]
    if blake2b(snapshot, digest_size=HASH_BYTES).digest() != header.digest:
        raise MetadataDamaged("the snapshot of the metadata is damaged")
    rows = list(_rows(snapshot))
    content = LogContent(header, rows, [], header.start, 0, True, header.log_start, 0)
    content.last = content.end
    while (length := _read_group(data, content)) is not None:
        content.last = content.end
        content.end += length
    if _later_group(data, content):
        raise MetadataDamaged(f"the metadata log is damaged at byte {content.end}, but continues after it")
    content.torn = max(content.end, len(data.rstrip(b"\0")))
    return content


def _rows(snapshot: bytes) -> Iterator[tuple[str, Entry, int]]:
    position, end = 0, len(snapshot)
    while position < end:
        key_bytes, value_bytes, version, session = _ROW.unpack_from(snapshot, position)
        middle = position + _ROW.size + key_bytes
        after = middle + value_bytes
        key = snapshot[position + _ROW.size : middle].decode()
        yield key, Entry(snapshot[middle:after], version), session
        position = after


def _read_group(data: bytes, content: LogContent) -> int | None:
    """Adds the group at `end` and returns its length; None if no group was completely written there."""
    at, header = content.end, content.header
    head = data[at : at + _GROUP.size]
    if len(head) < _GROUP.size or head[-1] == 0:
        return None
    found = _group_head(head, header.salt)
    if found is None or found[1] != content.point.revision:
        raise MetadataDamaged(f"the metadata log is damaged at byte {at}")
    count, _, size = found
    start, end = at + _GROUP.size, at + _GROUP.size + size
    try:
        records, point = _records(data[start:end], count, header, content.point)
    except MetadataDamaged:
        if _is_torn(data, at, end + len(_TRAILER)):
            return None
        raise
    if data[end : end + len(_TRAILER)] != _TRAILER:
        if _is_torn(data, at, end + len(_TRAILER)):
            return None
        raise MetadataDamaged(f"the metadata log is damaged at byte {end}")
    content.records += records
    content.point = point
    content.covered = not records
    return group_length(size)


def _group_head(head: bytes, salt: int) -> tuple[int, int, int] | None:
    """Number of records, index before them, and their bytes; None if it is not a group header of this file."""
    crc, count, found, index, size, zero, magic = _GROUP.unpack(head)
    if magic != _GROUP_MAGIC or found != salt or zero != 0 or crc != crc32c(head[4:]):
        return None
    return count, index, size


def _records(
    body: bytes, count: int, header: LogHeader, before: LogPoint
) -> tuple[list[tuple[int, tuple[KeyChange, ...]]], LogPoint]:
    records = []
    node, position = bytes.fromhex(header.node), 0
    term_before, index_before, chain_before = before
    for _ in range(count):
        payload_at = position + _RECORD.size + HASH_BYTES
        if payload_at > len(body):
            raise MetadataDamaged(f"a record after revision {index_before} is damaged")
        size, term, index, cluster, wrote = _RECORD.unpack_from(body, position)
        head_end = position + _RECORD.size
        payload = body[payload_at : payload_at + size]
        chain = blake2b(chain_before + body[position:head_end] + payload, digest_size=HASH_BYTES).digest()
        if chain != body[head_end:payload_at] or index != index_before + 1 or term < term_before:
            raise MetadataDamaged(f"the record of revision {index_before + 1} is damaged")
        if cluster != header.cluster or wrote != node:
            raise MetadataDamaged(f"the record of revision {index} belongs to another cluster or node")
        records.append((index, decode_changes(payload)))
        position = payload_at + size
        term_before, index_before, chain_before = term, index, chain
    if position != len(body):
        raise MetadataDamaged(f"a group has extra data after its records, after revision {index_before}")
    return records, LogPoint(term_before, index_before, chain_before)


def _is_torn(data: bytes, start: int, end: int) -> bool:
    """Whether a part of the group never landed: its end is missing, or a whole sector of it is."""
    if end > len(data) or data[end - 1] == 0:
        return True
    return any(not any(data[at : min(at + SECTOR_BYTES, end)]) for at in range(start, end, SECTOR_BYTES))


def _later_group(data: bytes, content: LogContent) -> bool:
    """Whether a group of this file follows what looks like the end."""
    places = range(content.end + BLOCK_BYTES, len(data) - _GROUP.size + 1, BLOCK_BYTES)
    magic_at = _GROUP.size - len(_GROUP_MAGIC)
    return any(
        data[at + magic_at : at + _GROUP.size] == _GROUP_MAGIC
        and _group_head(data[at : at + _GROUP.size], content.header.salt) is not None
        for at in places
    )
