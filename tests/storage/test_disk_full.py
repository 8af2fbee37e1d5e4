"""D9: a full disk refuses appends with a typed error, goes on reading and deleting, and then takes appends again."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, DiskFull, LedgerFenced, LedgerNotFound
from pydanube.base.ids import LedgerId
from pydanube.base.limits import KIB, MIB
from pydanube.storage.node import journal
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch
from storage.node_world import MAKER, PLENTY, NodeWorld, batch_of, damaged_ledgers, until

MOUNT_BYTES = 64 * MIB
CYCLES = 5
PATIENCE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={MOUNT_BYTES}", "danube-test", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    yield tmp_path
    for _ in range(50):  # the last descriptors are closed by the disk's threads
        done = subprocess.run(["umount", str(tmp_path)], capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    if done.returncode != 0:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
    assert done.returncode == 0, f"a file was left open: {done.stderr}"


async def until_it_works(work: Callable[[], Awaitable[object]]) -> None:
    """Tries again while the disk is full: the node must continue without help."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while True:
        try:
            await work()
            return
        except (DiskFull, LedgerFenced):
            if loop.time() > deadline:
                raise
        await asyncio.sleep(0.01)


class Filler:
    """A writer that continues in new ledgers, and remembers what was acknowledged."""

    def __init__(self, *, size: int, ledger_entries: int) -> None:
        self.acked: dict[int, list[Batch]] = {}
        self._size = size
        self._ledger_entries = ledger_entries
        self._last_ledger = 0

    async def new_ledger(self, node: DiskNode) -> int:
        self._last_ledger += 1
        await node.create(LedgerId(self._last_ledger), MAKER, Durability.FSYNC)
        self.acked[self._last_ledger] = []
        return self._last_ledger

    async def append(self, node: DiskNode, ledger: int) -> None:
        """A burst; what was acknowledged of it counts, also if the rest was not."""
        first = len(self.acked[ledger])
        batches = [batch_of(ledger, first + number, size=self._size) for number in range(8)]
        answers = await asyncio.gather(
            *(node.append(LedgerId(ledger), MAKER, batch, -1) for batch in batches), return_exceptions=True
        )
        done = [answer is None for answer in answers]
        assert done == sorted(done, reverse=True), "a later entry overtook one that was refused"
        self.acked[ledger] += batches[: sum(done)]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def fill(self, node: DiskNode) -> DanubeError:
        """Until the disk is full; the error that said so."""
        try:
            while True:
                ledger = await self.new_ledger(node)
                while len(self.acked[ledger]) < self._ledger_entries:
                    await self.append(node, ledger)
        except DiskFull as error:
            return error

    async def free(self, node: DiskNode, part: int) -> None:
        """Deletes all but every `part`th ledger."""
        for ledger in list(self.acked):
            if ledger % part:
                await until_it_works(partial(node.delete, LedgerId(ledger)))
                del self.acked[ledger]

    async def check(self, node: DiskNode) -> None:
        held = {ledger: batches for ledger, batches in self.acked.items() if batches}
        assert await damaged_ledgers(node, held) == set()
        listed = {int(status.ledger) for status in await node.list()}
        assert listed >= held.keys()
        for ledger in range(1, self._last_ledger + 1):
            if ledger not in self.acked:
                with pytest.raises(LedgerNotFound):
                    await node.read(LedgerId(ledger), 0, PLENTY)

    async def append_somewhere_new(self, node: DiskNode) -> None:
        await self.append(node, await self.new_ledger(node))


@pytest.mark.slow
def test_five_times_full_and_free_again_on_a_real_file_system(small_disk: Path) -> None:
    settings = NodeSettings(file_bytes=4 * MIB, retry_seconds=0.02)

    async def scenario() -> None:
        filler = Filler(size=100 * KIB, ledger_entries=16)
        node = await DiskNode.open([disk], settings, SystemRandomness())
        for cycle in range(CYCLES):
            await filler.fill(node)
            await filler.check(node)
            await filler.free(node, part=8)
            await until_it_works(partial(filler.append_somewhere_new, node))
            await filler.check(node)
            if cycle % 2:
                await node.close()
                node = await DiskNode.open([disk], settings, SystemRandomness())
                await filler.check(node)
        await node.close()

    disk = PosixDisk(small_disk)
    try:
        asyncio.run(scenario())
    finally:
        disk.close()


SMALL_FILES = NodeSettings(file_bytes=256 * KIB, retry_seconds=0.02)
ROOM = 2 * MIB


async def opened(world: NodeWorld) -> DiskNode:
    """A node killed repeatedly on a full disk may no longer start; it says so, and does with a little room."""
    try:
        return await world.open()
    except DiskFull:
        assert world.disk.capacity is not None
        world.disk.capacity += 256 * KIB
        return await world.open()


