"""D3: the power goes during a write. Any subset of its last eight sectors lands, in any order; the rest does or not."""

from __future__ import annotations

import asyncio

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import EntryMissing
from pydanube.base.ids import LedgerId
from pydanube.ports.storage import LedgerState
from pydanube.sim.machine.platter import SECTOR_BYTES
from storage.node_world import FENCER, MAKER, PLENTY, Image, NodeWorld, batch_of

ACKED = {1: [batch_of(1, 0), batch_of(1, 1, size=3000)], 2: [batch_of(2, 0, count=4)]}
TORN = {1: batch_of(1, 2, size=3000), 2: batch_of(2, 4, count=3, size=500)}
LAST = 8  # sectors


@pytest.fixture(scope="module")
def image() -> Image:
    """Two ledgers with a little in each, idle and closed for good."""
    world = NodeWorld()

    async def scenario() -> None:
        node = await world.open()
        for ledger, batches in ACKED.items():
            await node.create(LedgerId(ledger), MAKER, Durability.FSYNC)
            for batch in batches:
                await node.append(LedgerId(ledger), MAKER, batch, -1)
        await node.close()

    world.run(scenario())
    image = world.image()
    world.end()
    return image


async def write_under_way(world: NodeWorld) -> None:
    """Fenced by a new epoch, which appends to both ledgers at once: one group, whose write never completes."""
    node = await world.open()
    for ledger in TORN:
        await node.fence(LedgerId(ledger), FENCER)
    world.disk.cut_at = world.disk.boundaries
    frozen = asyncio.get_running_loop().create_future()
    world.disk.on_cut = lambda: frozen.set_result(None)
    for ledger, batch in TORN.items():
        node.append(LedgerId(ledger), FENCER, batch, -1)
    await frozen


async def check(world: NodeWorld) -> set[int]:
    """The ledgers whose torn entry is there, whole."""
    node = await world.open()
    assert node.damage == []
    there = set()
    for ledger, batches in ACKED.items():
        found = await node.read(LedgerId(ledger), 0, PLENTY)
        assert found[: len(batches)] == batches
        try:
            assert await node.read(LedgerId(ledger), TORN[ledger].base_offset, PLENTY) == [TORN[ledger]]
            there.add(ledger)
        except EntryMissing:
            pass
        status = await node.fence(LedgerId(ledger), FENCER)
        assert status.state is LedgerState.FENCED
        assert not status.damaged
        await node.append(LedgerId(ledger), FENCER, TORN[ledger], -1)  # recovery continues where it was
        await node.seal(LedgerId(ledger), FENCER, TORN[ledger].last_offset)
    return there


@pytest.mark.slow
@pytest.mark.parametrize("rest", [True, False], ids=["the rest landed", "nothing else landed"])
def test_every_subset_of_the_last_eight_sectors(image: Image, rest: bool) -> None:
    seen: dict[int, set[int]] = {}
    for subset in range(1 << LAST):
        world = NodeWorld(subset)
        world.load(image)
        world.run(write_under_way(world))
        writes = [(at, length // SECTOR_BYTES) for at, (_, _, length) in enumerate(world.disk.unsynced())]
        ((number, sectors),) = [write for write in writes if write[1] > LAST]

        def keep(at: int, sector: int, number: int = number, first: int = sectors - LAST, subset: int = subset) -> bool:
            if at != number or sector < first:
                return rest
            return bool(subset >> (sector - first) & 1)

        world.cut(keep=keep, keep_directory=0)
        seen[subset] = world.run(check(world))
        world.end()
    whole = (1 << LAST) - 1
    assert seen[whole] == (set(TORN) if rest else set())
    assert all(found in (set(), set(TORN)) for found in seen.values()), "a group is taken whole or not at all"
    if rest:
        assert not any(found for subset, found in seen.items() if not subset >> LAST - 1), "its trailer is in the last"
