"""D8: every disk operation of a scripted run fails once, each in a run of its own.

The script creates ledgers of both kinds, appends, rolls, deletes, lets files be copied out, and restarts. Whatever
fails, waiters get a typed error, nothing acknowledged is lost, no ledger is written after a failure of it, the node
continues with new ledgers by itself, and after a restart or a power cut all is as it was acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, DiskFailed, DiskFull, LedgerDamaged, LedgerFenced
from pydanube.base.ids import LedgerId
from pydanube.base.limits import KIB
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch
from storage.node_world import MAKER, NodeWorld, batch_of, damaged_ledgers

SETTINGS = NodeSettings(file_bytes=64 * KIB, retry_seconds=0.05, copy_bytes_per_second=1 << 30)
PATIENCE_SECONDS = 30.0  # of virtual time: by then the node must have gone on


@dataclass
class Script:
    """One run. Goes on in a new ledger whenever one fails, as a stream does."""

    world: NodeWorld
    acked: dict[int, list[Batch]] = field(default_factory=dict)
    buffered: set[int] = field(default_factory=set)
    failed: dict[int, Batch] = field(default_factory=dict)  # by ledger: the first batch that was refused
    errors: list[DanubeError] = field(default_factory=list)
    last_ledger: int = 0

    async def open(self) -> DiskNode:
        for _ in range(5):  # more often than anything fails here
            try:
                return await self.world.open()
            except DanubeError as error:
                self.errors.append(error)
        return await self.world.open()

    async def new_ledger(self, node: DiskNode, durability: Durability) -> int:
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            self.last_ledger += 1
            try:
                await node.create(LedgerId(self.last_ledger), MAKER, durability)
                break
            except DanubeError as error:
                self.errors.append(error)
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.02)
        self.acked[self.last_ledger] = []
        if durability is Durability.BUFFERED:
            self.buffered.add(self.last_ledger)
        return self.last_ledger

    async def append(self, node: DiskNode, ledger: int, count: int, *, size: int) -> int:
        """Appends to the ledger, or to those that follow it; returns the last of them."""
        left = count
        while left:
            batch = batch_of(ledger, len(self.acked[ledger]), size=size)
            try:
                await node.append(LedgerId(ledger), MAKER, batch, -1)
            except DanubeError as error:
                self.errors.append(error)
                self.failed[ledger] = batch
                durability = Durability.BUFFERED if ledger in self.buffered else Durability.FSYNC
                ledger = await self.new_ledger(node, durability)
                continue
            self.acked[ledger].append(batch)
            left -= 1
        return ledger

    async def delete(self, node: DiskNode, ledger: int) -> None:
        batches = self.acked.pop(ledger)
        self.failed.pop(ledger, None)
        try:
            await node.delete(LedgerId(ledger))
        except DanubeError as error:
            self.errors.append(error)
            self.acked.update({} if await self._is_gone(node, ledger) else {ledger: batches})

    async def _is_gone(self, node: DiskNode, ledger: int) -> bool:
        await asyncio.sleep(PATIENCE_SECONDS)  # virtual: until the node has started over, if it does
        return all(status.ledger != ledger for status in await node.list())

    async def run(self) -> DiskNode:
        """Two files of data, of which the first is nearly all deleted and copied out; a restart in the middle."""
        node = await self.open()
        keep = await self.new_ledger(node, Durability.FSYNC)
        loose = await self.new_ledger(node, Durability.BUFFERED)
        keep = await self.append(node, keep, 2, size=100)
        loose = await self.append(node, loose, 2, size=100)
        bulk = await self.new_ledger(node, Durability.FSYNC)
        first = bulk
        bulk = await self.append(node, bulk, 12, size=6000)
        for ledger in range(first, bulk + 1):
            if ledger in self.acked and ledger not in self.buffered:
                await self.delete(node, ledger)
        await asyncio.sleep(1)
        await self.append(node, keep, 2, size=100)
        await node.close()
        node = await self.open()
        keep = await self.new_ledger(node, Durability.FSYNC)
        await self.append(node, keep, 10, size=6000)
        await asyncio.sleep(1)
        return node

    async def check(self, node: DiskNode, *, lost_buffers: bool) -> None:
        strict = {ledger: found for ledger, found in self.acked.items() if found and ledger not in self.buffered}
        assert await damaged_ledgers(node, strict) == set()
        if not lost_buffers and not self.errors:
            loose = {ledger: found for ledger, found in self.acked.items() if found and ledger in self.buffered}
            assert await damaged_ledgers(node, loose) == set()
        for ledger, batch in self.failed.items():
            with pytest.raises((LedgerFenced, LedgerDamaged)):
                await node.append(LedgerId(ledger), MAKER, batch, -1)

    async def check_after_start(self, *, lost_buffers: bool) -> None:
        node = await self.world.open()
        await self.check(node, lost_buffers=lost_buffers)
        await self.append(node, await self.new_ledger(node, Durability.FSYNC), 1, size=100)
        await self.check(node, lost_buffers=lost_buffers)


def lose(write: int, sector: int) -> bool:
    return False


def run_with(kind: str, error: type[DanubeError], after: int, count: int = 1) -> bool:
    """False if the script has no operation `after` of that kind: then all were tried."""
    world = NodeWorld(after, settings=SETTINGS)
    script = Script(world)
    world.disk.fail_next(kind, error, after=after, count=count)
    try:
        node = world.run(script.run())
        fired = world.disk.operations[kind] > after
        world.disk.cure()
        world.run(script.check(node, lost_buffers=False))
        if after % 2:
            world.cut(keep=lose, keep_directory=0)
        else:
            world.restart()
        world.run(script.check_after_start(lost_buffers=after % 2 == 1))
    except Exception as problem:
        world.loop.shutdown()
        problem.add_note(f"{kind} {after}")
        raise
    world.end()
    return fired


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


KINDS = ["write", "sync", "rename", "create", "remove", "read", "sync_directory", "open", "list", "size"]


def test_the_script_rolls_copies_out_and_removes_when_nothing_fails() -> None:
    world = NodeWorld(settings=SETTINGS)
    script = Script(world)
    world.run(script.run())
    assert script.errors == []
    assert [name for name in world.disk.names() if name.startswith("kept-")] != []
    assert "journal-0000000000000001.log" not in world.disk.names()
    assert min(world.disk.operations[kind] for kind in KINDS) > 0
    world.end()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_operation_fails_once(kind: str) -> None:
    after = 0
    while run_with(kind, DiskFailed, after):
        after += 1
    assert after > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["write", "sync", "create", "rename"])
def test_three_operations_in_a_row_fail(kind: str) -> None:
    after = 0
    while run_with(kind, DiskFailed, after, 3):
        after += 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["write", "create"])
def test_each_operation_finds_the_disk_full_once(kind: str) -> None:
    after = 0
    while run_with(kind, DiskFull, after):
        after += 1
