"""Topics as targets: rows become messages once; JSON of rows of any type."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydanube.sync
from pipeline.tables_world import FIRST, SCHEMA, batch, rows, stage, write
from pipeline.test_files import everything
from pydanube.base.errors import SchemaMismatch, SinkConflict, TargetRefused
from pydanube.pipeline.targets.files.json_rows import check_types, json_of
from pydanube.pipeline.targets.mark import Verdict
from pydanube.pipeline.targets.topic import TopicTarget

Client = pydanube.sync.Client


def messages(client: Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.read_arrow(topic).to_pylist()
    return found


def test_rows_become_messages_once(client: Client, url: str, topic: str) -> None:
    client.admin.create_topic(topic)
    target = TopicTarget(topic, url, key="id")
    target.prepare(SCHEMA)
    assert write(target, FIRST, rows([1]), rows([2])) is Verdict.NEW
    assert write(target, batch(0, run="run-2"), rows([1, 2])) is Verdict.DONE
    assert write(target, batch(1)) is Verdict.NEW
    assert write(target, batch(2), rows([3], None)) is Verdict.NEW
    found = messages(client, topic)
    assert [each["key"] for each in found] == [b"1", b"2", b"3"]
    assert [json.loads(each["payload"]) for each in found] == [
        {"id": 1, "day": "monday", "amount": 0.5},
        {"id": 2, "day": "monday", "amount": 1.0},
        {"id": 3, "day": None, "amount": 1.5},
    ]


def test_a_topic_is_made_with_partitions_when_all_is_checked_and_not_before(
    client: Client, url: str, topic: str
) -> None:
    target = TopicTarget(topic, url, partitions=3)
    assert target.check(SCHEMA)
    assert topic not in client.admin.topics("default")
    target.prepare(SCHEMA)
    assert client.admin.describe_topic(topic)["partitions"] == 3
    assert not target.check(SCHEMA)
    target.prepare(SCHEMA)


def test_a_zombie_is_refused(client: Client, url: str, topic: str) -> None:
    client.admin.create_topic(topic)
    target = TopicTarget(topic, url)
    zombie = stage(target, FIRST, [[rows([1])]])
    write(target, batch(0, run="run-2"), rows([1]))
    write(target, batch(1, run="run-2"), rows([2]))
    with pytest.raises(SinkConflict):
        target.commit(FIRST, SCHEMA, zombie, replace=False)
    assert len(messages(client, topic)) == 2


def test_columns_for_key_value_and_time(client: Client, url: str, topic: str) -> None:
    client.admin.create_topic(topic, partitions=2)
    time = datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=UTC)
    columns = {
        "who": ["a", None],
        "what": [b"1", b"2"],
        "event_time": pa.array([time, None], pa.timestamp("us", tz="UTC")),
    }
    target = TopicTarget(topic, url, key="who", value="what")
    found = pa.RecordBatch.from_pydict(columns)
    target.prepare(found.schema)
    write(target, FIRST, found)
    there = sorted(
        messages(client, f"{topic}-part-0") + messages(client, f"{topic}-part-1"), key=lambda m: m["payload"]
    )
    assert [(each["key"], each["payload"], each["event_time"]) for each in there] == [
        (b"a", b"1", time),
        (None, b"2", None),
    ]


def test_what_a_topic_does_not_take(client: Client, url: str, topic: str) -> None:
    client.admin.create_topic(topic)
    for target, named in (
        (TopicTarget(topic, url, key="nope"), "key names nope"),
        (TopicTarget(topic, url, value="id"), "value must be STRING or BINARY, but id is int64"),
    ):
        with pytest.raises(SchemaMismatch, match=named):
            target.prepare(SCHEMA)
    with pytest.raises(TargetRefused, match="only be appended to"):
        TopicTarget(topic, url).commit(FIRST, SCHEMA, [], replace=True)
    with pytest.raises(SchemaMismatch, match="cannot be written as JSON"):
        TopicTarget(topic, url).prepare(pa.schema([("took", pa.duration("us"))]))


# -- JSON --------------------------------------------------------------------------------------------------------------


def parsed(found: pa.RecordBatch) -> list[dict[str, Any]]:
    return [json.loads(text, parse_float=Decimal) for text in json_of(found).to_pylist()]


def test_json_of_every_type() -> None:
    found = everything()
    check_types(found.schema)
    [first, second, third] = parsed(found)
    assert set(second.values()) == {None}
    assert list(first) == found.schema.names
    assert first["large"] == -(2**63)
    assert first["wide"] == Decimal("1234567890123456789012345678.0123456789")
    assert (first["text"], third["text"]) == ("", "ü€😀\n")
    assert base64.b64decode(third["bytes"]) == b"\x00\xff"
    assert (first["yes"], third["yes"]) == (True, False)
    assert first["day"] == "1969-12-31"
    assert first["time"] == "2026-02-03T04:05:06.789012Z"
    assert first["local"] == "2026-02-03T04:05:06.789012"
    assert first["point"] == {"x": 1, "tags": ["a", None]}
    assert first["map"] == {"a": 1, "b": None}
    assert (first["list"], third["list"]) == ([1, None], [])


@given(st.lists(st.one_of(st.none(), st.text()), min_size=1), st.text())
def test_texts_of_any_kind(texts: list[str | None], name: str) -> None:
    texts = [None if text is None else text.encode("utf-8", "ignore").decode() for text in texts]
    name = name.encode("utf-8", "ignore").decode()
    found = pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=[name])
    assert parsed(found) == [{name: text} for text in texts]


@given(st.lists(st.one_of(st.none(), st.floats()), min_size=1))
def test_floats_of_any_kind(values: list[float | None]) -> None:
    found = json_of(pa.RecordBatch.from_pydict({"a": pa.array(values, pa.float64())})).to_pylist()
    expected = [value if value is not None and math.isfinite(value) else None for value in values]
    assert [json.loads(each)["a"] for each in found] == expected


def test_nested_decimals_keep_all_their_digits() -> None:
    exact = Decimal("12345678901234567890.123456")
    kind = pa.decimal128(38, 6)
    columns = {
        "struct": pa.array([{"amount": exact}], pa.struct([("amount", kind)])),
        "list": pa.array([[exact, None]], pa.list_(kind)),
        "map": pa.array([[("a", exact)]], pa.map_(pa.string(), kind)),
    }
    [found] = parsed(pa.RecordBatch.from_pydict(columns))
    assert found == {"struct": {"amount": exact}, "list": [exact, None], "map": {"a": exact}}


NUMBERS = st.lists(st.none() | st.integers(0, 9))
NESTED = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int64()))), ("t", pa.string())]))


@given(
    st.lists(
        st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries(
                {
                    "m": st.none()
                    | st.dictionaries(st.text("ab"), st.none() | st.lists(st.none() | st.integers(0, 9))),
                    "t": st.none() | st.text('a"\\\n'),
                }
            )
        ),
        min_size=1,
    ),
    st.integers(0, 3),
)
def test_nested_values_of_any_kind_and_slices_of_them(values: list[Any], skip: int) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(values, NESTED)], names=["a"]).slice(skip)
    assert [each["a"] for each in parsed(rows)] == values[skip:]


def test_numbers_that_json_has_not_within_lists() -> None:
    values = [[1.0, math.nan], [math.inf]]
    found = json_of(pa.RecordBatch.from_pydict({"a": pa.array(values)})).to_pylist()
    assert found == ['{"a":[1,null]}', '{"a":[null]}']
