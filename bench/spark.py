"""Measures Spark with a broker in its own process, on `local[2]`. Run by `make bench-spark`.

`python bench/spark.py segments` runs one part: read, write, or segments, whose broker has a folder as object storage.
There are ten million messages of 100 bytes in two partitions; figures are medians of warm runs into Spark's noop sink.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import pydanube.spark
import pydanube.sync
from broker import Process
from figures import Figures
from pydanube.spark.columns import ALL, DEFAULT
from spark_write import writing

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
MESSAGES = int(os.environ.get("BENCH_MESSAGES", "10000000"))
TOPIC = "/default/bench"
TRIGGER = 1_000_000  # records
FLOOR_BATCHES = 60
READS = (("offset, timestamp, value", ("offset", "timestamp", "value"), 2.5e6),
         ("default columns", tuple(DEFAULT), 2e6),
         ("all columns", tuple(ALL), 1.2e6))  # fmt: skip


def publish(client: pydanube.sync.Client) -> None:
    client.admin.create_topic(TOPIC, partitions=2)
    many = [os.urandom(100) for _ in range(10_000)]
    with client.producer(TOPIC) as producer:
        for _ in range(MESSAGES // len(many)):
            producer.send_many(many)
        producer.flush()


def read(spark: SparkSession, url: str, names: tuple[str, ...]) -> float:
    """Seconds."""
    schema = ", ".join(f"{name} {ALL[name]}" for name in names)
    frame = spark.read.format("danube").options(url=url, topic=TOPIC).schema(schema).load()
    began = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return perf_counter() - began


def batches(spark: SparkSession, url: str, figures: Figures) -> None:
    read(spark, url, READS[0][1])
    for name, names, goal in READS:
        found = [MESSAGES / read(spark, url, names) for _ in range(RUNS)]
        figures.report(f"batch read, {name}", median(found), "rows/s", goal)


def source(spark: SparkSession, url: str, **options: str) -> DataFrame:
    given = {"url": url, "subscription": "bench", "topic": TOPIC} | options
    return (
        spark.readStream.format("danube")
        .options(**given)
        .schema("offset BIGINT, timestamp TIMESTAMP, value BINARY")
        .load()
    )


def stream(spark: SparkSession, url: str, directory: Path, figures: Figures) -> None:
    """Rows per second within triggers, without the first one of a query, which starts its workers."""
    given = {"startingOffsets": "earliest", "maxRecordsPerTrigger": str(TRIGGER)}
    writer = source(spark, url, **given).writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(directory / "stream")).start()
    query.awaitTermination()
    took = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows == TRIGGER][1:]
    figures.report("stream, 1 M rows a trigger", TRIGGER * 1000 / median(took), "rows/s", 1.5e6)


def floor(spark: SparkSession, url: str, directory: Path, client: pydanube.sync.Client, figures: Figures) -> None:
    """The overhead of a trigger, with a few messages in each."""
    topic = "/default/floor"
    client.admin.create_topic(topic, partitions=2)
    writer = source(spark, url, topic=topic).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(directory / "floor")).start()
    try:
        with client.producer(topic) as producer:
            while len(found := full(query)) < FLOOR_BATCHES:
                producer.send_many([b"x" * 100] * 20).result()
                sleep(0.02)  # a busy loop would be measured too
    finally:
        query.stop()
    figures.report("a trigger of a few rows, p50", median(found[-FLOOR_BATCHES // 2 :]), "ms", 150, at_least=False)


def full(query: StreamingQuery) -> list[int]:
    """The duration of each trigger that had rows."""
    if query.exception() is not None:
        raise query.exception()  # type: ignore[misc]
    return [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]


def native(spark: SparkSession, paths: list[str]) -> DataFrame:
    """The same files, read by Spark alone."""
    return spark.read.parquet(*paths).select("offset", "append_time", "payload")


def timed(frame: DataFrame) -> float:
    began = perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return MESSAGES / (perf_counter() - began)


def segments(spark: SparkSession, directory: Path, figures: Figures) -> None:
    """Reads uploaded messages in three ways, which take turns so that other load on the machine affects all of them."""
    folder = directory / "objects"
    os.environ["DANUBE_STORAGE__OBJECTS__URL"] = f"file://{folder}"
    process = Process(directory / "tiered")
    try:
        url = asyncio.run(process.url())
        with pydanube.sync.connect(url) as client:
            publish(client)
            client.admin.upload_topic(TOPIC)
            paths = [str(folder / each["segment"]) for each in client.admin.segments(TOPIC)]
        names = READS[0][1]
        schema = ", ".join(f"{name} {ALL[name]}" for name in names)
        found: dict[str, list[float]] = {"source": [], "native": [], "history": []}
        for _ in range(RUNS + 1):
            found["source"].append(MESSAGES / read(spark, url, names))
            found["native"].append(timed(native(spark, paths)))
            found["history"].append(timed(pydanube.spark.history(spark, TOPIC, schema=schema, url=url)))
    finally:
        process.end()
    rates = {name: median(each[1:]) for name, each in found.items()}
    figures.report(f"from segments, {READS[0][0]}", rates["source"], "rows/s", 2.5e6)
    figures.report("native Parquet, the same files", rates["native"], "rows/s")
    figures.report("history()", rates["history"], "rows/s")
    figures.report("history(), of native Parquet", rates["history"] / rates["native"], "times", 0.8)


def reading(spark: SparkSession, directory: Path, figures: Figures) -> None:
    process = Process(directory)
    try:
        url = asyncio.run(process.url())
        with pydanube.sync.connect(url) as client:
            publish(client)
            batches(spark, url, figures)
            stream(spark, url, directory, figures)
            floor(spark, url, directory, client, figures)
    finally:
        process.end()


PARTS = {"read": reading, "segments": segments, "write": writing}


def main() -> None:
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        spark = pydanube.spark.session("danube-bench", "local[2]", config={"spark.driver.memory": "4g"})
        try:
            for part in sys.argv[1:] or PARTS:
                (Path(directory) / part / "tiered").mkdir(parents=True)
                PARTS[part](spark, Path(directory) / part, figures)
        finally:
            spark.stop()
    figures.table()


if __name__ == "__main__":
    main()
