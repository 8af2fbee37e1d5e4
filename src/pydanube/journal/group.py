"""The bytes of a journal file: a file header, then groups, each one group commit. Pure encoding and checking.

A group is a header, a directory (one fixed record per entry), the batches themselves, padding, and a trailer that names
the ledgers again with their highest offsets, so that the affected ledgers are still known if either end is damaged. A
group of one block loses both ends together, so the next group repeats its names. The directory carries each batch's
own checksum, so a group is sealed without touching the batches. See docs/internals/journal.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pydanube.base.checksum import crc32c
from pydanube.base.ids import NO_OFFSET, LedgerId, NodeIdentity
from pydanube.base.limits import BATCH_MESSAGES_MAX, BLOCK_BYTES, GROUP_BYTES_MAX, GROUP_ENTRIES_MAX

FILE_MAGIC = b"DJF2"
GROUP_MAGIC = b"DJG2"
TRAILER_MAGIC = b"DJT2"

_FILE = struct.Struct("<4sIQQ16sQQIIQQ")  # magic, crc, then `FileHeader`, with a number in place of the sources
SOURCES_MAX = 64  # files that one copy may replace
_GROUP = struct.Struct("<4sIQQQIIIIIIII")
_ENTRY = struct.Struct("<QqqIIIB3x")
_TRAILER = struct.Struct("<QQQIII4sI")
_NAME = struct.Struct("<Qq")
GROUP_HEADER_BYTES = _GROUP.size
ENTRY_BYTES = _ENTRY.size
TRAILER_BYTES = _TRAILER.size
NAME_BYTES = _NAME.size
_BATCH_BYTES_MIN = 96  # stamp and header: messages in which everything is null take no more
FILE_START_BYTES = BLOCK_BYTES + GROUP_HEADER_BYTES
NO_PREVIOUS = 0
CHECKPOINTS = 2  # equal groups at the start of a journal file, so that one damaged block does not lose the table

pack_entry = _ENTRY.pack
iter_entries = _ENTRY.iter_unpack


class EntryKind(IntEnum):
    """What a directory entry records. `a` and `b` are its two numbers."""

    APPEND = 1  # a = base offset, b = last confirmed; the batch follows in the body
    CREATE = 2  # a = epoch, b = durability code
    FENCE = 3  # a = epoch
    SEAL = 4  # a = last offset, b = epoch
    DELETE = 5
    RESERVE = 6  # a = offsets below it may have been acknowledged
    KEPT = 7  # a = number of the data directory that holds copied-out entries
    QUARANTINE = 8  # a = 1: the catalogue does not know the ledger; 0: it knows it again
    DAMAGED = 9  # some of the ledger is unreadable here, and its end is unknown


class GroupKind(IntEnum):
    ENTRIES = 0
    CHECKPOINT = 1  # the body is the ledger table at this point
    MARK = 2  # has nothing but `synced_through`, which covers the group before it


class FileHeader(NamedTuple):
    generation: int
    salt: int  # random; every group repeats it, so that no payload can pose as a group of this file
    identity: NodeIdentity
    previous: int  # generation of the previous file, NO_PREVIOUS if there is none
    previous_end: int  # where its valid part ends: everything before that was synced, everything after is cut off
    forgetful: bool  # an unreadable group may have created ledgers that no checkpoint names
    sources: tuple[int, ...] = ()  # of a kept file: generations of the files whose entries it holds
    capacity: int = 0  # of a journal file: bytes reserved before it got its name; a shorter file was truncated
    boots: int = 0  # starts of the node so far: a `node` file with a lower count is out of date


class Entry(NamedTuple):
    """One directory record. `position` is where its batch starts in the file (0 for control records)."""

    ledger: LedgerId
    kind: int
    a: int
    b: int
    length: int
    messages: int
    crc: int
    position: int


@dataclass(frozen=True, slots=True)
class GroupHead:
    """A group header whose checksum was correct."""

    salt: int
    number: int
    synced_through: int
    entries: int
    body_bytes: int
    ledgers: int
    repeated: int  # one more than the number of names repeated for the previous group; 0 if it repeats none
    length: int
    kind: GroupKind
    directory_crc: int
    body_crc: int

    @property
    def directory_bytes(self) -> int:
        return self.entries * ENTRY_BYTES

    @property
    def body_start(self) -> int:
        return GROUP_HEADER_BYTES + self.directory_bytes


Names = Mapping[LedgerId, int]  # ledgers of a group with the highest offset of each in it; NO_OFFSET if it has none
NOBODY: Names = {}


class Trailer(NamedTuple):
    number: int
    synced_through: int
    length: int  # of the whole group
    ledgers: Names
    prior: Names | None  # names of the previous group, if that group has only one block


def blocks(length: int) -> int:
    """`length` rounded up to whole blocks."""
    return -(-length // BLOCK_BYTES) * BLOCK_BYTES


def group_length(entries: int, names: int, body_bytes: int) -> int:
    """Bytes of a group. `names` counts those of its own ledgers and those repeated for the previous group."""
    return blocks(GROUP_HEADER_BYTES + entries * ENTRY_BYTES + body_bytes + names * NAME_BYTES + TRAILER_BYTES)


def messages_max(length: int) -> int:
    """The most messages that groups of `length` bytes can have held."""
    return -(-length // (ENTRY_BYTES + _BATCH_BYTES_MIN)) * BATCH_MESSAGES_MAX


def names_of(entries: Sequence[Entry]) -> dict[LedgerId, int]:
    """The ledgers of a group, as its trailer lists them."""
    names: dict[LedgerId, int] = {}
    for entry in entries:
        last = entry.a + entry.messages - 1 if entry.kind == EntryKind.APPEND else NO_OFFSET
        names[entry.ledger] = max(last, names.get(entry.ledger, NO_OFFSET))
    return names


def encode_file_header(header: FileHeader) -> bytes:
    identity, sources = bytes.fromhex(header.identity), header.sources
    fields = (header.previous, header.previous_end, int(header.forgetful), len(sources), header.capacity, header.boots)
    body = _FILE.pack(FILE_MAGIC, 0, header.generation, header.salt, identity, *fields)
    body = (body + struct.pack(f"<{len(sources)}Q", *sources)).ljust(BLOCK_BYTES, b"\0")
    return body[:4] + crc32c(body[8:]).to_bytes(4, "little") + body[8:]


def decode_file_header(block: bytes) -> FileHeader | None:
    """The file header in `block`; None if it is incomplete or damaged."""
    if len(block) != BLOCK_BYTES:
        return None
    magic, crc, generation, salt, name, previous, previous_end, flags, count, *numbers = _FILE.unpack_from(block)
    if magic != FILE_MAGIC or crc != crc32c(block[8:]) or flags > 1 or count > SOURCES_MAX:
        return None
    sources = struct.unpack_from(f"<{count}Q", block, _FILE.size)
    identity = NodeIdentity(name.hex())
    return FileHeader(generation, salt, identity, previous, previous_end, bool(flags), sources, *numbers)


def decode_file_start(start: bytes, generation: int) -> tuple[FileHeader | None, int]:
    """The header and the salt of the file with this generation, from its first `FILE_START_BYTES`.

    The header is None if it is damaged or belongs to another file; the first group has the salt as well.
    """
    header = decode_file_header(start[:BLOCK_BYTES])
    if header is None or header.generation != generation:
        return None, int.from_bytes(start[BLOCK_BYTES + 8 : BLOCK_BYTES + 16], "little")
    return header, header.salt


def encode_group(
    salt: int,
    number: int,
    synced_through: int,
    directory: Sequence[bytes],
    body: Sequence[bytes],
    body_bytes: int,
    ledgers: Names,
    kind: GroupKind = GroupKind.ENTRIES,
    prior: Names | None = None,
) -> tuple[list[bytes], int]:
    """The buffers of one group, in order, and its length. The bodies are passed through untouched."""
    packed = b"".join(directory)
    repeated = 0 if prior is None else len(prior) + 1
    length = group_length(len(directory), len(ledgers) + max(repeated - 1, 0), body_bytes)
    body_crc = crc32c(b"".join(body)) if kind is GroupKind.CHECKPOINT else 0
    head = _GROUP.pack(
        GROUP_MAGIC, 0, salt, number, synced_through, len(directory), body_bytes, len(ledgers), length, kind,
        crc32c(packed), body_crc, repeated,
    )  # fmt: skip
    names = b"".join([_NAME.pack(*name) for names in (ledgers, prior or NOBODY) for name in names.items()])
    tail = _TRAILER.pack(salt, number, synced_through, len(ledgers), repeated, length, TRAILER_MAGIC, 0)[:-4]
    tail += crc32c(names + tail).to_bytes(4, "little")
    used = GROUP_HEADER_BYTES + len(packed) + body_bytes + len(names) + TRAILER_BYTES
    checked = head[:4] + crc32c(head[8:]).to_bytes(4, "little") + head[8:]
    return [checked, packed, *body, bytes(length - used), names, tail], length


def decode_group_head(data: bytes, salt: int) -> GroupHead | None:
    """The group header at the start of `data`; None if it is damaged or not of the file with this salt."""
    if len(data) < GROUP_HEADER_BYTES:
        return None
    fields = _GROUP.unpack_from(data)
    if fields[0] != GROUP_MAGIC or fields[1] != crc32c(data[8:GROUP_HEADER_BYTES]) or fields[2] != salt:
        return None
    _, _, _, number, synced, entries, body, ledgers, length, kind, directory_crc, body_crc, repeated = fields
    whole = kind <= GroupKind.MARK and repeated <= GROUP_ENTRIES_MAX and synced < number
    if not whole or entries > GROUP_ENTRIES_MAX or ledgers > entries or length > GROUP_BYTES_MAX:
        return None
    if length != group_length(entries, ledgers + max(repeated - 1, 0), body):
        return None
    rest = (length, GroupKind(kind), directory_crc, body_crc)
    return GroupHead(salt, number, synced, entries, body, ledgers, repeated, *rest)


def decode_directory(head: GroupHead, position: int, packed: bytes) -> list[Entry] | None:
    """The entries of the group at `position`, or None if the directory is damaged."""
    if len(packed) != head.directory_bytes or crc32c(packed) != head.directory_crc:
        return None
    entries = []
    at = position + head.body_start
    end = at + head.body_bytes
    for ledger, a, b, length, count, crc, kind in iter_entries(packed):
        entries.append(Entry(LedgerId(ledger), kind, a, b, length, count, crc, at if length else 0))
        at += length
    return entries if at == end or head.kind is GroupKind.CHECKPOINT else None


def decode_trailer(data: bytes, salt: int) -> Trailer | None:
    """The trailer at the very end of `data`; None if it is damaged or `data` does not hold all of it."""
    if len(data) < TRAILER_BYTES:
        return None
    fields = _TRAILER.unpack_from(data, len(data) - TRAILER_BYTES)
    found, number, synced, ledgers, repeated, length, magic, crc = fields
    if magic != TRAILER_MAGIC or found != salt or max(ledgers, repeated) > GROUP_ENTRIES_MAX:
        return None
    start = len(data) - TRAILER_BYTES - NAME_BYTES * (ledgers + max(repeated - 1, 0))
    if start < 0 or crc != crc32c(data[start:-4]):
        return None
    names = [(LedgerId(ledger), last) for ledger, last in _NAME.iter_unpack(data[start:-TRAILER_BYTES])]
    return Trailer(number, synced, length, dict(names[:ledgers]), dict(names[ledgers:]) if repeated else None)
