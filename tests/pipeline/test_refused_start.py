"""A start that is refused changes nothing anywhere: all targets are checked before the first is made or altered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.iceberg_world import Lake
from pipeline.tables_world import SCHEMA
from pydanube.base.errors import DanubeError, SchemaMismatch, TableUnsupported
from pydanube.pipeline.query.writer import TablesStreamWriter, letter_schema
from pydanube.pipeline.spec.plan import Plan
from pydanube.pipeline.targets.delta.target import DeltaTarget

Spec = dict[str, Any]
NARROW = pa.schema([("id", pa.int64())])  # lacks columns of the rows, which are added
OTHER = pa.schema([("id", pa.string()), ("topic", pa.int64())])  # has another type than rows and dead letters


def new_delta(folder: Path) -> Spec:
    return {"kind": "delta", "uri": str(folder / "deep" / "t")}


def narrow_delta(folder: Path) -> Spec:
    DeltaTable.create(folder / "narrow", NARROW)
    return {"kind": "delta", "uri": str(folder / "narrow"), "merge_schema": True}


def new_iceberg(folder: Path) -> Spec:
    return Lake(folder).spec()


def new_iceberg_of_a_lake(folder: Path) -> Spec:
    Lake(folder, "lake.others").target().prepare(SCHEMA)
    return Lake(folder, "more.orders").spec()


def narrow_iceberg(folder: Path) -> Spec:
    Lake(folder).target().prepare(NARROW)
    return Lake(folder).spec(merge_schema=True)


def new_parquet(folder: Path) -> Spec:
    return {"kind": "parquet", "uri": str(folder / "deep" / "p")}


def other_delta(folder: Path) -> Spec:
    DeltaTable.create(folder / "other", OTHER)
    return {"kind": "delta", "uri": str(folder / "other"), "merge_schema": True}


def other_iceberg(folder: Path) -> Spec:
    Lake(folder / "other", "lake.other").root.mkdir()
    Lake(folder / "other", "lake.other").target().prepare(OTHER)
    return Lake(folder / "other", "lake.other").spec(merge_schema=True)


def parquet_in_a_file(folder: Path) -> Spec:
    (folder / "file").write_text("no folder")
    return {"kind": "parquet", "uri": str(folder / "file" / "p")}


def topic_without_the_column(folder: Path) -> Spec:
    return {"kind": "topic", "topic": "t", "url": "danube://nowhere:1", "value": "nope"}


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(each): each.read_bytes() if each.is_file() else None for each in folder.rglob("*")}


def writer(*specs: Spec, dead: Spec | None = None, replace: bool = False) -> TablesStreamWriter:
    plan = Plan("orders", specs, dead_letters=dead)
    return TablesStreamWriter(plan, SCHEMA, dead=dead is not None, change=False, replace=replace, checkpoint=None)


Make = Callable[[Path], Spec]


@pytest.mark.parametrize("refused", [other_delta, other_iceberg, parquet_in_a_file, topic_without_the_column])
@pytest.mark.parametrize(
    "fitting", [new_delta, narrow_delta, new_iceberg, new_iceberg_of_a_lake, narrow_iceberg, new_parquet]
)
def test_nothing_is_changed(tmp_path: Path, fitting: Make, refused: Make) -> None:
    good, bad = fitting(tmp_path), refused(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(DanubeError):
        writer(good, bad).prepare()
    with pytest.raises(DanubeError):
        writer(good, dead=bad).prepare()
    assert tree(tmp_path) == before
    writer(good).prepare()
    assert tree(tmp_path) != before


def test_a_complete_mode_that_a_table_does_not_take_is_refused_at_once(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "t", SCHEMA, configuration={"delta.appendOnly": "true"})
    spec = {"kind": "delta", "uri": str(tmp_path / "t")}
    writer(spec).prepare()
    with pytest.raises(TableUnsupported, match="append-only"):
        writer(spec, replace=True).prepare()


def test_dead_letters_are_appended_in_complete_mode_too(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "dead", letter_schema(), configuration={"delta.appendOnly": "true"})
    dead = {"kind": "delta", "uri": str(tmp_path / "dead")}
    writer({"kind": "delta", "uri": str(tmp_path / "t")}, dead=dead, replace=True).prepare()
    assert DeltaTable(tmp_path / "t").version() == 0


def test_a_check_says_whether_there_is_something_to_make(tmp_path: Path) -> None:
    target = DeltaTarget(str(tmp_path / "t"))
    assert target.check(NARROW) is True
    assert not (tmp_path / "t").exists()
    target.prepare(NARROW)
    assert target.check(NARROW) is False
    with pytest.raises(SchemaMismatch):
        target.check(SCHEMA)
    assert DeltaTarget(target.uri, merge_schema=True).check(SCHEMA) is True
    assert DeltaTable(target.uri).version() == 0
