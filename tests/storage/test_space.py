"""§8: journal files are the read store. What dies young is never copied, what outlives its file is, and files go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pydanube.base.durability import Durability
from pydanube.base.ids import LedgerId
from pydanube.base.limits import KIB, MIB
from pydanube.sim.machine.disk import SimDisk
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from storage.node_world import MAKER, NodeWorld, append, batch_of, create, damaged_ledgers

WRITTEN_PER_APPENDED_MAX = 1.2
PRODUCERS = 256


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld(settings=NodeSettings(file_bytes=64 * KIB, copy_bytes_per_second=1 << 30))
    yield world
    world.end()


def files(world: NodeWorld, start: str) -> list[str]:
    return [name for name in world.disk.names() if name.startswith(start) and name.endswith(".log")]


def test_short_lived_data_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 producers of 1 KiB each; a ledger is deleted after 16 of its rounds. Everything on the disk counts."""
    world = NodeWorld(settings=NodeSettings(file_bytes=4 * MIB))
    written = 0
    original = SimDisk._write

    def counting(disk: SimDisk, name: str, inode: Any, position: int, data: bytes, sync: bool) -> Any:
        nonlocal written
        written += len(data)
        return original(disk, name, inode, position, data, sync)

    monkeypatch.setattr(SimDisk, "_write", counting)
    appended = 0
    batches = [batch_of(1, offset, size=KIB) for offset in range(16)]  # the same for all: only their number counts

    async def scenario() -> None:
        nonlocal appended
        node = await world.open()
        last = 0
        for _ in range(4):
            ledgers = [LedgerId(last + number) for number in range(1, PRODUCERS + 1)]
            last += PRODUCERS
            await asyncio.gather(*(node.create(ledger, MAKER, Durability.FSYNC) for ledger in ledgers))
            for batch in batches:
                await asyncio.gather(*(node.append(ledger, MAKER, batch, -1) for ledger in ledgers))
                appended += batch.size * PRODUCERS
            await asyncio.gather(*(node.delete(ledger) for ledger in ledgers))
        await asyncio.sleep(1)

    world.run(scenario())
    assert appended > 16 * MIB
    assert written / appended <= WRITTEN_PER_APPENDED_MAX
    assert files(world, "kept-") == []
    assert len(files(world, "journal-")) <= 2
    world.end()


async def outlive(node: DiskNode, rounds: int) -> dict[int, list[Any]]:
    """A few entries that stay among many that go."""
    await create(node, 1, 2)
    acked: dict[int, list[Any]] = {1: [], 2: []}
    for number in range(rounds):
        bulk = 100 + number
        await create(node, bulk)
        for ledger in (1, 2):
            batch = batch_of(ledger, number)
            await append(node, ledger, [batch])
            acked[ledger].append(batch)
        await append(node, bulk, [batch_of(bulk, offset, size=9000) for offset in range(4)])
        await node.delete(LedgerId(bulk))
    return acked


def test_what_outlives_its_file_is_copied_out_and_the_file_goes(world: NodeWorld) -> None:
    async def scenario() -> dict[int, list[Any]]:
        node = await world.open()
        acked = await outlive(node, 40)
        await asyncio.sleep(2)
        assert await damaged_ledgers(node, acked) == set()
        return acked

    acked = world.run(scenario())
    assert len(files(world, "journal-")) <= 2
    assert 1 <= len(files(world, "kept-")) <= 10
    kept = sum(len(world.disk.content(name)) for name in files(world, "kept-"))
    assert kept < 20 * 16 * KIB, "not everything was kept"
    world.cut()

    async def check() -> None:
        assert await damaged_ledgers(await world.open(), acked) == set()

    world.run(check())


