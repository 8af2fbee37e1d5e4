"""§9: several data directories and a journal of its own. A disk that fails or is missing harms only what lies on it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator

import pytest

from pydanube.base.errors import (
    DanubeError,
    DiskFailed,
    DiskFull,
    EntryMissing,
    LedgerDamaged,
    LedgerFenced,
    LedgerNotFound,
)
from pydanube.base.ids import LedgerId
from pydanube.base.limits import DATA_DIRECTORIES_MAX, KIB
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch
from storage.node_world import FENCER, MAKER, NodeWorld, append, batch_of, create, damaged_ledgers, until

SETTINGS = NodeSettings(
    file_bytes=64 * KIB, journal_bytes_max=64 * KIB, copy_bytes_per_second=1 << 30, retry_seconds=0.05
)
LEDGERS = range(1, 7)
EVEN, ODD = {2, 4, 6}, {1, 3, 5}  # which of the two data directories takes them over


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld(disks=("journal", "one", "two"), settings=SETTINGS)
    world.journal = world.disks["journal"]
    yield world
    world.end()


ACKED: dict[int, list[Batch]] = {
    ledger: [batch_of(ledger, offset, size=3000) for offset in range(12)] for ledger in LEDGERS
}


async def filled(world: NodeWorld) -> DiskNode:
    """Everything but the newest entries has left the journal's disk for the two others."""
    node = await world.open()
    await create(node, *LEDGERS)
    for offset in range(12):
        for ledger in LEDGERS:
            await append(node, ledger, [ACKED[ledger][offset]])
    await asyncio.sleep(2)
    return node


def on_disk(world: NodeWorld, name: str, kind: str) -> int:
    return sum(file.startswith(kind) and file.endswith(".log") for file in world.disks[name].names())


def test_the_journal_stays_on_its_disk_and_what_outlives_it_on_the_others(world: NodeWorld) -> None:
    node = world.run(filled(world))
    assert (on_disk(world, "one", "kept-") > 0, on_disk(world, "two", "kept-") > 0) == (True, True)
    assert (on_disk(world, "one", "journal-"), on_disk(world, "two", "journal-")) == (0, 0)
    assert on_disk(world, "journal", "kept-") == 0
    assert on_disk(world, "journal", "journal-") <= 3
    assert world.run(damaged_ledgers(node, ACKED)) == set()
    world.restart()

    async def again() -> None:
        assert await damaged_ledgers(await world.open(), ACKED) == set()

    world.run(again())


async def harm_of(node: DiskNode) -> set[int]:
    """Ledgers of which something cannot be read. An absence of what was acknowledged fails the test."""
    harmed = set()
    for ledger, batches in ACKED.items():
        for batch in batches:
            try:
                assert await node.read(LedgerId(ledger), batch.base_offset, 1) == [batch]
            except (EntryMissing, LedgerNotFound) as error:
                raise AssertionError(f"ledger {ledger}, offset {batch.base_offset}: a false absence") from error
            except (LedgerDamaged, DiskFailed):
                harmed.add(ledger)
    return harmed


def test_ledgers_of_a_data_directory_that_cannot_be_read_are_recovered_all_the_same(world: NodeWorld) -> None:
    """Nothing was ever above what the node had queued, so an absence there proves that the ledger ends."""
    node = world.run(filled(world))
    world.disks["two"].fail_next("read", count=1_000_000)

    async def scenario() -> None:
        assert await harm_of(node)
        for ledger in LEDGERS:
            status = await node.fence(LedgerId(ledger), FENCER)
            await node.append(LedgerId(ledger), FENCER, ACKED[ledger][11], 10)  # as recovery does
            with pytest.raises(EntryMissing):
                await node.read(LedgerId(ledger), status.last + 1, 1)
            await node.seal(LedgerId(ledger), FENCER, status.last)
        world.disks["two"].cure()
        assert await harm_of(node) == set()

    world.run(scenario())


@pytest.mark.slow
def test_a_data_directory_that_fails_harms_only_its_ledgers(world: NodeWorld) -> None:
    node = world.run(filled(world))
    world.disks["two"].fail_next("read", count=1_000_000)

    async def scenario() -> None:
        harmed = await harm_of(node)
        assert harmed in (EVEN, ODD)
        for ledger in LEDGERS:
            status = next(status for status in await node.list() if status.ledger == ledger)
            assert status.damaged == (ledger in harmed)
        for ledger in LEDGERS:
            again = node.append(LedgerId(ledger), MAKER, batch_of(ledger, 12), -1)
            if ledger in harmed:
                with pytest.raises((LedgerDamaged, LedgerFenced)):
                    await again
            else:
                await again

    world.run(scenario())


def test_a_data_directory_that_is_missing_at_a_start_harms_only_its_ledgers_and_only_until_it_is_back(
    world: NodeWorld,
) -> None:
    world.run(filled(world))
    world.restart()
    world.disks["two"].fail_next("lock")

    async def without() -> set[int]:
        node = await world.open()
        harmed = await harm_of(node)
        assert {int(status.ledger) for status in await node.list() if status.damaged} == harmed
        with pytest.raises(LedgerDamaged):
            await node.read(LedgerId(min(harmed)), 100, 1)  # it may lie there: nobody can tell
        with pytest.raises(EntryMissing):
            await node.read(LedgerId(min(set(LEDGERS) - harmed)), 100, 1)
        await create(node, 20)
        await append(node, 20, [batch_of(20, offset, size=3000) for offset in range(40)])  # rolls, and copies out
        await asyncio.sleep(2)
        return harmed

    harmed = world.run(without())
    assert harmed in (EVEN, ODD)
    world.restart()

    async def back() -> None:
        node = await world.open()
        assert await harm_of(node) == set()
        assert [status.ledger for status in await node.list() if status.damaged] == []
        with pytest.raises(EntryMissing):
            await node.read(LedgerId(min(harmed)), 100, 1)

    world.run(back())


