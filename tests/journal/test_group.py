"""The bytes of a journal file: what is encoded is decoded, and what was changed is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.checksum import crc32c
from pydanube.base.ids import NO_OFFSET, LedgerId, NodeIdentity
from pydanube.base.limits import BLOCK_BYTES, GROUP_ENTRIES_MAX
from pydanube.journal.group import (
    ENTRY_BYTES,
    FILE_START_BYTES,
    GROUP_HEADER_BYTES,
    NAME_BYTES,
    SOURCES_MAX,
    TRAILER_BYTES,
    Entry,
    EntryKind,
    FileHeader,
    GroupKind,
    Names,
    blocks,
    decode_directory,
    decode_file_header,
    decode_file_start,
    decode_group_head,
    decode_trailer,
    encode_file_header,
    encode_group,
    group_length,
    pack_entry,
)

u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
identities = st.binary(min_size=16, max_size=16).map(lambda name: NodeIdentity(name.hex()))
headers = st.builds(
    FileHeader, u64, u64, identities, u64, u64, st.booleans(), st.lists(u64, max_size=SOURCES_MAX).map(tuple), u64, u64
)
entries = st.lists(
    st.tuples(u64, i64, i64, st.binary(max_size=300), u32, u32, st.integers(2, 9)) | st.tuples(u64, i64, i64),
    max_size=20,
)
priors = st.none() | st.dictionaries(u64, i64, max_size=70)


def names_in(rows: list[tuple]) -> Names:  # type: ignore[type-arg]
    return {LedgerId(row[0]): row[1] if len(row) == 7 else NO_OFFSET for row in rows}


def group_of(
    salt: int,
    number: int,
    synced: int,
    rows: list[tuple],
    kind: GroupKind = GroupKind.ENTRIES,
    prior: Names | None = None,
) -> bytes:  # type: ignore[type-arg]
    """One group: rows of seven are appends with their bytes, rows of three are control records."""
    directory, body = [], []
    for row in rows:
        if len(row) == 7:
            ledger, a, b, data, count, crc, _ = row
            directory.append(pack_entry(ledger, a, b, len(data), count, crc, EntryKind.APPEND))
            body.append(data)
        else:
            directory.append(pack_entry(*row, 0, 0, 0, EntryKind.FENCE))
    parts, length = encode_group(
        salt, number, synced, directory, body, sum(map(len, body)), names_in(rows), kind, prior
    )
    data = b"".join(parts)
    assert len(data) == length
    return data


# -- file headers ------------------------------------------------------------------------------------------------------


@given(headers)
def test_a_file_header_is_one_block_and_comes_back(header: FileHeader) -> None:
    block = encode_file_header(header)
    assert len(block) == BLOCK_BYTES
    assert decode_file_header(block) == header


@given(headers, st.integers(0, 8 * BLOCK_BYTES - 1))
def test_a_file_header_with_any_bit_flipped_is_none(header: FileHeader, bit: int) -> None:
    block = bytearray(encode_file_header(header))
    block[bit // 8] ^= 1 << bit % 8
    assert decode_file_header(bytes(block)) is None


@given(headers, st.integers(0, BLOCK_BYTES - 1))
def test_a_file_header_that_is_cut_is_none(header: FileHeader, length: int) -> None:
    assert decode_file_header(encode_file_header(header)[:length]) is None


@given(headers, u64)
def test_the_salt_of_a_file_is_known_to_its_first_group_too(header: FileHeader, other: int) -> None:
    start = encode_file_header(header) + group_of(header.salt, 1, 0, [], GroupKind.CHECKPOINT)[:GROUP_HEADER_BYTES]
    assert len(start) == FILE_START_BYTES
    assert decode_file_start(start, header.generation) == (header, header.salt)
    assert decode_file_start(bytes(BLOCK_BYTES) + start[BLOCK_BYTES:], header.generation) == (None, header.salt)
    if other != header.generation:  # the header of another file, written here by mistake
        assert decode_file_start(start, other) == (None, header.salt)


# -- groups ------------------------------------------------------------------------------------------------------------


@given(u64, st.integers(1, 1 << 40), st.integers(0, 5), entries, priors)
def test_a_group_comes_back(salt: int, number: int, behind: int, rows: list[tuple], prior: Names | None) -> None:  # type: ignore[type-arg]
    synced = max(0, number - 1 - behind)
    data = group_of(salt, number, synced, rows, prior=prior)
    assert len(data) % BLOCK_BYTES == 0
    head = decode_group_head(data, salt)
    assert head is not None
    assert (head.number, head.synced_through, head.entries, head.length) == (number, synced, len(rows), len(data))
    position = 7 * BLOCK_BYTES
    found = decode_directory(head, position, data[GROUP_HEADER_BYTES : head.body_start])
    assert found is not None
    place = position + head.body_start
    for row, entry in zip(rows, found, strict=True):
        if len(row) == 7:
            ledger, a, b, content, count, crc, _ = row
            expected = Entry(ledger, EntryKind.APPEND, a, b, len(content), count, crc, place if content else 0)
            assert data[place - position :][: len(content)] == content
            place += len(content)
        else:
            expected = Entry(row[0], EntryKind.FENCE, row[1], row[2], 0, 0, 0, 0)
        assert entry == expected
    trailer = decode_trailer(data, salt)
    assert trailer is not None
    assert (trailer.number, trailer.synced_through, trailer.length) == (number, synced, len(data))
    assert trailer.ledgers == names_in(rows)
    assert trailer.prior == prior


@given(u64, entries, st.data())
def test_a_flipped_bit_spoils_the_part_it_is_in_and_no_other(salt: int, rows: list[tuple], draw: st.DataObject) -> None:  # type: ignore[type-arg]
    data = group_of(salt, 3, 2, rows)
    head = decode_group_head(data, salt)
    assert head is not None
    trailer_start = len(data) - TRAILER_BYTES - NAME_BYTES * head.ledgers
    at = draw.draw(st.integers(0, head.body_start - 1) | st.integers(trailer_start, len(data) - 1))
    broken = bytearray(data)
    broken[at] ^= 1 << draw.draw(st.integers(0, 7))
    changed = bytes(broken)
    in_head, in_directory = at < GROUP_HEADER_BYTES, GROUP_HEADER_BYTES <= at < head.body_start
    assert (decode_group_head(changed, salt) is None) == in_head
    if not in_head:
        directory = changed[GROUP_HEADER_BYTES : head.body_start]
        assert (decode_directory(head, 0, directory) is None) == in_directory
    assert (decode_trailer(changed, salt) is None) == (at >= trailer_start)


@given(u64, u64, entries)
def test_a_group_of_another_file_is_none(salt: int, other: int, rows: list[tuple]) -> None:  # type: ignore[type-arg]
    data = group_of(salt, 1, 0, rows)
    if salt != other:
        assert decode_group_head(data, other) is None
        assert decode_trailer(data, other) is None


@given(st.binary(max_size=300), u64)
def test_any_bytes_at_all_are_none_or_a_part(data: bytes, salt: int) -> None:
    for decoded in (decode_group_head(data, salt), decode_trailer(data, salt), decode_file_header(data)):
        assert decoded is None
    assert decode_file_start(data, 1)[0] is None


def resealed(head: bytes) -> bytes:
    """A header under a checksum that is right again, as a liar would write it."""
    return head[:4] + crc32c(head[8:GROUP_HEADER_BYTES]).to_bytes(4, "little") + head[8:]


def test_a_group_header_that_lies_under_a_right_checksum_is_none() -> None:
    data = group_of(9, 4, 3, [(1, 0, NO_OFFSET), (2, 0, NO_OFFSET)])
    assert decode_group_head(resealed(data), 9) is not None
    fields = {"synced": (24, 8), "entries": (32, 4), "body": (36, 4), "ledgers": (40, 4), "length": (44, 4),
              "kind": (48, 4), "told": (60, 4)}  # fmt: skip
    for name, (at, size) in fields.items():
        for value in (5, 50, GROUP_ENTRIES_MAX + 1, (1 << 31) - 1, (1 << 32) - 1):
            lie = resealed(data[:at] + value.to_bytes(size, "little") + data[at + size :])
            head = decode_group_head(lie, 9)
            small = (
                name in {"entries", "body", "told"} and value <= 50
            )  # fits the same blocks: the directory will not match
            assert (head is not None) == small, (name, value)


def test_a_directory_that_promises_more_than_the_body_has_is_none() -> None:
    data = group_of(9, 1, 0, [(1, 0, -1, b"12345678", 1, 2, 3)])
    head = decode_group_head(data, 9)
    assert head is not None
    lie = pack_entry(1, 0, -1, 9, 1, 2, EntryKind.APPEND)
    forged = resealed(data[:52] + crc32c(lie).to_bytes(4, "little") + data[56:])
    head = decode_group_head(forged, 9)
    assert head is not None
    assert decode_directory(head, 0, lie) is None


@given(st.integers(0, GROUP_ENTRIES_MAX), st.integers(0, GROUP_ENTRIES_MAX), st.integers(0, 1 << 25))
def test_the_length_of_a_group_is_its_parts_in_whole_blocks(count: int, names: int, body: int) -> None:
    used = GROUP_HEADER_BYTES + ENTRY_BYTES * count + body + NAME_BYTES * names + TRAILER_BYTES
    length = group_length(count, names, body)
    assert length % BLOCK_BYTES == 0
    assert used <= length < used + BLOCK_BYTES
    assert blocks(used) == length


def test_the_sizes_of_the_parts_are_as_documented() -> None:
    assert (GROUP_HEADER_BYTES, ENTRY_BYTES, NAME_BYTES, TRAILER_BYTES, BLOCK_BYTES) == (64, 40, 16, 44, 4096)
    assert decode_trailer(group_of(5, 1, 0, [(1, 2, 3)]), 5).ledgers == {1: NO_OFFSET}  # type: ignore[union-attr]
