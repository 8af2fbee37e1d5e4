"""Messages without a payload delete rows, and of several changes of a key the last in the topic counts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from deltalake import DeltaTable, Field
from deltalake import Schema as DeltaSchema
from pyspark.sql import SparkSession

from pipeline.iceberg_world import Lake
from pipeline.tables_world import batch
from pydanube.base.errors import FlowInvalid, RowInvalid, SchemaMismatch
from pydanube.pipeline.query.build import query
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.targets import deletes
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.iceberg.table import close_catalog, open_catalog
from pydanube.pipeline.targets.mark import Verdict
from pydanube.pipeline.targets.target import CHANGE, Target, with_change
from pydanube.sync import Client

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SEQUENCED = pa.schema([*SCHEMA, pa.field("at", pa.int64())])
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DDL = "id BIGINT, name STRING"


def change(offset: int, id: int, name: str | None) -> dict[str, Any]:
    place = {"deleted": name is None, "timestamp": NOON + timedelta(seconds=offset), "offset": offset}
    return {"id": id, "name": name, CHANGE: place}


@pytest.fixture(params=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Target, Any]]:
    """A target, and what its table holds."""
    lake = Lake(tmp_path)
    if request.param == "delta":
        target: Target = DeltaTarget(str(tmp_path / "t"), keys=("id",))
        content = lambda: DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()  # noqa: E731
    else:
        target, content = lake.target(upsert={"keys": ["id"]}), lake.content
    target.prepare(SCHEMA)
    yield target, lambda: {each["id"]: each["name"] for each in content()}
    close_catalog(lake.target().address)


def write(target: Target, number: int, *tasks: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> Verdict:
    plain, schema, parts = schema, with_change(schema), []
    for at, task in enumerate(tasks):
        stager = target.open(batch(number), schema, f"{number}-{at}-x")
        stager.add(pa.RecordBatch.from_pylist(task, schema=schema))
        parts.append(stager.finish())
    return target.commit(batch(number), plain, parts, replace=False)


def test_a_delete_takes_the_row_out_and_a_later_row_brings_it_back(world: tuple[Target, Any], tmp_path: Path) -> None:
    target, content = world
    write(target, 0, [change(0, 1, "ann"), change(1, 2, "bob")])
    assert write(target, 1, [change(2, 1, None), change(3, 3, None)]) is Verdict.NEW  # and one that never was
    assert content() == {2: "bob"}
    assert not [each for each in tmp_path.rglob("*.parquet") if "-x" in each.name]  # what was staged for it
    assert write(target, 1, [change(2, 1, None), change(3, 3, None)]) is Verdict.DONE
    write(target, 2, [change(4, 1, "ann again")])
    assert content() == {1: "ann again", 2: "bob"}
    write(target, 3, [change(5, 9, None)])
    assert content() == {1: "ann again", 2: "bob"}


def test_of_one_batch_the_last_in_the_topic_counts_whichever_task_has_it(world: tuple[Target, Any]) -> None:
    target, content = world
    write(
        target,
        0,
        [change(7, 1, None), change(3, 2, "early"), change(9, 3, "last")],
        [change(2, 1, "older"), change(8, 2, "late"), change(4, 3, None), change(5, 4, "only")],
    )
    assert content() == {2: "late", 3: "last", 4: "only"}


# -- with a column that says which is newer ----------------------------------------------------------------------------


@pytest.fixture(params=["delta", "iceberg"])
def sequenced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Target, Any]]:
    lake = Lake(tmp_path)
    if request.param == "delta":
        target: Target = DeltaTarget(str(tmp_path / "t"), keys=("id",), sequence_by="at")
        content = lambda: DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()  # noqa: E731
    else:
        target, content = lake.target(upsert={"keys": ["id"], "sequence_by": "at"}), lake.content
    target.prepare(SEQUENCED)
    yield target, lambda: {each["id"]: each["name"] for each in content()}
    close_catalog(lake.target().address)


def at(time: int | None, id: int, name: str | None) -> dict[str, Any]:
    """A change that was appended late or early: its offset says nothing of its time."""
    return change(1_000 - (time or 0), id, name) | {"at": time}


def put(target: Target, number: int, *rows: dict[str, Any]) -> Verdict:
    return write(target, number, list(rows), schema=SEQUENCED)


def test_a_row_that_comes_late_does_not_bring_back_what_a_newer_delete_took(sequenced: tuple[Target, Any]) -> None:
    target, content = sequenced
    put(target, 0, at(1, 1, "ann"), at(1, 2, "bob"))
    assert put(target, 1, at(5, 1, None), at(5, 3, None)) is Verdict.NEW  # and one that never was
    assert content() == {2: "bob"}
    put(target, 2, at(4, 1, "late"), at(4, 3, "late"), at(2, 2, "bobby"))
    assert content() == {2: "bobby"}
    put(target, 3, at(3, 1, None))  # an older delete does not take the place of the newer
    put(target, 4, at(4, 1, "still late"))
    assert content() == {2: "bobby"}
    put(target, 5, at(6, 1, "back"), at(5, 3, "at the same time, and after it"))
    assert content() == {1: "back", 2: "bobby", 3: "at the same time, and after it"}
    put(target, 6, at(1, 2, None))
    assert content()[2] == "bobby", "a late delete takes nothing that is newer"
    put(target, 7, at(8, 1, None))
    put(target, 8, at(7, 1, "late again"))
    assert 1 not in content()


def test_a_delete_of_nothing_alone_is_remembered_whoever_commits_it_twice(sequenced: tuple[Target, Any]) -> None:
    target, content = sequenced
    assert put(target, 0, at(5, 1, None)) is Verdict.NEW
    assert put(target, 0, at(5, 1, None)) is Verdict.DONE
    assert put(target, 1, at(4, 1, "late")) is Verdict.NEW
    assert content() == {}


def test_of_one_batch_the_newest_by_its_column_counts_though_it_was_appended_first(
    sequenced: tuple[Target, Any],
) -> None:
    target, content = sequenced
    put(target, 0, at(5, 1, None), at(4, 1, "older"), at(6, 2, "newer"), at(5, 2, None))
    assert content() == {2: "newer"}


def test_only_the_last_deletes_are_remembered(
    sequenced: tuple[Target, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deletes, "DELETES_REMEMBERED_MAX", 2)
    target, content = sequenced
    put(target, 0, at(5, 1, None), at(7, 2, None))
    put(target, 1, at(6, 3, None))
    put(target, 2, *(at(4, id, "late") for id in (1, 2, 3)))
    assert content() == {1: "late"}
    assert len(list(tmp_path.rglob("deletes-*.arrow"))) <= 1, "what is forgotten leaves no file"


def test_a_delete_that_does_not_say_when_it_was_is_refused(sequenced: tuple[Target, Any]) -> None:
    target, content = sequenced
    put(target, 0, at(1, 1, "ann"))
    with pytest.raises(RowInvalid, match=r"deletes a row but has no at, .* use event_time in sequence_by"):
        put(target, 1, at(None, 1, None))
    assert content() == {1: "ann"}


def test_a_row_that_another_pipeline_brings_late_does_not_bring_back_what_was_deleted(
    sequenced: tuple[Target, Any],
) -> None:
    target, content = sequenced
    put(target, 0, at(5, 1, None))
    late = pa.RecordBatch.from_pylist(
        [{"id": 1, "name": "late", "at": 4}, {"id": 2, "name": "bob", "at": 4}], SEQUENCED
    )
    other = batch(0, pipeline="renamed")
    stager = target.open(other, SEQUENCED, "0-0-y")  # of rows that do not say whether they delete
    stager.add(late)
    assert target.commit(other, SEQUENCED, [stager.finish()], replace=False) is Verdict.NEW
    assert content() == {2: "bob"}


def changed(target: Target, keys: tuple[str, ...], sequence_by: str) -> Target:
    """The same table, after the pipeline's file was changed."""
    return dataclasses.replace(target, keys=keys, sequence_by=sequence_by)  # type: ignore[type-var]


