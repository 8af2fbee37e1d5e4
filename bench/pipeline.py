"""Measures pipelines with a broker in its own process, on `local[2]`. Run by `make bench-pipeline`.

`python bench/pipeline.py raw json` runs only some parts: raw, json, formats, sinks. `--idle MINUTES` runs only an idle
pipeline (see pipeline_idle.py). A trigger has a million rows; the first one of a query, which starts its workers,
counts only end to end. Figures are medians of runs, and the runs of one part take turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, repeat
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import pipeline_payloads as payloads
import pydanube.spark
import pydanube.sync
from broker import Process
from figures import Figures
from pipeline_idle import idle
from pydanube.pipeline.query import build
from pydanube.pipeline.query.session import BOUNDS
from pydanube.pipeline.spec.flow import Flow

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
TRIGGER = int(os.environ.get("BENCH_TRIGGER", "1000000"))  # records
TRIGGERS = int(os.environ.get("BENCH_TRIGGERS", "4"))
MESSAGES = TRIGGER * TRIGGERS
RAW, JSON, SPOILED, AVRO, PROTOBUF = (f"/default/{name}" for name in ("raw", "json", "spoiled", "avro", "protobuf"))


@dataclass
class Rates:
    """Rows per second, of each run."""

    triggers: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


class Bench:
    """A broker with topics, and queries that read them. What a query wrote is removed after it was measured."""

    def __init__(self, spark: SparkSession, directory: Path, figures: Figures, url: str) -> None:
        self._spark = spark
        self._directory = directory
        self._figures = figures
        self._url = url
        self._filled: set[str] = set()

    def fill(self, topic: str, lots: Iterator[list[bytes]]) -> None:
        if topic in self._filled:
            return
        self._filled.add(topic)
        with pydanube.sync.connect(self._url) as client:
            client.admin.create_topic(topic, partitions=2)
            with client.producer(topic) as producer:
                for many in islice(lots, MESSAGES // payloads.COUNT):
                    producer.send_many(many)
                producer.flush()

    def run(self, cases: Mapping[str, tuple[Callable[[Path], StreamingQuery], float | None]]) -> None:
        found = {name: Rates() for name in cases}
        for _ in range(RUNS):
            for name, (start, _) in cases.items():
                self._measure(start, found[name])
        for name, (_, goal) in cases.items():
            self._figures.report(name, median(found[name].triggers), "rows/s", goal)
            self._figures.report(f"{name}, from start to end", median(found[name].whole), "rows/s")

    def _measure(self, start: Callable[[Path], StreamingQuery], rates: Rates) -> None:
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        try:
            began = perf_counter()
            query = start(folder)
            query.awaitTermination()
            rates.whole.append(MESSAGES / (perf_counter() - began))
            full = [each for each in query.recentProgress if each.numInputRows % TRIGGER == 0 and each.numInputRows]
            if os.environ.get("BENCH_VERBOSE"):
                print([dict(each.durationMs) for each in full], file=sys.stderr)
            rates.triggers.append(TRIGGER * 1000 / median(each.durationMs["triggerExecution"] for each in full[1:]))
        finally:
            shutil.rmtree(folder)

    def flow(self, topic: str, sink: Mapping[str, Any], **more: Any) -> Callable[[Path], StreamingQuery]:
        """`source` is merged into the source of the flow, everything else into the flow."""

        def start(folder: Path) -> StreamingQuery:
            source = {"topic": topic, "max_records": TRIGGER, **more.get("source", {})}
            made = {"name": "bench", **more, "source": source, "sink": _in_folder(sink, folder), "checkpoint": "points"}
            flow = Flow.of(made, folder)
            return build.query(self._spark, flow, url=self._url, available_now=True)

        return start

    def native(self, topic: str) -> Callable[[Path], StreamingQuery]:
        """For comparison: the same rows into Spark's own sink for Parquet files, which writes in the JVM."""

        def start(folder: Path) -> StreamingQuery:
            options = {"url": self._url, "topic": topic, "startingOffsets": "earliest", "subscription": "bench"}
            frame = self._spark.readStream.format("danube").options(**options, maxRecordsPerTrigger=str(TRIGGER)).load()
            frame = frame.selectExpr(
                "topic",
                "partition",
                "offset",
                "timestamp",
                "coalesce(event_time, timestamp) event_time",
                "key",
                "value",
            )
            writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
            return writer.option("checkpointLocation", str(folder / "points")).trigger(availableNow=True).start()

        return start

    # -- parts ---------------------------------------------------------------------------------------------------------

    def raw(self) -> None:
        self.fill(RAW, payloads.noise())
        ours, theirs = "topic to Delta, 100 B as they are", "topic to Spark's own Parquet sink"
        self.run({ours: (self.flow(RAW, {"delta": "out"}), 0.6e6), theirs: (self.native(RAW), None)})
        ratio = self._figures.value(ours) / self._figures.value(theirs)
        self._figures.report("of Spark's own Parquet sink", ratio, "times")

    def json(self) -> None:
        self.fill(JSON, payloads.as_json())
        self.fill(SPOILED, map(payloads.with_bad, payloads.as_json()))
        source = {"format": "json", "schema": payloads.DDL}
        five = [{"sql": "SELECT id, customer, amount, paid, at FROM input"}]
        letters: dict[str, Any] = {"source": source, "dead_letters": {"delta": "dead"}}
        delta = {"delta": "out"}
        self.run(
            {
                "JSON, five columns, to Delta": (self.flow(JSON, delta, source=source, transforms=five), 0.3e6),
                "JSON, five columns, 1 % dead letters": (self.flow(SPOILED, delta, **letters, transforms=five), None),
                "JSON, all columns": (self.flow(JSON, delta, source=source), None),
                "JSON, all columns, 1 % dead letters": (self.flow(SPOILED, delta, **letters), None),
            }
        )

    def formats(self) -> None:
        descriptor = self._directory / "order.desc"
        self.fill(AVRO, repeat(payloads.as_avro()))
        self.fill(PROTOBUF, repeat(payloads.as_protobuf(descriptor)))
        avro = {"format": "avro", "schema": json.dumps(payloads.AVRO)}
        protobuf = {"format": "protobuf", "schema": {"descriptor": str(descriptor), "message": "bench.Order"}}
        five = [{"sql": "SELECT id, customer, amount, paid, at FROM input"}]
        delta = {"delta": "out"}
        self.run(
            {
                "Avro, five columns, to Delta": (self.flow(AVRO, delta, source=avro, transforms=five), None),
                "Protobuf, five columns, to Delta": (
                    self.flow(PROTOBUF, delta, source=protobuf, transforms=five),
                    None,
                ),
            }
        )

    def sinks(self) -> None:
        self.fill(RAW, payloads.noise())
        iceberg = {"table": "bench.out", "type": "sql"}
        with pydanube.sync.connect(self._url) as client:
            client.admin.create_topic("/default/out", partitions=2)
        self.run(
            {
                "topic to Parquet": (self.flow(RAW, {"parquet": "out"}), None),
                "topic to Iceberg": (self.flow(RAW, {"iceberg": iceberg}), None),
                "topic to topic": (self.flow(RAW, {"topic": "/default/out", "value": "value"}), None),
            }
        )


def _in_folder(sink: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The sink in its folder, with its own catalog if it needs one."""
    if "iceberg" not in sink:
        return dict(sink)
    catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return {**sink, "iceberg": {**sink["iceberg"], **catalog}}


PARTS = ("raw", "json", "formats", "sinks")


def measure(directory: Path, parts: Iterable[str], figures: Figures) -> None:
    config = {**BOUNDS, "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    spark = pydanube.spark.session("danube-bench", "local[2]", config=config)
    process = Process(directory)
    try:
        bench = Bench(spark, directory, figures, asyncio.run(process.url()))
        for part in parts:
            getattr(bench, part)()
    finally:
        process.end()
        spark.stop()


def main(given: list[str]) -> None:
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        directory = Path(name)
        if given[:1] == ["--idle"]:
            idle(directory, figures, float(given[1]))
        else:
            measure(directory, given or PARTS, figures)
    figures.table()


if __name__ == "__main__":
    main(sys.argv[1:])
