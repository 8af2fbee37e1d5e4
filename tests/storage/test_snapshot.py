"""Snapshots of a storage that serves: whenever one is taken, and however slowly it is copied, it is of one moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest

from pydanube.base.errors import DiskFailed, NodeBusy
from pydanube.base.limits import BLOCK_BYTES, KIB
from pydanube.broker.door.backups import Backups
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.local import LocalStorage, open_local
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.snapshot import Snapshot, take_snapshot
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream
from pydanube.wire.batch import build

STREAMS = ("first", "second", "third")
SETTINGS = NodeSettings(file_bytes=64 * KIB, retry_seconds=0.02)
Image = dict[str, tuple[int, bytes]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class World:
    """Streams that are written and trimmed all the while; two directories, and then copies of them."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed)
        self.random = Random(seed)
        self.randomness = SimRandomness(Random(seed))
        self.answered: dict[str, int] = dict.fromkeys(STREAMS, 0)
        self.trimmed: dict[str, int] = dict.fromkeys(STREAMS, 0)
        self.stopping = False

    def disk(self, name: str, image: Image | None = None) -> SimDisk:
        disk = SimDisk(self.loop, Random(name), name, exists=image is not None)
        disk.load(image or {})
        return disk

    async def open(self, metadata: SimDisk, node: SimDisk) -> LocalStorage:
        return await open_local(metadata, node, SETTINGS, self.randomness, log_bytes=16 * KIB)

    async def stream(self, storage: LocalStorage, name: str) -> Stream:
        settings = StreamSettings(ledger_bytes=20 * KIB)
        return await Stream.take(name, storage.catalog, storage.nodes, SimClock(self.loop), self.randomness, settings)

    @asynccontextmanager
    async def with_files(self) -> AsyncIterator[tuple[SimDisk, LocalStorage, Stream]]:
        """A stream that has filled some journal files, on its disk; all is closed in the end."""
        disk = self.disk("node")
        storage = await self.open(self.disk("metadata"), disk)
        stream = await self.stream(storage, "first")
        for _ in range(100):
            await stream.ready()
            await stream.append(build([bytes(2000)], publish_time=1))[1]
        yield disk, storage, stream
        await stream.close()
        await storage.node.close()
        await storage.metadata.close()

    async def write(self, storage: LocalStorage, name: str) -> None:
        stream = await self.stream(storage, name)
        while not self.stopping:
            await stream.ready()
            await stream.append(build([f"{name} {self.answered[name]} ".encode().ljust(2000, b".")], publish_time=1))[1]
            self.answered[name] += 1
            if self.random.random() < 0.1:
                before = self.answered[name] - self.random.randrange(20)
                self.trimmed[name] = max(self.trimmed[name], before)
                await stream.trim(self.trimmed[name])
        await stream.close()

    async def copied(self, snapshot: Snapshot) -> dict[str, Image]:
        """As slowly as can be."""
        found: dict[str, Image] = {"metadata": {}, "node": {}}
        for file in snapshot.files:
            data = file.content or b""
            while len(data) < file.length:
                await asyncio.sleep(self.random.uniform(0, 0.02))
                data += await (await file.open()).read(len(data), min(4 * BLOCK_BYTES, file.length - len(data)))
            folder, _, name = file.name.partition("/")
            found[folder][name] = (file.size, data)
            snapshot.release(file)
        return found

    async def check(self, images: dict[str, Image], answered: dict[str, int]) -> None:
        """It starts, and has everything from where it was trimmed to where it was answered, or further."""
        storage = await self.open(*(self.disk(name, image) for name, image in images.items()))
        assert not storage.node.damage
        for name in STREAMS:
            stream = await self.stream(storage, name)
            assert stream.confirmed + 1 >= answered[name]
            assert stream.first <= max(self.trimmed[name], 0)
            offset = stream.first
            while offset <= stream.confirmed:
                for batch in await stream.read(offset, 1 << 20):
                    [payload] = batch.payloads()
                    assert payload is not None
                    assert payload.startswith(f"{name} {batch.base_offset} ".encode())
                    offset = batch.last_offset + 1
            await stream.close()
        await storage.node.close()
        await storage.metadata.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_is_what_a_power_cut_at_its_moment_would_leave(seed: int) -> None:
    world = World(seed)

    async def life() -> None:
        storage = await world.open(world.disk("metadata"), world.disk("node"))
        writing = [asyncio.ensure_future(world.write(storage, name)) for name in STREAMS]
        copies: list[tuple[dict[str, Image], dict[str, int]]] = []
        for _ in range(4):
            await asyncio.sleep(world.random.uniform(0.05, 2.0))
            answered = dict(world.answered)
            snapshot = await take_snapshot(storage.metadata, storage.node)
            copies.append((await world.copied(snapshot), answered))
        world.stopping = True
        await asyncio.gather(*writing)
        assert not storage.node.pinned.generations
        await storage.node.close()
        await storage.metadata.close()
        assert sum(world.answered.values()) > 500
        for images, answered in copies:
            await world.check(images, answered)

    world.loop.run_until_complete(life())
    world.loop.shutdown()


