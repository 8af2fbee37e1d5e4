"""Rows in an Iceberg table: types, partitions, statistics, columns that are added, rows that replace others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")

import polars
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.types import LongType, StringType

from pipeline.iceberg_world import Lake, mark, staged, written
from pydanube.base.errors import RowInvalid, SchemaMismatch, TargetFailed, TargetRefused
from pydanube.pipeline.targets.files import partitioned
from pydanube.pipeline.targets.iceberg import upsert as iceberg_upsert
from pydanube.pipeline.targets.iceberg.files import IcebergFiles, Layout
from pydanube.pipeline.targets.iceberg.table import close_catalog
from pydanube.pipeline.targets.mark import Verdict

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "tiny": (pa.int8(), [-128, 127, None]),
    "short": (pa.int16(), [-32768, None, 5]),
    "number": (pa.int32(), [None, -(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "ratio": (pa.float32(), [1.5, None, -0.0]),
    "real": (pa.float64(), [float("inf"), -1e300, None]),
    "text": (pa.string(), ["", "a/b=c%20?d#e f", "\ud7ff" * 20]),
    "bytes": (pa.binary(), [b"", b"\xff" * 40, None]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "at": (
        pa.timestamp("us", "UTC"),
        [datetime(1969, 7, 20, 20, 17, 40, 1, UTC), None, datetime(9999, 1, 1, tzinfo=UTC)],
    ),
    "wall": (pa.timestamp("us"), [datetime(2024, 2, 29, 1, 2, 3), None, datetime(1, 1, 1)]),
    "price": (pa.decimal128(9, 2), [Decimal("-1.28"), Decimal("9999999.99"), None]),
    "sum": (pa.decimal128(38, 10), [Decimal("-0.0000000001"), Decimal(10**27) / 10, None]),
}
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tags": (pa.list_(pa.field("element", pa.string())), [["a", None], [], None]),
    "counts": (pa.map_(pa.string(), pa.int16()), [[("a", 1), ("b", None)], [], None]),
    "address": (
        pa.struct([("street", pa.string()), ("floors", pa.list_(pa.int32()))]),
        [{"street": "x", "floors": [1]}, None, None],
    ),
}
PARTITIONS = sorted(set(TYPES) - {"ratio", "real"})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    found = Lake(tmp_path)
    yield found
    close_catalog(found.target().address)


def table_of(columns: dict[str, tuple[pa.DataType, list[Any]]]) -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


EVERYTHING = table_of(TYPES | NESTED)


def test_every_type_comes_back_as_it_was_also_by_another_reader(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    written(lake.target(), mark(0), EVERYTHING)
    back = lake.table().scan().to_arrow()
    assert back.to_pylist() == EVERYTHING.to_pylist()
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    simple = [*TYPES, "tags", "address"]
    seen = polars.scan_iceberg(lake.table()).select(simple).collect()
    assert seen.to_dicts() == EVERYTHING.select(simple).to_pylist()


def test_files_have_the_ids_and_types_of_the_table(lake: Lake) -> None:
    target = lake.target()
    written(target, mark(0), EVERYTHING)
    [task] = lake.table().scan().plan_files()
    with lake.table().io.new_input(task.file.file_path).open() as source:
        schema = pq.read_schema(source)
    assert schema.field("tiny").type == pa.int32()
    ids = {each.name: int(each.metadata[b"PARQUET:field_id"]) for each in schema}
    assert ids == {each.name: each.field_id for each in lake.table().schema().fields}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_by_every_type_with_nulls_and_odd_characters(lake: Lake, name: str) -> None:
    target = lake.target(partition_by=[name])
    assert written(target, mark(0), EVERYTHING, EVERYTHING) is Verdict.NEW
    values = EVERYTHING.column(name).to_pylist()
    assert lake.table().inspect.partitions().num_rows == 3
    for value in values:
        wanted = IsNull(name) if value is None else EqualTo(name, value)
        found = lake.table().scan(row_filter=wanted)
        assert len(list(found.plan_files())) == 2
        assert found.to_arrow().column(name).to_pylist() == [value, value]


def test_partitions_by_two_columns_keep_their_order_and_a_file_for_each_pair(lake: Lake) -> None:
    rows = pa.table({"a": [1, 2, 1, None, 1, None], "b": ["x", "x", "y", None, "x", None], "n": range(6)})
    written(lake.target(partition_by=["b", "a"]), mark(0), rows)
    files = {tuple(task.file.partition): task.file.record_count for task in lake.table().scan().plan_files()}
    assert files == {("x", 1): 2, ("x", 2): 1, ("y", 1): 1, (None, None): 2}
    assert sorted(row["n"] for row in lake.content()) == list(range(6))


def test_more_partitions_than_files_may_be_open_make_more_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned, "OPEN_MAX", 3)
    rows = pa.table({"day": list(range(10)), "n": list(range(10))})
    written(lake.target(partition_by=["day"]), mark(0), pa.concat_tables([rows, rows]))
    assert len(lake.content()) == 20
    assert lake.table().inspect.partitions().num_rows == 10


def test_readers_that_skip_by_statistics_find_every_value(lake: Lake) -> None:
    """In files of many row groups, some of which have values that are too long for a footer."""
    target = lake.target()
    target.prepare(EVERYTHING.schema)
    long = pa.table({"text": ["m", "z" * 10_000, "b"], "bytes": [b"m", b"z" * 10_000, b"\x00"]})
    beyond = pa.table({"at": pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us", "UTC"))})
    rows = pa.concat_tables([EVERYTHING, long, beyond], promote_options="default")
    now = mark(0)
    stager = IcebergFiles(Layout.of(lake.table(), rows.schema, "t"), "0-0-a", held_bytes=1)
    for number in range(len(rows)):
        stager.add(rows.slice(number, 1).combine_chunks().to_batches()[0])
    [file] = stager.finish() or []
    assert len(file.metrics["split_offsets"]) == len(rows)
    assert target.commit(now, rows.schema, [[file]], replace=False) is Verdict.NEW
    for name in TYPES:
        column = rows.column(name).slice(0, 6).to_pylist()  # Python has no date for those behind
        for value in column:
            wanted = IsNull(name) if value is None else EqualTo(name, value)
            assert lake.table().scan(row_filter=wanted, selected_fields=(name,)).count() >= 1, (name, value)
    low, high = file.metrics["lower_bounds"], file.metrics["upper_bounds"]
    ids = {each.name: each.field_id for each in lake.table().schema().fields}
    assert ids["text"] not in low
    assert ids["text"] not in high
    assert int.from_bytes(high[ids["at"]], "little", signed=True) == 2**62


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("short", b"short", b"short"),
        ("a" * 40, b"a" * 16, b"a" * 15 + b"b"),
        ("\ud7ff" * 40, ("\ud7ff" * 16).encode(), ("\ud7ff" * 15 + "\ue000").encode()),
        ("\U0010ffff" * 40, None, None),
    ],
)
def test_bounds_of_texts_are_cut_so_that_they_still_hold(
    lake: Lake, text: str, low: bytes | None, high: bytes | None
) -> None:
    target = lake.target()
    rows = pa.table({"text": [text]})
    target.prepare(rows.schema)
    [[file]] = staged(target, mark(0), rows)
    assert file.metrics["lower_bounds"].get(1) == low
    assert file.metrics["upper_bounds"].get(1) == high


# -- columns -----------------------------------------------------------------------------------------------------------


def test_new_columns_are_added_only_if_that_is_wanted(lake: Lake) -> None:
    written(lake.target(), mark(0), pa.table({"id": [1]}))
    wider = pa.table({"note": ["x"], "id": [2], "at": pa.array([{"lat": 1.5}])})
    with pytest.raises(SchemaMismatch, match="no column note, at; merge_schema"):
        lake.target().prepare(wider.schema)
    assert written(lake.target(merge_schema=True), mark(1), wider) is Verdict.NEW
    assert lake.content() == [
        {"id": 1, "note": None, "at": None},
        {"id": 2, "note": "x", "at": {"lat": 1.5}},
    ]


def test_rows_with_fewer_columns_than_the_table_are_null_there(lake: Lake) -> None:
    written(lake.target(partition_by=["day"]), mark(0), pa.table({"id": [1], "day": ["a"], "n": [1]}))
    written(lake.target(), mark(1), pa.table({"id": [2]}))
    assert lake.content() == [{"id": 1, "day": "a", "n": 1}, {"id": 2, "day": None, "n": None}]


def test_a_batch_staged_before_columns_were_renamed_or_added_by_others_still_fits(lake: Lake) -> None:
    target, rows = lake.target(), pa.table({"id": [1], "name": ["x"]})
    target.prepare(rows.schema)
    parts = staged(target, mark(0), rows)
    with lake.table().update_schema() as update:
        update.rename_column("name", "label")
        update.add_column("more", StringType())
    assert target.commit(mark(0), rows.schema, parts, replace=False) is Verdict.NEW
    assert lake.content() == [{"id": 1, "label": "x", "more": None}]
    with pytest.raises(SchemaMismatch, match="no column name"):
        target.prepare(rows.schema)


def test_a_column_that_others_took_away_is_told_and_no_value_is_lost_quietly(lake: Lake) -> None:
    target, rows = lake.target(), pa.table({"id": [1], "name": ["x"]})
    target.prepare(rows.schema)
    with lake.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("name")
    with pytest.raises(SchemaMismatch, match="no column name"):
        target.open(mark(0), rows.schema, "0-0-a")


def test_an_upsert_goes_by_names_so_it_is_repeated_if_they_changed(lake: Lake) -> None:
    target, rows = lake.target(upsert={"keys": ["id"]}), pa.table({"id": [1], "name": ["x"]})
    target.prepare(rows.schema)
    parts = staged(target, mark(0), rows)
    with lake.table().update_schema() as update:
        update.rename_column("name", "label")
    with pytest.raises(TargetFailed, match="was changed while"):
        target.commit(mark(0), rows.schema, parts, replace=False)


def test_narrower_numbers_go_into_wider_columns(lake: Lake) -> None:
    wide = pa.schema([("n", pa.int64()), ("r", pa.float64()), ("d", pa.decimal128(20, 2))])
    written(lake.target(), mark(0), pa.table({"n": [1], "r": [0.5], "d": [Decimal("1.00")]}, wide))
    narrow = pa.schema([("n", pa.int16()), ("r", pa.float32()), ("d", pa.decimal128(9, 2))])
    written(lake.target(), mark(1), pa.table({"n": [2], "r": [1.5], "d": [Decimal("2.00")]}, narrow))
    assert [row["n"] for row in lake.content()] == [1, 2]
    [*_, file] = sorted(lake.table().inspect.files().column("file_path").to_pylist())
    with lake.table().io.new_input(file).open() as source:
        assert pq.read_schema(source).types == wide.types


def test_a_required_column_must_be_in_every_row(lake: Lake) -> None:
    target, rows = lake.target(), pa.table({"id": [1, 2], "n": [1, None]})
    target.prepare(rows.schema)
    with lake.table().update_schema(allow_incompatible_changes=True) as update:
        update.update_column("n", required=True)
    with pytest.raises(SchemaMismatch, match="requires n in every row, but a row has none"):
        written(target, mark(0), rows)
    with pytest.raises(SchemaMismatch, match="requires n in every row, but the rows have no such column"):
        target.prepare(pa.schema([("id", pa.int64())]))
    assert written(target, mark(0), rows.slice(0, 1)) is Verdict.NEW


# -- rows that replace others ------------------------------------------------------------------------------------------


def orders(*pairs: tuple[str, int, int]) -> pa.Table:
    return pa.table(
        {"who": [who for who, _, _ in pairs], "at": [at for _, at, _ in pairs], "n": [n for *_, n in pairs]}
    )


@pytest.mark.parametrize(
    "more", [{}, {"partition_by": ["who"]}, {"partition_by": ["n"]}], ids=["flat", "by key", "by value"]
)
def test_rows_replace_those_with_their_key_and_nothing_else(lake: Lake, more: dict[str, Any]) -> None:
    target = lake.target(upsert={"keys": ["who"]}, **more)
    written(target, mark(0), orders(("a", 1, 1), ("b", 1, 1)), orders(("c", 1, 1)))
    assert written(target, mark(1), orders(("b", 2, 2), ("d", 2, 2)), orders(("a", 2, 2))) is Verdict.NEW
    assert written(target, mark(1, run="run-2"), orders(("b", 9, 9))) is Verdict.DONE
    assert [(row["who"], row["n"]) for row in lake.content()] == [("a", 2), ("b", 2), ("c", 1), ("d", 2)]


def test_of_rows_with_one_key_the_latest_counts_in_the_batch_and_against_the_table(lake: Lake) -> None:
    target = lake.target(upsert={"keys": ["who"], "sequence_by": "at"})
    written(target, mark(0), orders(("a", 5, 1), ("a", 7, 2), ("b", 5, 1)))
    written(target, mark(1), orders(("a", 6, 3), ("b", 5, 3), ("c", 1, 3), ("c", 1, 4)))
    assert [(row["who"], row["at"], row["n"]) for row in lake.content()] == [("a", 7, 2), ("b", 5, 3), ("c", 1, 4)]
    before = lake.table().metadata_location
    assert written(target, mark(2), orders(("a", 1, 9))) is Verdict.NEW  # nothing of it counts
    assert lake.table().metadata_location == before


def test_keys_of_several_columns_and_many_values(lake: Lake) -> None:
    target = lake.target(upsert={"keys": ["day", "who"]})
    whole = pa.table({"day": [date(2024, 1, 1 + n % 28) for n in range(2_000)], "who": range(2_000), "n": [0] * 2_000})
    written(target, mark(0), whole)
    some = whole.slice(500, 1_000).set_column(2, "n", pa.array([1] * 1_000))
    written(target, mark(1), some)
    found = lake.table().scan().to_arrow()
    assert (len(found), sum(found.column("n").to_pylist())) == (2_000, 1_000)


def test_rows_without_a_key_or_with_one_twice_are_told(lake: Lake) -> None:
    target = lake.target(upsert={"keys": ["who"]})
    with pytest.raises(RowInvalid, match="two rows of a batch have the key who='a'"):
        written(target, mark(0), orders(("a", 1, 1)), orders(("a", 1, 2)))
    with pytest.raises(RowInvalid, match="a row has no who"):
        written(target, mark(0), pa.table({"who": pa.array([None], pa.string()), "at": [1], "n": [1]}))
    assert lake.content() == []


def test_rows_of_another_partitioning_and_of_fewer_columns_are_replaced_too(lake: Lake) -> None:
    target = lake.target(upsert={"keys": ["id"]})
    written(target, mark(0), pa.table({"id": [1, 2], "n": [1, 1]}))
    with lake.table().update_spec() as update:
        update.add_identity("id")
    with lake.table().update_schema() as change:
        change.add_column("more", LongType())
    written(target, mark(1, run="run-2"), pa.table({"id": [2, 3], "n": [2, 2]}))
    assert [(row["id"], row["n"]) for row in lake.content()] == [(1, 1), (2, 2), (3, 2)]


def test_an_upsert_that_the_driver_cannot_hold_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_upsert, "BATCH_BYTES_MAX", 100)
    with pytest.raises(TargetRefused, match="max_records"):
        written(lake.target(upsert={"keys": ["who"]}), mark(0), orders(("a", 1, 1)))
