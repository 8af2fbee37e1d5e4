"""The part `write` of bench/spark.py: rows into a topic, the overhead of a micro-batch, and a producer's latency."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import pydanube.sync
from broker import Process
from figures import Figures

RUNS = int(os.environ.get("BENCH_RUNS", "5"))
MESSAGES = int(os.environ.get("BENCH_MESSAGES", "10000000"))
FILE_ROWS, ROW_BYTES = 1_000_000, 100
FLOOR_BATCHES = 60
LIVE_SECONDS = 0.005  # between messages of the producer during a write


def writing(spark: SparkSession, directory: Path, figures: Figures) -> None:
    process = Process(directory)
    try:
        url = asyncio.run(process.url())
        with pydanube.sync.connect(url) as client:
            batches(spark, url, directory, client, figures)
            floor(spark, url, directory, client, figures)
            beside(spark, url, client, figures)
    finally:
        process.end()


def batches(spark: SparkSession, url: str, directory: Path, client: pydanube.sync.Client, figures: Figures) -> None:
    rows = min(FILE_ROWS, MESSAGES)
    data = pa.py_buffer(os.urandom(rows * ROW_BYTES))
    offsets = pa.py_buffer(np.arange(0, (rows + 1) * ROW_BYTES, ROW_BYTES, dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data])
    keys = pa.array([f"key-{number % 10_000}" for number in range(rows)])
    file = directory / "rows.parquet"
    pq.write_table(pa.table({"value": values, "key": keys}), file, compression="none")
    frame = spark.read.parquet(*[str(file)] * (MESSAGES // rows))
    for name, columns in (("no keys", ["value"]), ("with keys", ["value", "key"])):
        found = []
        for run in range(RUNS + 1):
            topic = f"/default/write-{len(columns)}-{run}"
            client.admin.create_topic(topic, partitions=2)
            began = perf_counter()
            frame.select(*columns).write.format("danube").mode("append").options(url=url, topic=topic).save()
            found.append(MESSAGES // rows * rows / (perf_counter() - began))
            client.admin.delete_topic(topic)
        figures.report(f"write, {name}", median(found[1:]), "rows/s", 0.8e6)


def floor(spark: SparkSession, url: str, directory: Path, client: pydanube.sync.Client, figures: Figures) -> None:
    """The overhead of a trigger from topic to topic, with a few messages in each."""
    source, target = "/default/few", "/default/few-out"
    for topic in (source, target):
        client.admin.create_topic(topic, partitions=2)
    loaded = spark.readStream.format("danube").options(url=url, topic=source, subscription="bench").load()
    writer = loaded.select("key", "value").writeStream.format("danube").options(url=url, topic=target)
    query = writer.option("checkpointLocation", str(directory / "floor")).start()
    try:
        with client.producer(source) as producer:
            while len(found := _full(query)) < FLOOR_BATCHES:
                producer.send_many([b"x" * 100] * 20).result()
    finally:
        query.stop()
    took = median(found[-FLOOR_BATCHES // 2 :])
    figures.report("a trigger of a few rows, to a topic, p50", took, "ms", 250, at_least=False)


def beside(spark: SparkSession, url: str, client: pydanube.sync.Client, figures: Figures) -> None:
    """A producer sends a message now and then, while a job writes six hundred megabytes to the same topic."""
    topic, alone, waits, job = "/default/live", list[float](), list[float](), threading.Event()
    done = threading.Event()

    def live() -> None:
        with client.producer(topic) as producer:
            while not done.is_set():
                began = perf_counter()
                producer.send(b"live").result()
                (waits if job.is_set() else alone).append(perf_counter() - began)
                sleep(LIVE_SECONDS)

    thread = threading.Thread(target=live)
    thread.start()
    sleep(1)
    job.set()
    rows = spark.range(3_000_000).selectExpr("repeat('x', 200) AS value")
    rows.write.format("danube").mode("append").options(url=url, topic=topic).save()
    done.set()
    thread.join()
    figures.report("a producer alone, p50", 1e3 * median(alone), "ms")
    figures.report("a producer beside a write of 600 MB, p99", 1e3 * quantiles(waits, n=100)[98], "ms")
    figures.report("a producer beside a write of 600 MB, longest", 1e3 * max(waits), "ms", 50, at_least=False)


def _full(query: StreamingQuery) -> list[int]:
    """The duration of each trigger that had rows."""
    if query.exception() is not None:
        raise query.exception()  # type: ignore[misc]
    return [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]
