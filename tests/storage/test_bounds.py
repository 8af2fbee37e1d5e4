"""I9: queues, files and ledgers of a node have bounds, with typed errors behind them. And what is set aside stays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pydanube.adapters.system import SystemRandomness
from pydanube.base.durability import Durability
from pydanube.base.errors import NodeBusy, TooManyLedgers
from pydanube.base.ids import LedgerId
from pydanube.base.limits import BATCHES_READ_AT_ONCE, KIB
from pydanube.journal import ledger_table as table
from pydanube.ports.disk import DiskFile
from pydanube.ports.storage import StorageNode
from pydanube.sim.machine.disk import SimDisk, SimFile
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch
from storage.node_world import MAKER, PLENTY, NodeWorld, append, batch_of, create, damaged_ledgers, entry_bytes


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    logging.disable(logging.CRITICAL)
    world = NodeWorld()
    yield world
    world.end()
    logging.disable(logging.NOTSET)


async def flood(node: StorageNode, count: int, *, size: int, room: int) -> None:
    """More at once than there is room for: the first are taken, the rest refused, and none of those overtaken."""
    await node.create(LedgerId(1), MAKER, Durability.FSYNC)
    batches = [batch_of(1, offset, size=size) for offset in range(count)]
    answers = [node.append(LedgerId(1), MAKER, batch, -1) for batch in batches]
    results = await asyncio.gather(*answers, return_exceptions=True)
    taken = [result is None for result in results]
    assert taken == [True] * room + [False] * (count - room)
    assert all(isinstance(result, NodeBusy) for result in results[room:])
    assert await node.read(LedgerId(1), 0, PLENTY) == batches[:room]


def test_a_busy_node_refuses_appends_and_takes_them_again_in_order() -> None:
    size = entry_bytes(1000)
    world = NodeWorld(settings=NodeSettings(file_bytes=256 * KIB, pending_bytes_max=10 * size))

    async def scenario() -> None:
        node = await world.open()
        await flood(node, 25, size=1000, room=10)
        with pytest.raises(NodeBusy):  # the queue is empty by now, but this one would leave a gap
            await node.append(LedgerId(1), MAKER, batch_of(1, 24, size=1000), -1)
        await append(node, 1, [batch_of(1, offset, size=1000) for offset in range(10, 25)])
        everything = {1: [batch_of(1, offset, size=1000) for offset in range(25)]}
        assert await damaged_ledgers(node, everything) == set()

    world.run(scenario())
    world.end()


def test_a_full_memory_node_refuses_appends_and_takes_them_again_in_order() -> None:
    size = batch_of(1, 0, size=1000).memory

    async def scenario() -> None:
        node = MemoryNode(SystemRandomness(), bytes_max=10 * size)
        await flood(node, 25, size=1000, room=10)
        await node.create(LedgerId(2), MAKER, Durability.FSYNC)
        await node.delete(LedgerId(1))
        await node.append(LedgerId(2), MAKER, batch_of(2, 0, size=1000), -1)

    asyncio.run(scenario())


def test_a_ledger_that_is_busy_does_not_hold_up_another(world: NodeWorld) -> None:
    size = entry_bytes(1000)
    world.settings = NodeSettings(file_bytes=256 * KIB, pending_bytes_max=3 * size)

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2)
        answers = [node.append(LedgerId(1), MAKER, batch_of(1, offset, size=1000), -1) for offset in range(5)]
        await asyncio.gather(*answers, return_exceptions=True)
        await append(node, 2, [batch_of(2, 0, size=1000)])

    world.run(scenario())


def test_a_node_keeps_so_many_ledgers(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "NODE_LEDGERS_MAX", 5)

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2, 3, 4, 5)
        with pytest.raises(TooManyLedgers):
            await create(node, 6)
        with pytest.raises(TooManyLedgers):
            await node.fence(LedgerId(7), MAKER)
        await node.delete(LedgerId(1))
        await create(node, 6)

    world.run(scenario())


class CountingDisk(SimDisk):
    """Knows the files that are open."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.files: list[SimFile] = []

    def _count(self, done: asyncio.Future[DiskFile]) -> None:
        if not done.cancelled() and done.exception() is None:
            file = done.result()
            assert isinstance(file, SimFile)
            self.files.append(file)

    def open(self, name: str) -> asyncio.Future[DiskFile]:
        answer = super().open(name)
        answer.add_done_callback(self._count)
        return answer

    def create(self, name: str, *, reserve: int = 0) -> asyncio.Future[DiskFile]:
        answer = super().create(name, reserve=reserve)
        answer.add_done_callback(self._count)
        return answer

    @property
    def opened(self) -> int:
        self.files = [file for file in self.files if not file._closed]
        return len(self.files)


def counting_world() -> tuple[NodeWorld, CountingDisk]:
    world = NodeWorld(settings=NodeSettings(file_bytes=64 * KIB, retry_seconds=0.05))
    disk = CountingDisk(world.loop, world.loop.fork_random("data"), "data")
    world.disks = {"data": disk}
    world.disk = disk
    return world, disk


