"""A slice of a batch has the rows that were in it, whatever its columns and codec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import BatchInvalid
from pydanube.wire.batch import Batch, Codec, build
from pydanube.wire.columns import Column, ColumnKind, kind_of
from wire.batches import NOW, SAMPLES, drafts, expected_fields, fields_of


@given(drafts(), st.data())
def test_a_slice_of_a_batch_is_the_slice_of_every_column(draft: dict[str, Any], data: st.DataObject) -> None:
    batch = build(**draft)
    first = data.draw(st.integers(0, batch.count - 1))
    count = data.draw(st.integers(1, batch.count - first))
    cut = Batch.parse(batch.slice(first, count).to_bytes())
    cut.check()
    assert fields_of(cut) == {name: rows[first : first + count] for name, rows in expected_fields(draft).items()}
    assert cut.first_sequence == batch.first_sequence + first
    assert (cut.publish_time, cut.producer_id) == (batch.publish_time, batch.producer_id)
    assert (cut.epoch, cut.base_offset, cut.append_time) == (0, 0, 0)


@given(drafts(), st.data())
def test_a_slice_of_a_stamped_batch_keeps_its_place(draft: dict[str, Any], data: st.DataObject) -> None:
    batch = build(**draft).stamped(1000, 5, NOW)
    first = data.draw(st.integers(0, batch.count - 1))
    count = data.draw(st.integers(1, batch.count - first))
    rows = list(batch.messages())[first : first + count]
    assert list(Batch.parse(batch.slice(first, count).to_bytes()).messages()) == rows


@pytest.mark.parametrize("name", SAMPLES)
def test_a_slice_of_a_slice_is_one_slice(name: str) -> None:
    batch = SAMPLES[name]
    for first in range(batch.count):
        for count in range(1, batch.count - first + 1):
            assert batch.slice(first, batch.count - first).slice(0, count) == batch.slice(first, count)


def test_a_slice_of_everything_is_the_batch_itself() -> None:
    assert SAMPLES["zstd"].slice(0, 4) is SAMPLES["zstd"]


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, 0), (0, -1), (0, 5), (4, 1), (3, 2), (1 << 70, 1)])
def test_rows_that_do_not_exist_are_refused(first: int, count: int) -> None:
    with pytest.raises(BatchInvalid):
        SAMPLES["all columns"].slice(first, count)


def test_a_column_loses_its_bitmap_or_itself_where_the_rows_need_neither() -> None:
    batch = build([None, None, b"c", b"d"], publish_time=NOW, event_times=[None, None, 3, 4])
    nothing, everything = batch.slice(0, 2), batch.slice(2, 2)
    for column in (Column.PAYLOAD, Column.EVENT_TIME):
        assert kind_of(nothing.columns, column) == ColumnKind.ABSENT
        assert kind_of(everything.columns, column) == ColumnKind.PLAIN
        assert kind_of(batch.slice(1, 2).columns, column) == ColumnKind.NULLABLE


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_slice_is_packed_as_its_batch_was_and_nothing_unpacked_is_kept(codec: Codec) -> None:
    batch = build([b"repeatedly " * 10] * 100, publish_time=NOW, codec=codec)
    assert batch.slice(10, 50).codec == codec
    assert batch._packed is None
    assert batch.slice(10, 50).payloads() == [b"repeatedly " * 10] * 50


def test_long_columns_are_cut_piece_by_piece() -> None:
    count = 20_000  # more than two pieces of `buffer_math`
    payloads = [str(row).encode() for row in range(count)]
    batch = build(payloads, publish_time=NOW, attributes=[{"row": str(row)} for row in range(count)])
    cut = batch.slice(7, count - 9)
    assert cut.payloads() == payloads[7 : count - 2]
    assert cut.attributes()[-1] == {"row": str(count - 3)}
