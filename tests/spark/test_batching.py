"""Rows of Arrow become batches: the same values, in their order, each where a producer would have sent it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import BatchTooLarge, ColumnInvalid, MessageTooLarge, NameInvalid
from pydanube.base.keys import fnv1a64
from pydanube.spark import batching as module
from pydanube.spark.batching import BATCH_BYTES, PartitionBatch, RowBatcher, TargetTopic
from pydanube.wire.batch import Codec, Message

OUT = "/default/out"
TYPES = {
    "value": pa.binary(),
    "key": pa.string(),
    "attributes": pa.map_(pa.string(), pa.string()),
    "event_time": pa.timestamp("us", tz="UTC"),
    "topic": pa.string(),
}


def rows(**columns: Sequence[Any]) -> pa.RecordBatch:
    arrays = {name: pa.array(values, TYPES[name]) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def cut(
    *batches: pa.RecordBatch,
    partitions: int = 0,
    topic: str | None = OUT,
    find: Callable[[str], TargetTopic] | None = None,
    **more: Any,
) -> list[PartitionBatch]:
    batcher = RowBatcher(find or (lambda name: TargetTopic(name, partitions)), lambda: 5, topic, **more)
    found = [made for each in batches for made in batcher.add(each)]
    found += batcher.rest()
    for made in found:
        made.batch.check()
        made.batch.check_published()
    return found


def messages(found: Sequence[PartitionBatch]) -> list[Message]:
    return [message for made in found for message in made.batch.messages()]


def test_every_column_arrives_with_its_nulls() -> None:
    given_rows = rows(
        value=[b"a", None, b"", b"d"],
        key=["k", None, "", "ключ"],
        attributes=[[("x", "1"), ("y", "ü")], None, [], [("", "")]],
        event_time=[7, None, -3, 0],
    )
    [made] = cut(given_rows)
    assert made.partition == OUT
    found = messages([made])
    assert [each.payload for each in found] == [b"a", None, b"", b"d"]
    assert [each.key for each in found] == [b"k", None, b"", "ключ".encode()]
    assert [each.attributes for each in found] == [{"x": "1", "y": "ü"}, None, {}, {"": ""}]
    assert [each.event_time for each in found] == [7, None, -3, 0]
    assert {(each.publish_time, each.producer, each.sequence > 3) for each in found} == {(5, 0, False)}


def test_text_and_large_types_are_taken_as_bytes() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array(["ä", None], pa.large_string()), "key": pa.array([b"\xff", b"k"], pa.large_binary())}
    )
    assert [(each.payload, each.key) for each in messages(cut(batch))] == [("ä".encode(), b"\xff"), (None, b"k")]


def test_columns_that_are_null_throughout_and_slices_of_batches() -> None:
    whole = rows(value=[b"%d" % number for number in range(10)], key=[None] * 10, event_time=[None] * 10)
    assert [each.payload for each in messages(cut(whole.slice(3, 4)))] == [b"3", b"4", b"5", b"6"]
    assert {(each.key, each.event_time) for each in messages(cut(whole))} == {(None, None)}
    assert cut(whole.slice(0, 0)) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=9), st.none() | st.text(max_size=4), st.sampled_from(["a", "b", None])
        ),
        max_size=60,
    ),
    st.lists(st.integers(1, 20), max_size=4),
)
def test_rows_fall_where_the_client_sends_them_and_stay_in_order(
    given_rows: list[tuple[bytes | None, str | None, str | None]], sizes: list[int]
) -> None:
    partitions = {"/default/a": 3, "/default/b": 0, OUT: 1}
    batches, left = [], given_rows
    for size in [*sizes, 1_000]:
        values, keys, topics = zip(*left[:size], strict=True) if left[:size] else ((), (), ())
        batches.append(rows(value=values, key=keys, topic=topics))
        left = left[size:]
    found = cut(*batches, find=lambda name: TargetTopic(name, partitions[name]))
    assert sum(made.batch.count for made in found) == len(given_rows)
    by_place: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
    for made in found:
        by_place.setdefault(made.partition, []).extend((each.payload, each.key) for each in made.batch.messages())
    expected: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
    for value, key, called in given_rows:
        topic = OUT if called is None else f"/default/{called}"
        if called == "a" and key is None:
            continue  # to any
        number = fnv1a64(key.encode()) % 3 if called == "a" and key is not None else 0
        place = f"{topic}-part-{number}" if partitions[topic] else topic
        expected.setdefault(place, []).append((value, None if key is None else key.encode()))
    for place, wanted in expected.items():
        keyless_of_a = place.startswith("/default/a")
        assert [each for each in by_place[place] if not keyless_of_a or each[1] is not None] == wanted


def test_rows_without_keys_are_spread_in_whole_batches() -> None:
    many = rows(value=[bytes(1_000)] * 12_000)
    found = cut(many, partitions=3, turn=2)
    assert len(found) == 12
    assert [made.partition for made in found[:4]] == [f"{OUT}-part-{number}" for number in (2, 0, 1, 2)]
    sizes = [made.batch.size for made in found]
    assert max(sizes) <= BATCH_BYTES
    assert min(sizes) > BATCH_BYTES * 0.9


def test_small_batches_are_put_together_and_large_ones_cut() -> None:
    small = rows(value=[bytes(100)] * 10)
    assert len(cut(*[small] * 100)) == 1
    found = cut(rows(value=[bytes(3 * BATCH_BYTES), b"x", bytes(3 * BATCH_BYTES), b"y"]))
    assert [made.batch.count for made in found] == [1, 1, 1, 1]


def test_many_small_messages_do_not_make_a_batch_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_MESSAGES_MAX", 1_000)
    assert [made.batch.count for made in cut(rows(value=[b""] * 2_500))] == [1_000, 1_000, 500]


def test_batches_are_compressed_if_asked_for() -> None:
    [made] = cut(rows(value=[bytes(1_000)] * 100), codec=Codec.ZSTD)
    assert made.batch.codec == Codec.ZSTD
    assert made.batch.size < 2_000


def test_a_row_that_is_too_large_is_named_with_its_size_and_the_limit() -> None:
    with pytest.raises(BatchTooLarge, match=r"17000001 bytes.*maximum for a message is 16707584"):
        cut(rows(value=[b"x", bytes(17_000_000)], key=["", "k"]))
    limited = TargetTopic(OUT, 0, message_bytes_max=100)
    with pytest.raises(MessageTooLarge, match=r"101 bytes; the maximum for /default/out is 100"):
        cut(rows(value=[b"x", bytes(101)]), find=lambda _: limited)
    assert cut(rows(value=[bytes(100)], key=["a key besides"]), find=lambda _: limited)


def test_only_the_topic_with_the_limit_refuses() -> None:
    limits = {"/default/a": 10, "/default/b": None}
    two = rows(value=[bytes(5), bytes(50)], topic=["a", "b"])
    assert len(cut(two, find=lambda name: TargetTopic(name, 0, limits[name]))) == 2


def test_bad_values_are_named() -> None:
    with pytest.raises(ColumnInvalid, match="no topic"):
        cut(rows(value=[b"x", b"y"], topic=["a", None]), topic=None)
    with pytest.raises(NameInvalid):
        cut(rows(value=[b"x"], topic=["no name"]))
    with pytest.raises(ColumnInvalid, match="single partition"):
        cut(rows(value=[b"x"], topic=["/default/a-part-1"]))
    with pytest.raises(ColumnInvalid, match="null"):
        cut(rows(value=[b"x"], attributes=[[("a", None)]]))
    damaged = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(ColumnInvalid, match="not UTF-8 text"):
        cut(pa.RecordBatch.from_pydict({"value": pa.array([b"x"]), "topic": damaged}))
    maps = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a"]), damaged)
    with pytest.raises(ColumnInvalid, match="text"):
        cut(pa.RecordBatch.from_pydict({"value": pa.array([b"x"]), "attributes": maps}))


def test_a_write_to_more_topics_than_a_decision_can_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SINK_PARTS_MAX", 3)
    with pytest.raises(ColumnInvalid, match="at most 3"):
        cut(rows(value=[b"x"] * 4, topic=["a", "b", "c", "d"]))
