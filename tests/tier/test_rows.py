"""Batches become rows and batches again: the same messages, whatever the columns, producers, gaps and sizes."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import MIB
from pydanube.tier import cutting
from pydanube.tier.cutting import CutRows, check_rows
from pydanube.tier.limits import BATCH_BYTES_TARGET
from pydanube.tier.rows import joined, rows_of
from pydanube.wire.arrow import record_schema
from pydanube.wire.batch import Batch, Codec, build
from tier.rows_world import batches_of, full, messages, simple, streams
from wire.batches import NOW, forged, patched


@given(streams())
def test_rows_become_the_same_messages_again(batches: list[Batch]) -> None:
    rows = rows_of(batches)
    assert rows.schema == record_schema()
    rows.validate(full=True)
    assert messages(batches_of(CutRows(rows))) == messages(batches)


@given(streams(), st.data())
def test_a_part_of_the_rows_becomes_the_same_messages(batches: list[Batch], data: st.DataObject) -> None:
    rows = rows_of(batches)
    first = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - first))
    back = messages(batches_of(CutRows(rows.slice(first, count))))
    assert back == messages(batches)[first : first + count]


@given(streams())
def test_rows_say_what_messages_say(batches: list[Batch]) -> None:
    rows = rows_of(batches)
    for index, message in enumerate(messages(batches)):
        for name in ("offset", "key", "payload", "producer", "sequence", "schema_id", "schema_version", "epoch"):
            assert rows.column(name)[index].as_py() == getattr(message, name)
        for name in ("publish_time", "append_time", "event_time", "delivery_time"):
            assert rows.column(name)[index].value == getattr(message, name)
        attributes = rows.column("attributes")[index].as_py()
        assert (None if attributes is None else dict(attributes)) == message.attributes


@given(streams())
def test_rows_joined_from_parts_are_the_same(batches: list[Batch]) -> None:
    assert joined([rows_of([batch]) for batch in batches]).equals(rows_of(batches))


def test_a_batch_ends_where_a_stamp_or_header_could_not_go_on() -> None:
    one = build([b"a", b"b"], publish_time=NOW, producer_id=1, first_sequence=10)
    same = one.stamped(100, 2, NOW)
    next_one = build([b"c"], publish_time=NOW + 5, producer_id=1, first_sequence=12)
    for other, cuts in (
        (next_one.stamped(102, 2, NOW), 1),
        (next_one.stamped(103, 2, NOW), 2),
        (next_one.stamped(102, 3, NOW), 2),
        (next_one.stamped(102, 2, NOW + 1), 2),
        (build([b"c"], publish_time=NOW, producer_id=2, first_sequence=12).stamped(102, 2, NOW), 2),
        (build([b"c"], publish_time=NOW, producer_id=1, first_sequence=13).stamped(102, 2, NOW), 2),
    ):
        back = batches_of(CutRows(rows_of([same, other])))
        assert len(back) == cuts
        assert messages(back) == messages([same, other])


def test_large_rows_are_cut_by_size() -> None:
    batches = [build([bytes(100_000)] * 30, publish_time=NOW, first_sequence=0).stamped(0, 1, NOW)]
    back = batches_of(CutRows(rows_of(batches)))
    assert [batch.count for batch in back] == [10, 10, 10]
    assert max(batch.size for batch in back) < BATCH_BYTES_TARGET + 100
    assert messages(back) == messages(batches)


def test_a_row_larger_than_an_uncompressed_batch_comes_back_compressed() -> None:
    batch = build([bytes(15 * MIB)], keys=[b"k" * (4 * MIB)], publish_time=NOW, codec=Codec.LZ4).stamped(0, 1, NOW)
    back = batches_of(CutRows(rows_of([batch])))
    assert [one.codec for one in back] == [Codec.ZSTD]
    assert messages(back) == messages([batch])


def test_a_row_that_could_not_come_back_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing packs random bytes: such a row comes from nowhere, or from a better packer than ours."""
    monkeypatch.setattr(cutting, "ZSTD_LEVEL_TIGHT", 4)  # 19 takes seconds
    batch = build([bytes(12 * MIB)], keys=[b"k" * (4 * MIB)], publish_time=NOW, codec=Codec.LZ4).stamped(0, 1, NOW)
    rows = rows_of([batch])
    check_rows(rows)
    columns = {name: rows[name] for name in rows.schema.names} | {"payload": pa.array([os.urandom(12 * MIB)])}
    with pytest.raises(BatchTooLarge):
        check_rows(pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema))


def test_many_rows_of_one_stamp_stay_within_the_messages_of_a_batch() -> None:
    count = 1 << 17
    one = build([b""] * count, publish_time=NOW).stamped(0, 1, NOW)
    two = build([b""] * count, publish_time=NOW, first_sequence=count).stamped(count, 1, NOW)
    back = batches_of(CutRows(rows_of([one, two])))
    assert sum(batch.count for batch in back) == 2 * count
    assert max(batch.count for batch in back) <= count


def test_a_place_among_the_batches_is_found_by_offset() -> None:
    cut = CutRows(rows_of([*simple(20, first=100), *simple(5, first=130)]))
    assert [cut.holding(offset) for offset in (0, 100, 109, 110, 119, 120, 130, 134, 135)] == [
        0,
        0,
        0,
        1,
        1,
        2,
        2,
        2,
        3,
    ]


def test_what_stands_in_the_place_of_a_null_is_dropped() -> None:
    batch = build([b"one", b"two", None], publish_time=NOW).stamped(0, 1, NOW)
    data = batch.to_bytes()
    hidden = Batch.parse(patched(data, 96, b"\1"))  # the validity of the payloads: the second is null now
    assert hidden.payloads() == [b"one", None, None]
    plain = build([b"one", None, None], publish_time=NOW).stamped(0, 1, NOW)
    assert rows_of([hidden]).equals(rows_of([plain]))
    assert rows_of([hidden]).column("payload").buffers()[2].size == 3


@pytest.mark.parametrize("column", ["key", "attributes", "event_time"])
def test_null_columns_between_others_stay_null(column: str) -> None:
    batches = [*full(), *simple(3, first=50), *full(60)]
    found = rows_of(batches).column(column)
    assert found.slice(8, 3).null_count == 3
    assert messages(batches_of(CutRows(rows_of(batches)))) == messages(batches)


def test_a_batch_without_a_place_is_refused() -> None:
    with pytest.raises(BatchInvalid):
        rows_of([build([b"x"], publish_time=NOW)])


def test_a_batch_that_lies_is_refused() -> None:
    data = build([b"abc", b"def"], publish_time=NOW).stamped(0, 1, NOW).to_bytes()
    with pytest.raises(BatchInvalid):
        rows_of([Batch.parse(patched(data, 100, (9).to_bytes(4, "little")))])  # an offset beyond the data
    with pytest.raises((BatchInvalid, BatchTooLarge)):
        rows_of([Batch.parse(forged(packed=bytes(8), columns=1 << 12, count=5))])
