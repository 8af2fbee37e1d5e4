"""The object of a segment: the same bytes for the same rows, readable as Parquet, and every bit is guarded."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pydanube.tier.segment_file as segment_file
from pydanube.base.errors import BatchInvalid
from pydanube.base.ids import Epoch
from pydanube.stream.segments import SegmentPlan
from pydanube.tier.cutting import CutRows
from pydanube.tier.rows import rows_of
from pydanube.tier.segment_file import (
    Footer,
    InvalidSegment,
    SegmentScan,
    SegmentWriter,
    footer_bytes,
    made,
    read_footer,
    read_group,
)
from pydanube.wire.arrow import record_schema
from pydanube.wire.batch import Batch
from tier.rows_world import STREAM, batches_of, full, messages, plan_of, rebatched, segment_bytes, simple, streams


def check_whole(data: bytes) -> Footer:
    """All of an object that is in memory."""
    scan = SegmentScan(data, len(data))
    for start, length in scan.parts():
        scan.take(data[start : start + length])
    scan.finish()
    return scan.footer


def read_back(data: bytes) -> list[Batch]:
    footer = read_footer(data, len(data))
    found: list[Batch] = []
    for index, group in enumerate(footer.groups):
        found += batches_of(CutRows(read_group(footer, index, data[group.start : group.start + group.length])))
    return found


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_file, "GROUP_ROWS", 7)
    monkeypatch.setattr(segment_file, "GROUP_BYTES", 50)


@given(streams())
@settings(max_examples=50)
def test_a_segment_holds_the_same_messages(batches: list[Batch]) -> None:
    data = segment_bytes(batches)
    assert messages(read_back(data)) == messages(batches)
    assert check_whole(data).rows == len(messages(batches))


@pytest.mark.slow
@given(batches=streams(), data=st.data())
@settings(max_examples=40)
def test_the_same_rows_are_the_same_bytes(batches: list[Batch], data: st.DataObject) -> None:
    """In any batches and portions, of row groups of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_file, "GROUP_ROWS", data.draw(st.integers(1, 30)))
        patch.setattr(segment_file, "GROUP_BYTES", data.draw(st.integers(1, 300)))
        object_bytes = segment_bytes(batches, at_once=data.draw(st.integers(1, 5)))
        assert segment_bytes(data.draw(rebatched(batches))) == object_bytes
        assert messages(read_back(object_bytes)) == messages(batches)
        assert check_whole(object_bytes).rows == len(messages(batches))


@pytest.mark.usefixtures("small_groups")
def test_row_groups_are_bounded_in_rows_and_bytes() -> None:
    footer = read_footer(data := segment_bytes(simple(20)), len(data))
    assert [group.rows for group in footer.groups] == [7, 7, 6]
    assert [group.first for group in footer.groups] == [0, 7, 14]
    footer = read_footer(data := segment_bytes(simple(5, first=10, size=10)), len(data))  # rows of 30 bytes
    assert [group.rows for group in footer.groups] == [1, 1, 1, 1, 1]


def test_what_is_said_of_a_segment() -> None:
    batches = full(100)
    data = segment_bytes(batches)
    segment = made(data, 1234)
    assert (segment.plan, segment.rows, segment.bytes, segment.size) == (plan_of(batches), 8, 1234, len(data))
    assert (segment.oldest, segment.newest) == (batches[0].append_time, batches[1].append_time)
    assert segment.groups == (100,)
    read_footer(data, len(data)).check(segment)


def test_any_reader_of_parquet_reads_it() -> None:
    batches = [*full(), *simple(30, first=50)]
    data = segment_bytes(batches)
    table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    assert table.schema.remove_metadata() == record_schema()
    assert table.column("payload").to_pylist() == [message.payload for message in messages(batches)]
    parquet = pq.ParquetFile(pa.BufferReader(data)).metadata
    facts = parquet.metadata
    assert facts[b"danube.stream"] == STREAM.encode()
    assert facts[b"danube.topic"] == b"7/12"
    assert (facts[b"danube.first"], facts[b"danube.last"], facts[b"danube.epoch"]) == (b"0", b"79", b"9")
    group = parquet.row_group(0)
    assert [column.column_index for column in group.sorting_columns] == [0]
    for index in range(group.num_columns):
        column = group.column(index)
        assert column.compression == "ZSTD"
        wanted = column.path_in_schema in {"offset", "publish_time", "append_time", "event_time", "delivery_time"}
        assert column.is_stats_set == wanted
    assert (group.column(0).statistics.min, group.column(0).statistics.max) == (0, 79)


