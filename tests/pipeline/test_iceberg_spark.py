"""Spark writes to Iceberg tables through `danube_tables`, without a jar: rows, dead letters, upserts, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from pyspark.sql import DataFrame, SparkSession

import pydanube.sync
from pipeline.iceberg_world import Lake
from pipeline.test_sink_spark import DEAD, Flow
from pydanube.pipeline.spec.plan import Plan
from spark.world import fill, numbers

Client = pydanube.sync.Client


def test_rows_and_dead_letters_are_there_once_also_when_the_last_batch_comes_again(
    client: Client, spark: SparkSession, url: str, topic: str, tmp_path: Path
) -> None:
    flow, good, dead = Flow(spark, url, topic, tmp_path), Lake(tmp_path), Lake(tmp_path, "lake.dead")
    fill(client, topic, numbers(1, 100), partitions=2)
    frame = flow.input("number", "number % 10 digit", "event_time", DEAD, maxRecordsPerTrigger="40")
    flow.run(frame, good.spec(partition_by=["digit"]), dead=dead.spec())
    snapshots = len(good.table().snapshots())
    flow.forget_the_last_commit()
    flow.run(frame, good.spec(partition_by=["digit"]), dead=dead.spec())
    assert sorted(row["number"] for row in good.content()) == [number for number in range(1, 101) if number % 10]
    assert sorted(int(row["value"]) for row in dead.content()) == list(range(10, 101, 10))
    assert len(good.table().snapshots()) == snapshots >= 3
    assert good.table().inspect.partitions().num_rows == 9


def test_iceberg_by_upsert(client: Client, spark: SparkSession, url: str, topic: str, tmp_path: Path) -> None:
    flow, lake = Flow(spark, url, topic, tmp_path), Lake(tmp_path)
    fill(client, topic, numbers(1, 20))
    plan, checkpoint = Plan("numbers", (lake.spec(upsert={"keys": ["rest"]}),)).to_json(), str(flow.checkpoint)

    def each(rows: DataFrame, batch: int) -> None:
        given = {"plan": plan, "checkpointLocation": checkpoint}
        rows.write.format("danube_tables").mode("append").options(**given).save()

    frame = flow.input("number % 4 rest", maxRecordsPerTrigger="12").groupBy("rest").count()
    flow.run(frame, each=each, mode="update")
    before = lake.table().metadata_location
    flow.forget_the_last_commit()
    flow.run(frame, each=each, mode="update")
    assert [(row["rest"], row["count"]) for row in lake.content()] == [(0, 5), (1, 5), (2, 5), (3, 5)]
    assert lake.table().metadata_location == before
