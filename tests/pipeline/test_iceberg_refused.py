"""What an Iceberg table cannot take is refused by name, in one line, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType, TimestamptzType

from pipeline.iceberg_world import Lake, mark, rows, written
from pydanube.base.errors import (
    DanubeError,
    OptionInvalid,
    SchemaMismatch,
    TableUnsupported,
    TargetFailed,
    TargetRefused,
)
from pydanube.pipeline.sinks.iceberg import IcebergSink
from pydanube.pipeline.targets.iceberg.table import close_catalog, typed

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "part", StructType(NestedField(5, "of", StringType()))),
    NestedField(6, "weight", DoubleType()),
    identifier_field_ids=[1],
)
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    found = Lake(tmp_path)
    yield found
    close_catalog(found.target().address)


def made(lake: Lake, schema: Schema = SCHEMA, **properties: str) -> Table:
    """A table that somebody else has made."""
    given = {name: text for name, text in lake.spec().items() if name in ("type", "uri", "warehouse")}
    catalog = load_catalog("default", **given)
    catalog.create_namespace("lake")
    return catalog.create_table("lake.orders", schema, properties=properties)


def by(column: str, transform: Any) -> Callable[[Lake], object]:
    def make(lake: Lake) -> object:
        with made(lake).update_spec() as update:
            return update.add_field(column, transform, "p")

    return make


def as_version_3(table: Table) -> None:
    """The library does not write it, but others do."""
    file = Path(table.metadata_location.removeprefix("file://"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "format-version": 3, "next-row-id": 0}))


PLACES = "pyiceberg.table.locations.SimpleLocationProvider"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (by("id", BucketTransform(16)), r"partitioned by bucket\[16\]\(id\)"),
        (by("at", DayTransform()), r"partitioned by day\(at\)"),
        (by("part.of", "identity"), "inside another column"),
        (lambda lake: as_version_3(made(lake)), "format version 3"),
        (lambda lake: made(lake, **{"encryption.key-id": "k"}), "encryption.key-id: encryption is not supported"),
        (lambda lake: made(lake, **{"write.wap.enabled": "true"}), r"write\.wap\.enabled"),
        (lambda lake: made(lake, **{"write.py-location-provider.impl": PLACES}), "a class that cannot be run here"),
    ],
)
def test_features_that_files_of_a_pipeline_do_not_have(lake: Lake, make: Callable[[Lake], object], why: str) -> None:
    make(lake)
    before = lake.table().metadata_location
    with pytest.raises(TableUnsupported, match=rf"iceberg:default\.lake\.orders.*{why}") as told:
        lake.target().prepare(ROWS)
    assert "\n" not in str(told.value)
    assert lake.table().metadata_location == before


def test_a_feature_that_comes_later_is_refused_at_the_next_batch(lake: Lake) -> None:
    target = lake.target()
    written(target, mark(0), rows(1))
    with lake.table().update_spec() as update:
        update.add_field("id", BucketTransform(4), "bucket")
    with pytest.raises(TableUnsupported, match="bucket"):
        written(target, mark(1), rows(2))
    assert lake.ids() == [1]


def test_upserts_by_other_columns_than_the_identifier_fields(lake: Lake) -> None:
    made(lake)
    lake.target(upsert={"keys": ["id"]}).prepare(ROWS)
    with pytest.raises(TableUnsupported, match="identifier fields id, but the keys of upsert are name"):
        lake.target(upsert={"keys": ["name"]}).prepare(ROWS)


def test_upserts_of_a_table_with_equality_deletes(lake: Lake) -> None:
    written(lake.target(), mark(0), rows(1))
    transaction = lake.table().transaction()
    with transaction.update_snapshot(snapshot_properties={"added-equality-deletes": "2"}).fast_append():
        pass
    transaction.commit_transaction()
    written(lake.target(), mark(1), rows(2))
    with pytest.raises(TableUnsupported, match="equality deletes"):
        lake.target(upsert={"keys": ["id"]}).prepare(rows(1).schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            [("id", pa.string()), ("name", pa.string())],
            "the column id is string in the rows and long in iceberg:default",
        ),
        ([("id", pa.int64()), ("part", pa.struct([("of", pa.int32())]))], r"the column part\.of is int in the rows"),
        ([("id", pa.int64()), ("part", pa.struct([("to", pa.string())]))], r"part is struct<to: string> in the rows"),
        ([("id", pa.int64()), ("Name", pa.string())], "they differ only in case"),
        ([("name", pa.string())], "requires id in every row"),
        ([("id", pa.int64()), ("new", pa.null())], "the column new is null, which Iceberg does not have"),
        ([("id", pa.int64()), ("span", pa.duration("us"))], r"the column span is duration\[us\]"),
    ],
)
def test_rows_that_do_not_fit(lake: Lake, schema: list[tuple[str, pa.DataType]], why: str) -> None:
    made(lake)
    with pytest.raises(SchemaMismatch, match=why):
        lake.target(merge_schema=True).prepare(pa.schema(schema))
    assert len(lake.table().schemas()) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"partition_by": ["nothing"]}, "partition_by names nothing"),
        ({"partition_by": ["weight"]}, "the column weight is double, which a table cannot be partitioned by"),
        ({"upsert": {"keys": ["nothing"]}}, "upsert names nothing"),
        ({"upsert": {"keys": ["weight"]}}, "upsert: weight is double"),
    ],
)
def test_a_table_that_cannot_be_made_is_not(lake: Lake, more: dict[str, Any], why: str) -> None:
    with pytest.raises(SchemaMismatch, match=why):
        lake.target(**more).prepare(pa.schema([("id", pa.int64()), ("weight", pa.float64())]))
    with pytest.raises(TargetRefused, match="no such table"):
        lake.table()


def test_another_partitioning_than_the_table_has(lake: Lake) -> None:
    lake.target(partition_by=["name"]).prepare(ROWS)
    lake.target().prepare(ROWS)
    with pytest.raises(SchemaMismatch, match="is partitioned by name, but the pipeline says id"):
        lake.target(partition_by=["id"]).prepare(ROWS)


def test_upserts_in_complete_mode(lake: Lake) -> None:
    with pytest.raises(TargetRefused, match="cannot be combined"):
        written(lake.target(upsert={"keys": ["id"]}), mark(0), rows(1), replace=True)


# -- places ------------------------------------------------------------------------------------------------------------


def test_a_warehouse_that_cannot_be_written(lake: Lake) -> None:
    (lake.root / "ware house").write_text("a file in its place")
    with pytest.raises(TargetRefused, match=r"iceberg:default\.lake\.orders: .*(Not a directory|File exists)") as told:
        lake.target().prepare(ROWS)
    assert "\n" not in str(told.value)


def test_a_catalog_that_cannot_be_written(lake: Lake) -> None:
    written(lake.target(), mark(0), rows(1))
    read_only = IcebergSink.target(lake.spec(uri=f"sqlite:///file:{lake.root}/catalog.db?mode=ro&uri=true"))
    with pytest.raises(TargetRefused, match="readonly database"):
        written(read_only, mark(1), rows(2))
    close_catalog(read_only.address)
    assert lake.ids() == [1]


def test_a_catalog_that_is_not_there(lake: Lake) -> None:
    nowhere = IcebergSink.target(lake.spec(type="rest", uri="http://127.0.0.1:1"))
    with pytest.raises(TargetFailed, match=r"iceberg:default\.lake\.orders: ConnectionError"):
        nowhere.prepare(ROWS)


def test_errors_never_show_a_credential(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__TEAM__S3__SECRET_ACCESS_KEY", "hush-hush")
    shown = typed(ValueError("bad: hush-hush at\nhttp://host/?token=123"), lake.target().address)
    assert str(shown) == "iceberg:default.lake.orders: ValueError: bad: *** at (a URL)"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tabel": "x"}, "has no 'tabel'"),
        ({"table": "orders"}, r"NAMESPACE\.NAME"),
        ({"table": "lake..orders"}, r"NAMESPACE\.NAME"),
        ({"table": 7}, "table must be a string"),
        ({"uri": ["x"]}, "uri must be a string"),
        ({"type": None}, "needs type"),
        ({"uri": "postgresql://me:secret@host/db"}, "has a password"),
        ({"warehouse": "s3://me:secret@bucket"}, "has a password"),
        ({"warehouse": "file:///a?b"}, r"must not contain \? or #"),
        ({"properties": {"s3.secret-access-key": "x"}}, "is a credential"),
        ({"properties": {"token": "x"}}, "is a credential"),
        ({"properties": {"header.Authorization": "x"}}, "is a credential"),
        ({"properties": {"s3.endpoint": 7}}, "names to strings"),
        ({"partition_by": "day"}, "partition_by must be a list"),
        ({"partition_by": ["a", "a"]}, "each once"),
        ({"merge_schema": "yes"}, "true or false"),
        ({"upsert": {"key": ["a"]}}, "upsert takes only keys"),
        ({"upsert": {"keys": []}}, "one or more columns"),
        ({"upsert": {"keys": ["a"], "sequence_by": 1}}, "sequence_by must be a column"),
    ],
)
def test_specs_that_are_not_understood(lake: Lake, change: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionInvalid, match=why) as told:
        IcebergSink.target({**lake.spec(), **change})
    assert isinstance(told.value, DanubeError)
    assert "secret@" not in str(told.value)
