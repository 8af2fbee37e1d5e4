"""Real Spark writing to topics: batches, streams, restarts of the same batch, foreachBatch, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.functions import col, count, countDistinct, expr
from pyspark.sql.functions import sum as total
from pyspark.sql.streaming import DataStreamWriter

import pydanube.spark
import pydanube.sync
from spark.sink_world import payloads
from spark.world import fill, numbers

Client = pydanube.sync.Client
MILLION = 1_000_000


class Sink:
    """Writes of one test, and the topic that they go to."""

    def __init__(self, spark: SparkSession, url: str, topic: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.topic = topic
        self.source = f"{topic}-in"
        self.checkpoint = folder / "checkpoint"

    def batch(self, frame: DataFrame, **options: str) -> DataFrameWriter:
        given = {"url": self.url, "topic": self.topic} | options
        return frame.write.format("danube").mode("append").options(**given)

    def input(self, **options: str) -> DataFrame:
        given = {"url": self.url, "topic": self.source, "startingOffsets": "earliest"} | options
        return self.spark.readStream.format("danube").options(**given).load()

    def stream(self, frame: DataFrame, **options: str) -> DataStreamWriter:
        given = {"url": self.url, "topic": self.topic, "checkpointLocation": str(self.checkpoint)} | options
        return frame.writeStream.format("danube").options(**given).trigger(availableNow=True)

    def forget_the_last_commit(self) -> int:
        """As if Spark had died between the commit of the sink and its own: the batch comes again."""
        last = max(int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdecimal())
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
        return last


def run(writer: DataStreamWriter) -> None:
    query = writer.start()
    try:
        assert query.awaitTermination(90)
    finally:
        query.stop()


@pytest.fixture
def sink(spark: SparkSession, url: str, topic: str, tmp_path: Path) -> Sink:
    return Sink(spark, url, topic, tmp_path)


def test_a_million_rows_are_written_and_read_equal(client: Client, sink: Sink) -> None:
    client.admin.create_topic(sink.topic, partitions=2)
    frame = sink.spark.range(0, MILLION, 1, 2).selectExpr("cast(id as string) value", "cast(id % 1000 as string) key")
    sink.batch(frame).save()
    loaded = sink.spark.read.format("danube").options(url=sink.url, topic=sink.topic).schema("value BINARY").load()
    number = expr("cast(cast(value as string) as bigint)")
    [found] = loaded.agg(count("*"), total(number), countDistinct(number)).collect()
    assert tuple(found) == (MILLION, MILLION * (MILLION - 1) // 2, MILLION)


def test_columns_and_topics_of_a_batch_write(client: Client, sink: Sink) -> None:
    frame = sink.spark.sql(
        f"""select concat('{sink.topic}-', id % 2) topic, string(id) key, if(id = 3, null, string(id)) value,
            map('n', string(id)) attributes, timestamp_seconds(id) event_time from range(0, 4, 1, 1)"""
    )
    given = {"url": sink.url, "compression": "lz4"}
    frame.write.format("danube").mode("append").options(**given).save()
    table = client.read_arrow(f"{sink.topic}-1")
    assert table.column("payload").to_pylist() == [b"1", None]
    assert table.column("key").to_pylist() == [b"1", b"3"]
    assert table.column("attributes").to_pylist() == [[("n", "1")], [("n", "3")]]
    assert [each.timestamp() for each in table.column("event_time").to_pylist()] == [1, 3]
    assert payloads(client, f"{sink.topic}-0") == [b"0", b"2"]


def test_order_within_a_task(client: Client, sink: Sink) -> None:
    client.admin.create_topic(sink.topic, partitions=2)
    frame = sink.spark.range(0, 1_000, 1, 4).selectExpr("string(id % 10) key", "string(id) value")
    sink.batch(frame.repartition(2, "key").sortWithinPartitions(col("value").cast("int"))).save()
    for partition in range(2):
        table = client.read_arrow(f"{sink.topic}-part-{partition}")
        by_key: dict[bytes, list[int]] = {}
        for key, value in zip(table.column("key").to_pylist(), table.column("payload").to_pylist(), strict=True):
            by_key.setdefault(key, []).append(int(value))
        assert all(found == sorted(found) and len(found) == 100 for found in by_key.values())


def test_what_cannot_be_written_says_so(sink: Sink) -> None:
    frame = sink.spark.range(1).selectExpr("string(id) value")
    refused: list[tuple[Any, str]] = [
        (sink.batch(frame).mode("overwrite"), "a topic can only be appended to"),
        (sink.batch(frame.withColumn("vaule", col("value"))), "no column 'vaule'; did you mean value"),
        (sink.batch(frame, topics="x"), "no option 'topics'; did you mean topic"),
        (frame.write.format("danube").mode("append").option("url", sink.url), "name the topic with"),
        (sink.batch(frame.selectExpr("repeat('x', 17000000) value")), "17000000 bytes"),
    ]
    for writer, said in refused:
        with pytest.raises(PySparkException, match=said):
            writer.save()


def test_another_thread_writes_when_the_session_is_active_there(client: Client, sink: Sink) -> None:
    frame = sink.spark.sql("select string(id) value from range(10)")
    fill(client, sink.source, numbers(1, 10))

    def write() -> None:
        pydanube.spark.activate(sink.spark)
        sink.batch(frame).save()
        run(sink.stream(sink.input().select("value")))

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):  # else nobody needs to be told of it
            pool.submit(sink.batch(frame).save).result()
        pool.submit(write).result()
    assert len(payloads(client, sink.topic)) == 20


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_writes_what_is_new_and_a_repeated_batch_adds_nothing(client: Client, sink: Sink) -> None:
    """The rows of a repeated batch are others, and fall otherwise: none of them is written."""
    client.admin.create_topic(sink.topic, partitions=3)
    fill(client, sink.source, numbers(1, 400), partitions=2)
    frame = sink.input(maxRecordsPerTrigger="200").selectExpr(
        "value", "string(rand()) key", "map('drawn', string(rand())) attributes"
    )
    run(sink.stream(frame))
    before = client.read_arrow(sink.topic).select(["key", "payload"]).to_pylist()
    assert sorted(each["payload"] for each in before) == numbers(1, 400)
    repeated = sink.forget_the_last_commit()
    run(sink.stream(frame))
    assert (sink.checkpoint / "commits" / str(repeated)).exists(), "the batch came again"
    assert client.read_arrow(sink.topic).select(["key", "payload"]).to_pylist() == before
    fill(client, sink.source, numbers(401, 500))
    run(sink.stream(frame))
    after = client.read_arrow(sink.topic).column("payload").to_pylist()
    assert sorted(after) == numbers(1, 500)


def test_a_task_that_fails_when_others_have_staged_leaves_nothing(client: Client, sink: Sink, tmp_path: Path) -> None:
    fill(client, sink.source, numbers(1, 100), partitions=2)
    healed = str(tmp_path / "healed")

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 1 and not Path(healed).exists():
            raise RuntimeError("planted")

    drawn = sink.input(minPartitions="2").selectExpr("value", "string(rand()) key")
    frame = drawn.mapInArrow(failing, "value BINARY, key STRING")
    with pytest.raises(PySparkException, match="planted"):
        run(sink.stream(frame))
    assert sink.topic not in client.admin.topics("default")
    Path(healed).touch()
    run(sink.stream(frame))
    assert sorted(payloads(client, sink.topic)) == numbers(1, 100)  # type: ignore[type-var]


def test_a_checkpoint_that_was_wiped_or_copied_is_an_error_that_names_both(client: Client, sink: Sink) -> None:
    fill(client, sink.source, numbers(1, 10))
    frame = sink.input().select("value")
    run(sink.stream(frame))
    copy = sink.checkpoint.with_name("copy")
    shutil.copytree(sink.checkpoint, copy)
    fill(client, sink.source, numbers(11, 20))
    run(sink.stream(frame))
    fill(client, sink.source, numbers(21, 30))
    with pytest.raises(PySparkException, match="was the checkpoint copied"):
        run(sink.stream(frame, checkpointLocation=str(copy)))
    for limit in ("5", "1000"):  # also if it reads further at once, for more has come since
        shutil.rmtree(sink.checkpoint)
        with pytest.raises(PySparkException, match="was its checkpoint wiped"):
            run(sink.stream(sink.input(maxRecordsPerTrigger=limit).select("value")))
    assert sorted(payloads(client, sink.topic)) == numbers(1, 20)  # type: ignore[type-var]


def test_a_topic_that_was_made_again_is_written_to_from_the_start(client: Client, sink: Sink) -> None:
    fill(client, sink.source, numbers(1, 10))
    frame = sink.input().select("value")
    run(sink.stream(frame))
    shutil.rmtree(sink.checkpoint)
    client.admin.delete_topic(sink.topic)
    run(sink.stream(frame))
    assert payloads(client, sink.topic) == numbers(1, 10)


def test_a_stream_whose_checkpoint_is_known_to_the_session_alone_is_refused(client: Client, sink: Sink) -> None:
    fill(client, sink.source, numbers(1, 3))
    writer = sink.input().select("value").writeStream.format("danube").options(url=sink.url, topic=sink.topic)
    sink.spark.conf.set("spark.sql.streaming.checkpointLocation", str(sink.checkpoint))
    try:
        with pytest.raises(PySparkException, match=r"option\('checkpointLocation'"):
            run(writer.trigger(availableNow=True))
    finally:
        sink.spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_complete_mode_is_refused(client: Client, sink: Sink) -> None:
    fill(client, sink.source, numbers(1, 3))
    counted = sink.input().groupBy("key").count().selectExpr("string(count) value")
    with pytest.raises(PySparkException, match="a topic can only be appended to"):
        run(sink.stream(counted).outputMode("complete"))


# -- foreachBatch ------------------------------------------------------------------------------------------------------


def test_two_writes_in_one_batch_of_a_program_need_names(client: Client, sink: Sink) -> None:
    fill(client, sink.source, numbers(1, 10))

    def twice(frame: DataFrame, batch: int) -> None:
        sink.batch(frame.select("value")).save()
        sink.batch(frame.select("value")).save()

    def named(frame: DataFrame, batch: int) -> None:
        sink.batch(frame.select("value"), writeName="one").save()
        sink.batch(frame.select("value"), writeName="other").save()

    def start(program: Any, checkpoint: str) -> None:
        writer = sink.input().writeStream.foreachBatch(program).trigger(availableNow=True)
        run(writer.option("checkpointLocation", checkpoint))

    for _ in range(2):  # whoever starts it again is told again: the second write is not taken for the first
        with pytest.raises(PySparkException, match="its own writeName"):
            start(twice, f"{sink.checkpoint}-twice")
    assert payloads(client, sink.topic) == numbers(1, 10)
    start(named, str(sink.checkpoint))
    sink.forget_the_last_commit()
    start(named, str(sink.checkpoint))
    assert payloads(client, sink.topic) == numbers(1, 10) * 3


def test_versions_of_an_application(client: Client, sink: Sink) -> None:
    for version, value in ((1, "a"), (1, "again"), (2, "b")):
        frame = sink.spark.sql(f"select '{value}' value")
        sink.batch(frame, txnAppId=sink.topic, txnVersion=str(version)).save()
    assert payloads(client, sink.topic) == [b"a", b"b"]