@pytest.mark.parametrize("seed", range(25))
def test_a_crash_at_any_moment_of_copying_and_rolling_loses_nothing(seed: int) -> None:
    """And leaves no file behind forever: after a restart the node goes on freeing."""
    world = NodeWorld(seed, settings=NodeSettings(file_bytes=64 * KIB, copy_bytes_per_second=1 << 30))
    acked: dict[int, list[Any]] = {1: [], 2: []}

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2)
        for number in range(30):
            bulk = 100 + number
            await create(node, bulk)
            for ledger in (1, 2):
                batch = batch_of(ledger, number)
                await append(node, ledger, [batch])
                acked[ledger].append(batch)
            await append(node, bulk, [batch_of(bulk, offset, size=9000) for offset in range(4)])
            await node.delete(LedgerId(bulk))

    world.loop.spawn(world.process, scenario())
    world.loop.run_until_complete(asyncio.sleep(0.05 + 0.02 * seed))
    world.cut()

    async def check() -> None:
        node = await world.open()
        held = {ledger: batches for ledger, batches in acked.items() if batches}
        assert await damaged_ledgers(node, held) == set()
        for status in await node.list():
            if status.ledger >= 100:
                await node.delete(status.ledger)
        await asyncio.sleep(2)
        assert await damaged_ledgers(node, held) == set()

    world.run(check())
    assert len(files(world, "journal-")) <= 3
    world.end()


def test_a_ledger_deleted_while_the_journal_rolls_leaves_nothing_behind() -> None:
    """Its bytes are in the old file, the record of its deletion in the new one."""
    for seed in range(30):
        world = NodeWorld(seed)

        async def scenario(world: NodeWorld = world) -> None:
            node = await world.open()
            await create(node, 1, 2)
            await append(node, 1, [batch_of(1, offset, size=9000) for offset in range(4)])
            deletion = node.delete(LedgerId(1))
            answers = [node.append(LedgerId(2), MAKER, batch_of(2, 0, size=9000), -1), deletion]
            await asyncio.gather(*answers)
            await asyncio.sleep(1)
            assert files(world, "journal-")[0] != "journal-0000000000000001.log"

        world.run(scenario())
        world.end()


def test_readers_go_on_while_their_file_is_copied_out_and_removed(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        acked = await outlive(node, 12)
        reading = True

        async def read() -> int:
            reads = 0
            while reading:
                assert await damaged_ledgers(node, acked) == set()
                reads += 1
            return reads

        reader = asyncio.get_running_loop().create_task(read())
        more = await asyncio.gather(*(append_and_delete(node, 1000 + number) for number in range(20)))
        reading = False
        assert await reader > 3
        assert len(more) == 20

    async def append_and_delete(node: DiskNode, ledger: int) -> None:
        await create(node, ledger)
        await append(node, ledger, [batch_of(ledger, offset, size=9000) for offset in range(4)])
        await node.delete(LedgerId(ledger))

    world.run(scenario())


def test_copying_is_rate_limited(world: NodeWorld) -> None:
    world.settings = NodeSettings(file_bytes=96 * KIB, copy_bytes_per_second=4 * KIB)

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2)
        await append(node, 1, [batch_of(1, 0, size=8000)])
        for offset in range(8):
            await append(node, 2, [batch_of(2, offset, size=9000)])
        await node.delete(LedgerId(2))
        before = world.loop.time()
        while not files(world, "kept-"):
            await asyncio.sleep(0.01)
            assert world.loop.time() - before < 10
        assert world.loop.time() - before > 1

    world.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_batches_larger_than_a_file_among_small_ones_survive_any_cut(seed: int) -> None:
    """Each needs a file of its own at once, while the spare of the roll before is still being set aside."""
    world = NodeWorld(seed, settings=NodeSettings(file_bytes=64 * KIB, retry_seconds=0.05))
    world.disk.slow(0.005 * (seed % 3), only="create")
    acked: dict[int, list[Any]] = {1: []}

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1)
        for offset in range(60):
            batch = batch_of(1, offset, size=90_000 if offset % 3 == seed % 3 else 30_000)
            await append(node, 1, [batch])
            acked[1].append(batch)

    async def check() -> None:
        node = await world.open()
        assert await damaged_ledgers(node, {ledger: batches for ledger, batches in acked.items() if batches}) == set()

    world.loop.spawn(world.process, scenario())
    world.loop.run_until_complete(asyncio.sleep(0.05 + 0.02 * seed))
    world.cut()
    world.run(check())
    world.end()
