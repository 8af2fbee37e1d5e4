"""What a table must change to be what a listing says, and which small segments become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.ids import Epoch
from pydanube.stream.cold import Cold, make_index
from pydanube.stream.delta_table import (
    DOOMED_MAX,
    MERGED_AT_ONCE,
    SMALL_RUN_MAX,
    Listed,
    TableFile,
    TableListing,
    listing_of,
    next_merge,
    table_changes,
    table_file,
)
from pydanube.stream.segments import Segment, SegmentPlan, segment_key

STREAM = "t1.2"
SEGMENT_BYTES = 1 << 20


def segment(first: int, last: int, size: int = 100) -> Segment:
    return Segment(first, last, Epoch(1), last - first + 1, size, size, "c", "d", 1, 2, (first,))


def row_of(sizes: Iterable[int]) -> tuple[Segment, ...]:
    return tuple(segment(10 * number, 10 * number + 9, size) for number, size in enumerate(sizes))


def listing(*segments: Segment, grows: bool = True) -> TableListing:
    return listing_of(STREAM, Epoch(1), segments, now=0, grows=grows)


def listed(*segments: Segment) -> list[Listed]:
    """As a table has them that was brought to these."""
    files = [table_file(STREAM, each) for each in segments]
    return [Listed(each.path, each.size, each.rows, each.first, each.last) for each in files]


def paths(changes: Iterable[tuple[TableFile | Listed, bool]]) -> list[tuple[str, bool]]:
    return [(file.path, changed) for file, changed in changes]


def test_paths_lie_where_cleaners_do_not_look_and_readers_find_the_partition() -> None:
    assert table_file(STREAM, segment(0, 9)).path == (
        "_segments/partition=2/00000000000000000000-00000000000000000009-1.parquet"
    )


def test_a_gap_at_the_beginning_is_not_told_as_an_offset() -> None:
    gap = replace(segment(0, 9), rows=6, groups=(4,))
    assert (table_file(STREAM, gap).first, table_file(STREAM, gap).path) == (4, table_file(STREAM, segment(0, 9)).path)
    assert not table_changes(listing(gap), listed(gap), 9)


def test_what_is_missing_is_added_what_is_not_listed_goes_and_nothing_else_changes() -> None:
    old, kept, new = row_of([100, 100, 100])
    changes = table_changes(listing(kept, new), listed(old, kept), 19)
    assert paths(changes.adds) == [(table_file(STREAM, new).path, True)]
    assert paths(changes.removes) == [(table_file(STREAM, old).path, False)]
    assert not table_changes(listing(kept, new), listed(kept, new), 29)


def test_only_rows_that_are_in_the_same_commit_taken_and_given_are_no_change_of_data() -> None:
    parts, after = row_of([100, 100]), segment(20, 29)
    merged = segment(0, 19)
    changes = table_changes(listing(merged, after), listed(*parts), 19)
    assert [changed for _, changed in changes.adds] == [False, True]
    assert [changed for _, changed in changes.removes] == [False, False]
    never_listed = table_changes(listing(merged), listed(parts[0]), 9)
    assert [changed for _, changed in (*never_listed.adds, *never_listed.removes)] == [True, True]


def test_only_rows_at_the_beginning_end_without_a_change_of_data() -> None:
    first, middle, last = row_of([100, 100, 100])
    gone = table_changes(listing(), listed(first, middle, last), 29)
    assert [changed for _, changed in gone.removes] == [False, False, False]
    odd = table_changes(listing(first, last), listed(first, middle, last), 29)
    assert [changed for _, changed in odd.removes] == [True]


def test_a_file_of_others_without_statistics_goes_as_well() -> None:
    own = segment(0, 9)
    changes = table_changes(listing(own), [*listed(own), Listed("partition=2/part-0.parquet", 5, 0)], 9)
    assert paths(changes.removes) == [("partition=2/part-0.parquet", True)]


def test_a_table_that_does_not_grow_is_mended_and_gets_nothing_new() -> None:
    had, new = segment(0, 9), segment(10, 19)
    assert not table_changes(listing(had, new, grows=False), listed(had), 9)
    mended = table_changes(listing(had, new, grows=False), [], 9)
    assert [file.path for file, _ in mended.adds] == [table_file(STREAM, had).path]


def test_what_is_folded_stays_if_all_its_rows_are_there_and_is_asked_for_if_not() -> None:
    folded, after = row_of([100] * 4), segment(40, 49)
    index, _ = make_index(folded)
    wanted = listing_of(STREAM, Epoch(1), (index, after), now=0, grows=True)
    assert wanted.last == 49
    assert not table_changes(wanted, listed(*folded, after), 49)
    for table in ([], listed(*folded[1:], after), [*listed(*folded[1:]), Listed("partition=2/x.parquet", 1, 10, 0, 9)]):
        changes = table_changes(wanted, table, 49)
        assert not changes
        assert [(each.first, each.last) for each in changes.unfold] == [(0, 39)]


# -- merging -----------------------------------------------------------------------------------------------------------


def merges(sizes: Iterable[int]) -> tuple[Cold, int]:
    """Segments that come one after the other, each merge done at once: what is left, and the bytes written again."""
    cold, written = Cold(), 0
    for number, size in enumerate(sizes):
        new = segment(10 * number, 10 * number + 9, size)
        cold = replace(cold, entries=(*cold.entries, new), local_from=new.last + 1, doomed=())
        while parts := next_merge(STREAM, cold, SEGMENT_BYTES):
            total = sum(part.bytes for part in parts)
            plan = SegmentPlan(parts[0].first, parts[-1].last, Epoch(1))
            merged = segment(plan.first, plan.last, total)
            cold = replace(cold, merging=plan).merged(STREAM, merged, 0)
            written += total
    return cold, written


@given(st.lists(st.integers(1, SEGMENT_BYTES), max_size=150))
def test_files_are_few_and_hold_everything_however_large_they_come(sizes: list[int]) -> None:
    cold, _ = merges(sizes)
    assert sum(each.bytes for each in cold.segments) == sum(sizes)
    assert [each.first for each in cold.segments[1:]] == [each.last + 1 for each in cold.segments[:-1]]
    assert all(each.bytes <= SEGMENT_BYTES for each in cold.segments)
    run = 0
    for each in cold.segments:
        run = run + 1 if 2 * each.bytes < SEGMENT_BYTES else 0
        assert run <= SMALL_RUN_MAX


def test_a_slow_topic_is_not_written_again_and_again() -> None:
    cold, written = merges([100] * 4000)
    assert len(cold.segments) < 40
    assert written < 5 * 100 * 4000, "each byte as often as its file grew eightfold"


def test_one_large_and_seven_tiny_ones_in_turn_do_not_pile_up() -> None:
    cold, _ = merges(([SEGMENT_BYTES // 3] + [1] * 7) * 60)
    assert len(cold.segments) <= SMALL_RUN_MAX + 20


def test_small_ones_between_large_ones_do_not_stay_small_for_ever() -> None:
    cold, written = merges(([SEGMENT_BYTES] + [100] * 5) * 20)
    assert len(cold.segments) <= 2 * 20 + 5
    assert written < 20 * 5 * 100 * 2


def test_only_neighbours_that_all_have_or_all_lack_local_copies_are_merged() -> None:
    segments = row_of([100] * MERGED_AT_ONCE)
    assert next_merge(STREAM, Cold(entries=segments), SEGMENT_BYTES) == list(segments)
    assert next_merge(STREAM, Cold(entries=segments, local_from=80), SEGMENT_BYTES) == list(segments)
    assert not next_merge(STREAM, Cold(entries=segments, local_from=40), SEGMENT_BYTES)


def test_segments_on_both_sides_of_a_list_of_others_are_no_neighbours() -> None:
    segments = row_of([100] * 12)
    index, _ = make_index(segments[4:8])
    entries = (*segments[:4], index, *segments[8:])
    assert next_merge(STREAM, Cold(entries=entries), SEGMENT_BYTES) == list(segments[:4])
    assert not next_merge(STREAM, Cold(entries=entries[4:]), SEGMENT_BYTES)


def test_no_merge_with_what_is_spoilt_nor_while_another_goes_on_nor_with_too_much_to_delete() -> None:
    segments = row_of([100] * MERGED_AT_ONCE)
    cold = Cold(entries=segments)
    spoilt = {segment_key(STREAM, segments[3].plan)}
    assert next_merge(STREAM, cold, SEGMENT_BYTES, spoilt) == list(segments[:3])
    assert not next_merge(STREAM, replace(cold, merging=SegmentPlan(0, 9, Epoch(1))), SEGMENT_BYTES)
    given_up = replace(cold, planned=SegmentPlan(80, 89, Epoch(1))).given_up(STREAM)
    assert not next_merge(STREAM, replace(cold, doomed=given_up.doomed * DOOMED_MAX), SEGMENT_BYTES)
