"""A query from topic to topic whose driver and broker are killed repeatedly: at the end each row is there once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import pydanube.sync
from pydanube.base.errors import DanubeError
from pydanube.operations.sinks import BeginSink
from spark.killing import Killed, KilledBroker, last_number, until
from spark.world import fill, numbers

SOURCE, TARGET = "/default/from", "/default/to"
ROWS, RECORDS, KILLS = 20_000, 500, 5
DRIVER = Path(__file__).with_name("topic_to_topic.py")


class World:
    """The broker, the driver, and how far they are."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self.broker = KilledBroker(folder)
        url = self.broker.url
        self.client = pydanube.sync.connect(url).open()
        self.client.admin.create_topic(TARGET, partitions=2)
        fill(self.client, SOURCE, numbers(0, ROWS - 1), partitions=2)
        command = [sys.executable, str(DRIVER), url, SOURCE, TARGET, str(self.checkpoint), str(RECORDS)]
        self.driver = Killed(command, folder / "driver.log")

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.start()

    # -- how far a batch is --------------------------------------------------------------------------------------------

    def planned(self) -> int:
        return last_number(self.checkpoint / "offsets")

    def staged(self) -> int:
        """Counts messages, not batches."""
        with suppress(DanubeError, FileNotFoundError, ValueError, KeyError):
            query = json.loads((self.checkpoint / "metadata").read_text())["id"]
            staging = self.client.ask(BeginSink(query, TARGET)).staging
            return int(self.client._loop.wait(self.client._inner.bounds(staging))[1])
        return -1

    def committed(self) -> int:
        with suppress(DanubeError):
            sinks = self.client.admin.sinks()
            return max((each.batch for each in sinks if each.committed), default=-1)
        return -1

    def logged(self) -> int:
        return last_number(self.checkpoint / "commits")

    def close(self) -> None:
        self.driver.end()
        self.client.close()
        self.broker.end()


@pytest.fixture
def world(java: None, tmp_path: Path) -> Iterator[World]:
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
            world.broker.again()
        else:
            world.kill_driver()
    assert world.committed() < ROWS // RECORDS - 1, "the last kill was in the middle of it"
    world.driver.ended()
    found = world.client.read_arrow(TARGET).column("payload").to_pylist()
    assert len(found) == ROWS
    assert sorted(found) == numbers(0, ROWS - 1)
