"""A topic as a table: the declaration that the command makes, and a topic whose history lies in segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import pydanube.sync
from pydanube.base.errors import FlowInvalid
from pydanube.cli.commands.pipeline_lakehouse import lakehouse
from pydanube.pipeline.lakehouse import Job
from pydanube.pipeline.query.build import query
from pydanube.pipeline.sinks.iceberg import IcebergSink
from pydanube.pipeline.spec.flow import Flow
from spark.tiered import Broker, tiered_broker

DDL = "id BIGINT, city STRING, amount DOUBLE, message STRING"
TOPIC = "/default/orders"


def test_a_job_is_a_pipeline_with_a_name_of_its_own(tmp_path: Path) -> None:
    job = Job(topics=["orders"], to="delta:lake/orders", folder=str(tmp_path))
    flow = job.flow()
    assert flow.name.startswith("orders-to-delta-orders-")
    assert flow.targets[0].label == f"delta:{tmp_path}/lake/orders"
    assert job.flow().name == flow.name
    others = [
        Job(topics=["orders"], to="delta:lake/a/orders", folder=str(tmp_path)),
        Job(topics=["orders", "more"], to="delta:lake/orders", folder=str(tmp_path)),
        Job(topics=["orders"], to="iceberg:lake.orders", folder=str(tmp_path)),
        Job(topics=["orders"], to="iceberg:lake.orders", catalog={"catalog": "test"}, folder=str(tmp_path)),
        Job(topics=["/shop/" + "o" * 100], to="parquet:s3://lake/ö", folder=str(tmp_path)),
    ]
    assert len({flow.name, *(each.flow().name for each in others)}) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"to": "lake/orders"}, "--to: must be delta:PATH"),
        ({"to": "delta:"}, "--to: must be delta:PATH"),
        ({"to": "topic:orders"}, "--to: must be delta:PATH"),
        ({"to": "iceberg:orders"}, "sink.iceberg.table: must be a namespace and a name"),
        ({"to": "delta:x", "schema": DDL}, "--schema: needs decoded payloads"),
        ({"to": "delta:x", "format": "json"}, "--schema: is missing"),
        ({"to": "delta:x", "format": "protobuf", "schema": "x.binpb"}, "--message: is missing"),
        ({"to": "delta:x", "dead_letters": "delta:y"}, "dead_letters: no row could ever be written there"),
        ({"to": "delta:x", "start": "yesterday"}, "source.start: "),
    ],
)
def test_what_is_wrong_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(FlowInvalid) as caught:
        Job(topics=["orders"], **given).flow()
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_the_command_shows_the_file_that_does_the_same(tmp_path: Path) -> None:
    place = {"--catalog-type": "sql", "--catalog-uri": "sqlite:///c.db", "--warehouse": "house"}
    options = ["--topic", "orders", "--to", "iceberg:lake.orders", *(text for pair in place.items() for text in pair)]
    options += ["--format", "json", "--schema", DDL, "--partition-by", "_date", "--dead-letters", f"delta:{tmp_path}/d"]
    done = CliRunner().invoke(lakehouse, [*options, "--print"])
    assert done.exit_code == 0, done.output
    flow = Flow.of(yaml.safe_load(done.output))
    assert flow.sinks[0].spec("")["uri"].endswith("/c.db")  # type: ignore[union-attr]
    assert flow.sinks[0].partition_by == ("_date",)  # type: ignore[union-attr]
    assert flow.source.mode == "permissive"
    assert all(each.maintain.compact for each in (*flow.sinks, flow.dead_letters))  # type: ignore[union-attr]
    done = CliRunner().invoke(lakehouse, [*options, "--print", "--no-maintain"])
    flow = Flow.of(yaml.safe_load(done.output))
    assert not any(each.maintain.compact for each in (*flow.sinks, flow.dead_letters))  # type: ignore[union-attr]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    tiered = tiered_broker(tmp_path / "data", f"file://{tmp_path}/objects", local_seconds=0.0)
    with tiered as url, pydanube.sync.connect(url) as client:
        yield Broker(url, tmp_path / "objects", client)


def publish(broker: Broker, first: int, count: int) -> None:
    """Every hundredth is no order; its number is in the key."""
    with broker.client.producer(TOPIC) as producer:
        values, keys = [], []
        for number in range(first, first + count):
            order = {"id": number, "city": f"city {number % 7}", "amount": number / 4, "message": "x" * 50}
            values.append(json.dumps(order).encode() if number % 100 else b"{")
            keys.append(str(number))
        producer.send_many(values, keys=keys).result()


def written(spark: SparkSession, broker: Broker, job: Job) -> None:
    running = query(spark, job.flow(), url=broker.url, available_now=True)
    try:
        assert running.awaitTermination(120)
    finally:
        running.stop()


def test_history_in_segments_and_what_comes_live_is_in_the_table_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Into Delta and Iceberg: nothing missing, nothing twice, typed, and what does not fit among the dead letters."""
    broker.client.admin.create_topic(TOPIC, partitions=2, policies={"retention_seconds": 86_400})
    for first in (0, 10_000):
        publish(broker, first, 10_000)
        broker.upload(TOPIC)
    broker.evicted(TOPIC)
    assert len(broker.segments(TOPIC)) >= 2
    plain = {"topics": [TOPIC], "format": "json", "schema": DDL, "folder": str(tmp_path)}
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/house"}
    jobs = [
        Job(**plain, to="delta:delta", dead_letters="delta:dead", partition_by=["_date"], checkpoint="a"),
        Job(**plain, to="iceberg:lake.orders", dead_letters="iceberg:lake.dead", catalog=catalog, checkpoint="b"),
    ]
    for job in jobs:
        written(spark, broker, job)
    publish(broker, 20_000, 1_000)
    for job in jobs:
        written(spark, broker, job)

    def iceberg(name: str) -> pa.Table:
        return IcebergSink.target({"kind": "iceberg", "table": name, **catalog}).address.load().scan().to_arrow()

    places = {name: DeltaTable(str(tmp_path / name)) for name in ("delta", "dead")}
    check(places["delta"].to_pyarrow_table(), places["dead"].to_pyarrow_table())
    check(iceberg("lake.orders"), iceberg("lake.dead"))
    assert places["delta"].metadata().partition_columns == ["_date"]


def check(rows: pa.Table, letters: pa.Table) -> None:
    ids = sorted(rows.column("id").to_pylist())
    assert ids == [number for number in range(21_000) if number % 100]
    assert sorted(int(key) for key in letters.column("key").to_pylist()) == list(range(0, 21_000, 100))
    seen = list(zip(rows.column("_partition").to_pylist(), rows.column("_offset").to_pylist(), strict=True))
    seen += list(zip(letters.column("partition").to_pylist(), letters.column("offset").to_pylist(), strict=True))
    assert len(set(seen)) == len(seen) == 21_000
    ends = {partition: max(offset for own, offset in seen if own == partition) + 1 for partition in (0, 1)}
    assert sum(ends.values()) == 21_000  # so no offset is missing
    row = next(each for each in rows.to_pylist() if each["id"] == 12_345)
    assert (row["city"], row["amount"], row["message"]) == ("city 4", 3086.25, "x" * 50)
    assert row["_key"] == b"12345"
    assert row["_timestamp"] == row["event_time"]
    assert row["_date"] == row["_timestamp"].astimezone(UTC).date()
    assert abs((datetime.now(UTC) - row["_timestamp"]).total_seconds()) < 3_600
