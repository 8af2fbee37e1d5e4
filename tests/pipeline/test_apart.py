"""Rows and dead letters of one pipeline never hide each other, and one place by two names is seen to be one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import pydanube.sync
from pipeline.iceberg_world import Lake
from pipeline.tables_world import FIRST, SCHEMA, batch, rows, write
from pydanube.base.errors import OptionInvalid, SchemaMismatch
from pydanube.pipeline.query.writer import TablesStreamWriter
from pydanube.pipeline.spec.locations import within
from pydanube.pipeline.spec.plan import Plan, target_of
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.files.parquet import ParquetTarget
from pydanube.pipeline.targets.mark import Mark, Verdict, dead_letters
from pydanube.pipeline.targets.target import Target
from pydanube.pipeline.targets.topic import TopicTarget


def test_a_mark_of_dead_letters_has_a_key_that_no_pipeline_has() -> None:
    assert (FIRST.key, dead_letters(FIRST).key) == ("orders", "orders~dead")
    assert dead_letters(FIRST).pipeline == "orders"


def a_target(kind: str, folder: Path) -> Target:
    match kind:
        case "delta":
            return DeltaTarget(str(folder / "t"))
        case "parquet":
            return ParquetTarget(str(folder / "t"))
        case _:
            return Lake(folder).target()


@pytest.mark.parametrize("kind", ["delta", "parquet", "iceberg"])
def test_a_table_remembers_rows_and_dead_letters_apart(tmp_path: Path, kind: str) -> None:
    target = a_target(kind, tmp_path)
    target.prepare(SCHEMA)
    check_apart(target)


def test_a_topic_remembers_rows_and_dead_letters_apart(client: pydanube.sync.Client, url: str, topic: str) -> None:
    client.admin.create_topic(topic)
    check_apart(TopicTarget(topic, url))
    assert len(client.read_arrow(topic)) == 4


def check_apart(target: Target) -> None:
    for number in range(2):
        assert write(target, dead_letters(batch(number)), rows([7])) is Verdict.NEW
        assert write(target, batch(number), rows([1])) is Verdict.NEW
        again = dataclasses.replace(batch(number), run="run-2")
        assert write(target, dead_letters(again), rows([7])) is Verdict.DONE
        assert write(target, again, rows([1])) is Verdict.DONE


def test_a_query_that_was_replaced_does_not_stand_in_the_way_of_a_topic(
    client: pydanube.sync.Client, url: str, topic: str
) -> None:
    client.admin.create_topic(topic)
    target = TopicTarget(topic, url)
    first = Mark("orders", "query-1", "run-1", 0, '[{"t":{"0":5}}]', dead=True)
    assert write(target, first, rows([1])) is Verdict.NEW
    again = dataclasses.replace(first, query="query-2", run="run-2")
    assert write(target, again, rows([1]), replaces=("query-0", "query-1")) is Verdict.NEW
    assert len(client.read_arrow(topic)) == 2


# -- one place by two names --------------------------------------------------------------------------------------------


def prepare(*specs: dict[str, Any], dead: dict[str, Any] | None = None) -> None:
    plan = Plan("orders", specs, dead_letters=dead)
    TablesStreamWriter(plan, SCHEMA, dead=dead is not None, change=False, replace=False, checkpoint=None).prepare()


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_link_to_a_table_is_that_table(tmp_path: Path, kind: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real, link = ({"kind": kind, "uri": str(tmp_path / name / "t")} for name in ("real", "link"))
    with pytest.raises(OptionInvalid, match="link/t is written to twice"):
        prepare(real, dead=link)
    with pytest.raises(OptionInvalid, match="real/t is written to twice"):
        prepare(link, real)
    assert list((tmp_path / "real").iterdir()) == []


def test_a_link_to_a_catalog_is_that_catalog(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OptionInvalid, match="twice"):
        prepare(Lake(tmp_path / "real").spec(), Lake(tmp_path / "link").spec(catalog="default"))
    assert list((tmp_path / "real").iterdir()) == []


def test_a_catalog_by_its_name_is_the_one_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__OURS__URI", lake.spec()["uri"])
    named = target_of({"kind": "iceberg", "table": lake.name, "catalog": "ours"})
    assert named.identity == lake.target(catalog="ours").identity
    assert named.identity != lake.target(catalog="theirs").identity  # one file has several catalogs


def test_a_topic_of_another_broker_is_another(tmp_path: Path) -> None:
    """Neither broker is there: that the column does not fit is known before."""
    one, two = ({"kind": "topic", "topic": "t", "url": f"danube://{at}:1", "value": "id"} for at in ("a", "b"))
    with pytest.raises(SchemaMismatch, match="value must be STRING or BINARY"):
        prepare(one, two)
    with pytest.raises(OptionInvalid, match="twice"):
        prepare(one, one | {"topic": "/default/t"})


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("s3a://b/x/y", "s3://b/x", True),
        ("gs://b//x/", "gcs://b/x", True),
        ("s3://b/x?region=eu", "s3://b/x", True),
        ("s3://b/x?endpoint=http://one", "s3://b/x?endpoint=http://two", False),
        ("s3://b/xy", "s3://b/x", False),
        ("s3://b/x", "gs://b/x", False),
        ("s3://b/x", "s3://b", True),
        ("/a/b", "/", True),
    ],
)
def test_places_within_others(inner: str, outer: str, expected: bool) -> None:
    assert within(inner, outer) is expected


def test_a_place_behind_a_link_is_within(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert within(f"file://{tmp_path}/link/t", str(tmp_path / "real"))