def test_deletes_stay_known_when_keys_are_listed_in_another_order_but_not_when_the_sequence_is_another() -> None:
    rows = pa.table({"a": [1], "b": [2], "at": [5], CHANGE: [{"deleted": True, "timestamp": NOON, "offset": 0}]})
    _, known = deletes.remember(None, rows, ("a", "b"), "at", "t")
    late = pa.table({"a": [1, 2], "b": [2, 1], "at": [3, 3]})
    stays, _ = deletes.remember(known, late, ("b", "a"), "at", "t")
    assert stays.to_pylist() == [{"a": 2, "b": 1, "at": 3}], "the other one was deleted later"
    stays, _ = deletes.remember(known, late, ("a", "at"), "b", "t")
    assert len(stays) == 2


@pytest.mark.parametrize(("keys", "sequence_by"), [(("id", "name"), "at"), (("id",), "name"), (("name",), "id")])
def test_deletes_that_are_known_by_other_columns_are_forgotten_and_it_goes_on(
    sequenced: tuple[Target, Any], keys: tuple[str, ...], sequence_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, content = sequenced
    put(target, 0, at(5, 1, None))
    other = changed(target, keys, sequence_by)
    assert put(other, 1, at(4, 2, "bob")) is Verdict.NEW
    assert content() == {2: "bob"}
    assert "forgetting earlier deletes: they are recorded by id, at" in caplog.text
    caplog.clear()
    assert put(other, 2, at(6, 3, "cid")) is Verdict.NEW
    assert not caplog.records, "it is said once"
    assert content() == {2: "bob", 3: "cid"}


@pytest.fixture(params=["delta", "iceberg"])
def strict(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Target, Any]]:
    """A table that somebody has made, with columns that are never null."""
    lake = Lake(tmp_path)
    if request.param == "delta":
        fields = [Field("id", "long", nullable=False), Field("name", "string", nullable=False)]  # type: ignore[arg-type]
        DeltaTable.create(str(tmp_path / "t"), DeltaSchema(fields))
        target: Target = DeltaTarget(str(tmp_path / "t"), keys=("id",))
        content = lambda: DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist()  # noqa: E731
    else:
        target, content = lake.target(upsert={"keys": ["id"]}), lake.content
        catalog = open_catalog(lake.target().address)
        catalog.create_namespace("lake")
        fields = [("id", pa.int64()), ("name", pa.string())]
        catalog.create_table("lake.orders", pa.schema([pa.field(*each, nullable=False) for each in fields]))
    target.prepare(SCHEMA)
    yield target, lambda: {each["id"]: each["name"] for each in content()}
    close_catalog(lake.target().address)


