"""Entries of the log, the points between them, and the members that an entry can name.

The hash chain covers terms, indexes, kinds and data, and nothing of the node that writes it. So nodes have the same
chain at an index if, and only if, they have the same log up to there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from hashlib import blake2b

import msgspec

HASH_BYTES = 16
NO_HASH = bytes(HASH_BYTES)
_HEAD = struct.Struct("<QQB")
ENTRY_BYTES = 64  # about what an entry needs besides its data, so that bounds hold for small ones too


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A place in the log: the index of an entry, its term, and the hash of everything up to it."""

    index: int = 0
    term: int = 0
    chain: bytes = NO_HASH


class EntryKind(IntEnum):
    """A node stops at a kind that it does not know, rather than guess what it means."""

    NOTHING = 0  # the first of a term: with it, everything before it is committed
    DATA = 1
    MEMBERS = 2


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One step of the log."""

    index: int
    term: int
    kind: int
    data: bytes
    chain: bytes

    @property
    def size(self) -> int:
        """Its bytes, as all bounds count them."""
        return len(self.data) + ENTRY_BYTES

    @property
    def point(self) -> Point:
        return Point(self.index, self.term, self.chain)


def next_entry(before: Point, term: int, kind: int, data: bytes) -> Entry:
    """The entry that follows `before`."""
    index = before.index + 1
    chain = blake2b(before.chain + _HEAD.pack(index, term, kind) + data, digest_size=HASH_BYTES).digest()
    return Entry(index, term, kind, data, chain)


def follows(before: Point, entry: Entry) -> bool:
    """Whether this is the entry after `before`, undamaged."""
    return entry.term >= before.term and entry == next_entry(before, entry.term, entry.kind, entry.data)


class Member(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One node. A learner gets the log and neither votes nor counts."""

    identity: str
    address: str = ""
    voter: bool = True


class Members(msgspec.Struct, frozen=True):
    """All nodes that have the log, in the order of their identities."""

    all: tuple[Member, ...] = ()

    @classmethod
    def of(cls, members: Iterable[Member]) -> Members:
        return cls(tuple(sorted(members)))

    def __iter__(self) -> Iterator[Member]:
        return iter(self.all)

    @property
    def voters(self) -> frozenset[str]:
        return frozenset(each.identity for each in self.all if each.voter)

    def get(self, identity: str) -> Member | None:
        return next((each for each in self.all if each.identity == identity), None)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Members:
        """Raises `msgspec.DecodeError` for anything that `encode` does not write."""
        return msgspec.msgpack.decode(data, type=cls)