def test_pinned_files_are_removed_when_they_are_unpinned() -> None:
    world = World(0)

    async def life() -> None:
        async with world.with_files() as (disk, storage, stream):
            snapshot = await take_snapshot(storage.metadata, storage.node)
            journals = [file.name.partition("/")[2] for file in snapshot.files if "journal" in file.name]
            assert len(journals) > 3
            await stream.seal()
            await stream.trim(100)
            await asyncio.sleep(10)
            assert set(journals) <= set(await disk.list())
            snapshot.close()
            await asyncio.sleep(10)
            assert not set(journals[:-1]) & set(await disk.list())

    world.loop.run_until_complete(life())
    world.loop.shutdown()


def test_a_file_that_could_not_be_removed_goes_later_and_prevents_no_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(0)

    async def life() -> None:
        async with world.with_files() as (disk, storage, stream):
            journals = [name for name in await disk.list() if "journal" in name]
            belongings = storage.node._disks.belongings
            change, failing = belongings.change, True

            async def fails(*, add: Mapping[int, int] | None = None, drop: Iterable[int] = ()) -> None:
                if failing and list(drop):
                    raise DiskFailed("a sector cannot be written")
                await change(add=add, drop=drop)

            monkeypatch.setattr(belongings, "change", fails)
            await stream.seal()
            await stream.trim(100)
            await asyncio.sleep(10)
            (await take_snapshot(storage.metadata, storage.node)).close()
            failing = False
            await asyncio.sleep(120)
            assert not set(journals[:-1]) & set(await disk.list())
            (await take_snapshot(storage.metadata, storage.node)).close()

    world.loop.run_until_complete(life())
    world.loop.shutdown()


def test_the_last_piece_of_a_file_can_be_read_again_until_the_next_file_is() -> None:
    """The answer may have been lost on its way."""
    world = World(0)

    async def life() -> None:
        async with world.with_files() as (disk, storage, stream):
            backups = Backups(storage.metadata, storage.node, DiskRoom(), 1 << 30)
            number, snapshot = await backups.begin()
            first, second = [file for file in snapshot.files if "journal" in file.name][:2]
            await stream.seal()
            await stream.trim(100)
            data = await backups.read(number, first.name, 0, first.length)
            await asyncio.sleep(10)
            assert await backups.read(number, first.name, 0, first.length) == data
            await backups.read(number, second.name, 0, 10)
            await asyncio.sleep(10)
            assert first.name.partition("/")[2] not in await disk.list()
            backups.end(number)

    world.loop.run_until_complete(life())
    world.loop.shutdown()


def test_a_storage_whose_files_are_being_changed_all_the_time_is_busy() -> None:
    world = World(0)

    async def life() -> None:
        storage = await world.open(world.disk("metadata"), world.disk("node"))
        async with storage.node.pinned.changing:
            with pytest.raises(NodeBusy):
                await take_snapshot(storage.metadata, storage.node)
        await storage.node.close()
        await storage.metadata.close()

    world.loop.run_until_complete(life())
    world.loop.shutdown()
