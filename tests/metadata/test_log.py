"""The file as bytes: every bit flipped, every length, every way a write can be torn, held against what was written."""

from __future__ import annotations

from hashlib import blake2b
from itertools import product

import pytest

from pydanube.base.errors import MetadataDamaged
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import BLOCK_BYTES
from pydanube.metadata.log import (
    SECTOR_BYTES,
    Group,
    LogContent,
    LogHeader,
    decode_file,
    group_length,
)
from pydanube.metadata.records import Changes, KeyChange, encode
from pydanube.metadata.records import Entry as Value
from pydanube.metadata.snapshot import SessionRow, SnapshotHead, encode_rows
from pydanube.raft.entries import Entry, EntryKind, Member, Members, Point, next_entry
from pydanube.raft.state import Hard

CLUSTER, NODE = bytes(range(16)), NodeIdentity("ab" * 16)
ROWS = [("a", Value(b"one", 3), 0), ("b", Value(b"", 7), 5)]
HEAD = SnapshotHead(Members.of([Member(NODE)]), (SessionRow(5, 2.5, NODE, 3, {4: 6}),))
START = Point(7, 2, b"s" * 16)
VOTE = Hard(3, NODE)
GROUPS = [
    [[KeyChange("a", b"two")]],
    [[KeyChange("c", b"x" * 700)], [KeyChange("b", None), KeyChange("d", b"y", 9)], []],
    [[KeyChange("e", bytes(range(1, 200)))]],
]


def chained(groups: list[list[list[KeyChange]]], term: int = 3, before: Point = START) -> list[list[Entry]]:
    """The same as entries of the log."""
    chain: list[list[Entry]] = []
    for group in groups:
        chain.append([])
        for changes in group:
            chain[-1].append(next_entry(before, term, EntryKind.DATA, encode(Changes(tuple(changes)))))
            before = chain[-1][-1].point
    return chain


def build(groups: list[list[list[KeyChange]]], *, mark: bool, room: int = 2) -> bytes:
    written = [Group(number, VOTE, 7, None, entries) for number, entries in enumerate(chained(groups))]
    for group in written:
        assert len(group.encode(0)) == group_length(group.entries)
    if mark:
        written.append(Group(len(written), VOTE, 7))
    return file_of(written, room)


def file_of(groups: list[Group], room: int = 2, written_first: int = 0) -> bytes:
    snapshot = HEAD.encode() + encode_rows(ROWS)
    digest = blake2b(snapshot, digest_size=16).digest()
    salt = 0x1122334455667788

    def header(capacity: int) -> LogHeader:
        size = len(snapshot)
        return LogHeader(
            4, salt, CLUSTER, 6, NODE, capacity, START, VOTE, written_first, len(ROWS), size, digest
        )  # fmt: skip

    body = snapshot.ljust(BLOCK_BYTES, b"\0") + b"".join(group.encode(salt) for group in groups)
    capacity = BLOCK_BYTES + len(body) + room * BLOCK_BYTES
    return (header(capacity).encode() + body).ljust(capacity, b"\0")


def said(content: LogContent) -> tuple[object, ...]:
    return content.snapshot, content.entries, content.hard, content.committed, content.header.start


def expected(groups: list[list[list[KeyChange]]]) -> list[Entry]:
    return [entry for entries in chained(groups) for entry in entries]


def test_a_file_comes_back_as_it_was() -> None:
    for mark in (True, False):
        found = decode_file(build(GROUPS, mark=mark), 4)
        assert found.snapshot == (HEAD, ROWS)
        assert found.entries == expected(GROUPS)
        assert found.point.index == 12
        assert found.hard == VOTE
        assert found.covered is mark
        assert found.torn == found.end
        assert found.groups == len(GROUPS) + mark
        assert (found.header.cluster, found.header.incarnation) == (CLUSTER, 6)
        assert found.header.node == NODE


def test_a_group_may_cut_off_entries_that_were_never_committed() -> None:
    first = chained(GROUPS)
    point = first[1][0].point  # index 9
    other = [next_entry(point, 4, EntryKind.DATA, b"of another leader")]
    newer = Hard(4, "")
    groups = [Group(number, VOTE, 8, None, entries) for number, entries in enumerate(first)]
    found = decode_file(file_of([*groups, Group(3, newer, 9, 9, other)]), 4)
    assert found.entries == [first[0][0], first[1][0], *other]
    assert (found.hard, found.committed, found.covered) == (newer, 9, False)
    found = decode_file(file_of([*groups, Group(3, newer, 9, 9)]), 4)
    assert found.point == point
    assert not found.covered  # it says something new, so it is no mark
    for wrong in (Group(3, newer, 9, 7), Group(3, newer, 7), Group(3, newer, 14), Group(4, newer, 9)):
        with pytest.raises(MetadataDamaged):
            decode_file(file_of([*groups, wrong]), 4)


