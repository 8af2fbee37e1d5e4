"""Pipelines on a Spark Connect server: a process of its own, with the same files as anywhere else.

What they need must be on the server's side: the client has no JVM, and functions are sent to the server.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")

import pyspark
from deltalake import DeltaTable

import pydanube.sync
from pipeline.iceberg_world import Lake
from pydanube.spark.launch import LOCAL_SETTINGS, SETTINGS, find_java, wrapped
from servers.process import serving
from spark.conftest import QUICK
from spark.world import fill

Client = pydanube.sync.Client
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED = re.compile(r"Spark Connect server started at: (127\.0\.0\.1:\d+)")
RUN_SECONDS_MAX = 120.0  # on a machine that is busy
ROWS = 200
ORDERS = [json.dumps({"id": n, "customer": f"c{n % 4}", "amount": n - 1}).encode() for n in range(ROWS)]

APPEND = """
name: {name}
source:
  topic: {topic}
  format: json
  schema: id BIGINT, customer STRING, amount DOUBLE
  mode: permissive
  expect: [amount >= 0]
transforms:
  - sql: SELECT id, customer, amount * 2 AS twice FROM input
sink:
  - {{delta: {folder}/table, partition_by: [customer]}}
  - {{topic: {topic}-out, key: customer, create_partitions: 1}}
  - iceberg: {iceberg}
dead_letters: {{delta: {folder}/dead}}
checkpoint: {folder}/checkpoint
trigger: available_now
"""


UPDATE = """
name: {name}
source: {{topic: {topic}, format: json, schema: "customer STRING, amount DOUBLE", mode: permissive, max_records: 120}}
transforms:
  - sql: SELECT customer, count(*) AS orders FROM input GROUP BY customer
output_mode: update
sink: {{delta: {folder}/totals, upsert: {{keys: [customer]}}}}
dead_letters: {{delta: {folder}/dead}}
checkpoint: {folder}/checkpoint
trigger: available_now
"""


@pytest.fixture(scope="module")
def remote(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server as an operator starts it; it takes a port that is free, and says which."""
    log, home = tmp_path_factory.mktemp("connect") / "log", Path(pyspark.__file__).parent
    python = wrapped(sys.executable)
    settings = {
        **SETTINGS,
        **LOCAL_SETTINGS,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK.replace("ERROR", "INFO"),
        "spark.sql.shuffle.partitions": "1",
    }
    command: list[str | Path] = [home / "bin/spark-submit", "--class", SERVER, "--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {"JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    with serving([*command, "spark-internal"], log, lambda: STARTED.search(log.read_text()) is not None, environment):
        found = STARTED.search(log.read_text())
        assert found is not None
        yield f"sc://{found[1]}"


def ended(file: Path, url: str, remote: str) -> subprocess.CompletedProcess[str]:
    """`danube pipeline run`, to its end."""
    code = "import sys; from pydanube.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "pipeline", "run", str(file), "--url", url, "--remote", remote]
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, env=environment)


def test_a_pipeline_runs_on_a_connect_server_to_a_table_a_topic_and_dead_letters(
    client: Client, url: str, topic: str, remote: str, tmp_path: Path
) -> None:
    fill(client, topic, [*ORDERS, b"no order"])
    file = tmp_path / "flow.yaml"
    lake = Lake(tmp_path)
    iceberg = json.dumps({name: lake.spec()[name] for name in ("table", "type", "uri", "warehouse")})
    file.write_text(APPEND.format(name=topic.split("/")[-1], topic=topic, folder=tmp_path, iceberg=iceberg))
    done = ended(file, url, remote)
    assert done.returncode == 0, done.stderr
    assert f"started on {remote}" in done.stderr
    table = DeltaTable(f"{tmp_path}/table").to_pyarrow_table()
    assert sorted(table.column("id").to_pylist()) == list(range(1, ROWS))
    assert sorted(lake.ids()) == list(range(1, ROWS))
    assert len(client.read_arrow(f"{topic}-out")) == ROWS - 1
    dead = DeltaTable(f"{tmp_path}/dead").to_pyarrow_table()
    assert min(dead.column("error").to_pylist()) == "expected amount >= 0"
    assert b"no order" in dead.column("value").to_pylist()
    assert len(dead) == 2


def test_update_mode_replaces_rows_on_a_connect_server(
    client: Client, url: str, topic: str, remote: str, tmp_path: Path
) -> None:
    """Within foreachBatch, in a process of the server; the second batch replaces what the first has written."""
    fill(client, topic, [*ORDERS, b"no order"])
    file = tmp_path / "flow.yaml"
    file.write_text(UPDATE.format(name=topic.split("/")[-1], topic=topic, folder=tmp_path))
    done = ended(file, url, remote)
    assert done.returncode == 0, done.stderr
    totals = DeltaTable(f"{tmp_path}/totals").to_pyarrow_table().to_pylist()
    assert sorted((row["customer"], row["orders"]) for row in totals) == [(f"c{n}", ROWS // 4) for n in range(4)]
    assert DeltaTable(f"{tmp_path}/dead").to_pyarrow_table().column("value").to_pylist() == [b"no order"]


@pytest.mark.parametrize(
    ("remote", "status", "said"),
    [
        ("sc://127.0.0.1:1", 1, "sc://127.0.0.1:1 does not answer as a Connect server: "),
        ("sc://127.0.0.1:99999", 2, "--remote must look like sc://host:15002, not 'sc://127.0.0.1:99999'"),
        ("sc://[", 2, "--remote must look like sc://host:15002, not 'sc://['"),
        ("localhost:15002", 2, "--remote must look like sc://host:15002, not 'localhost:15002'"),
    ],
)
def test_a_server_that_is_not_there_is_told_at_once_in_one_line(
    url: str, tmp_path: Path, remote: str, status: int, said: str
) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(f"name: nowhere\nsource: {{rate: {{rows_per_second: 1}}}}\nsink: {{delta: {tmp_path}/out}}\n")
    refused = ended(file, url, remote)
    assert refused.returncode == status
    assert refused.stderr.startswith(f"danube: {said}")
    assert refused.stderr.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["flow.yaml"]
