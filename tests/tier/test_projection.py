"""Some columns of a row group: only their bytes are read, and damage is never rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from pydanube.base.ids import Epoch
from pydanube.stream.segments import SegmentPlan
from pydanube.tier import projection
from pydanube.tier.projection import read_columns, stretches
from pydanube.tier.rows import rows_of
from pydanube.tier.segment_file import Footer, InvalidSegment, SegmentWriter, read_footer, read_group
from pydanube.wire.batch import build

COLUMNS = ["offset", "append_time", "event_time", "key", "payload", "attributes", "producer", "schema_version"]


def segment(size: int = 20) -> bytes:
    writer = SegmentWriter(SegmentPlan(0, 299, Epoch(1)), "t1")
    for first in range(0, 300, 100):
        payloads = [bytes([number % 251]) * size for number in range(first, first + 100)]
        keys = [b"k%d" % (number % 3) for number in range(100)]
        batch = build(payloads, keys=keys, publish_time=first, producer_id=7, first_sequence=first)
        writer.add(rows_of([batch.stamped(first, 1, first + 5)]))
    return writer.finish()


def read(footer: Footer, data: bytes, names: Sequence[str], index: int = 0) -> pa.RecordBatch:
    places = stretches(footer, index, names)
    return read_columns(footer, index, names, [(start, data[start : start + length]) for start, length in places])


@pytest.fixture
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are read one by one, however small."""
    monkeypatch.setattr(projection, "GAP_BYTES", 0)
    monkeypatch.setattr(projection, "WHOLE_PART", 0)


@pytest.mark.usefixtures("_apart")
@pytest.mark.parametrize("names", [["offset"], ["offset", "payload"], ["attributes", "offset"], COLUMNS])
def test_columns_are_those_of_the_whole_row_group(names: list[str]) -> None:
    data = segment()
    footer = read_footer(data, len(data))
    group = footer.groups[0]
    whole = read_group(footer, 0, data[group.start : group.start + group.length])
    found = read(footer, data, names)
    for name in names:
        assert found.column(name).cast(whole.column(name).type).equals(whole.column(name))
    assert sum(length for _, length in stretches(footer, 0, names)) < group.length


def test_what_is_near_is_read_in_one_go_and_most_of_it_as_a_whole() -> None:
    data = segment(5_000)
    footer = read_footer(data, len(data))
    group = footer.groups[0]
    [(_, little)] = stretches(footer, 0, ["offset", "append_time"])
    assert little < 1_000
    assert stretches(footer, 0, ["offset", "payload"]) == [(group.start, group.length)]


@pytest.mark.usefixtures("_apart")
@pytest.mark.parametrize("names", [["offset", "append_time"], ["offset", "key"]])
def test_no_single_bit_makes_other_rows(names: list[str]) -> None:
    data = segment()
    footer = read_footer(data, len(data))
    expected, noticed = read(footer, data, names), 0
    for start, length in stretches(footer, 0, names):
        for bit in range(start * 8, (start + length) * 8, 3):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            try:
                assert read(footer, bytes(damaged), names).equals(expected)  # in what a reader does not look at
            except InvalidSegment:
                noticed += 1
    assert noticed > length


def test_a_row_group_that_is_read_as_a_whole_is_checked_as_a_whole() -> None:
    data = bytearray(segment(5_000))
    footer = read_footer(bytes(data), len(data))
    last = footer.groups[0].start + footer.groups[0].length - 1
    data[last] ^= 1  # in a column that nobody asked for
    with pytest.raises(InvalidSegment, match="does not match its checksum"):
        read(footer, bytes(data), ["offset", "payload"])
    assert len(read(footer, bytes(data), ["offset"])) == 300


def test_what_says_to_be_too_large_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = segment()
    footer = read_footer(data, len(data))
    monkeypatch.setattr(projection, "DECODED_BYTES_MAX", 100)
    with pytest.raises(InvalidSegment, match="bytes"):
        stretches(footer, 0, ["offset"])
