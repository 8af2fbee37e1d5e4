"""What a checkpoint survives when the file of its pipeline is changed: the rows of the table in docs/pipelines.md.

Each change is named as in that table. One that is refused leaves everything as it was: with the file as it was before
the pipeline goes on, and nothing is missing or there twice.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pydanube.base.limits import SECOND
from pydanube.pipeline.query.build import query
from pydanube.pipeline.query.cause import cause_of
from pydanube.pipeline.run.checkpoint import fixed, open_checkpoint
from pydanube.pipeline.spec.flow import Flow
from pydanube.sync import Client

DDL = "id BIGINT, customer STRING, amount DOUBLE"
NOON = 1_769_860_800_000_000  # 2026-01-31T12:00Z
WEEK = 7 * 24 * 3600.0
WATERMARK = {"watermark": {"delay": "1 second"}}


def change(of: str) -> None:
    """A row of the table: what follows is what it says."""
    assert of


class World:
    """A topic, and one pipeline whose file is changed repeatedly."""

    def __init__(self, spark: SparkSession, client: Client, url: str, topic: str, folder: Path) -> None:
        self.spark, self.client, self.url, self.topic, self.folder = spark, client, url, topic, folder
        self.source: dict[str, Any] = {"topic": topic, "format": "json", "schema": DDL}
        self.base: dict[str, Any] = {
            "name": "flow",
            "source": self.source,
            "sink": {"delta": "out"},
            "checkpoint": "points",
        }
        self.count = itertools.count()
        self.sent: list[int] = []

    def publish(self, topic: str | None = None, **more: Any) -> list[int]:
        """Two orders, ten seconds apart, with numbers of their own."""
        found = [next(self.count) for _ in range(2)]
        with self.client.producer(topic or self.topic) as producer:
            for id in found:
                value = {"id": id, "customer": "ab"[id % 2], "amount": float(id), **more}
                producer.send(json.dumps(value).encode(), event_time=NOON + id * 10 * SECOND)
            producer.flush()
        self.sent += found
        return found

    def run(self, **changes: Any) -> None:
        """As the runner does it, with the file as it is but for these keys, until all that there is now is done."""
        flow = Flow.of({**self.base, **changes}, self.folder)
        with open_checkpoint(flow.checkpoint, flow.name) as checkpoint:
            checkpoint.begin(flow.digest, flow.essentials(), fixed(flow))
            running = query(self.spark, flow, url=self.url, checkpoint=checkpoint.location, available_now=True)
            try:
                assert running.awaitTermination(120)
            finally:
                running.stop()

    @contextmanager
    def refused(self, said: str) -> Iterator[None]:
        """For good: to try again would give the same."""
        with pytest.raises(Exception) as caught:
            yield
        found = cause_of(caught.value)
        assert said in f"{found.error.code}: {found.line}"
        assert not found.may_pass

    def rows(self, place: str = "out") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(str(self.folder / place)).to_pyarrow_table().to_pylist()
        return found

    def ids(self, place: str = "out") -> list[int]:
        return sorted(each["id"] for each in self.rows(place))


@pytest.fixture
def world(spark: SparkSession, client: Client, url: str, topic: str, tmp_path: Path) -> World:
    client.admin.create_topic(topic, partitions=1)
    return World(spark, client, url, topic, tmp_path)


def select(columns: str, where: str = "true") -> Mapping[str, Any]:
    return {"transforms": [{"sql": f"SELECT {columns} FROM input WHERE {where}"}]}


def test_columns_and_sinks(world: World) -> None:
    world.base |= select("id, amount")
    world.publish()
    world.run()

    change("filter or columns of SQL, `python`, `expect`")
    even, _ = world.publish()
    world.run(source={**world.source, "expect": ["id >= 0"]}, **select("id, amount", f"id <> {even}"))
    world.sent.remove(even)
    world.publish()
    world.run(transforms=[{"python": _picked}])
    assert world.ids() == world.sent

    change("an added column, without it")
    more = world.publish(note="new")
    wider = {**world.source, "schema": f"{DDL}, note STRING"}
    with world.refused("schema_mismatch"):
        world.run(source=wider, **select("id, amount, note"))
    change("a different type for a column")
    with world.refused("schema_mismatch"):
        world.run(**select("string(id) AS id, amount"))
    change("`partition_by` of an existing table")
    with world.refused("schema_mismatch"):
        world.run(sink={"delta": "out", "partition_by": ["id"]})
    change("an added column, with `merge_schema`")
    change("`schema` of the source")
    world.run(source=wider, sink={"delta": "out", "merge_schema": True}, **select("id, amount, note"))
    assert {each["id"] for each in world.rows() if each["note"] == "new"} == set(more)
    change("a removed column")
    change("an added sink")
    both = world.publish()
    world.run(sink=[{"delta": "out"}, {"delta": "second"}])
    assert world.ids("second") == both
    change("a removed sink")
    change("`upsert`")
    change("`max_records`, `max_bytes`, `trigger`, `restart`")
    change("`start`")
    change("`subscription`")
    world.publish()
    others = {"start": "latest", "max_records": 1, "max_bytes": "1 MiB", "subscription": "other"}
    upsert = {"delta": "out", "upsert": {"keys": ["id"]}}
    world.run(source={**world.source, **others}, sink=upsert, trigger="1 second", restart={"attempts": 1})
    assert world.ids() == world.sent
    assert world.ids("second") == both
    change("a different location of a sink")
    elsewhere = world.publish()
    world.run(sink={"delta": "third"})
    assert world.ids("third") == elsewhere
    assert world.ids() == [each for each in world.sent if each not in elsewhere]


def _picked(frame: DataFrame) -> DataFrame:
    return frame.select("id", "amount")


def test_sources(world: World) -> None:
    world.base |= select("id, amount")
    world.publish()
    world.run()

    change("partitions added to the topic")
    change("an added topic, in `topics` or by `pattern`")
    world.client.admin.alter_topic(world.topic, partitions=3)
    world.publish(f"{world.topic}-part-2")
    more = f"{world.topic}-more"
    world.client.admin.create_topic(more)
    world.publish(more)
    world.base["source"] = {"topics": [world.topic, more], "format": "json", "schema": DDL}
    world.run()
    assert world.ids() == world.sent

    world.publish()
    change("a removed or replaced topic")
    with world.refused("data_lost"):
        world.run(source=world.source)
    change("a different kind of source")
    with world.refused("flow_invalid: source: the checkpoint"):
        world.run(source={"rate": {"rows_per_second": 1}}, transforms=[])
    change("the same, with `transforms`")
    with world.refused("flow_invalid: dead_letters: the checkpoint"):
        world.run(dead_letters={"delta": "dead"})
    change("`name`")
    with world.refused("flow_invalid: checkpoint: "):
        world.run(name="other")
    change("`checkpoint`")
    with world.refused("sink_conflict"):
        world.run(checkpoint="elsewhere")
    world.run()
    assert world.ids() == world.sent
    change("the topic was deleted and created again")
    world.client.admin.delete_topic(more)
    world.client.admin.create_topic(more)
    with world.refused("topic_replaced"):
        world.run()


def test_dead_letters_without_transforms(world: World) -> None:
    world.publish()
    world.run()
    change("`dead_letters` added or removed, without `transforms`")
    change("a different location of `dead_letters`")
    for place in ("one", "two"):
        world.publish()
        with world.client.producer(world.topic) as producer:
            producer.send(place.encode()).result()
        world.run(dead_letters={"delta": place})
        assert [each["value"] for each in world.rows(place)] == [place.encode()]
    world.publish()
    world.run()
    assert world.ids() == world.sent


def aggregate(**changes: Any) -> list[Mapping[str, Any]]:
    plain = {"window": "20 seconds", "by": ["customer"], "values": {"total": "sum(amount)"}}
    return [WATERMARK, {"aggregate": plain | changes}]


def test_state(world: World) -> None:
    """Each customer has one order in each window: a window's total is the order's number."""
    world.base["transforms"] = aggregate()
    world.publish()
    world.run()

    change("`by`, `values`, `slide` of an aggregate")
    change(
        "length of the window, columns of `deduplicate`, another function of the same type (`sum` to `max`)",
    )
    change("an aggregate or `deduplicate` added or removed")
    for steps in (
        aggregate(by=["customer", "id"]),
        aggregate(values={"total": "sum(amount)", "n": "count(*)"}),
        aggregate(slide="10 seconds"),
        aggregate(window="40 seconds"),
        aggregate(values={"total": "max(amount)"}),
        [WATERMARK, {"deduplicate": ["id"]}, aggregate()[1]],
        select("customer, amount")["transforms"],
    ):
        with world.refused("flow_invalid: transforms: the checkpoint"):
            world.run(transforms=steps)
    change("`output_mode`")
    with world.refused("flow_invalid: output_mode: the checkpoint"):
        world.run(output_mode="update")

    world.publish()
    change("a filter or columns before an aggregate")
    change("`spark.sql.shuffle.partitions`")
    world.spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        world.run(transforms=[{"sql": "SELECT * FROM input WHERE id <> 3"}, *aggregate()])
    finally:
        world.spark.conf.set("spark.sql.shuffle.partitions", "1")
    world.publish()
    change("`delay` of the watermark")
    world.run(transforms=[{"watermark": {"delay": "0 seconds"}}, aggregate()[1]])
    world.publish()
    change("names of `values`")
    named = aggregate(values={"revenue": "sum(amount)"})
    world.run(transforms=[*named, {"sql": "SELECT window_start, window_end, customer, revenue AS total FROM input"}])
    assert sorted(each["total"] for each in world.rows()) == [0.0, 1.0, 2.0, 4.0, 5.0]  # 6 and 7 are not final


def test_state_of_sql(world: World) -> None:
    def grouped(value: str, by: str) -> list[Mapping[str, Any]]:
        columns = f"window.start AS begin, {by} AS part, {value} AS value"
        text = f"SELECT {columns} FROM input GROUP BY window(event_time, '20 seconds'), {by}"
        return [WATERMARK, {"sql": text}]

    world.base["transforms"] = grouped("sum(amount)", "customer")
    world.publish()
    world.run()
    world.publish()
    change("SQL with `GROUP BY`")
    with world.refused("STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"):
        world.run(transforms=grouped("sum(amount)", "id % 2"), sink={"delta": "other"})
    with world.refused("STREAMING_STATEFUL_OPERATOR_NOT_MATCH"):
        world.run(transforms=select("id")["transforms"], sink={"delta": "third"})
    world.run(transforms=grouped("max(amount)", "customer"))  # it has the same type
    assert sorted(each["value"] for each in world.rows()) == [0.0, 1.0]


def test_files(world: World) -> None:
    def put(place: str, id: int, age: float = 0) -> None:
        path = world.folder / place
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"id": id}))
        os.utime(path, (time.time() - age,) * 2)

    source = {"files": "a", "format": "json", "schema": "id BIGINT"}
    put("a/1", 1)
    world.run(source=source)
    put("b/2", 2)
    put("b/3", 3, age=WEEK / 2)
    put("b/4", 4, age=WEEK * 2)
    change("a different folder in `files`")
    with world.refused("Wrong basePath"):
        world.run(source={**source, "files": "b"})
    change("a pattern in `files` that matches more files")
    world.run(source={**source, "files": "{a,b}"})
    assert world.ids() == [1, 2, 3], "and without a word not 4"
    world.run(source={**source, "files": "{a,b}", "options": {"maxFileAge": "365d"}})
    assert world.ids() == [1, 2, 3, 4]
