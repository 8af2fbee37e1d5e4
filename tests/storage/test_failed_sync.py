"""§7: a sync that failed is never forgotten. Its file is abandoned, its ledgers closed, and nobody sees the bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from pydanube.base.errors import DiskFailed, DiskFull, EntryMissing, LedgerFenced
from pydanube.base.ids import LedgerId
from pydanube.base.limits import KIB
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from storage.node_world import FENCER, MAKER, PLENTY, NodeWorld, append, batch_of, create, damaged_ledgers, until


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    logging.disable(logging.CRITICAL)
    world = NodeWorld(settings=NodeSettings(file_bytes=64 * KIB, retry_seconds=0.05))
    yield world
    world.end()
    logging.disable(logging.NOTSET)


def lose(write: int, sector: int) -> bool:
    return False


async def with_a_failed_sync(world: NodeWorld) -> DiskNode:
    """Ledgers 1 and 2 hold offset 0; the sync of offset 1 of both fails, though the bytes are in the cache."""
    node = await world.open()
    await create(node, 1, 2)
    for ledger in (1, 2):
        await append(node, ledger, [batch_of(ledger, 0)])
    world.disk.fail_next("sync")
    answers = [node.append(LedgerId(ledger), MAKER, batch_of(ledger, 1), 0) for ledger in (1, 2)]
    waiting = node.append(LedgerId(1), MAKER, batch_of(1, 2), 0)
    for answer in (*answers, waiting):
        with pytest.raises(DiskFailed):
            await answer
    return node


def test_every_waiter_is_told_and_the_ledgers_are_closed(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await with_a_failed_sync(world)
        for ledger in (1, 2):
            with pytest.raises((DiskFailed, LedgerFenced)):
                await append(node, ledger, [batch_of(ledger, 1)])
        await asyncio.sleep(1)
        for ledger in (1, 2):
            with pytest.raises(LedgerFenced):
                await append(node, ledger, [batch_of(ledger, 1)])

    world.run(scenario())


def test_what_was_not_synced_is_neither_served_nor_brought_back(world: NodeWorld) -> None:
    """Reading on from before it ends before it, as does everything after a power cut."""

    async def scenario() -> None:
        node = await with_a_failed_sync(world)
        await asyncio.sleep(1)
        for ledger in (1, 2):
            assert await node.read(LedgerId(ledger), 0, PLENTY) == [batch_of(ledger, 0)]
            with pytest.raises(EntryMissing):
                await node.read(LedgerId(ledger), 1, PLENTY)
        await create(node, 3)
        await append(node, 3, [batch_of(3, offset) for offset in range(5)])  # these syncs work
        for ledger in (1, 2):
            with pytest.raises(EntryMissing):
                await node.read(LedgerId(ledger), 1, PLENTY)
            assert (await node.fence(LedgerId(ledger), FENCER)).last == 0

    world.run(scenario())
    world.cut(keep=lose, keep_directory=0)

    async def check() -> None:
        node = await world.open()
        acked = {1: [batch_of(1, 0)], 2: [batch_of(2, 0)], 3: [batch_of(3, offset) for offset in range(5)]}
        assert await damaged_ledgers(node, acked) == set()
        assert node.damage == []

    world.run(check())


def test_recovery_may_bring_the_same_entry_again(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await with_a_failed_sync(world)
        await asyncio.sleep(1)
        await node.fence(LedgerId(1), FENCER)
        await append(node, 1, [batch_of(1, 1)], epoch=FENCER)
        assert await node.read(LedgerId(1), 0, PLENTY) == [batch_of(1, 0)]
        assert await node.read(LedgerId(1), 1, PLENTY) == [batch_of(1, 1)]

    world.run(scenario())
    world.cut(keep=lose, keep_directory=0)

    async def check() -> None:
        assert await damaged_ledgers(await world.open(), {1: [batch_of(1, 0), batch_of(1, 1)]}) == set()

    world.run(check())


def test_reads_go_on_while_the_node_starts_over(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await with_a_failed_sync(world)
        world.disk.fail_next("create", count=100)  # it cannot go on yet
        for _ in range(20):
            assert await node.read(LedgerId(1), 0, PLENTY) == [batch_of(1, 0)]
            await asyncio.sleep(0.05)
        with pytest.raises(DiskFailed):
            await create(node, 3)
        world.disk.cure()
        await asyncio.sleep(1)
        await create(node, 3)
        assert await node.read(LedgerId(1), 0, PLENTY) == [batch_of(1, 0)]

    world.run(scenario())


@pytest.mark.parametrize("moment", [0.0, 0.001, 0.01, 0.03, 0.06, 0.2])
def test_a_node_that_is_closed_while_it_starts_over_ends(world: NodeWorld, moment: float) -> None:
    async def scenario() -> None:
        node = await with_a_failed_sync(world)
        await asyncio.sleep(moment)
        await node.close()
        assert not node._tasks
        again = await world.open()
        assert await again.read(LedgerId(1), 0, PLENTY) == [batch_of(1, 0)]
        await again.close()

    world.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_starts_over_while_it_sets_a_file_aside_still_rolls(seed: int) -> None:
    """The spare file of the life before must not get in the way of the next one's."""
    logging.disable(logging.CRITICAL)
    world = NodeWorld(seed, settings=NodeSettings(file_bytes=64 * KIB, retry_seconds=0.05))
    world.disk.fail_next("create", DiskFull, prefix="spare", after=1, count=3)
    world.disk.fail_next("sync", prefix="journal", after=8 + seed % 8)
    world.disk.fail_next("sync", prefix="spare", after=seed % 4)
    acked = {}

    async def scenario() -> None:
        node = await world.open()
        for ledger in range(1, 200):
            batch = batch_of(ledger, 0, size=9000)
            try:
                await create(node, ledger)
                await append(node, ledger, [batch])
                acked[ledger] = [batch]
            except (DiskFailed, DiskFull, LedgerFenced):
                await asyncio.sleep(0.06)
        assert len(acked) > 150
        await until(lambda: node._roller.has_spare)

    async def check() -> None:
        assert await damaged_ledgers(await world.open(), acked) == set()

    world.run(scenario())
    world.cut(keep=lose, keep_directory=0)
    world.run(check())
    logging.disable(logging.NOTSET)
    world.end()