def test_a_data_directory_that_lost_its_files_never_denies_them(world: NodeWorld) -> None:
    """Replaced by an empty disk: it gets a number of its own, and what the old one held is not denied."""
    world.run(filled(world))
    world.restart()
    world.disks["two"].load({})

    async def scenario() -> None:
        node = await world.open()
        harmed = await harm_of(node)
        assert harmed in (EVEN, ODD)
        await create(node, 20)
        await append(node, 20, [batch_of(20, 0)])

    world.run(scenario())


def test_a_data_directory_that_cannot_be_written_keeps_what_it_should_take_in_the_journal(world: NodeWorld) -> None:
    world.disks["two"].fail_next("write", count=1_000_000, prefix="kept")
    node = world.run(filled(world))

    async def scenario() -> None:
        assert await harm_of(node) == set()
        await append(node, 1, [batch_of(1, 12)])

    world.run(scenario())
    world.disks["two"].cure()

    async def heal() -> None:
        await asyncio.sleep(120)
        assert await harm_of(node) == set()

    world.run(heal())
    assert on_disk(world, "two", "kept-") > 0
    assert on_disk(world, "journal", "journal-") <= 3


@pytest.mark.slow
@pytest.mark.parametrize("error", [DiskFailed, DiskFull])
def test_a_new_data_directory_that_cannot_be_written_costs_no_number(
    world: NodeWorld, error: type[DanubeError]
) -> None:
    world.disks["two"].fail_next("create", error, count=1_000_000, prefix="node")

    async def start() -> tuple[int, list[int]]:
        node = await world.open()
        await node.close()
        return node._disks.belongings.node.slots, sorted(node._disks.data)

    for _ in range(2 * DATA_DIRECTORIES_MAX):
        assert world.run(start()) == (2, [1])
    world.disks["two"].cure()
    assert world.run(start()) == (3, [1, 2])


@pytest.mark.parametrize("kind", ["lock", "open"])
def test_a_data_directory_that_is_full_is_left_out_like_one_that_failed(world: NodeWorld, kind: str) -> None:
    world.run(filled(world))
    world.restart()
    world.disks["two"].fail_next(kind, DiskFull)

    async def scenario() -> set[int]:
        node = await world.open()
        harmed = await harm_of(node)
        await node.close()
        return harmed

    assert world.run(scenario()) in (EVEN, ODD)
    assert world.run(scenario()) == set()


@pytest.mark.slow
def test_a_copy_that_was_under_way_when_a_disk_went_missing_loses_nothing() -> None:
    """Its file on one disk has its name already, the one on the other has not, and there lies one of its sources."""
    settings = NodeSettings(file_bytes=64 * KIB, copy_below=0.5, copy_bytes_per_second=1 << 30)
    world = NodeWorld(disks=("journal", "one", "two"), settings=settings)
    world.journal, one, two = world.disks.values()
    large = [batch_of(9, offset, size=6000) for offset in range(11)]
    left = {1: [batch_of(1, 0, size=900), batch_of(1, 1)], 2: [batch_of(2, 0)]}

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2, 8, 9)
        await append(node, 9, large[:2])
        await append(node, 1, left[1][:1])
        await append(node, 8, [batch_of(8, offset, size=6000) for offset in range(3)])
        await append(node, 9, large[2:3])  # in the second file from here on
        await append(node, 2, left[2])
        await append(node, 1, left[1][1:])
        await node.delete(LedgerId(8))
        await asyncio.sleep(1)
        assert [name for name in two.names() if name.startswith("kept-")], "the first file was copied out"
        await append(node, 9, large[3:])
        two.slow(30.0)
        await node.delete(LedgerId(9))  # makes the copy and the second file sparse at once
        await until(lambda: any(re.match(r"kept-.*\.log$", name) for name in one.names()), 600)

    world.run(scenario())
    assert len([name for name in two.names() if name.startswith("kept-") and name.endswith(".log")]) == 1
    world.cut(keep=lambda write, sector: False, keep_directory=0)
    two.cure()
    two.fail_next("lock")

    async def without() -> None:
        node = await world.open()
        await asyncio.sleep(2)
        await node.close()

    async def back() -> None:
        assert await damaged_ledgers(await world.open(), left) == set()

    world.run(without())
    world.run(back())
    world.end()


def test_a_missing_journal_directory_stops_the_start(world: NodeWorld) -> None:
    world.run(filled(world))
    world.restart()
    world.disks["journal"].fail_next("lock")

    async def scenario() -> None:
        with pytest.raises(DiskFailed):
            await world.open()
        node = await world.open()
        assert await harm_of(node) == set()
        for ledger in LEDGERS:
            status = await node.fence(LedgerId(ledger), FENCER)
            assert status.last == 11

    world.run(scenario())


def test_a_node_needs_a_data_directory_that_works(world: NodeWorld) -> None:
    for name in ("one", "two"):
        world.disks[name].fail_next("lock")

    async def scenario() -> None:
        with pytest.raises(DanubeError):
            await world.open()
        await world.open()

    world.run(scenario())
