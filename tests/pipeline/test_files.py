"""Files of tasks: partitions with odd values, files that are closed at a size, what is said of them, who reads them."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tables_world import FIRST, SCHEMA, rows, write
from pydanube.base.errors import OptionInvalid
from pydanube.pipeline.spec.plan import target_of
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.files.folders import folder_at
from pydanube.pipeline.targets.files.parquet_files import ParquetFiles, escaped, text_of
from pydanube.pipeline.targets.files.partitioned import OPEN_MAX, divided
from pydanube.pipeline.targets.mark import Verdict
from pydanube.pipeline.targets.statistics import CHARACTERS_MAX, above

TIME = datetime(2026, 2, 3, 4, 5, 6, 789012)
ALL: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, None, 127]),
    "small": (pa.int16(), [-(2**15), None, 7]),
    "number": (pa.int32(), [-(2**31), None, 2**31 - 1]),
    "large": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "real": (pa.float32(), [0.5, None, -0.25]),
    "double": (pa.float64(), [1e300, None, -0.1]),
    "money": (pa.decimal128(10, 2), [Decimal("12345678.90"), None, Decimal("-0.01")]),
    "wide": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), None, Decimal("0E-10")]),
    "text": (pa.string(), ["", None, "ü€😀\n"]),
    "bytes": (pa.binary(), [b"", None, b"\x00\xff"]),
    "yes": (pa.bool_(), [True, None, False]),
    "day": (pa.date32(), [date(1969, 12, 31), None, date(2026, 2, 3)]),
    "time": (pa.timestamp("us", tz="UTC"), [TIME.replace(tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)]),
    "local": (pa.timestamp("us"), [TIME, None, datetime(1969, 1, 1)]),
    "point": (
        pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.field("element", pa.string())))]),
        [{"x": 1, "tags": ["a", None]}, None, {"x": None, "tags": None}],
    ),
    "list": (pa.list_(pa.field("element", pa.int32())), [[1, None], None, []]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], None, []]),
}


def by_duckdb(query: str, zone: str = "UTC") -> list[tuple[Any, ...]]:
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        connection.execute(f"SET TimeZone = '{zone}'")
        return connection.execute(query).fetchall()


def everything() -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for kind, values in ALL.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(ALL))


def test_every_type_is_read_back_equal(tmp_path: Path) -> None:
    found = everything()
    target = DeltaTarget(str(tmp_path / "t"))
    target.prepare(found.schema)
    write(target, FIRST, found)
    assert DeltaTable(target.uri).to_pyarrow_table().select(list(ALL)).to_pylist() == found.to_pylist()
    table = polars.read_delta(target.uri).sort("tiny", nulls_last=True)
    assert table["large"].to_list() == [-(2**63), 2**63 - 1, None]
    assert table["money"].to_list() == [Decimal("12345678.90"), Decimal("-0.01"), None]
    assert table["point"].to_list()[0] == {"x": 1, "tags": ["a", None]}
    loaded = by_duckdb(f"select tiny, wide, local, bytes from delta_scan('{target.uri}') order by tiny")
    assert loaded[0] == (-128, Decimal("1234567890123456789012345678.0123456789"), TIME, b"")
    assert by_duckdb(f"select count(*) from delta_scan('{target.uri}') where time > '2026-01-01'") == [(1,)]


def test_times_are_microseconds_and_pages_are_snappy(tmp_path: Path) -> None:
    [file] = written(tmp_path, everything())
    metadata = pq.read_metadata(tmp_path / file["path"])
    column = metadata.row_group(0).column(metadata.schema.names.index("time"))
    assert column.physical_type == "INT64"
    assert column.compression == "SNAPPY"


# -- what is said of a file --------------------------------------------------------------------------------------------


def written(folder: Path, *batches: pa.RecordBatch, **given: Any) -> list[dict[str, Any]]:
    files = ParquetFiles(str(folder), batches[0].schema, "task", stats=True, **given)
    for each in batches:
        files.add(each)
    return [{"path": each.path, "size": each.size, "stats": each.stats} for each in files.finish() or []]


def test_statistics_are_true(tmp_path: Path) -> None:
    [file] = written(tmp_path, everything())
    assert file["size"] == (tmp_path / file["path"]).stat().st_size
    stats = json.loads(json.dumps(file["stats"], allow_nan=False))
    assert stats["numRecords"] == 3
    simple = [name for name, (kind, _) in ALL.items() if not pa.types.is_nested(kind)]
    assert stats["nullCount"] == dict.fromkeys(simple, 1)
    assert (stats["minValues"]["large"], stats["maxValues"]["large"]) == (-(2**63), 2**63 - 1)
    assert (stats["minValues"]["text"], stats["maxValues"]["text"]) == ("", "ü€😀\n")
    assert stats["maxValues"]["time"] == "2026-02-03T04:05:06.789012Z"
    assert stats["minValues"]["time"] == "0001-01-01T00:00:00.000000Z"
    assert stats["maxValues"]["local"] == "2026-02-03T04:05:06.789012"
    assert stats["minValues"]["day"] == "1969-12-31"
    assert stats["maxValues"]["money"] == 12345678.9
    assert {"wide", "bytes", "yes"}.isdisjoint(stats["minValues"])


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not(tmp_path: Path, odd: float) -> None:
    [file] = written(tmp_path, pa.RecordBatch.from_pydict({"a": [1.0, odd, 2.0, None]}))
    json.dumps(file["stats"], allow_nan=False)
    assert file["stats"]["nullCount"] == {"a": 1}
    for value in (1.0, 2.0):
        assert file["stats"]["minValues"].get("a", -math.inf) <= value <= file["stats"]["maxValues"].get("a", math.inf)
    if math.isnan(odd):
        assert "a" not in file["stats"]["maxValues"]


def test_nothing_but_null_has_no_least(tmp_path: Path) -> None:
    [file] = written(tmp_path, pa.RecordBatch.from_pydict({"a": pa.nulls(5, pa.int64())}))
    assert file["stats"] == {"numRecords": 5, "minValues": {}, "maxValues": {}, "nullCount": {"a": 5}}


def test_times_beyond_the_calendar_are_left_out(tmp_path: Path) -> None:
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    [file] = written(tmp_path, pa.RecordBatch.from_pydict({"a": far}))
    assert file["stats"]["maxValues"] == {}


@given(st.lists(st.text(max_size=2 * CHARACTERS_MAX), min_size=1, max_size=5))
def test_texts_lie_between_their_bounds(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    [file] = written(tmp_path_factory.mktemp("f"), pa.RecordBatch.from_pydict({"a": texts}))
    low, high = file["stats"]["minValues"]["a"], file["stats"]["maxValues"].get("a")
    assert all(low.encode() <= text.encode() for text in texts)
    assert high is None or all(text.encode() <= high.encode() for text in texts)


def test_the_text_above_all_that_begin_so() -> None:
    assert above("ab") == "ac"
    assert above("a\U0010ffff") == "b"
    assert above("\ud7ff") == "\ue000"
    assert above("\U0010ffff") is None


def test_statistics_are_only_of_the_first_columns(tmp_path: Path) -> None:
    [file] = written(tmp_path, pa.RecordBatch.from_pydict({f"c{number}": [1] for number in range(40)}))
    assert len(file["stats"]["minValues"]) == 32
    assert len(file["stats"]["nullCount"]) == 40


def test_a_column_that_is_called_like_a_field_of_another(tmp_path: Path) -> None:
    found = pa.RecordBatch.from_pydict({"a": [{"b": 1}], "a.b": [5]})
    [file] = written(tmp_path, found)
    assert file["stats"]["minValues"] == {}


# -- files and partitions ----------------------------------------------------------------------------------------------


def test_files_are_closed_at_a_size(tmp_path: Path) -> None:
    lots = [rows(range(at, at + 1000)) for at in range(0, 10_000, 1000)]
    found = written(tmp_path, *lots, file_bytes=10_000, held_bytes=1)
    assert len(found) > 1
    assert sum(each["stats"]["numRecords"] for each in found) == 10_000
    assert sorted(ds.dataset(tmp_path).to_table().column("id").to_pylist()) == list(range(10_000))


ODD = ["a/b", "a=b", "x y", "100%", "%2F", "ü€😀", ":*?#[]{}", "..", "'\"\\", "\x01\n", "a" * 60, "_h", ".h", "+"]


def test_partition_values_with_odd_characters(tmp_path: Path) -> None:
    target = DeltaTarget(str(tmp_path / "t"), partition_by=("day",))
    target.prepare(SCHEMA)
    lots = [rows([number], day) for number, day in enumerate([*ODD, None, ""])]
    write(target, FIRST, pa.Table.from_batches(lots).combine_chunks().to_batches()[0])
    expected = dict(enumerate([*ODD, None, None]))
    found = DeltaTable(target.uri).to_pyarrow_table().to_pylist()
    assert {each["id"]: each["day"] for each in found} == expected
    loaded = by_duckdb(f"select id, day from delta_scan('{target.uri}')")
    assert dict(loaded) == expected
    assert dict(polars.read_delta(target.uri).select("id", "day").rows()) == expected
    assert {
        each["id"] for each in DeltaTable(target.uri).to_pyarrow_table(filters=[("day", "=", "a/b")]).to_pylist()
    } == {0}


def test_partitions_of_several_columns_and_types(tmp_path: Path) -> None:
    names = ["number", "yes", "day", "time", "local"]
    found = everything().select([*names, "text"])
    target = DeltaTarget(str(tmp_path / "t"), partition_by=tuple(names))
    target.prepare(found.schema)
    write(target, FIRST, found)
    loaded = DeltaTable(target.uri).to_pyarrow_table().select(found.schema.names).to_pylist()
    assert sorted(loaded, key=str) == sorted(found.to_pylist(), key=str)
    assert by_duckdb(f"select count(*) from delta_scan('{target.uri}') where day = '2026-02-03'") == [(1,)]


def test_times_of_partitions_mean_the_same_in_every_zone(tmp_path: Path) -> None:
    kind = pa.timestamp("us", tz="UTC")
    found = pa.RecordBatch.from_pydict({"time": pa.array([TIME.replace(tzinfo=UTC), None], kind), "id": [1, 2]})
    target = DeltaTarget(str(tmp_path / "t"), partition_by=("time",))
    target.prepare(found.schema)
    write(target, FIRST, found)
    log = "".join(each.read_text() for each in sorted((tmp_path / "t" / "_delta_log").glob("*.json")))
    assert '"time":"2026-02-03T04:05:06.789012Z"' in log
    where = "time = timestamptz '2026-02-03 04:05:06.789012+00'"
    for zone in ("UTC", "America/Los_Angeles"):
        assert by_duckdb(f"select id from delta_scan('{target.uri}') where {where}", zone) == [(1,)]
    assert polars.read_delta(target.uri).filter(polars.col("time") == TIME.replace(tzinfo=UTC))["id"].to_list() == [1]


def test_rows_keep_their_order_within_a_partition() -> None:
    batch = pa.RecordBatch.from_pydict({"id": list(range(100)), "rest": [number % 3 for number in range(100)]})
    found = divided(batch, ("rest",), lambda value: text_of(value.as_py()))
    assert [values for values, _ in found] == [("0",), ("1",), ("2",)]
    assert [each["id"] for _, some in found for each in some.to_pylist()] == sorted(range(100), key=lambda n: n % 3)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_task_may_have_rows_of_any_number_of_partitions(tmp_path: Path, kind: str) -> None:
    """More than may be open: they go through the local disk, and each has one file, two at the most."""
    target = target_of({"kind": kind, "uri": str(tmp_path / "t"), "partition_by": ["id"]})
    found = pa.RecordBatch.from_pydict({"id": [n * 7 % 1000 for n in range(5000)], "n": list(range(5000))})
    target.prepare(found.schema)
    stager = target.open(FIRST, found.schema, "task")
    for at in range(0, 5000, 250):
        stager.add(found.slice(at, 250))
    written = stager.finish()
    assert sum(file.rows for file in written) == 5000
    assert 1000 <= len(written) <= 1000 + OPEN_MAX
    assert target.commit(FIRST, found.schema, [written], replace=False) is Verdict.NEW
    if kind == "delta":
        loaded = DeltaTable(target.uri).to_pyarrow_table()
    else:
        loaded = ds.dataset(str(tmp_path / "t"), format="parquet", partitioning="hive").to_table()
    pairs = zip(loaded["id"].to_pylist(), loaded["n"].to_pylist(), strict=True)
    assert sorted(pairs) == sorted(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


def test_what_was_spilled_goes_with_a_task_that_is_dropped(tmp_path: Path) -> None:
    files = ParquetFiles(str(tmp_path), SCHEMA, "task", ("id",))
    for at in range(0, 3 * OPEN_MAX, OPEN_MAX):
        files.add(rows(range(at, at + OPEN_MAX)))
    files.drop()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_hive_escapes() -> None:
    assert escaped("a/b=c%d:ü e") == "a%2Fb%3Dc%25d%3Aü e"


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_file_is_synced_with_its_folders_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    synced: list[str] = []

    def seen(real: Any) -> Any:
        def sync(handle: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{handle}"))
            real(handle)

        return sync

    monkeypatch.setattr(os, "fsync", seen(os.fsync))
    monkeypatch.setattr(os, "fdatasync", seen(os.fdatasync))
    files = ParquetFiles(str(tmp_path / "new" / "t"), SCHEMA, "task", ("day",))
    files.add(rows([1]))
    [file] = files.finish() or []
    whole = tmp_path / "new" / "t" / file.path
    assert {str(whole), str(whole.parent), str(tmp_path / "new" / "t"), str(tmp_path / "new"), str(tmp_path)} <= {
        *synced
    }


def test_names_are_taken_once_and_moves_may_be_repeated(tmp_path: Path) -> None:
    folder = folder_at(f"file://{tmp_path}/a%20b")
    assert folder.put_new("x/one", b"1")
    assert not folder.put_new("x/one", b"2")
    assert folder.read("x/one") == b"1"
    folder.move("x/one", "y/two")
    folder.move("x/one", "y/two")
    assert [path for path, _ in folder.list("")] == ["y/two"]
    folder.delete("y/two")
    folder.delete("y/two")
    assert folder.read("y/two") is None
    assert (tmp_path / "a b").is_dir()


def test_places_that_are_none() -> None:
    for uri in ("s3://user:secret@bucket/x", "nonsense://x/y", "s3://bucket/x?secret_access_key=hush"):
        with pytest.raises(OptionInvalid) as caught:
            folder_at(uri)
        assert "hush" not in str(caught.value)
