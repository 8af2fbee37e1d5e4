"""A broker's own storage: a start that finds a directory missing, empty, older or another's changes nothing at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from random import Random

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    DanubeError,
    DiskFull,
    MetadataDamaged,
    MetadataOutdated,
    NodeDirectoryInvalid,
    NodeReplaced,
)
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import KIB
from pydanube.metadata.tables import STORAGE_NODE
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.local import LocalStorage, open_local
from pydanube.storage.metadata.table import Table
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream
from pydanube.wire.batch import build

Image = dict[str, tuple[int, bytes]]


class World:
    """Two directories of a broker, which are there from its first start on."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop(seed)
        self.randomness = SimRandomness(Random(seed))
        self.metadata = self.disk("metadata")
        self.node = self.disk("node")
        self.file_bytes = 256 * KIB

    def disk(self, name: str, *, there: bool = False) -> SimDisk:
        return SimDisk(self.loop, Random(name), name, exists=there)

    def copy_of(self, image: Image) -> SimDisk:
        disk = self.disk("copy", there=True)
        disk.load(image)
        return disk

    def run(self, work: Callable[[LocalStorage], object] | None = None) -> object:
        """One life, with a clean end."""

        async def life() -> object:
            settings = NodeSettings(file_bytes=self.file_bytes)
            storage = await open_local(self.metadata, self.node, settings, self.randomness, log_bytes=64 * KIB)
            try:
                return await work(storage) if work is not None else None  # type: ignore[misc]
            finally:
                await storage.node.close()
                await storage.metadata.close()

        return self.loop.run_until_complete(life())

    def publish(self, count: int) -> None:
        async def work(storage: LocalStorage) -> None:
            stream = await self._take(storage)
            for number in range(count):
                await stream.append(build([b"%d" % number], publish_time=1))[1]  # and left open, as a crash would

        self.run(work)

    def read(self) -> list[bytes | None]:
        async def work(storage: LocalStorage) -> list[bytes | None]:
            stream = await self._take(storage)
            found: list[bytes | None] = []
            while len(found) <= stream.confirmed:
                for batch in await stream.read(len(found), 1 << 20):
                    found += batch.payloads()
            return found

        return self.run(work)  # type: ignore[return-value]

    async def _take(self, storage: LocalStorage) -> Stream:
        clock = SimClock(self.loop)
        return await Stream.take("t", storage.catalog, storage.nodes, clock, self.randomness, StreamSettings())


@pytest.fixture
def world() -> Iterator[World]:
    logging.disable(logging.CRITICAL)
    world = World()
    yield world
    world.loop.shutdown()
    logging.disable(logging.NOTSET)


def refused(world: World, error: type[DanubeError], *words: str) -> None:
    """It says what is missing, and neither of the directories is made or changed by it."""
    before = [disk.image() for disk in (world.metadata, world.node)]
    exists = [disk._exists for disk in (world.metadata, world.node)]
    with pytest.raises(error) as raised:
        world.run()
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert [disk.image() for disk in (world.metadata, world.node)] == before
    assert [disk._exists for disk in (world.metadata, world.node)] == exists


@pytest.mark.parametrize("there", [False, True])
def test_without_its_node_a_broker_does_not_start_and_with_it_again_everything_is_there(
    world: World, there: bool
) -> None:
    world.publish(10)
    mine, world.node = world.node, world.disk("node", there=there)
    refused(world, NodeDirectoryInvalid, "node is missing or empty")
    refused(world, NodeDirectoryInvalid, "node is missing or empty")
    world.node = mine
    assert world.read() == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("there", [False, True])
def test_without_its_metadata_a_broker_does_not_start_and_with_it_again_everything_is_there(
    world: World, there: bool
) -> None:
    world.publish(10)
    mine, world.metadata = world.metadata, world.disk("metadata", there=there)
    refused(world, MetadataDamaged, "metadata is missing or empty")
    world.metadata = mine
    assert world.read() == [b"%d" % number for number in range(10)]


def test_the_directory_of_another_broker_is_refused(world: World) -> None:
    world.publish(3)
    other = World(1)
    other.publish(3)
    mine, world.node = world.node, world.copy_of(other.node.image())
    refused(world, NodeDirectoryInvalid, "has storage node")
    world.node = mine
    mine, world.metadata = world.metadata, world.copy_of(other.metadata.image())
    refused(world, NodeDirectoryInvalid, "has storage node")
    world.metadata = mine
    assert len(world.read()) == 3
    other.loop.shutdown()


def test_an_old_copy_of_the_node_is_refused(world: World) -> None:
    world.publish(3)
    old = world.node.image()
    world.publish(0)
    mine, world.node = world.node, world.copy_of(old)
    refused(world, NodeDirectoryInvalid, "old copy")
    world.node = mine
    assert len(world.read()) == 3