@pytest.mark.slow
def test_a_node_with_many_files_holds_few_of_them_open() -> None:
    world, disk = counting_world()
    batches = [batch_of(1, offset, size=20_000) for offset in range(700)]

    async def fill() -> None:
        node = await world.open()
        await create(node, 1)
        await append(node, 1, batches)
        assert disk.opened <= 260
        await node.close()
        assert disk.opened == 0

    async def again() -> None:
        node = await world.open()
        assert disk.opened <= 3
        assert await damaged_ledgers(node, {1: batches}) == set()
        assert disk.opened <= 260

    world.run(fill())
    assert len(world.disk.names()) > 600
    world.run(again())
    world.end()


def test_failures_leave_no_file_open() -> None:
    world, disk = counting_world()
    logging.disable(logging.CRITICAL)

    async def scenario() -> None:
        node = await world.open()
        usual = disk.opened
        for ledger in range(1, 30):
            await create(node, ledger)
            disk.fail_next("sync" if ledger % 2 else "write", prefix="journal", count=3)
            disk.fail_next("read", after=ledger % 5)
            with pytest.raises(Exception, match="injected"):
                await append(node, ledger, [batch_of(ledger, 0)])
            await asyncio.sleep(2)
            disk.cure()
        assert disk.opened <= usual + 2
        await node.close()
        assert disk.opened == 0

    world.run(scenario())
    logging.disable(logging.NOTSET)
    world.end()


# -- set aside ---------------------------------------------------------------------------------------------------------


def test_ledgers_that_no_catalogue_knows_are_marked_and_never_deleted(world: NodeWorld) -> None:
    known = frozenset({LedgerId(1), LedgerId(3)})

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2, 3, 4)
        for ledger in (1, 2, 3, 4):
            await append(node, ledger, [batch_of(ledger, 0)])
        assert await node.reconcile_with_catalog(known, LedgerId(5)) == [2, 4]
        await node.reconcile_with_catalog(known, LedgerId(5))

    async def check() -> None:
        node = await world.open()
        marked = {int(status.ledger): status.quarantined for status in await node.list()}
        assert marked == {1: False, 2: True, 3: False, 4: True}
        assert await damaged_ledgers(node, {ledger: [batch_of(ledger, 0)] for ledger in (1, 2, 3, 4)}) == set()
        later = known | {LedgerId(2)}  # a catalogue that was late knows it again
        assert await node.reconcile_with_catalog(later, LedgerId(5)) == [4]

    async def check_again() -> None:
        node = await world.open()
        assert [status.ledger for status in await node.list() if status.quarantined] == [4]

    world.run(scenario())
    world.cut()
    world.run(check())
    world.cut()
    world.run(check_again())


def test_a_ledger_that_was_set_aside_survives_its_journal_file(world: NodeWorld) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2)
        await append(node, 1, [batch_of(1, 0)])
        await node.reconcile_with_catalog(frozenset({LedgerId(2)}), LedgerId(3))
        await append(node, 2, [batch_of(2, offset, size=6000) for offset in range(30)])
        await node.delete(LedgerId(2))
        await asyncio.sleep(2)
        assert "journal-0000000000000001.log" not in world.disk.names(), "it was copied out and removed"
        assert await node.read(LedgerId(1), 0, 1) == [batch_of(1, 0)]

    async def check() -> None:
        node = await world.open()
        (status,) = await node.list()
        assert status.quarantined
        assert await node.read(LedgerId(1), 0, 1) == [batch_of(1, 0)]

    world.run(scenario())
    world.cut()
    world.run(check())


def test_many_small_batches_are_read_in_several_answers(world: NodeWorld) -> None:
    """Each batch takes the loop some microseconds, however small it is."""
    world.settings = NodeSettings(file_bytes=256 * KIB)
    batches = [batch_of(1, offset) for offset in range(3 * BATCHES_READ_AT_ONCE)]

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1)
        await append(node, 1, batches)
        found: list[Batch] = []
        while len(found) < len(batches):
            answer = await node.read(LedgerId(1), len(found), PLENTY)
            assert len(answer) <= BATCHES_READ_AT_ONCE
            found += answer
        assert found == batches

    world.run(scenario())


def test_a_group_of_many_appends_is_confirmed_in_several_turns(world: NodeWorld) -> None:
    """Each confirmation causes others, up to what a client is sent."""
    world.settings = NodeSettings(file_bytes=256 * KIB)

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1)
        answers = [node.append(LedgerId(1), MAKER, batch_of(1, offset), -1) for offset in range(1000)]
        await answers[0]
        done = sum(answer.done() for answer in answers)
        assert done < len(answers), "the others follow in later turns"
        assert all(answer.done() for answer in answers[:done]), "in order"
        await asyncio.gather(*answers)

    world.run(scenario())


def test_what_is_written_is_confirmed_before_the_node_closes(world: NodeWorld) -> None:
    world.settings = NodeSettings(file_bytes=256 * KIB)

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1)
        answers = [node.append(LedgerId(1), MAKER, batch_of(1, offset), -1) for offset in range(1000)]
        await answers[0]
        await node.close()
        assert [answer.exception() for answer in answers] == [None] * len(answers)

    world.run(scenario())
