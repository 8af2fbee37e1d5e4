"""Where entries lie in a file: found as they were added, in any order, and never trusted once damaged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.checksum import crc32c
from pydanube.base.ids import NO_OFFSET, LedgerId
from pydanube.journal.group import Entry, EntryKind
from pydanube.journal.index import FileIndex, Runs, decode_index
from pydanube.journal.scan import add_to_index

u64 = st.integers(0, (1 << 64) - 1)
Added = tuple[int, int, int, int, int, int]  # ledger, first, last, block, confirmed, size


@st.composite
def additions(draw: st.DrawFn) -> list[Added]:
    """Runs of a few ledgers that do not overlap, in any order."""
    found: list[Added] = []
    for ledger in draw(st.lists(st.integers(0, (1 << 64) - 1), max_size=4, unique=True)):
        place = draw(st.integers(0, 1 << 40))
        for _ in range(draw(st.integers(1, 8))):
            first = place + draw(st.integers(0, 5))
            place = first + draw(st.integers(1, 6))
            confirmed = draw(st.integers(NO_OFFSET, first))
            found.append((ledger, first, place - 1, draw(st.integers(0, (1 << 32) - 1)), confirmed, place - first))
    return draw(st.permutations(found))


def index_of(added: list[Added]) -> FileIndex:
    index = FileIndex()
    for ledger, *rest in added:
        index.add(LedgerId(ledger), *rest)
    return index


@given(additions())
def test_every_offset_is_found_where_it_was_added_and_no_other(added: list[Added]) -> None:
    index = index_of(added)
    for ledger, first, last, block, _, _ in added:
        for offset in range(first, last + 1):
            assert index.find(LedgerId(ledger), offset, offset) == block
    for ledger in {row[0] for row in added}:
        held = {offset for row in added if row[0] == ledger for offset in range(row[1], row[2] + 1)}
        firsts = sorted(row[1] for row in added if row[0] == ledger)
        for offset in range(firsts[0] - 3, max(held) + 4):
            assert (index.find(LedgerId(ledger), offset, offset) is not None) == (offset in held)
            for last in (offset, offset + 2, offset + 7):
                overlaps = any(each in held for each in range(offset, last + 1))
                assert (index.find(LedgerId(ledger), offset, last) is not None) == overlaps
            following = [first for first in firsts if first >= offset]
            assert index.next_first(LedgerId(ledger), offset) == (following[0] if following else None)
    assert index.find(LedgerId(12345), 0, 1 << 50) is None
    assert index.next_first(LedgerId(12345), 0) is None


@given(additions())
def test_a_summary_says_the_range_the_bytes_and_what_was_confirmed(added: list[Added]) -> None:
    summaries = {summary.ledger: summary for summary in index_of(added).summaries()}
    assert summaries.keys() == {row[0] for row in added}
    for ledger, summary in summaries.items():
        rows = [row for row in added if row[0] == ledger]
        assert summary.first == min(row[1] for row in rows)
        assert summary.last == max(row[2] for row in rows)
        assert summary.confirmed == max(row[4] for row in rows)
        assert summary.bytes == sum(row[5] for row in rows)


@given(additions(), u64, u64, u64)
def test_an_index_comes_back(added: list[Added], generation: int, salt: int, end: int) -> None:
    index = index_of(added)
    assert decode_index(index.encode(generation, salt, end), generation, salt) == (index, end)


SMALL = index_of([(1, 0, 9, 2, 5, 100), (1, 20, 29, 3, 15, 100), (2, 7, 7, 3, NO_OFFSET, 9)])


def test_a_small_index_with_any_bit_flipped_is_not_trusted() -> None:
    data = SMALL.encode(6, 77, 4096)
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert decode_index(bytes(broken), 6, 77) is None, bit


def test_an_index_that_is_cut_longer_or_another_files_is_not_trusted() -> None:
    data = SMALL.encode(6, 77, 4096)
    assert decode_index(data, 6, 77) == (SMALL, 4096)
    for length in range(len(data)):
        assert decode_index(data[:length], 6, 77) is None
    for more in (b"\0", b"x" * 100):
        assert decode_index(data + more, 6, 77) is None
    for generation in (0, 5, 7, 6 + (1 << 32)):
        assert decode_index(data, generation, 77) is None
    for salt in (0, 76, 77 + (1 << 32)):  # the same number of another node, or of a file that was there before
        assert decode_index(data, 6, salt) is None


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_at_all_are_no_index(data: bytes, generation: int) -> None:
    assert decode_index(data, generation, 0) is None


@given(st.integers(0, len(SMALL.encode(6, 77, 4096)) - 9), st.integers(0, (1 << 32) - 1))
def test_an_index_that_lies_under_a_right_checksum_raises_nothing(at: int, value: int) -> None:
    data = SMALL.encode(6, 77, 4096)
    lie = data[: 8 + at] + value.to_bytes(4, "little") + data[12 + at :]
    lie = lie[:4] + crc32c(lie[8:]).to_bytes(4, "little") + lie[8:]
    found = decode_index(lie[: len(data)], 6, 77)
    assert found is None or isinstance(found[0], FileIndex)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=30))
def test_a_scan_finds_the_runs_that_a_writer_noted(appended: list[tuple[int, int]]) -> None:
    """One run per ledger and group, while their offsets follow each other."""
    offsets = {1: 0, 2: 50, 3: 1000}
    entries, expected = [], FileIndex()
    for ledger, count in appended:
        entries.append(Entry(LedgerId(ledger), EntryKind.APPEND, offsets[ledger], NO_OFFSET, 10, count, 0, 0))
        offsets[ledger] += count
    for ledger, start in ((1, 0), (2, 50), (3, 1000)):
        if offsets[ledger] > start:
            size = 10 * sum(each == ledger for each, _ in appended)
            expected.add(LedgerId(ledger), start, offsets[ledger] - 1, 5, NO_OFFSET, size)
    found = FileIndex()
    add_to_index(found, entries, 5 * 4096)
    assert found.ledgers.keys() == expected.ledgers.keys()
    assert all(found.ledgers[ledger] == expected.ledgers[ledger] for ledger in expected.ledgers)


def test_memory_grows_by_runs_and_not_by_messages() -> None:
    runs = Runs()
    runs.add(0, 999_999, 1)
    index = FileIndex({LedgerId(1): runs})
    assert index.size < 1000