def test_an_old_copy_of_the_metadata_is_refused(world: World) -> None:
    world.publish(3)
    old = world.metadata.image()
    world.publish(2)
    mine, world.metadata = world.metadata, world.copy_of(old)
    refused(world, MetadataOutdated, "old copy", "same backup")
    world.metadata = mine
    assert len(world.read()) == 5


def test_both_directories_of_one_backup_start(world: World) -> None:
    world.publish(3)
    saved = world.metadata.image(), world.node.image()
    world.publish(2)
    world.metadata, world.node = map(world.copy_of, saved)
    assert len(world.read()) == 3


def test_each_start_is_in_the_metadata(world: World) -> None:
    async def known(storage: LocalStorage) -> tuple[NodeIdentity, int, int]:
        found = Table(storage.metadata, STORAGE_NODE).get()
        assert found is not None
        return found.identity, found.boots, storage.node.boots

    lives = [world.run(known) for _ in range(3)]
    assert len({identity for identity, _, _ in lives}) == 1  # type: ignore[misc]
    assert [(boots, node) for _, boots, node in lives] == [(1, 1), (2, 2), (3, 3)]  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(5))
def test_a_broker_that_ran_before_starts_again_and_again_on_a_full_disk(seed: int) -> None:
    logging.disable(logging.CRITICAL)
    world = World(seed)
    world.file_bytes = 1024 * KIB  # half of it is set aside
    world.publish(10)
    fill(world)
    for _ in range(40):
        assert len(world.read()) == 10
    world.loop.shutdown()
    logging.disable(logging.NOTSET)


def test_a_start_that_finds_no_room_at_all_says_how_much_to_free(world: World) -> None:
    world.publish(10)
    fill(world)
    for name in [name for name in world.node.image() if name.endswith(".tmp")]:  # nothing is set aside either
        world.loop.run_until_complete(world.node.remove(name))
    world.metadata.capacity = world.node.capacity = world.metadata.used_bytes + world.node.used_bytes
    for _ in range(2):
        with pytest.raises(DiskFull, match=r"metadata has no room for a new metadata file; free 1\d\d\.0 KiB on"):
            world.run()
    world.metadata.capacity = world.node.capacity = world.node.capacity + 1024 * KIB
    assert len(world.read()) == 10


async def churn(storage: LocalStorage) -> None:
    for number in range(1000):
        await storage.metadata.transact((), [(f"x/{number % 10}", b"y" * 3000)])


def fill(world: World) -> None:
    """Others use the last of the disk that both directories are on while the broker runs, until no change fits."""

    async def work(storage: LocalStorage) -> None:
        while not any(name.endswith(".tmp") for name in world.node.image()):  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.001)
        world.metadata.capacity = 0
        world.metadata.share(world.node)
        with pytest.raises(DiskFull):
            await churn(storage)

    world.run(work)
    world.metadata.capacity = world.node.capacity = world.metadata.used_bytes + world.node.used_bytes


@pytest.mark.slow
def test_a_first_start_that_loses_power_anywhere_is_followed_by_one_that_works() -> None:
    logging.disable(logging.CRITICAL)
    try:
        for steps in range(200):
            world = World(steps)
            if not cut_after(world, steps):
                break
            world.publish(3)
            assert len(world.read()) == 3, f"after {steps} steps"
            world.loop.shutdown()
        assert steps > 10
    finally:
        logging.disable(logging.NOTSET)


def cut_after(world: World, steps: int) -> bool:
    """A start that loses power when that many steps have changed its disks; false if it is over before that."""
    left = steps
    cut = world.loop.create_future()
    process = world.loop.process("broker")

    def step(_: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            for disk in (world.metadata, world.node):
                disk.freeze()
            world.loop.kill(process)
            cut.set_result(None)

    async def life() -> None:
        await open_local(world.metadata, world.node, NodeSettings(file_bytes=256 * KIB), world.randomness)
        if not cut.done():
            cut.set_result(None)

    if steps:
        for disk in (world.metadata, world.node):
            disk.on_boundary = step
    world.loop.spawn(process, life())
    if not steps:
        world.loop.kill(process)
        return True
    world.loop.run_until_complete(cut)
    for disk in (world.metadata, world.node):
        disk.on_boundary = None
        disk.power_cut()
    world.loop.kill(process)
    return left <= 0


def test_a_ledger_on_another_node_is_on_one_that_was_replaced(world: World) -> None:
    async def work(storage: LocalStorage) -> None:
        stranger = storage.nodes.get(NodeIdentity("ab" * 16))
        assert stranger.identity == "ab" * 16
        for answer in (
            stranger.read(LedgerId(1), 0, 1),
            stranger.fence(LedgerId(1), Epoch(2)),
            stranger.create(LedgerId(1), Epoch(1), Durability.FSYNC),
        ):
            with pytest.raises(NodeReplaced):
                await answer

    world.run(work)