def test_a_delete_has_only_its_key_whatever_the_table_wants_of_rows(strict: tuple[Target, Any]) -> None:
    target, content = strict
    write(target, 0, [change(0, 1, "ann"), change(1, 2, "bob")])
    assert write(target, 1, [change(2, 1, None), change(3, 3, None)]) is Verdict.NEW
    assert content() == {2: "bob"}
    nameless = change(4, 2, None)
    nameless[CHANGE]["deleted"] = False
    with pytest.raises((RowInvalid, SchemaMismatch), match="name"):
        write(target, 2, [nameless])
    assert content() == {2: "bob"}


# -- as pipelines ------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, flow: Flow, url: str) -> None:
    running = query(spark, flow, url=url, available_now=True)
    try:
        assert running.awaitTermination(120)
    finally:
        running.stop()


def test_messages_without_a_payload_delete_by_their_key(
    spark: SparkSession, client: Client, url: str, topic: str, tmp_path: Path
) -> None:
    def flow(**source: Any) -> Flow:
        found = {"topic": topic, "format": "json", "schema": DDL, "expect": ["name IS NOT NULL"], **source}
        upsert = {"keys": ["id"], "delete_when": "tombstone"}
        step = {"sql": "SELECT upper(name) AS name, id, _change FROM input"}
        sinks = [{"delta": "customers", "upsert": upsert}, {"parquet": "log"}]
        plain = {"name": "deletes", "source": found, "sink": sinks, "dead_letters": {"delta": "dead"}}
        return Flow.of({**plain, "transforms": [step], "checkpoint": "points"}, tmp_path)

    with client.producer(topic) as producer:
        for id, name in ((1, "ann"), (2, "bob"), (2, "bobby"), (3, "cid")):
            producer.send(json.dumps({"id": id, "name": name}).encode(), key=str(id))
        producer.flush()
    run(spark, flow(), url)
    table = DeltaTable(str(tmp_path / "customers")).to_pyarrow_table()
    assert table.column_names == ["name", "id"]
    assert {each["id"]: each["name"] for each in table.to_pylist()} == {1: "ANN", 2: "BOBBY", 3: "CID"}
    with client.producer(topic) as producer:
        producer.send(None, key="1")
        producer.send(json.dumps({"id": 3, "name": "dan"}).encode(), key="3")
        producer.send(None, key="3")
        producer.send(None, key="not a number")
        producer.flush()
    run(spark, flow(), url)
    found = DeltaTable(str(tmp_path / "customers")).to_pyarrow_table().to_pylist()
    assert {each["id"]: each["name"] for each in found} == {2: "BOBBY"}
    [dead] = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().to_pylist()
    assert dead["key"] == b"not a number"
    assert dead["error"] == "expected a key that names id, because the message has no payload"
    assert dead["rule"] == "sink.upsert.keys"