@pytest.mark.parametrize("seed", range(10))
def test_five_times_full_and_free_again_on_a_simulated_disk(seed: int) -> None:
    world = NodeWorld(seed, settings=SMALL_FILES, capacity=ROOM)
    filler = Filler(size=3000, ledger_entries=16)

    async def cycle() -> None:
        node = await opened(world)
        await filler.check(node)
        await filler.fill(node)
        await filler.check(node)
        await filler.free(node, part=6)
        await until_it_works(lambda: filler.append_somewhere_new(node))
        await filler.check(node)

    for _ in range(CYCLES):
        world.run(cycle())
        world.cut()
    world.end()


@pytest.mark.parametrize("seed", range(10))
def test_a_node_starts_on_a_full_disk_and_makes_room_by_deleting(seed: int) -> None:
    world = NodeWorld(seed, settings=SMALL_FILES, capacity=ROOM)
    filler = Filler(size=3000, ledger_entries=16)

    async def fill() -> None:
        await filler.fill(await world.open())

    async def go_on() -> None:
        node = await world.open()
        await filler.check(node)
        await filler.free(node, part=6)
        await until_it_works(lambda: filler.append_somewhere_new(node))
        await filler.check(node)

    world.run(fill())
    world.cut()
    world.run(go_on())
    world.end()


@pytest.mark.parametrize("seed", range(10))
def test_control_records_are_taken_while_appends_are_refused(seed: int) -> None:
    """A create, fence, seal or delete that was applied is also logged, whatever shares its group."""
    world = NodeWorld(seed, settings=SMALL_FILES, capacity=ROOM)
    filler = Filler(size=3000, ledger_entries=16)
    deleted: list[int] = []

    async def scenario() -> None:
        node = await world.open()
        await filler.fill(node)
        ledgers = [ledger for ledger in filler.acked if filler.acked[ledger]]
        for ledger in ledgers[:5]:
            appends = [
                node.append(LedgerId(other), MAKER, batch_of(other, 1000, size=3000), -1) for other in ledgers[5:8]
            ]
            deletion = node.delete(LedgerId(ledger))
            answers = await asyncio.gather(deletion, *appends, return_exceptions=True)
            assert answers[0] is None
            deleted.append(ledger)
            del filler.acked[ledger]

    async def check() -> None:
        await filler.check(await world.open())

    world.run(scenario())
    world.cut(keep=lambda write, sector: False, keep_directory=0)
    world.run(check())
    assert deleted
    world.end()


def test_a_batch_larger_than_a_journal_file_finds_room_or_is_refused() -> None:
    """Its file must be longer than the spare one that was set aside, so the disk may be full only then."""
    world = NodeWorld(settings=SMALL_FILES, capacity=640 * KIB)

    async def scenario() -> None:
        node = await world.open()
        await node.create(LedgerId(1), MAKER, Durability.FSYNC)
        await node.append(LedgerId(1), MAKER, batch_of(1, 0), -1)
        with pytest.raises(DanubeError):
            await node.append(LedgerId(1), MAKER, batch_of(1, 1, size=500 * KIB), 0)
        await until_it_works(lambda: node.create(LedgerId(2), MAKER, Durability.FSYNC))
        await node.append(LedgerId(2), MAKER, batch_of(2, 0), -1)
        assert await node.read(LedgerId(1), 0, PLENTY) == [batch_of(1, 0)]

    world.run(scenario())
    world.end()


def test_a_small_entry_does_not_overtake_a_large_one_that_found_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait in groups of their own; the second would fit, but its ledger has a gap now."""
    monkeypatch.setattr(journal, "GROUP_BYTES_TARGET", 1)
    world = NodeWorld(settings=SMALL_FILES)

    async def scenario() -> None:
        node = await world.open()
        await node.create(LedgerId(1), MAKER, Durability.FSYNC)
        await until(lambda: node._roller.has_spare)
        world.disk.capacity = sum(size for size, _ in world.disk.image().values())
        offset = 0
        while not node._roller.disk_full:  # the spare is in use, and there is no room for another
            await node.append(LedgerId(1), MAKER, batch_of(1, offset, size=20 * KIB), -1)
            offset += 1
        sizes = (20 * KIB, 200 * KIB, 10, 10)
        batches = [batch_of(1, offset + at, size=size) for at, size in enumerate(sizes)]
        answers = [node.append(LedgerId(1), MAKER, batch, -1) for batch in batches]
        first, *others = await asyncio.gather(*answers, return_exceptions=True)
        assert first is None
        assert all(isinstance(answer, DiskFull | LedgerFenced) for answer in others)
        await node.create(LedgerId(2), MAKER, Durability.FSYNC)
        await node.append(LedgerId(2), MAKER, batch_of(2, 0), -1)  # there is room for this one

    world.run(scenario())
    world.end()
