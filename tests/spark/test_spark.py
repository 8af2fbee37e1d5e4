"""Real Spark: found without registration, batches, streams, restarts, and errors that say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, countDistinct, expr
from pyspark.sql.functions import sum as total
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import pydanube.spark
import pydanube.sync
from pydanube.spark.columns import ALL
from spark.world import fill, numbers, singly

Client = pydanube.sync.Client
Load = Callable[..., DataFrame]
MILLION = 1_000_000


@pytest.fixture
def load(spark: SparkSession, url: str, topic: str) -> Load:
    """A batch read of the test's topic."""

    def load(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("danube").options(url=url, **{"topic": topic} | options)
        return (reader if schema is None else reader.schema(schema)).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, url: str, topic: str) -> Load:
    def stream(**options: str) -> DataFrame:
        given = {"topic": topic, "startingOffsets": "earliest", "url": url} | options
        return spark.readStream.format("danube").options(**given).load()

    return stream


def into_memory(frame: DataFrame, name: str, checkpoint: Path) -> DataStreamWriter:
    writer = frame.writeStream.format("memory").queryName(name).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint))


def run(frame: DataFrame, checkpoint: Path, output: Path) -> list[dict[str, Any]]:
    """All there is now, as Parquet; what each batch reported."""
    writer = frame.writeStream.format("parquet").option("path", str(output))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    return finished(query)


def finished(query: StreamingQuery) -> list[dict[str, Any]]:
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    return [json.loads(each.json) for each in query.recentProgress]