def test_row_groups_lie_where_the_footer_says() -> None:
    data = segment_bytes(simple(250_000, per_batch=10_000), at_once=7)
    footer = read_footer(data, len(data))
    assert [group.rows for group in footer.groups] == [100_000, 100_000, 50_000]
    for index, group in enumerate(footer.groups):
        columns = [footer.parquet.row_group(index).column(column) for column in range(14)]
        starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
        ends = [s + c.total_compressed_size for s, c in zip(starts, columns, strict=True)]
        assert (min(starts), max(ends)) == (group.start, group.start + group.length)


def test_rows_must_follow_each_other_within_the_plan() -> None:
    for plan, batches in (
        (SegmentPlan(0, 9, Epoch(1)), simple(11)),
        (SegmentPlan(1, 9, Epoch(1)), simple(9)),
        (SegmentPlan(0, 30, Epoch(1)), [*simple(10), *simple(10)]),
        (SegmentPlan(0, 30, Epoch(1)), [*simple(10, first=10), *simple(10)]),
    ):
        writer = SegmentWriter(plan, STREAM)
        *good, bad = batches
        for batch in good:
            writer.add(rows_of([batch]))
        with pytest.raises(BatchInvalid):
            writer.add(rows_of([bad]))


@pytest.mark.parametrize(("first", "last", "rows"), [(0, 9, None), (0, 9, (0, 9)), (0, 9, (1, 9)), (0, 9, (3, 4))])
def test_rows_must_reach_the_end_of_the_plan(first: int, last: int, rows: tuple[int, int] | None) -> None:
    """A source that ends too early must not pass for the whole: its local copy would go."""
    writer = SegmentWriter(SegmentPlan(first, last, Epoch(1)), STREAM)
    if rows is not None:
        writer.add(rows_of(simple(rows[1] - rows[0], first=rows[0])))
    with pytest.raises(BatchInvalid):
        writer.finish()


def test_a_segment_may_begin_with_a_gap() -> None:
    """A buffered stream can lose what came first."""
    writer = SegmentWriter(SegmentPlan(0, 9, Epoch(1)), STREAM)
    writer.add(rows_of(simple(5, first=5)))
    assert made(writer.finish(), 0).rows == 5


def outcome(data: bytes, size: int) -> list[Batch] | None:
    """What a reader that knows the size gets of these bytes: batches, or None where it says that they are damaged."""
    try:
        footer = read_footer(data, size)
        found: list[Batch] = []
        for index, group in enumerate(footer.groups):
            rows = read_group(footer, index, data[group.start : group.start + group.length])
            found += batches_of(CutRows(rows))
    except InvalidSegment:
        return None
    return found


def test_every_flipped_bit_is_noticed() -> None:
    data = segment_bytes(full(3))
    assert outcome(data, len(data)) is not None
    for at in range(len(data)):
        for bit in range(8) if at % 13 == 0 else (at % 8,):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            assert outcome(flipped, len(data)) is None or at < 4  # a reader has no use for the magic at the start
            with pytest.raises(InvalidSegment):
                check_whole(flipped)


def test_every_truncation_is_noticed() -> None:
    data = segment_bytes(full(3))
    for length in range(len(data)):
        assert outcome(data[:length], len(data)) is None
        with pytest.raises(InvalidSegment):
            check_whole(data[:length])
    with pytest.raises(InvalidSegment):
        check_whole(data + b"\0")


def test_a_footer_that_claims_too_much_is_refused_before_it_is_read() -> None:
    data = segment_bytes(full())
    lying = data[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(InvalidSegment):
        footer_bytes(lying[-64:], 1 << 40)


def test_plain_parquet_is_no_segment() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"offset": [1, 2]}), sink)
    with pytest.raises(InvalidSegment):
        check_whole(sink.getvalue().to_pybytes())


def test_segments_of_the_first_format_stay_readable() -> None:
    """Made once and kept: segments live for years."""
    data = (Path(__file__).parent / "golden" / "segment.parquet").read_bytes()
    assert messages(read_back(data)) == messages(full(100))
    assert check_whole(data).plan == plan_of(full(100))
