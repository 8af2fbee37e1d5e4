"""A broker process with its tier processes, killed between object, record and commit: its table has every row once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import polars
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

import pydanube
from api.test_standalone import Process
from pydanube.base.limits import KIB, MIB

TOPIC = "/default/orders"
PARTITIONS = 2


class World:
    """One data directory and one folder of objects; brokers come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.objects = path / "objects"
        self.running: Process | None = None
        self.lives = 0

    def start(self) -> str:
        self.lives += 1
        life = self.path / f"life-{self.lives}"
        life.mkdir()
        self.running = Process(
            life,
            *("--data-dir", str(self.path / "data"), "--journal-file-bytes", str(4 * MIB)),
            *("--objects", f"file://{self.objects}", "--storage-objects-segment-bytes", str(64 * KIB)),
            *("--storage-objects-lag-seconds", "1", "--storage-objects-local-seconds", "0"),
        )
        return f"danube://{self.running.address()}"

    def kill(self) -> None:
        if self.running is not None:
            self.running.process.kill()
            self.running.process.communicate()
            self.running = None

    def until(self, done: Callable[[], bool]) -> None:
        deadline = monotonic() + 60
        while not done():
            assert monotonic() < deadline
            sleep(0.002)  # other processes do it

    @property
    def folder(self) -> Path | None:
        return next((log.parent for log in self.objects.glob("*/_segments")), None)

    def count(self, pattern: str) -> int:
        return sum(1 for _ in self.objects.rglob(pattern))

    def rows(self) -> list[tuple[int, int, bytes]]:
        if self.folder is None:
            return []
        try:
            found = polars.read_delta(str(self.folder), columns=["partition", "offset", "payload"])
        except TableNotFoundError:
            return []
        return sorted(found.select("partition", "offset", "payload").rows())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.kill()


async def publish(url: str, first: int, count: int) -> None:
    async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % number for number in range(first, first + count)])


async def read(url: str) -> list[tuple[int, int, bytes]]:
    """All that the broker serves, from its first message on."""
    found = []
    async with pydanube.connect(url) as client:
        for partition in range(PARTITIONS):
            for message in await client.admin.peek(TOPIC, 100_000, partition=partition):
                found.append((partition, message.offset, message.payload))
    return sorted(found)


async def create(url: str) -> None:
    async with pydanube.connect(url) as client:
        await client.admin.create_topic(TOPIC, partitions=PARTITIONS, policies={"table": "delta"})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_at_any_step_the_table_has_every_row_once(world: World) -> None:
    url = world.start()
    asyncio.run(create(url))
    published = 0
    for sign in ("*.parquet", "_delta_log/*.json", "*.parquet", "_delta_log/*.json"):
        before = world.count(sign)
        asyncio.run(publish(url, published, 200))
        published += 200
        world.until(lambda sign=sign, before=before: world.count(sign) > before)  # type: ignore[misc]
        world.kill()
        url = world.start()
    served = asyncio.run(read(url))
    assert sorted(int(payload) for _, _, payload in served) == list(range(published))
    world.until(lambda: world.rows() == served)
    assert asyncio.run(read(url)) == served


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_broker_serves_everything_after_somebody_optimised_and_vacuumed_its_table(world: World) -> None:
    url = world.start()
    asyncio.run(create(url))
    for first in (0, 100):
        asyncio.run(publish(url, first, 100))
        world.until(lambda first=first: len(world.rows()) == first + 100)  # type: ignore[misc]
    assert world.folder is not None
    DeltaTable(world.folder).optimize.compact()
    DeltaTable(world.folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    served = asyncio.run(read(url))
    assert sorted(int(payload) for _, _, payload in served) == list(range(200))
    world.kill()
    url = world.start()
    world.until(lambda: not any("part-" in uri for uri in DeltaTable(world.folder or "").file_uris()))
    assert world.rows() == served == asyncio.run(read(url))
