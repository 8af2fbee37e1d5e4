"""A query from topic to topic whose driver and broker are killed again and again: at the end each row is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from pyspark.sql import SparkSession

import pydanube.sync
from pydanube.base.errors import DanubeError
from spark.world import fill, numbers

SOURCE, TARGET = "/default/from", "/default/to"
ROWS, RECORDS, KILLS = 20_000, 500, 5
PATIENCE_SECONDS = 120.0  # for anything to go on, on a machine that is busy
DRIVER = Path(__file__).with_name("topic_to_topic.py")


class Killed:
    """A process that is started again after kill -9, with all that it has started."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        assert self.process.poll() is None, self._log.read_text()[-5_000:]
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


def until(true: Callable[[], bool], what: str) -> None:
    deadline, tick = monotonic() + PATIENCE_SECONDS, Event()
    while not true():
        assert monotonic() < deadline, f"never: {what}"
        tick.wait(0.005)  # other processes do not tell, they are asked


class World:
    """The broker, the driver, and how far they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.checkpoint = folder / "checkpoint"
        self.broker = Killed(self._serve("127.0.0.1:0"), folder / "broker.log")
        listen = self._listens()
        self.broker._command = self._serve(listen)
        self.url = f"danube://{listen}"
        self.client = pydanube.sync.connect(self.url).open()
        self.client.admin.create_topic(TARGET, partitions=2)
        fill(self.client, SOURCE, numbers(0, ROWS - 1), partitions=2)
        command = [sys.executable, str(DRIVER), self.url, SOURCE, TARGET, str(self.checkpoint), str(RECORDS)]
        self.driver = Killed(command, folder / "driver.log")

    def _serve(self, listen: str) -> list[str]:
        command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(self._folder / "data")]
        return [*command, "--listen", listen, "--ready-file", str(self._folder / "ready")]

    def _listens(self) -> str:
        ready = self._folder / "ready"
        until(ready.exists, "the broker is ready")
        return str(json.loads(ready.read_text())["listen"])

    def kill_broker(self) -> None:
        (self._folder / "ready").unlink()
        self.broker.kill()
        self.broker.start()
        self._listens()

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.start()

    # -- how far a batch is --------------------------------------------------------------------------------------------

    def _last(self, kind: str) -> int:
        folder = self.checkpoint / kind
        names = [file.name for file in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def planned(self) -> int:
        return self._last("offsets")

    def staged(self) -> int:
        """Counts messages, not batches."""
        with suppress(DanubeError, FileNotFoundError, ValueError, KeyError):
            query = json.loads((self.checkpoint / "metadata").read_text())["id"]
            fields = {"query": query, "target": TARGET, "name": ""}
            staging = self.client._loop.wait(self.client._inner.ask("sink.begin", fields))["staging"]
            return int(self.client._loop.wait(self.client._inner.bounds(staging))[1])
        return -1

    def committed(self) -> int:
        with suppress(DanubeError):
            sinks = self.client._loop.wait(self.client._inner.ask("sink.list", {}))["sinks"]
            return max((int(each["batch"]) for each in sinks if each["committed"]), default=-1)
        return -1

    def logged(self) -> int:
        return self._last("commits")

    def close(self) -> None:
        self.driver.end()
        self.client.close()
        self.broker.end()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """With `spark` only to be skipped with it where there is no Java."""
    found = World(tmp_path)
    yield found
    found.close()


@pytest.mark.timeout(900)  # six drivers, each with a JVM
def test_each_row_is_there_once_however_often_driver_and_broker_are_killed(world: World) -> None:
    moments = (world.planned, world.staged, world.committed, world.logged)
    for number in range(2 * KILLS):
        moment, seen = moments[number % len(moments)], world.logged()
        until(lambda seen=seen: world.logged() > seen, f"a batch after kill {number}")
        here = moment()
        until(lambda moment=moment, here=here: moment() > here, f"{moment.__name__} after kill {number}")
        if number % 2:
            world.kill_broker()
        else:
            world.kill_driver()
    assert world.committed() < ROWS // RECORDS - 1, "the last kill was in the middle of it"
    assert world.driver.process.wait(PATIENCE_SECONDS) == 0, Path(world.driver._log).read_text()[-5_000:]
    found = world.client.read_arrow(TARGET).column("payload").to_pylist()
    assert len(found) == ROWS
    assert sorted(found) == numbers(0, ROWS - 1)