def test_a_million_rows_come_out_as_they_went_in(client: Client, load: Load, topic: str) -> None:
    client.admin.create_topic(topic, partitions=2)
    with client.producer(topic) as producer:
        for first in range(0, MILLION, 50_000):
            producer.send_many([b"%d" % number for number in range(first, first + 50_000)])
        producer.flush()
    number = expr("cast(cast(value as string) as bigint)")
    [found] = load("value BINARY").agg(count("*"), total(number), countDistinct(number)).collect()
    assert tuple(found) == (MILLION, MILLION * (MILLION - 1) // 2, MILLION)


def test_every_column_arrives(client: Client, load: Load, topic: str) -> None:
    client.admin.create_topic(topic, partitions=1)
    with client.producer(topic) as producer:
        producer.send(b"v", key="k", attributes={"a": "1"}, event_time=1_500_000).result()
        producer.send(None, key=None).result()
    frame = load(includeAttributes="true", includeMeta="true")
    assert frame.columns == list(ALL)
    first, second = frame.orderBy("offset").collect()
    assert (first.topic, first.partition, first.offset, first.key, first.value) == (topic, 0, 0, b"k", b"v")
    assert (first.attributes, first.sequence, second.sequence) == ({"a": "1"}, 0, 1)
    assert first.timestamp >= first.publish_time
    assert (second.key, second.value, second.attributes, second.event_time) == (None, None, None, None)
    [seconds] = frame.where("offset = 0").select(expr("unix_micros(event_time)")).first() or [None]
    assert seconds == 1_500_000


def test_a_narrow_schema_reads_only_its_columns(client: Client, load: Load, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    frame = load("value BINARY, offset BIGINT")
    assert frame.columns == ["value", "offset"]
    assert frame.orderBy("offset").first() == (b"000000", 0)


def test_an_empty_topic_is_an_empty_frame(client: Client, load: Load, topic: str) -> None:
    client.admin.create_topic(topic, partitions=3)
    assert load().collect() == []
    assert load().count() == 0


def test_a_frame_is_a_snapshot_and_a_new_one_sees_more(client: Client, load: Load, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    frame = load()
    assert frame.count() == 10
    fill(client, topic, numbers(10, 19))
    assert frame.count() == 10
    assert frame.where("offset >= 5").count() == 5
    assert frame.count() == 10
    assert load().count() == 20


def test_sql_and_history_find_it_too(spark: SparkSession, client: Client, url: str, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    spark.sql(f"CREATE TEMPORARY VIEW orders USING danube OPTIONS (url '{url}', topic '{topic}')")
    try:
        assert spark.sql("SELECT count(*), max(offset) FROM orders").first() == (10, 9)
    finally:
        spark.sql("DROP VIEW orders")
    assert pydanube.spark.history(spark, topic, url=url, schema="offset BIGINT").count() == 10


def test_it_can_be_registered_by_hand(spark: SparkSession, load: Load, client: Client, topic: str) -> None:
    fill(client, topic, numbers(0, 4))
    pydanube.spark.register(spark)
    assert load().count() == 5


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (
            None,
            {"startingOffset": "x"},
            "OptionInvalid: unknown option 'startingoffset'; did you mean startingOffsets?",
        ),
        ("ofset BIGINT", {}, "ColumnInvalid: a topic has no column 'ofset'; did you mean offset?"),
        (None, {"topic": "/default/nowhere"}, "TopicNotFound: "),
        (None, {"subscription": "q"}, "OptionInvalid: subscription works only with streams"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(
    load: Load, schema: str | None, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        load(schema, **options).count()
    assert said.lower() in str(raised.value).lower()
    assert "What to do: " in str(raised.value)


def test_a_stream_goes_on_after_a_restart(
    client: Client, stream: Load, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, numbers(0, 999), partitions=2)
    frame = stream(maxRecordsPerTrigger="400", subscription="q")
    first = run(frame, tmp_path / "checkpoint", tmp_path / "out")
    assert [each["numInputRows"] for each in first if each["numInputRows"]] == [400, 400, 200]
    fill(client, topic, numbers(1000, 1499))
    again = run(stream(startingOffsets="latest", subscription="q"), tmp_path / "checkpoint", tmp_path / "out")
    assert sum(each["numInputRows"] for each in again) == 500
    out = spark.read.parquet(str(tmp_path / "out")).select(col("value").cast("string"))
    assert sorted(each.value.encode() for each in out.collect()) == numbers(0, 1499)
    assert client.admin.describe_subscription(topic, "q")["backlog"] == 0
    idle = run(stream(subscription="q"), tmp_path / "checkpoint", tmp_path / "out")
    assert [each["numInputRows"] for each in idle if each["numInputRows"]] == []


def test_a_running_stream_sees_what_comes(
    client: Client, stream: Load, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    client.admin.create_topic(topic)
    query = into_memory(stream().selectExpr("offset", "value"), "live", tmp_path).start()
    try:
        for first in range(0, 30, 10):
            singly(client, topic, numbers(first, first + 9))
            query.processAllAvailable()
            assert spark.table("live").count() == first + 10
        assert [row.offset for row in spark.table("live").orderBy("offset").collect()] == list(range(30))
        sources = query.lastProgress.sources  # type: ignore[union-attr]
        assert json.loads(sources[0].endOffset)[topic]["0"] == 30
    finally:
        query.stop()


def test_a_second_query_under_one_subscription_reads_nothing_until_the_first_is_gone(
    client: Client, stream: Load, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, numbers(0, 9))
    first = into_memory(stream(subscription="q"), "first", tmp_path / "1").start()
    try:
        first.processAllAvailable()
        second = into_memory(stream(subscription="q"), "second", tmp_path / "2").start()
        assert not second.awaitTermination(3)  # for as long as somebody who is gone would seem to be there
        assert (first.isActive, second.lastProgress) == (True, None)
    finally:
        first.stop()
    second.processAllAvailable()
    assert second.lastProgress is not None
    second.stop()


def test_a_topic_made_anew_ends_the_query(client: Client, stream: Load, topic: str, tmp_path: Path) -> None:
    fill(client, topic, numbers(0, 9))
    run(stream(), tmp_path / "checkpoint", tmp_path / "out")
    client.admin.delete_topic(topic)
    fill(client, topic, numbers(0, 19))
    with pytest.raises(PySparkException, match="TopicReplaced"):
        run(stream(), tmp_path / "checkpoint", tmp_path / "out")