def test_a_vote_is_no_mark() -> None:
    assert not decode_file(file_of([Group(0, Hard(4, NODE), 7)]), 4).covered
    assert decode_file(file_of([Group(0, VOTE, 7)]), 4).covered


def test_entries_have_the_same_chain_whoever_writes_them() -> None:
    found = decode_file(build(GROUPS, mark=True), 4)
    elsewhere = build(GROUPS, mark=True).replace(bytes.fromhex(NODE), bytes.fromhex("cd" * 16))
    with pytest.raises(MetadataDamaged):  # the header is protected
        decode_file(elsewhere, 4)
    assert [entry.chain for entry in found.entries] == [entry.chain for entry in expected(GROUPS)]


@pytest.mark.slow
@pytest.mark.parametrize("mark", [True, False])
def test_every_bit_of_every_used_byte(mark: bool) -> None:
    """Refused, or without any effect. Also of the last group, which nothing covers: a flipped bit is no torn write."""
    data = build(GROUPS, mark=mark)
    whole = said(decode_file(data, 4))
    harmless = 0
    for position in range(len(data)):
        if not any(data[max(0, position - 16) : position + 16]) and position % BLOCK_BYTES > 64:
            continue  # far inside padding
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                assert said(decode_file(bytes(damaged), 4)) == whole, f"byte {position}, bit {bit}"
            except MetadataDamaged:
                continue
            harmless += 1
            assert not data[position], f"byte {position}, bit {bit} was in use, and nobody noticed"
    assert harmless > 0


def test_every_length() -> None:
    data = build(GROUPS, mark=True)
    for length in range(0, len(data), 7):
        with pytest.raises(MetadataDamaged):
            decode_file(data[:length], 4)


def torn_file(landed: bytes) -> bytes:
    """All but the last group, and in its place whatever landed of it."""
    whole, without = build(GROUPS, mark=False), build(GROUPS[:-1], mark=False, room=3)
    at = len(without.rstrip(b"\0"))
    at = -(-at // BLOCK_BYTES) * BLOCK_BYTES
    return whole[:at] + landed + whole[at + len(landed) :]


def last_group() -> bytes:
    without = build(GROUPS[:-1], mark=False)
    at = -(-len(without.rstrip(b"\0")) // BLOCK_BYTES) * BLOCK_BYTES
    return build(GROUPS, mark=False)[at : at + BLOCK_BYTES]


def test_every_prefix_of_the_last_group_is_all_or_nothing() -> None:
    group = last_group()
    used = len(group.rstrip(b"\0"))
    for length in range(used):
        found = decode_file(torn_file(group[:length].ljust(BLOCK_BYTES, b"\0")), 4)
        assert found.entries == expected(GROUPS[:-1]), f"{length} bytes landed"
        assert found.torn <= found.end + length
    assert decode_file(torn_file(group), 4).entries == expected(GROUPS)


def test_any_sectors_of_the_last_group_are_all_or_nothing() -> None:
    change = [[KeyChange("wide", bytes(range(1, 256)) * 10)]]
    before, data = build(GROUPS, mark=False), build([*GROUPS, change], mark=False)
    at = -(-len(before.rstrip(b"\0")) // BLOCK_BYTES) * BLOCK_BYTES
    used = -(-(len(data.rstrip(b"\0")) - at) // SECTOR_BYTES)
    assert used > 4
    for landed in product([False, True], repeat=used):
        torn = bytearray(data)
        for sector, there in enumerate(landed):
            if not there:
                torn[at + sector * SECTOR_BYTES : at + (sector + 1) * SECTOR_BYTES] = bytes(SECTOR_BYTES)
        found = decode_file(bytes(torn), 4).entries
        assert found == expected([*GROUPS, change] if all(landed) else GROUPS)


def test_a_group_that_is_gone_before_another_is_damage_and_no_tail() -> None:
    data = build(GROUPS, mark=True)
    starts = range(2 * BLOCK_BYTES, len(data.rstrip(b"\0")) // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES)
    assert len(starts) == 3
    for start in starts:
        with pytest.raises(MetadataDamaged):
            decode_file(data[:start] + bytes(BLOCK_BYTES) + data[start + BLOCK_BYTES :], 4)


def test_a_value_cannot_pose_as_a_group() -> None:
    """A value that is itself a piece of a metadata log, torn so that only that piece landed."""
    piece = build(GROUPS, mark=True).replace((0x1122334455667788).to_bytes(8, "little"), bytes(8))
    change = [[KeyChange("log", piece[: 20 * BLOCK_BYTES])]]
    data = build([change], mark=False)
    found = decode_file(data[: 2 * BLOCK_BYTES] + bytes(SECTOR_BYTES) + data[2 * BLOCK_BYTES + SECTOR_BYTES :], 4)
    assert found.entries == []


def test_a_file_under_another_number_is_refused() -> None:
    with pytest.raises(MetadataDamaged):
        decode_file(build(GROUPS, mark=True), 5)
