"""An idle pipeline, for some minutes: `make bench-pipeline IDLE=10`.

Measures the memory of the driver with its JVM and workers, and of the broker, after the first minute and at the end,
and the files of the checkpoint and versions of the table, whose number must not grow.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import yaml
from deltalake import DeltaTable

import pydanube.sync
from broker import Process
from figures import Figures
from pydanube.base.limits import MIB

TOPIC = "/default/idle"
ROWS = 1_000
SETTLE_SECONDS = 60.0
START_SECONDS_MAX = 180.0


@dataclass(frozen=True)
class Look:
    """The present bytes, files and versions."""

    memory: dict[str, int]
    files: int
    version: int


def idle(directory: Path, figures: Figures, minutes: float) -> None:
    process = Process(directory)
    try:
        url = asyncio.run(process.url())
        with pydanube.sync.connect(url) as client:
            client.admin.create_topic(TOPIC, partitions=2)
            with client.producer(TOPIC) as producer:
                producer.send_many([b"x" * 100] * ROWS).result()
        _watched(directory, process, url, figures, minutes)
    finally:
        process.end()


def _watched(directory: Path, process: Process, url: str, figures: Figures, minutes: float) -> None:
    flow = {
        "name": "idle",
        "source": {"topic": TOPIC, "url": url},
        "sink": {"delta": "out"},
        "checkpoint": "points",
        "spark": {"spark.driver.memory": "512m"},
    }
    (directory / "idle.yaml").write_text(yaml.safe_dump(flow))
    command = [sys.executable, "-m", "pydanube.cli.main", "pipeline", "run", str(directory / "idle.yaml")]
    driver = subprocess.Popen([*command, "--master", "local[2]"], stdin=subprocess.DEVNULL)
    try:
        _until_written(directory, driver)
        began = monotonic()
        sleep(min(SETTLE_SECONDS, minutes * 60))
        first = _look(directory, driver.pid, process)
        while monotonic() - began < minutes * 60:
            sleep(1)
            if driver.poll() is not None:
                raise RuntimeError("the pipeline ended")
        last = _look(directory, driver.pid, process)
    finally:
        driver.send_signal(signal.SIGTERM)
        driver.wait(60)
    for name in first.memory:
        figures.report(f"idle, {name}, after a minute", first.memory[name] / MIB, "MiB")
        figures.report(f"idle, {name}, at the end", last.memory[name] / MIB, "MiB")
    grown = sum(last.memory.values()) / sum(first.memory.values()) - 1
    figures.report(f"idle, memory, grown in {minutes:g} minutes", grown * 100, "%", 5, at_least=False)
    figures.report("idle, files of the checkpoint, more", last.files - first.files, "files", 0, at_least=False)
    figures.report("idle, versions of the table, more", last.version - first.version, "versions", 0, at_least=False)


def _until_written(directory: Path, driver: subprocess.Popen[bytes]) -> None:
    deadline = monotonic() + START_SECONDS_MAX
    while not (directory / "points/0/commits/0").exists():
        if driver.poll() is not None or monotonic() > deadline:
            raise RuntimeError("the pipeline has written nothing")
        sleep(0.1)


def _look(directory: Path, driver: int, broker: Process) -> Look:
    memory = {"driver": _resident(driver), "broker": broker.resident_bytes()}
    memory |= {"JVM": 0, "Python workers": 0}
    for pid in _below(driver):
        name = "JVM" if Path(f"/proc/{pid}/comm").read_text().startswith("java") else "Python workers"
        memory[name] += _resident(pid)
    files = sum(len(each[2]) for each in os.walk(directory / "points"))
    return Look(memory, files, DeltaTable(str(directory / "out")).version())


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, each.read_text().split()):
            found += [child, *_below(child)]
    return found
