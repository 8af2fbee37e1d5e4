"""Messages without a payload delete rows, and of several changes of a key the last in the topic counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pipeline.iceberg_world import Lake
from pipeline.tables_world import batch
from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.build import query
from pydanube.pipeline.flow import Flow
from pydanube.pipeline.targets.delta import DeltaTarget
from pydanube.pipeline.targets.iceberg_table import close_catalog
from pydanube.pipeline.targets.record import Verdict
from pydanube.pipeline.targets.target import CHANGE, Target, with_change
from pydanube.sync import Client

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
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
    close_catalog(lake.target().place)


def write(target: Target, number: int, *tasks: list[dict[str, Any]]) -> Verdict:
    schema, parts = with_change(SCHEMA), []
    for at, task in enumerate(tasks):
        stager = target.open(batch(number), schema, f"{number}-{at}-x")
        stager.add(pa.RecordBatch.from_pylist(task, schema=schema))
        parts.append(stager.finish())
    return target.commit(batch(number), SCHEMA, parts, replace=False)


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
    assert dead["error"] == "expected a key that names id, for there is no payload"
    assert dead["rule"] == "sink.upsert.keys"


def test_steps_that_lose_what_deletes_are_refused(spark: SparkSession, url: str, topic: str, tmp_path: Path) -> None:
    plain = {"name": "deletes", "source": {"topic": topic, "format": "json", "schema": DDL}, "checkpoint": "points"}
    sink = {"delta": "customers", "upsert": {"keys": ["id"], "delete_when": "tombstone"}}
    lost = Flow.of({**plain, "sink": sink, "transforms": [{"sql": "SELECT id, name FROM input"}]}, tmp_path)
    with pytest.raises(FlowInvalid, match="delete_when: the steps lose the column _change"):
        query(spark, lost, url=url, available_now=True)
