"""`buffered`: acknowledged before it is on disk, on disk within a second, and no offset used twice whatever is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import EntryMissing, LedgerDamaged, LedgerFenced
from pydanube.base.ids import LedgerId
from pydanube.base.limits import KIB, RESERVE_OFFSETS
from pydanube.storage.node.settings import NodeSettings
from storage.node_world import FENCER, MAKER, NodeWorld, append, batch_of, create

LEDGER = LedgerId(1)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld(settings=NodeSettings(file_bytes=512 * KIB))
    yield world
    world.end()


def lose(write: int, sector: int) -> bool:
    return False


def test_it_is_acknowledged_before_it_is_synced(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        await append(node, 1, [batch_of(1, 0)])  # this one waits for the reserved mark
        world.disk.slow(5.0, only="sync")
        before = world.loop.time()
        await append(node, 1, [batch_of(1, offset) for offset in range(1, 50)])
        assert world.loop.time() - before < 1
        assert await node.read(LEDGER, 0, 1) == [batch_of(1, 0)]

    world.run(scenario())


def test_a_fsync_ledger_beside_it_still_waits_for_the_disk(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        await create(node, 2)
        await append(node, 1, [batch_of(1, 0)])
        world.disk.slow(5.0, only="sync")
        before = world.loop.time()
        await append(node, 2, [batch_of(2, 0)])
        assert world.loop.time() - before >= 5

    world.run(scenario())


def test_under_load_it_is_on_disk_within_a_second_and_when_idle_soon(world: NodeWorld) -> None:
    synced_at: list[float] = []

    async def scenario(seconds: float) -> int:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        offset = 0
        start = world.loop.time()
        while world.loop.time() - start < seconds:
            await append(node, 1, [batch_of(1, offset)])
            offset += 1
            await asyncio.sleep(0.01)
            synced_at.append(world.loop.time())
        return offset

    offset = world.run(scenario(5.0))
    world.cut(keep=lose, keep_directory=0)

    async def check() -> int:
        return (await (await world.open()).fence(LEDGER, FENCER)).last

    last = world.run(check())
    lost_seconds = synced_at[-1] - synced_at[last]
    assert offset - 1 >= last >= 0
    assert lost_seconds < world.settings.buffered_sync_seconds + 0.5


def test_an_idle_journal_syncs_what_was_buffered(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        await append(node, 1, [batch_of(1, offset) for offset in range(5)])
        await asyncio.sleep(1)

    world.run(scenario())
    world.cut(keep=lose, keep_directory=0)

    async def check() -> None:
        node = await world.open()
        assert (await node.fence(LEDGER, FENCER)).last == 4

    world.run(check())


@pytest.mark.parametrize("idle", [False, True])
def test_a_mark_covers_what_was_buffered(world: NodeWorld, idle: bool) -> None:
    """After a clean close, or when idle: a bit that flips in the last batch is damage then, and no absence."""

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        await append(node, 1, [batch_of(1, 0)])
        await asyncio.sleep(2)
        await append(node, 1, [batch_of(1, 1)])
        await (asyncio.sleep(2) if idle else node.close())

    world.run(scenario())
    world.restart()
    name = "journal-0000000000000001.log"
    world.disk.flip_bit(name, world.disk.content(name).index(b"1/1 "), 0)

    async def check() -> None:
        node = await world.open()
        assert [damage.ledgers for damage in node.damage] == [(LEDGER,)]
        assert await node.read(LEDGER, 0, 1) == [batch_of(1, 0)]
        with pytest.raises(LedgerDamaged):
            await node.read(LEDGER, 1, 1)

    world.run(check())


def test_a_sync_that_fails_before_a_mark_is_a_failed_sync(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        await append(node, 1, [batch_of(1, 0)])
        await asyncio.sleep(2)
        await append(node, 1, [batch_of(1, 1)])
        world.disk.fail_next("sync", prefix="journal-")
        await asyncio.sleep(2)
        assert world.disk.names().count("journal-0000000000000002.log") == 1, "it started over"
        with pytest.raises(LedgerFenced):
            await append(node, 1, [batch_of(1, 2)])

    world.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_no_offset_that_may_have_been_acknowledged_is_free(seed: int) -> None:
    world = NodeWorld(seed)
    acked: list[int] = []

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        for offset in range(200):
            await append(node, 1, [batch_of(1, offset)])
            acked.append(offset)

    world.loop.spawn(world.process, scenario())
    world.loop.run_until_complete(asyncio.sleep(0.004 * seed))
    world.cut()

    async def check() -> None:
        node = await world.open()
        status = await node.fence(LEDGER, FENCER)
        if acked:
            assert status.reserved > acked[-1]
        assert status.last <= max([*acked, -1]) + 1
        for offset in range(status.last + 1):
            try:
                assert await node.read(LEDGER, offset, 1) == [batch_of(1, offset)]
            except EntryMissing:
                continue  # a power cut may take any of them

    world.run(check())
    world.end()


def test_the_reserved_mark_moves_ahead_of_the_offsets(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        for offset in (0, RESERVE_OFFSETS - 1, RESERVE_OFFSETS + 1, 3 * RESERVE_OFFSETS):
            await append(node, 1, [batch_of(1, offset, count=2)])
            (status,) = await node.list()
            assert status.reserved >= offset + 2

    world.run(scenario())
    world.cut(keep=lose, keep_directory=0)

    async def check() -> None:
        node = await world.open()
        assert (await node.fence(LEDGER, FENCER)).reserved >= 3 * RESERVE_OFFSETS + 2

    world.run(check())


def test_a_fsync_ledger_reserves_nothing(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1)
        await append(node, 1, [batch_of(1, 0)])
        assert (await node.fence(LEDGER, FENCER)).reserved == 0

    world.run(scenario())


def test_what_recovery_brings_back_to_a_buffered_ledger_is_synced(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, durability=Durability.BUFFERED)
        await node.fence(LEDGER, FENCER)
        await append(node, 1, [batch_of(1, 0, epoch=MAKER)], epoch=FENCER)

    world.run(scenario())
    world.cut(keep=lose, keep_directory=0)

    async def check() -> None:
        node = await world.open()
        assert await node.read(LEDGER, 0, 1) == [batch_of(1, 0)]

    world.run(check())
