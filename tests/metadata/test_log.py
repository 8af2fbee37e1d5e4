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
    LogContent,
    LogHeader,
    LogPoint,
    decode_file,
    encode_group,
    encode_record,
    encode_snapshot,
    group_length,
    record_length,
)
from pydanube.metadata.records import Entry, KeyChange, encode_changes

CLUSTER, NODE = bytes(range(16)), NodeIdentity("ab" * 16)
ROWS = [("a", Entry(b"one", 3), 0), ("b", Entry(b"", 7), 5)]
START = LogPoint(2, 7, b"s" * 16)
GROUPS = [
    [[KeyChange("a", b"two")]],
    [[KeyChange("c", b"x" * 700)], [KeyChange("b", None), KeyChange("d", b"y", 9)], []],
    [[KeyChange("e", bytes(range(1, 200)))]],
]


def build(groups: list[list[list[KeyChange]]], *, mark: bool, room: int = 2) -> bytes:
    snapshot = b"".join(encode_snapshot(ROWS))
    digest = blake2b(snapshot, digest_size=16).digest()
    written: list[bytes] = []
    point = START

    def header(capacity: int) -> LogHeader:
        return LogHeader(4, 0x1122334455667788, CLUSTER, NODE, capacity, START, len(ROWS), len(snapshot), digest)

    for group in groups:
        before, records = point.revision, []
        for changes in group:
            record, point = encode_record(header(0), 3, point, encode_changes(changes))
            records.append(record)
        written.append(encode_group(header(0), before, records))
        assert len(written[-1]) == group_length(sum(record_length(encode_changes(changes)) for changes in group))
    if mark:
        written.append(encode_group(header(0), point.revision, ()))
    body = snapshot.ljust(BLOCK_BYTES, b"\0") + b"".join(written)
    capacity = BLOCK_BYTES + len(body) + room * BLOCK_BYTES
    return (header(capacity).encode() + body).ljust(capacity, b"\0")


def said(content: LogContent) -> tuple[object, ...]:
    return content.rows, content.records, content.point, content.header.start


def expected(groups: list[list[list[KeyChange]]]) -> list[tuple[int, tuple[KeyChange, ...]]]:
    flat = [tuple(changes) for group in groups for changes in group]
    return list(enumerate(flat, START.revision + 1))


def test_a_file_comes_back_as_it_was() -> None:
    for mark in (True, False):
        found = decode_file(build(GROUPS, mark=mark), 4)
        assert found.rows == ROWS
        assert found.records == expected(GROUPS)
        assert found.point.revision == 12
        assert found.covered is mark
        assert found.torn == found.end
        assert found.header.cluster == CLUSTER
        assert found.header.node == NODE


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
        assert found.records == expected(GROUPS[:-1]), f"{length} bytes landed"
        assert found.torn <= found.end + length
    assert decode_file(torn_file(group), 4).records == expected(GROUPS)


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
        found = decode_file(bytes(torn), 4).records
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
    assert found.records == []


def test_a_file_under_another_number_is_refused() -> None:
    with pytest.raises(MetadataDamaged):
        decode_file(build(GROUPS, mark=True), 5)
