"""The bytes of a metadata file: a header, a snapshot, then groups of log entries, each group one write and one sync.

A group also has the term and vote of its node, how far the log is known to be committed, and where the log was cut
before its entries: only what is committed stays forever. Groups start on a block and are written one at a time, each
synced before the next, so a whole group proves that those before it were durable. A sector is written completely or
not at all, and was zero before. That distinguishes a torn tail, which is cut off, from damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from pydanube.base.checksum import crc32c
from pydanube.base.errors import MetadataDamaged
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import BLOCK_BYTES
from pydanube.metadata.snapshot import SnapshotContent, decode_snapshot
from pydanube.raft.entries import HASH_BYTES, Entry, Point, follows
from pydanube.raft.state import Hard

_FILE_MAGIC = b"DML2"
_GROUP_MAGIC = (
    b"DMG2"  # at the end of the header, and its last byte is not zero: a header that was not written ends with zero
)
_TRAILER = b"DMT2"
_FILE = struct.Struct("<4sIQQ16sQ16sQQQ16sQ16sIQQ16s")  # magic, crc, then `LogHeader`
_GROUP = struct.Struct("<IIQQIIQ16sQQ4s")  # crc, entries, salt, number, bytes, zero, term, vote, cut, committed, magic
_ENTRY = struct.Struct("<IQQB16s")  # bytes of the data, term, index, kind, chain
_NO_CUT = 2**64 - 1
_NO_VOTE = bytes(16)
SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The header of one file. `start` is the point that its snapshot was taken at."""

    generation: int
    salt: int  # random; every group repeats it, so that no value can pose as a group of this file
    cluster: bytes
    incarnation: int  # of the cluster: rises when it is recovered from the loss of its majority, or restored
    node: NodeIdentity
    capacity: int  # bytes reserved before it got its name; a shorter file was truncated
    start: Point
    hard: Hard
    groups: int  # that it had when it got its name
    keys: int
    snapshot_bytes: int
    digest: bytes  # of the snapshot

    @property
    def log_start(self) -> int:
        return blocks(BLOCK_BYTES + self.snapshot_bytes)

    def encode(self) -> bytes:
        point = (self.start.index, self.start.term, self.start.chain)
        identity = (self.cluster, self.incarnation, bytes.fromhex(self.node))
        rest = (self.hard.term, _vote(self.hard), self.groups, self.keys, self.snapshot_bytes, self.digest)
        body = _FILE.pack(_FILE_MAGIC, 0, self.generation, self.salt, *identity, self.capacity, *point, *rest)
        body = body.ljust(BLOCK_BYTES, b"\0")
        return body[:4] + crc32c(body[8:]).to_bytes(4, "little") + body[8:]


@dataclass(slots=True)
class LogContent:
    """The content of a file, all of it checked."""

    header: LogHeader
    snapshot: SnapshotContent
    hard: Hard
    committed: int  # at least; what follows may be committed too
    entries: list[Entry] = field(default_factory=list)  # after the snapshot, without what was cut off
    groups: int = 0
    last: int = 0  # where the last group starts, which nothing after it proves durable; `end` if there is none
    covered: bool = True  # the last group is a mark, or there is no group
    end: int = 0  # where the next group goes
    torn: int = 0  # the end of a partly written group that was never acknowledged; `end` if there is none

    @property
    def point(self) -> Point:
        """The point after the last entry."""
        return self.entries[-1].point if self.entries else self.header.start


@dataclass(frozen=True, slots=True)
class Group:
    """What one write makes durable. One that says nothing new is a mark, which covers the group before it."""

    number: int  # in its file, from 0
    hard: Hard
    committed: int
    cut: int | None = None  # entries after this index are void
    entries: Sequence[Entry] = ()

    def encode(self, salt: int) -> bytes:
        body = b"".join(
            part
            for entry in self.entries
            for part in (
                _ENTRY.pack(len(entry.data), entry.term, entry.index, entry.kind, entry.chain),
                entry.data,
            )
        )
        cut = _NO_CUT if self.cut is None else self.cut
        rest = _GROUP.pack(
            0, len(self.entries), salt, self.number, len(body), 0, self.hard.term, _vote(self.hard), cut,
            self.committed, _GROUP_MAGIC,
        )[4:]  # fmt: skip
        group = crc32c(rest).to_bytes(4, "little") + rest + body + _TRAILER
        return group.ljust(group_length(self.entries), b"\0")


def _vote(hard: Hard) -> bytes:
    return bytes.fromhex(hard.vote) if hard.vote else _NO_VOTE


def _hard(term: int, vote: bytes) -> Hard:
    return Hard(term, "" if vote == _NO_VOTE else vote.hex())


