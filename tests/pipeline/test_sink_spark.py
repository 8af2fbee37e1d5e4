"""Real Spark writing to tables through `danube_tables`: with dead letters, again, by upsert, and after a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pydanube.sync
from pydanube.pipeline.spec.plan import Plan
from spark.world import fill, numbers

Client = pydanube.sync.Client
DEAD = """if(number % 10 = 0, named_struct('topic', topic, 'partition', partition, 'offset', offset,
    'timestamp', timestamp, 'event_time', event_time, 'key', key, 'attributes', map('a', 'b'), 'value', value,
    'error', concat('bad ', number), 'rule', 'number'), null) _dead"""


class Flow:
    """A topic, tables, and queries between them that share one checkpoint."""

    def __init__(self, spark: SparkSession, url: str, topic: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.topic = topic
        self.folder = folder
        self.checkpoint = folder / "checkpoint"

    def uri(self, name: str) -> str:
        return str(self.folder / name)

    def table(self, name: str) -> pa.Table:
        return DeltaTable(self.uri(name)).to_pyarrow_table()

    def input(self, *columns: str, **options: str) -> DataFrame:
        given = {"url": self.url, "topic": self.topic, "startingOffsets": "earliest"} | options
        frame = self.spark.readStream.format("danube").options(**given).load()
        return frame.withColumn("number", frame["value"].cast("string").cast("bigint")).selectExpr(*columns)

    def run(
        self,
        frame: DataFrame,
        *targets: dict[str, Any],
        dead: dict[str, Any] | None = None,
        mode: str = "append",
        each: Callable[[DataFrame, int], None] | None = None,
    ) -> None:
        plan = Plan("numbers", targets, dead_letters=dead).to_json()
        writer = frame.writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if each is None:
            writer = writer.format("danube_tables").option("plan", plan)
        else:
            writer = writer.foreachBatch(each)
        query = writer.start()
        try:
            assert query.awaitTermination(90)
        finally:
            query.stop()

    def forget_the_last_commit(self) -> int:
        """As if Spark had died between the commit of the tables and its own: the batch comes again."""
        last = max(int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdecimal())
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
        return last


@pytest.fixture
def flow(spark: SparkSession, url: str, topic: str, tmp_path: Path) -> Flow:
    return Flow(spark, url, topic, tmp_path)


def test_rows_and_dead_letters_are_there_once(client: Client, flow: Flow) -> None:
    fill(client, flow.topic, numbers(1, 100), partitions=2)
    targets = [
        {"kind": "delta", "uri": flow.uri("good"), "partition_by": ["digit"]},
        {"kind": "parquet", "uri": flow.uri("files")},
        {"kind": "topic", "topic": f"{flow.topic}-out", "url": flow.url, "key": "digit"},
    ]
    letters = {"kind": "delta", "uri": flow.uri("dead")}
    frame = flow.input("number", "number % 10 digit", "event_time", DEAD, maxRecordsPerTrigger="40")
    flow.run(frame, *targets, dead=letters)
    versions = DeltaTable(flow.uri("good")).version()
    flow.forget_the_last_commit()
    flow.run(frame, *targets, dead=letters)
    good = [number for number in range(1, 101) if number % 10]
    assert sorted(flow.table("good").column("number").to_pylist()) == good
    assert DeltaTable(flow.uri("good")).version() == versions >= 3
    assert sorted(flow.spark.read.parquet(flow.uri("files")).toPandas()["number"]) == good
    out = client.read_arrow(f"{flow.topic}-out")
    assert len(out) == len(good)
    dead = flow.table("dead").to_pylist()
    assert sorted(int(each["value"]) for each in dead) == list(range(10, 101, 10))
    assert {(each["topic"], each["pipeline"]) for each in dead} == {(flow.topic, "numbers")}
    assert dead[0]["error"] == f"bad {int(dead[0]['value'])}"
    assert (dict(dead[0]["attributes"]), dead[0]["rule"]) == ({"a": "b"}, "number")


def test_a_batch_of_which_only_some_targets_have_their_part_is_completed(client: Client, flow: Flow) -> None:
    """The second table cannot be written at first: the first has its rows already, and gets them once."""
    fill(client, flow.topic, numbers(1, 50))
    first, second = ({"kind": "delta", "uri": flow.uri(name)} for name in ("first", "second"))
    frame = flow.input("number")
    flow.run(frame, first, second)
    fill(client, flow.topic, numbers(51, 80))
    log = Path(flow.uri("second")) / "_delta_log"
    blocked = log / f"{DeltaTable(flow.uri('second')).version() + 1:020d}.json"
    blocked.mkdir()
    with pytest.raises(PySparkException):
        flow.run(frame, first, second)
    assert flow.table("first").num_rows == 80
    blocked.rmdir()
    flow.run(frame, first, second)
    for name in ("first", "second"):
        assert sorted(flow.table(name).column("number").to_pylist()) == list(range(1, 81))


def test_complete_mode_writes_the_table_anew(client: Client, flow: Flow) -> None:
    fill(client, flow.topic, numbers(1, 20))
    target = {"kind": "delta", "uri": flow.uri("counts")}
    frame = flow.input("number % 2 rest", maxRecordsPerTrigger="12").groupBy("rest").count()
    flow.run(frame, target, mode="complete")
    flow.forget_the_last_commit()
    flow.run(frame, target, mode="complete")
    assert sorted(map(tuple, (each.values() for each in flow.table("counts").to_pylist()))) == [(0, 10), (1, 10)]


def test_update_mode_by_upsert(client: Client, flow: Flow) -> None:
    fill(client, flow.topic, numbers(1, 20))
    target = {"kind": "delta", "uri": flow.uri("counts"), "upsert": {"keys": ["rest"], "sequence_by": None}}
    plan, checkpoint = Plan("numbers", (target,)).to_json(), str(flow.checkpoint)

    def each(rows: DataFrame, batch: int) -> None:
        given = {"plan": plan, "checkpointLocation": checkpoint}
        rows.write.format("danube_tables").mode("append").options(**given).save()

    frame = flow.input("number % 4 rest", maxRecordsPerTrigger="12").groupBy("rest").count()
    flow.run(frame, each=each, mode="update")
    before = DeltaTable(flow.uri("counts")).version()
    flow.forget_the_last_commit()
    flow.run(frame, each=each, mode="update")
    found = [(each["rest"], each["count"]) for each in flow.table("counts").to_pylist()]
    assert sorted(found) == [(0, 5), (1, 5), (2, 5), (3, 5)]
    assert DeltaTable(flow.uri("counts")).version() == before


def test_what_cannot_be_written_says_so_before_it_begins(client: Client, flow: Flow) -> None:
    fill(client, flow.topic, numbers(1, 2))
    delta = {"kind": "delta", "uri": flow.uri("t")}
    topic = {"kind": "topic", "topic": f"{flow.topic}-out", "url": flow.url}
    plan = Plan("numbers", (delta,)).to_json()
    with pytest.raises(PySparkException, match="no batch of a query is being written"):
        flow.spark.range(3).write.format("danube_tables").mode("append").option("plan", plan).save()
    with pytest.raises(PySparkException, match="partition_by names nope"):
        flow.run(flow.input("number"), delta | {"partition_by": ["nope"]})
    with pytest.raises(PySparkException, match="only be appended to"):
        flow.run(flow.input("number").groupBy("number").count(), topic, mode="complete")
    with pytest.raises(PySparkException, match="'csv' is not a kind of sink; the kinds are delta"):
        flow.run(flow.input("number"), {"kind": "csv"})
    assert DeltaTable(flow.uri("t")).to_pyarrow_table().num_rows == 0
