"""A real cluster: executors need the wheel, credentials and a way to the broker, and nothing that the driver has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from deltalake import DeltaTable

import pydanube.sync
from certificates import Authority
from servers.fixtures import ObjectServer
from spark.cluster import EXECUTORS, PYTHON, cluster, install_wheel, said
from spark.cluster_driver import SETTINGS
from spark.tiered import tiered_broker

DRIVER = Path(__file__).with_name("cluster_driver.py")
DRIVER_SECONDS_MAX = 200.0
STEP = """
import sys

import pyarrow

def look(batches):
    for each in batches:
        yield each.append_column("python", pyarrow.array([sys.executable] * len(each), pyarrow.string()))

def numbers(frame):
    found = frame.selectExpr("cast(cast(value as string) as bigint) number")
    return found.mapInArrow(look, "number BIGINT, python STRING")
"""
TOPIC, COPY, COUNT = "/default/t", "/default/copy", 60_000


@pytest.mark.timeout(600)  # two drivers on a cluster that starts for them
@pytest.mark.usefixtures("java")
def test_executors_of_a_cluster_read_and_write_by_themselves(swift_server: ObjectServer, tmp_path: Path) -> None:
    """Over TLS, and from S3 with keys that only the worker has."""
    install_wheel(tmp_path)
    place, authority = swift_server.place(), Authority(tmp_path)
    with (
        tiered_broker(tmp_path / "data", place.url, place.options, place.environment, authority.sign()) as url,
        pydanube.sync.connect(url, ca_file=str(authority.file)) as client,
        cluster(tmp_path, place.environment) as master,
    ):
        client.admin.create_topic(TOPIC, partitions=2)
        client.admin.create_topic(COPY)
        with client.producer(TOPIC) as producer:
            producer.send_many([b"%050d" % number for number in range(COUNT // 2)]).result()
            producer.flush()
            client.admin.upload_topic(TOPIC)
            producer.send_many([b"%050d" % number for number in range(COUNT // 2, COUNT)]).result()
        found = drive(master, url, authority.file)
        table = run_pipeline(master, url, authority.file, tmp_path)
    expected = [COUNT, COUNT * (COUNT - 1) // 2]
    assert (found["direct"], found["partly"], found["copied"]) == (expected, expected, expected)
    python, package, secret = found["told"]
    assert python.startswith(str(EXECUTORS))
    assert package.startswith(str(EXECUTORS))
    assert secret == place.environment["AWS_SECRET_ACCESS_KEY"]
    assert [len(table), pc.sum(table.column("number")).as_py()] == expected
    [python] = pc.unique(table.column("python")).to_pylist()
    assert python.startswith(str(EXECUTORS))
    told = [line for line in said(tmp_path).splitlines() if "through the broker" in line]
    assert told != []
    assert all("the folder does not exist" in line for line in told)  # only where the driver said so


def drive(master: str, url: str, authority: Path) -> dict[str, list[object]]:
    said = _ran([sys.executable, DRIVER, master, PYTHON, url, authority, TOPIC, COPY])
    found: dict[str, list[object]] = json.loads(said.splitlines()[-1])
    return found


def run_pipeline(master: str, url: str, authority: Path, folder: Path) -> pa.Table:
    """By its file, from the topic to a Delta table whose folder all have. A step of it is in Python."""
    flow = {
        "name": "numbers",
        "source": {"topic": TOPIC, "url": url, "ca": str(authority), "max_records": COUNT // 2},
        "transforms": [{"python": "cluster_step.py:numbers"}],
        "sink": {"delta": "numbers"},
        "checkpoint": "points",
        "shared": ["."],
        "spark": SETTINGS,
    }
    (folder / "numbers.yaml").write_text(yaml.safe_dump(flow))
    (folder / "cluster_step.py").write_text(STEP)
    command = [sys.executable, "-m", "pydanube.cli.main", "pipeline", "run", folder / "numbers.yaml", "--once"]
    _ran([*command, "--master", master], PYSPARK_PYTHON=str(PYTHON))
    return DeltaTable(str(folder / "numbers")).to_pyarrow_table()


def _ran(command: Sequence[object], **more: str) -> str:
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, command)), env=environment | more, capture_output=True, text=True, timeout=DRIVER_SECONDS_MAX
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