def test_a_row_without_a_key_becomes_a_dead_letter(
    spark: SparkSession, client: Client, url: str, topic: str, tmp_path: Path
) -> None:
    with client.producer(topic) as producer:
        for payload in (b'{"id": 1, "name": "ann"}', b'{"name": "nobody"}', None):
            producer.send(payload)
        producer.flush()
    plain = {"name": "keyless", "source": {"topic": topic, "format": "json", "schema": DDL}, "checkpoint": "points"}
    sinks = {"sink": {"delta": "customers", "upsert": {"keys": ["id"]}}, "dead_letters": {"delta": "dead"}}
    run(spark, Flow.of({**plain, **sinks}, tmp_path), url)
    found = DeltaTable(str(tmp_path / "customers")).to_pyarrow_table().to_pylist()
    assert [(each["id"], each["name"]) for each in found] == [(1, "ann")]
    dead = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().to_pylist()
    assert {each["value"] for each in dead} == {b'{"name": "nobody"}', None}
    said = "expected a value in id, which is a key of the upsert"
    assert {(each["error"], each["rule"]) for each in dead} == {(said, "sink.upsert.keys")}


def test_steps_that_lose_what_deletes_are_refused(spark: SparkSession, url: str, topic: str, tmp_path: Path) -> None:
    plain = {"name": "deletes", "source": {"topic": topic, "format": "json", "schema": DDL}, "checkpoint": "points"}
    sink = {"delta": "customers", "upsert": {"keys": ["id"], "delete_when": "tombstone"}}
    lost = Flow.of({**plain, "sink": sink, "transforms": [{"sql": "SELECT id, name FROM input"}]}, tmp_path)
    with pytest.raises(FlowInvalid, match="delete_when: the steps lose the column _change"):
        query(spark, lost, url=url, available_now=True)


def test_a_late_message_does_not_bring_back_what_a_newer_one_without_a_payload_deleted(
    spark: SparkSession, client: Client, url: str, topic: str, tmp_path: Path
) -> None:
    def flow(sequence_by: str) -> Flow:
        source = {"topic": topic, "format": "json", "schema": DDL}
        upsert = {"keys": ["id"], "sequence_by": sequence_by, "delete_when": "tombstone"}
        sink = {"delta": "customers", "upsert": upsert}
        return Flow.of({"name": "late", "source": source, "sink": sink, "checkpoint": "points"}, tmp_path)

    def send(seconds: int, id: int, name: str | None) -> None:
        payload = None if name is None else json.dumps({"id": id, "name": name}).encode()
        with client.producer(topic) as producer:
            producer.send(payload, key=str(id), event_time=seconds * 1_000_000).result()

    with pytest.raises(FlowInvalid, match="name is a field of the payload, which a message that deletes does not have"):
        query(spark, flow("name"), url=url, available_now=True)
    for change in ((1, 1, "ann"), (1, 2, "bob"), (9, 1, None)):
        send(*change)
    run(spark, flow("event_time"), url)
    for change in ((5, 1, "late"), (6, 2, "bobby"), (3, 2, None)):
        send(*change)
    run(spark, flow("event_time"), url)
    found = DeltaTable(str(tmp_path / "customers")).to_pyarrow_table().to_pylist()
    assert {each["id"]: each["name"] for each in found} == {2: "bobby"}