def blocks(length: int) -> int:
    """`length` rounded up to whole blocks."""
    return -(-length // BLOCK_BYTES) * BLOCK_BYTES


def group_length(entries: Sequence[Entry]) -> int:
    return _group_length(sum([_ENTRY.size + len(entry.data) for entry in entries]))


def _group_length(body_bytes: int) -> int:
    return blocks(_GROUP.size + body_bytes + len(_TRAILER))


# -- reading -----------------------------------------------------------------------------------------------------------


def decode_header(data: bytes, generation: int) -> LogHeader:
    """The header of the file with that number, from its first block."""
    if len(data) < BLOCK_BYTES:
        raise MetadataDamaged(f"file {generation} of the metadata log is cut")
    (
        magic, crc, number, salt, cluster, incarnation, node, capacity, index, term, chain, voted, vote, groups, keys,
        size, digest,
    ) = _FILE.unpack_from(data)  # fmt: skip
    if magic != _FILE_MAGIC or crc != crc32c(data[8:BLOCK_BYTES]):
        raise MetadataDamaged(f"the header of file {generation} of the metadata log is damaged")
    if number != generation:
        raise MetadataDamaged(f"file {generation} of the metadata log is file {number} under another name")
    start, identity, hard = Point(index, term, chain), NodeIdentity(node.hex()), _hard(voted, vote)
    return LogHeader(
        generation, salt, cluster, incarnation, identity, capacity, start, hard, groups, keys, size, digest
    )


def decode_file(data: bytes, generation: int) -> LogContent:
    """The whole file, or `MetadataDamaged`: no part of it is served if another cannot be trusted."""
    header = decode_header(data, generation)
    if len(data) < header.capacity:
        raise MetadataDamaged(f"the metadata log is cut: {len(data)} of {header.capacity} bytes are left")
    snapshot = data[BLOCK_BYTES : BLOCK_BYTES + header.snapshot_bytes]
    if blake2b(snapshot, digest_size=HASH_BYTES).digest() != header.digest:
        raise MetadataDamaged("the snapshot of the metadata is damaged")
    content = LogContent(header, decode_snapshot(snapshot), header.hard, header.start.index)
    content.last = content.end = header.log_start
    while (length := _read_group(data, content)) is not None:
        content.last = content.end
        content.end += length
    if _later_group(data, content):
        raise MetadataDamaged(f"the metadata log is damaged at byte {content.end}, but continues after it")
    content.torn = max(content.end, len(data.rstrip(b"\0")))
    return content


@dataclass(frozen=True, slots=True)
class _GroupHead:
    entries: int
    number: int
    size: int  # of the entries
    hard: Hard
    cut: int
    committed: int


def _read_group(data: bytes, content: LogContent) -> int | None:
    """Adds the group at `end` and returns its length; None if no group was completely written there."""
    at, header = content.end, content.header
    head = data[at : at + _GROUP.size]
    if len(head) < _GROUP.size or head[-1] == 0:
        return None
    found = _group_head(head, header.salt)
    if found is None or found.number != content.groups:
        raise MetadataDamaged(f"the metadata log is damaged at byte {at}")
    start, end = at + _GROUP.size, at + _GROUP.size + found.size
    kept = _kept(content, found)
    before = kept[-1].point if kept else header.start
    try:
        entries = list(_entries(data[start:end], found.entries, before))
    except MetadataDamaged:
        if _is_torn(data, at, end + len(_TRAILER)):
            return None
        raise
    if data[end : end + len(_TRAILER)] != _TRAILER:
        if _is_torn(data, at, end + len(_TRAILER)):
            return None
        raise MetadataDamaged(f"the metadata log is damaged at byte {end}")
    content.entries = kept
    kept += entries
    if found.committed < content.committed or found.committed > content.point.index:
        raise MetadataDamaged(f"the metadata log counts wrongly what is committed, at byte {at}")
    content.covered = not entries and found.cut == _NO_CUT and found.hard == content.hard
    content.hard, content.committed = found.hard, found.committed
    content.groups += 1
    return _group_length(found.size)


def _kept(content: LogContent, group: _GroupHead) -> list[Entry]:
    """The entries before the group, without those that it cuts off."""
    if group.cut == _NO_CUT:
        return content.entries
    if group.cut < content.committed:
        raise MetadataDamaged(f"the metadata log is cut at {group.cut}, but was committed up to {content.committed}")
    return content.entries[: group.cut - content.header.start.index]


def _group_head(head: bytes, salt: int) -> _GroupHead | None:
    """None if it is not a group header of this file."""
    crc, count, found, number, size, zero, term, vote, cut, committed, magic = _GROUP.unpack(head)
    if magic != _GROUP_MAGIC or found != salt or zero != 0 or crc != crc32c(head[4:]):
        return None
    return _GroupHead(count, number, size, _hard(term, vote), cut, committed)


def _entries(body: bytes, count: int, before: Point) -> Iterator[Entry]:
    position = 0
    for _ in range(count):
        start = position + _ENTRY.size
        if start > len(body):
            raise MetadataDamaged(f"the entry after {before.index} is damaged")
        size, term, index, kind, chain = _ENTRY.unpack_from(body, position)
        position = start + size
        entry = Entry(index, term, kind, body[start:position], chain)
        if not follows(before, entry):
            raise MetadataDamaged(f"the entry after {before.index} is damaged")
        before = entry.point
        yield entry
    if position != len(body):
        raise MetadataDamaged(f"a group has extra data after its entries, after {before.index}")


def _is_torn(data: bytes, start: int, end: int) -> bool:
    """Whether a part of the group never landed: its end is missing, or a whole sector of it is."""
    if end > len(data) or data[end - 1] == 0:
        return True
    return any(not any(data[at : min(at + SECTOR_BYTES, end)]) for at in range(start, end, SECTOR_BYTES))


def _later_group(data: bytes, content: LogContent) -> bool:
    """Whether a group of this file follows what looks like the end."""
    positions = range(content.end + BLOCK_BYTES, len(data) - _GROUP.size + 1, BLOCK_BYTES)
    magic_at = _GROUP.size - len(_GROUP_MAGIC)
    return any(
        data[at + magic_at : at + _GROUP.size] == _GROUP_MAGIC
        and _group_head(data[at : at + _GROUP.size], content.header.salt) is not None
        for at in positions
    )
