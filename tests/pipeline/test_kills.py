"""A pipeline with all kinds of sinks whose driver and broker are killed repeatedly: each row is in each sink once,
and what is no good is once among the dead letters.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from deltalake import DeltaTable

import pydanube.sync
from pipeline.iceberg_world import Lake
from pydanube.base.errors import DanubeError
from spark.conftest import QUICK
from spark.killing import Killed, KilledBroker, last_number, until
from spark.world import fill

SOURCE, TARGET = "/default/orders", "/default/copies"
ROWS, RECORDS, KILLS = 14_000, 400, 5
BAD = 97  # every row of so many is none


def message(number: int) -> bytes:
    if number % BAD == 0:
        return b"no order, %d" % number
    return json.dumps({"id": number, "customer": f"customer {number % 10}", "amount": number / 4}).encode()


class World:
    """The broker, the driver, and how far they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = Lake(folder)
        self.broker = KilledBroker(folder)
        self.client = pydanube.sync.connect(self.broker.url).open()
        self.client.admin.create_topic(TARGET, partitions=2)
        fill(self.client, SOURCE, map(message, range(ROWS)), partitions=2)
        file = folder / "orders.yaml"
        file.write_text(yaml.safe_dump(self._flow()))
        command = [sys.executable, "-m", "pydanube.cli.main", "pipeline", "run", str(file), "--once"]
        self.driver = Killed([*command, "--master", "local[2]"], folder / "driver.log")

    def _flow(self) -> dict[str, object]:
        """Keys of messages are drawn again whenever a batch is repeated, so its rows fall otherwise."""
        source = {"topic": SOURCE, "url": self.broker.url, "max_records": RECORDS, "format": "json"}
        iceberg = {name: text for name, text in self.lake.spec().items() if name != "kind"}
        return {
            "name": "orders",
            "source": source | {"schema": "id BIGINT, customer STRING, amount DOUBLE"},
            "transforms": [{"sql": "SELECT id, customer, amount, string(rand()) draw FROM input"}],
            "sink": [{"delta": "orders"}, {"iceberg": iceberg}, {"topic": TARGET, "key": "draw"}],
            "dead_letters": {"delta": "letters"},
            "checkpoint": "points",
            "spark": {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": QUICK},
        }

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.start()

    # -- how far a batch is --------------------------------------------------------------------------------------------

    def planned(self) -> int:
        return last_number(self.folder / "points/0/offsets")

    def staged(self) -> int:
        """Counts files, not batches."""
        return len(list((self.folder / "orders").glob("*.parquet")))

    def lettered(self) -> int:
        """The dead letters are there, and the rows are not."""
        return len(list((self.folder / "letters/_delta_log").glob("*.json")))

    def half_committed(self) -> int:
        """One table has the rows, and the other has not."""
        return len(list((self.folder / "orders/_delta_log").glob("*.json")))

    def committed(self) -> int:
        """Also to the last target, and Spark has not logged it."""
        with suppress(DanubeError):
            sinks = self.client.admin.sinks()
            return max((each.batch for each in sinks if each.committed), default=-1)
        return -1

    def logged(self) -> int:
        return last_number(self.folder / "points/0/commits")

    # -- what is there at the end --------------------------------------------------------------------------------------

    def content(self) -> Iterator[tuple[str, pa.Table]]:
        yield "delta", DeltaTable(str(self.folder / "orders")).to_pyarrow_table()
        yield "iceberg", self.lake.table().scan().to_arrow()
        messages = self.client.read_arrow(TARGET).column("payload").to_pylist()
        yield "topic", pa.Table.from_pylist([json.loads(each) for each in messages])

    def letters(self) -> list[bytes]:
        found: list[bytes] = DeltaTable(str(self.folder / "letters")).to_pyarrow_table().column("value").to_pylist()
        return found

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
def test_each_row_is_in_each_sink_once_however_often_driver_and_broker_are_killed(world: World) -> None:
    moments = (world.planned, world.staged, world.lettered, world.half_committed, world.committed)
    for number in range(2 * KILLS):
        moment, seen = moments[number % len(moments)], world.logged()
        until(lambda seen=seen: world.logged() > seen, f"a batch after kill {number}")
        here = moment()
        until(lambda moment=moment, here=here: moment() > here, f"{moment.__name__} after kill {number}")
        if number % 2:
            world.broker.again()
        else:
            world.kill_driver()
    assert world.logged() < ROWS // RECORDS - 1, "the last kill was in the middle of it"
    world.driver.ended()
    good = [number for number in range(ROWS) if number % BAD]
    for name, found in world.content():
        assert len(found) == len(good), name
        assert sorted(found.column("id").to_pylist()) == good, name
        assert pc.sum(found.column("amount")).as_py() == sum(good) / 4, name
    assert sorted(world.letters()) == sorted(map(message, range(0, ROWS, BAD)))
