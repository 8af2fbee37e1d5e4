"""Files that SQL reads beside the stream are as they are when a batch is planned, not as they were at the start."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.query import joined_files
from pydanube.pipeline.query.build import query
from pydanube.pipeline.spec.flow import Flow
from pydanube.sync import Client


def test_a_joined_file_that_comes_later_is_seen_by_later_batches(
    spark: SparkSession, client: Client, url: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_files.refresh_while_active, "__defaults__", (0.05,))
    names = tmp_path / "names"
    names.mkdir()
    pq.write_table(pa.table({"id": [0], "name": ["zero"]}), names / "a.parquet")
    source = {"topic": topic, "format": "json", "schema": "id BIGINT"}
    step = {"sql": f"SELECT i.id, n.name FROM input i JOIN parquet.`{names}` n ON i.id = n.id"}
    plain = {"name": "join", "source": source, "transforms": [step], "sink": {"delta": "out"}}
    flow = Flow.of({**plain, "trigger": "200 ms", "checkpoint": "points"}, tmp_path)
    running = query(spark, flow, url=url)
    try:
        joined(client, topic, tmp_path, 0, "zero")
        pq.write_table(pa.table({"id": [1], "name": ["one"]}), names / "b.parquet")
        joined(client, topic, tmp_path, 1, "one")
    finally:
        running.stop()


def joined(client: Client, topic: str, folder: Path, id: int, name: str) -> None:
    """Messages until one of them is joined: which batch is the first to see the file is nobody's promise."""
    deadline = monotonic() + 90
    while not (folder / "out/_delta_log").exists() or name not in names_in(folder / "out"):
        assert monotonic() < deadline, f"never joined: {name}"
        with client.producer(topic) as producer:
            producer.send(json.dumps({"id": id}).encode()).result()


def names_in(table: Path) -> set[str]:
    return set(DeltaTable(str(table)).to_pyarrow_table().column("name").to_pylist())


def test_over_connect_a_step_that_reads_files_is_refused() -> None:
    class Frame:
        def _explain_string(self, extended: bool) -> str:
            return "Join Inner\n:- SubqueryAlias i\n+- SubqueryAlias n\n   +- Relation [id#1L,name#2] parquet\n"

    with pytest.raises(FlowInvalid, match="reads parquet files beside the stream"):
        joined_files.file_listings(Frame())  # type: ignore[arg-type]
