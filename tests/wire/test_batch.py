"""A batch returns what it was built from, and stamping does not change its content."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from pydanube.base.errors import BatchDamaged, BatchInvalid, BatchTooLarge
from pydanube.base.limits import BATCH_ATTRIBUTES_MAX, BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, OFFSET_MAX
from pydanube.wire.batch import PREFIX_BYTES, Batch, Codec, Message, build, length_of
from pydanube.wire.columns import Column, ColumnKind, kind_of
from wire.batches import ALL_COLUMNS, NOW, SAMPLES, drafts, expected_fields, fields_of, patched


@given(drafts())
def test_every_column_comes_back_as_it_was_given(draft: dict[str, Any]) -> None:
    built = build(**draft)
    parsed = Batch.parse(built.to_bytes())
    parsed.check()
    assert parsed == built
    assert fields_of(parsed) == fields_of(built) == expected_fields(draft)
    assert (parsed.producer_id, parsed.first_sequence) == (draft["producer_id"], draft["first_sequence"])
    assert parsed.publish_time == draft["publish_time"]


@given(drafts())
def test_a_batch_is_a_multiple_of_eight_bytes_and_says_its_length(draft: dict[str, Any]) -> None:
    batch = build(**draft)
    data = batch.to_bytes()
    assert len(data) == batch.size
    assert len(data) % 8 == 0
    assert length_of(data[:PREFIX_BYTES]) == length_of(data + b"more") == len(data)
    assert b"".join(batch.parts()) == data


def test_messages_carry_every_field_of_their_row() -> None:
    first, second, third, fourth = SAMPLES["all columns, stamped"].messages()
    assert first == Message(
        offset=500,
        publish_time=NOW,
        append_time=NOW + 99,
        event_time=None,
        delivery_time=NOW + 9,
        key=b"a",
        payload=b"one",
        attributes={"trace": "ü1", "": ""},
        producer=42,
        sequence=1000,
        schema_id=7,
        schema_version=1,
        epoch=3,
    )
    assert isinstance(second, Message)
    assert (third.offset, third.sequence, third.payload, third.attributes) == (502, 1002, None, None)
    assert (fourth.key, fourth.schema_version) == ("ключ".encode(), -1)


def test_null_differs_from_empty() -> None:
    batch = build([None, b""], publish_time=NOW, keys=["", None], attributes=[{}, None])
    assert batch.payloads() == [None, b""]
    assert batch.keys() == [b"", None]
    assert batch.attributes() == [{}, None]


@pytest.mark.parametrize("codec", Codec)
def test_columns_that_are_null_throughout_cost_nothing(codec: Codec) -> None:
    nothing = [None, None]
    bare = build([b"a", b"b"], publish_time=NOW, codec=codec)
    batch = build(
        [b"a", b"b"],
        publish_time=NOW,
        publish_times=[NOW, NOW],
        keys=nothing,
        event_times=nothing,
        delivery_times=nothing,
        attributes=nothing,
        schema_ids=nothing,
        schema_versions=nothing,
        codec=codec,
    )
    assert batch == bare
    assert build(nothing, publish_time=NOW, codec=codec).raw_bytes == 0


def test_a_value_that_all_messages_share_is_stored_once() -> None:
    batch = build([b"a"] * 100, publish_time=NOW, schema_ids=5, schema_versions=[2] * 100, event_times=[NOW] * 100)
    for column in (Column.SCHEMA_ID, Column.SCHEMA_VERSION, Column.EVENT_TIME):
        assert kind_of(batch.columns, column) == ColumnKind.CONSTANT
    assert batch.plain_bytes == 24
    assert batch.schema_ids() == [5] * 100


def test_the_broker_reads_keys_and_times_without_unpacking_payloads() -> None:
    batch = SAMPLES["zstd"]
    spoilt = Batch.parse(patched(batch.to_bytes(), 96 + batch.plain_bytes, b"not zstd"))
    spoilt.check_plain()
    assert spoilt.keys() == batch.keys()
    assert spoilt.delivery_times() == batch.delivery_times()
    with pytest.raises(BatchInvalid):
        spoilt.payloads()


def test_a_section_that_does_not_shrink_is_stored_uncompressed() -> None:
    noise = [bytes(range(256))]
    assert build(noise, publish_time=NOW, codec=Codec.ZSTD) == build(noise, publish_time=NOW)
    assert build(noise, publish_time=NOW, codec=Codec.LZ4) == build(noise, publish_time=NOW)


def test_keys_may_be_text_or_bytes_or_both() -> None:
    assert build([b""] * 3, publish_time=NOW, keys=["a", b"\xff", None]).keys() == [b"a", b"\xff", None]
    assert build([b""] * 2, publish_time=NOW, keys=[b"a", b"b"]) == build([b""] * 2, publish_time=NOW, keys="ab")


# -- stamps ----------------------------------------------------------------------------------------------------------


def test_stamping_leaves_the_content_untouched() -> None:
    batch = SAMPLES["all columns"]
    stamped = batch.stamped(1 << 40, 7, NOW)
    assert stamped.content is batch.content
    assert (stamped.base_offset, stamped.last_offset) == (1 << 40, (1 << 40) + 3)
    assert (stamped.epoch, stamped.append_time, stamped.crc) == (7, NOW, batch.crc)
    assert Batch.parse(stamped.to_bytes()) == Batch.from_parts(*stamped.parts()) == stamped
    assert (batch.epoch, batch.base_offset, batch.append_time) == (0, 0, 0)
    assert fields_of(stamped) == fields_of(batch)


def test_a_stamp_is_valid_for_one_content_only() -> None:
    one = build([b"one"], publish_time=NOW).stamped(10, 1, NOW)
    two = build([b"two"], publish_time=NOW).stamped(11, 1, NOW)
    for stamp, content in ((one.stamp, two.content), (two.stamp, one.content)):
        with pytest.raises(BatchDamaged):
            Batch.from_parts(stamp, content)


def test_every_flipped_bit_of_a_stamp_is_found() -> None:
    batch = SAMPLES["all columns, stamped"]
    for bit in range(8 * len(batch.stamp)):
        stamp = bytearray(batch.stamp)
        stamp[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BatchDamaged):
            Batch.from_parts(bytes(stamp), batch.content)


@pytest.mark.parametrize(
    ("base_offset", "epoch", "append_time"),
    [
        (-1, 1, NOW),
        (OFFSET_MAX - 2, 1, NOW),
        (1 << 64, 1, NOW),
        (0, 0, 0),
        (0, -1, NOW),
        (0, 1 << 63, NOW),
        (0, 1, -1),
        (0, 1, 1 << 63),
    ],
)
def test_a_stamp_out_of_range_is_refused(base_offset: int, epoch: int, append_time: int) -> None:
    with pytest.raises(BatchInvalid):
        SAMPLES["all columns"].stamped(base_offset, epoch, append_time)


def test_the_largest_offset_can_be_used() -> None:
    assert SAMPLES["all columns"].stamped(OFFSET_MAX - 3, 1, 0).last_offset == OFFSET_MAX


def test_batches_are_equal_when_their_bytes_are() -> None:
    batch = build([b"x"], publish_time=NOW)
    assert batch == build([b"x"], publish_time=NOW)
    assert hash(batch) == hash(build([b"x"], publish_time=NOW))
    assert batch != batch.stamped(0, 1, 0)
    assert batch != batch.to_bytes()
    assert repr(batch.stamped(5, 1, 0)) == "<Batch 5..5 of epoch 1, 1 messages, 112 bytes, none>"
    assert "not stamped" in repr(batch)


# -- what build refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [name for name in ALL_COLUMNS if isinstance(ALL_COLUMNS[name], list)])
@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [*rows, rows[0]], lambda _: []])
def test_columns_of_unequal_length_are_refused(column: str, change: Any) -> None:
    with pytest.raises(BatchInvalid):
        build(**{**ALL_COLUMNS, column: change(ALL_COLUMNS[column])})


@pytest.mark.parametrize(
    "wrong",
    [
        {"payloads": []},
        {"payloads": ["text"]},
        {"payloads": [None, 5]},
        {"payloads": [memoryview(b"12345678").cast("i")]},
        {"keys": [5]},
        {"keys": ["\ud800"]},
        {"keys": ["\ud800", b""], "payloads": [b"", b""]},
        {"attributes": [{"a": 1}]},
        {"attributes": [{1: "a"}]},
        {"attributes": [{"a": "\ud800"}]},
        {"attributes": [5]},
        {"event_times": [1 << 63]},
        {"event_times": [1.5]},
        {"event_times": ["now"]},
        {"event_times": [None, 1 << 63], "payloads": [b"", b""]},
        {"schema_versions": 1 << 31},
        {"schema_versions": [1, 1 << 31], "payloads": [b"", b""]},
        {"publish_times": [None]},
        {"publish_time": 1 << 63},
        {"publish_time": -(1 << 63) - 1},
        {"producer_id": -1},
        {"producer_id": 1 << 63},
        {"first_sequence": -1},
        {"first_sequence": OFFSET_MAX + 1},
    ],
)
def test_values_that_do_not_fit_a_column_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BatchInvalid):
        build(**{"payloads": [b"x"], "publish_time": NOW, **wrong})


@pytest.mark.parametrize("codec", Codec)
def test_more_than_a_batch_may_hold_is_refused(codec: Codec) -> None:
    attributes = [{str(name): "" for name in range(BATCH_ATTRIBUTES_MAX // 4 + 1)}] * 4
    with pytest.raises(BatchTooLarge):
        build([b""] * (BATCH_MESSAGES_MAX + 1), publish_time=NOW, codec=codec)
    with pytest.raises(BatchTooLarge):
        build([bytes(BATCH_BYTES_MAX - 7)], publish_time=NOW, codec=codec)
    with pytest.raises(BatchTooLarge):
        build([bytes(BATCH_BYTES_MAX // 2)] * 3, publish_time=NOW, codec=codec)
    with pytest.raises(BatchTooLarge):
        build([b""] * 4, publish_time=NOW, codec=codec, attributes=attributes)


def test_a_batch_of_the_largest_size_goes_through() -> None:
    overhead = build([b""], publish_time=NOW).size
    batch = Batch.parse(build([bytes(BATCH_BYTES_MAX - overhead)], publish_time=NOW).to_bytes())
    assert batch.size == BATCH_BYTES_MAX
    assert batch.payloads() == [bytes(BATCH_BYTES_MAX - overhead)]
    with pytest.raises(BatchTooLarge):
        Batch.parse(batch.to_bytes() + bytes(8))
    with pytest.raises(BatchTooLarge):
        Batch.from_parts(batch.stamp, batch.content + bytes(8))


@pytest.mark.parametrize("rows", [range(20), range(3, 11), range(8, 9), range(19, 20), range(5, 5)])
def test_some_rows_of_a_column_may_be_read(rows: range) -> None:
    keys = [None if row % 3 else b"k%d" % row for row in range(20)]
    times = [None if row % 4 else NOW + row for row in range(20)]
    batch = Batch.parse(build([b""] * 20, keys=keys, delivery_times=times, publish_time=NOW).to_bytes())
    assert batch.keys(rows) == batch.keys()[rows.start : rows.stop] == keys[rows.start : rows.stop]
    assert batch.delivery_times(rows) == times[rows.start : rows.stop]
    plain = build([b""] * 20, publish_time=NOW)
    assert plain.keys(rows) == plain.delivery_times(rows) == [None] * len(rows)


def test_a_batch_of_the_most_messages_goes_through() -> None:
    keys = [str(row) for row in range(BATCH_MESSAGES_MAX)]
    batch = Batch.parse(build([b""] * BATCH_MESSAGES_MAX, keys=keys, publish_time=NOW).to_bytes())
    assert batch.keys() == [key.encode() for key in keys]
    assert batch.slice(100_000, 3).keys() == [b"100000", b"100001", b"100002"]


def test_a_batch_is_parsed_from_a_view_as_well() -> None:
    batch = SAMPLES["all columns, stamped"]
    data = b"before" + batch.to_bytes() + b"after"
    parsed = Batch.parse(memoryview(data)[6 : 6 + batch.size])
    assert parsed == batch
    assert type(parsed.content) is bytes


def test_what_was_verified_elsewhere_is_not_verified_again() -> None:
    batch = build([b"a", b"b"], publish_time=1, keys=[b"k", None]).stamped(5, 2, 3)
    stamp, content = batch.parts()
    assert Batch.verified(stamp, content) == batch
    damaged = content[:-1] + bytes([content[-1] ^ 1])
    found = Batch.verified(stamp, damaged)
    assert found.base_offset == 5
    with pytest.raises(BatchDamaged):  # whoever it goes to notices
        Batch.parse(found.to_bytes())
    for broken in (content[:-8], content + bytes(8), b"", b"x" * len(content)):
        with pytest.raises((BatchDamaged, BatchInvalid)):
            Batch.verified(stamp, broken)
