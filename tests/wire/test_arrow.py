"""A batch as Arrow: the same values, in the memory of the batch, and always valid."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from pydanube.wire.arrow import record_schema, to_record_batch
from pydanube.wire.batch import Batch, Codec, Message, build
from wire.batches import NOW, SAMPLES, drafts, fields_of

TIMES = ("publish_time", "append_time", "event_time", "delivery_time")


def rows_of(record_batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows of a table as tuples in the order of `Message`, with times as numbers and maps as dicts."""
    columns = []
    for name in Message._fields:
        column = record_batch.column(name)
        values = (column.cast(pa.int64()) if name in TIMES else column).to_pylist()
        if name == "attributes":
            values = [None if value is None else dict(value) for value in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


@given(drafts())
def test_the_derived_table_has_all_messages(draft: dict[str, Any]) -> None:
    batch = Batch.parse(build(**draft).stamped(77, 2, NOW).to_bytes())
    whole = to_record_batch(batch, derived=True)
    whole.validate(full=True)
    assert whole.schema.names == list(Message._fields)
    assert rows_of(whole) == list(batch.messages())


@given(drafts())
def test_stored_columns_are_the_lists_of_the_batch(draft: dict[str, Any]) -> None:
    batch = Batch.parse(build(**draft).to_bytes())
    stored = to_record_batch(batch)
    stored.validate(full=True)
    assert stored.num_rows == batch.count
    assert stored.column("payload").to_pylist() == batch.payloads()
    if "key" in stored.schema.names:
        assert stored.column("key").to_pylist() == batch.keys()
    else:
        assert batch.keys() == [None] * batch.count


def test_names_and_types_match_the_schema_of_messages() -> None:
    time = pa.timestamp("us", tz="UTC")
    whole = to_record_batch(SAMPLES["one tombstone"], derived=True)
    assert whole.schema == record_schema()
    assert dict(zip(whole.schema.names, whole.schema.types, strict=True)) == {
        "offset": pa.int64(),
        "publish_time": time,
        "append_time": time,
        "event_time": time,
        "delivery_time": time,
        "key": pa.binary(),
        "payload": pa.binary(),
        "attributes": pa.map_(pa.string(), pa.string()),
        "producer": pa.int64(),
        "sequence": pa.int64(),
        "schema_id": pa.int64(),
        "schema_version": pa.int32(),
        "epoch": pa.int64(),
    }


def test_only_columns_with_a_value_per_message_are_stored() -> None:
    assert to_record_batch(SAMPLES["constants"]).schema.names == ["payload"]
    assert to_record_batch(SAMPLES["one tombstone"]).to_pydict() == {"payload": [None]}
    names = ["key", "publish_time", "event_time", "delivery_time", "schema_id", "schema_version"]
    assert to_record_batch(SAMPLES["all columns"]).schema.names == [*names, "payload", "attributes"]


def test_times_are_timestamps_in_utc() -> None:
    first = to_record_batch(SAMPLES["all columns, stamped"], derived=True).to_pylist()[0]
    assert first["publish_time"] == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=NOW)


def addresses(array: pa.Array) -> list[tuple[int, int]]:
    return [(buffer.address, buffer.size) for buffer in array.buffers() if buffer is not None]


@pytest.mark.parametrize("name", ["payloads and keys", "all columns"])
def test_nothing_is_copied_from_a_batch_that_is_not_compressed(name: str) -> None:
    batch = Batch.parse(SAMPLES[name].to_bytes())
    start, end = pa.py_buffer(batch.content).address, pa.py_buffer(batch.content).address + len(batch.content)
    for column in to_record_batch(batch).columns:
        for address, size in addresses(column):
            assert start <= address <= address + size <= end
            assert address % 8 == 0


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_compressed_batch_is_unpacked_once(name: str) -> None:
    batch = Batch.parse(SAMPLES[name].to_bytes())
    first, second = to_record_batch(batch), to_record_batch(batch, derived=True)
    assert addresses(first.column("payload")) == addresses(second.column("payload"))
    assert fields_of(batch) == fields_of(SAMPLES[name])


def test_the_memory_lives_as_long_as_arrow_needs_it() -> None:
    stored = to_record_batch(build([b"kept" * 1000] * 100, publish_time=NOW, codec=Codec.ZSTD))
    assert stored.column("payload").to_pylist() == [b"kept" * 1000] * 100


def test_a_batch_needs_no_arrow() -> None:
    check = "import sys; import pydanube.wire.batch, pydanube.wire.arrow; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
