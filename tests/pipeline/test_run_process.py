"""`danube pipeline run` as an operator has it: a process of its own, killed, stopped from elsewhere, begun again.

One story, because each start of a JVM takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import pydanube.sync
from pydanube.base.errors import DanubeError
from spark.killing import Killed, KilledBroker, descendants, until

TOPIC, NAME = "/default/orders", "orders-to-lake"
FLOW = """
name: orders-to-lake
source: {{topic: orders, url: '{url}', format: json, schema: 'id BIGINT, amount DOUBLE'}}
transforms:
  - sql: SELECT id, amount FROM input
sink: {{delta: {folder}/table}}
checkpoint: {folder}/checkpoint
restart: {{attempts: 5, backoff: 200 ms}}
spark: {{spark.driver.memory: 1g, spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC}}
"""
QUIET = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ .*")


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = KilledBroker(folder)
        self.client = pydanube.sync.connect(self.broker.url).open()
        self.client.admin.create_topic(TOPIC, policies={"retention_seconds": 86_400})
        self.sent = 0
        self.file = folder / "flow.yaml"
        self.file.write_text(FLOW.format(url=self.broker.url, folder=folder))
        command = [sys.executable, "-m", "pydanube.cli.main", "pipeline", "run", str(self.file), "--master", "local[2]"]
        self.send(100)
        self.driver = Killed(command, folder / "driver.log")

    def send(self, count: int) -> None:
        with self.client.producer(TOPIC) as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(json.dumps({"id": number, "amount": number / 2}).encode())
            producer.flush()
        self.sent += count

    def rows(self) -> list[int]:
        with suppress(Exception):
            found: list[int] = sorted(DeltaTable(str(self.folder / "table")).to_pyarrow_table()["id"].to_pylist())
            return found
        return []

    def arrived(self) -> bool:
        return len(self.rows()) == self.sent

    def status(self) -> dict[str, Any]:
        with suppress(DanubeError):
            found: dict[str, Any] = self.client.admin.pipeline(NAME)
            return found
        return {"state": "unknown", "progress": {}, "run": ""}

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Longer than others wait: some of it is a JVM that dies and another that starts."""
        try:
            with suppress(AssertionError):
                return until(true, what)
            return until(true, what)
        except AssertionError:
            raise AssertionError(f"never: {what}\n{self.driver.said()}\n{self.status()}") from None

    def danube(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pydanube.cli.main", "pipeline", *arguments, "--url", self.broker.url]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240)

    def jvm(self) -> int:
        """The process of Java below the driver's."""
        for pid in descendants(self.driver.process.pid):
            with suppress(OSError):
                if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                    return pid
        raise AssertionError("no JVM")

    def close(self) -> None:
        self.driver.end()
        self.client.close()
        self.broker.end()


@pytest.fixture
def world(java: None, tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


@pytest.mark.timeout(900)  # four JVMs
def test_a_pipeline_is_run_killed_stopped_and_begun_anew(world: World) -> None:
    world.until(world.arrived, "the first rows are in the table")
    world.until(lambda: world.status()["state"] == "running", "it says that it runs")
    first = world.status()["run"]

    second = world.danube("run", str(world.file))
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert f"is in use by process {world.driver.process.pid}" in second.stderr
    elsewhere = world.danube("run", str(world.file), "--checkpoint", str(world.folder / "another"))
    assert elsewhere.returncode == 1
    assert f"{NAME} runs on " in elsewhere.stderr
    refused = world.danube("reset", str(world.file), "--to", "earliest", "--yes")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)

    world.driver.kill()  # with -9
    world.send(50)
    world.driver.start()  # the broker still thinks that the first one runs
    world.until(world.arrived, "it continues where it was")
    assert world.status()["run"] != first

    world.broker.again()
    world.send(50)
    world.until(world.arrived, "rows that came after the broker was killed")
    world.until(lambda: world.status()["state"] == "running", "the new broker has heard of it")

    before = world.status()["progress"].get("restarts") or 0  # more than none if Spark gave up on a slow machine
    os.kill(world.jvm(), signal.SIGKILL)
    world.send(50)
    world.until(world.arrived, "rows that came after the JVM was killed")
    world.until(lambda: world.status()["progress"].get("restarts", 0) > before, "it says that it started over")
    assert "the connection to Spark's JVM was lost" in world.driver.said()

    stopped = world.danube("stop", NAME, "--wait", "--timeout", "2m")
    assert (stopped.returncode, stopped.stdout) == (0, f"{NAME} has stopped\n")
    world.driver.ended()
    assert world.rows() == list(range(world.sent))
    said = Path(world.folder / "driver.log").read_text().splitlines()
    noise = [line for line in said if not QUIET.fullmatch(line)]
    assert noise == [line for line in noise if line.startswith(f"{NAME} stopped: ")]

    done = world.danube("reset", str(world.file), "--to", "earliest", "--yes", "-o", "json")
    assert json.loads(done.stdout)["again"] == world.sent
    assert (world.folder / "checkpoint/0").exists()
    once = world.danube("run", str(world.file), "--once", "-o", "json")
    assert once.returncode == 0, once.stderr
    assert json.loads(once.stdout)["rows"] == world.sent
    assert world.rows() == sorted([*range(world.sent), *range(world.sent)])
    assert not (world.folder / "checkpoint/0").exists()
