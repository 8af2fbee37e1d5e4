"""Storage nodes on simulated disks, batches that can be told apart, and the question every test of damage asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import LedgerDamaged
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId
from pydanube.base.limits import KIB
from pydanube.ports.storage import StorageNode
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch, build

SMALL = NodeSettings(file_bytes=64 * KIB)
MAKER, FENCER = Epoch(1), Epoch(2)
PLENTY = 1 << 24
Image = dict[str, dict[str, tuple[int, bytes]]]  # of every disk


def batch_of(ledger: int, offset: int, *, count: int = 1, size: int = 20, epoch: int = MAKER) -> Batch:
    """The one batch that belongs there; `size` is of each payload."""
    payloads = [f"{ledger}/{number} ".encode().ljust(size, b".") for number in range(offset, offset + count)]
    return build(payloads, publish_time=1).stamped(offset, epoch, 1)


def entry_bytes(size: int) -> int:
    """What a batch of one payload of `size` bytes takes."""
    return batch_of(1, 0, size=size).size


class NodeWorld:
    """One node, its disks (the first has the journal), and the process it runs in."""

    def __init__(
        self, seed: int = 0, *, disks: Sequence[str] = ("data",), settings: NodeSettings = SMALL, **options: Any
    ) -> None:
        self.loop = SimLoop(seed)
        self.settings = settings
        self.disks = {name: SimDisk(self.loop, self.loop.fork_random(name), name, **options) for name in disks}
        self.disk = next(iter(self.disks.values()))
        self.process = self.loop.process("node")
        self.randomness = SimRandomness(Random(seed))
        self.journal: SimDisk | None = None  # a disk of its own for the journal

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(self.loop.spawn(self.process, coroutine))

    async def open(self) -> DiskNode:
        data = [disk for disk in self.disks.values() if disk is not self.journal]
        return await DiskNode.open(data, self.settings, self.randomness, journal=self.journal)

    def restart(self) -> None:
        """As kill -9: what the operating system has, it keeps."""
        self.loop.kill(self.process)
        self.process = self.loop.process("node")

    def cut(self, **choices: Any) -> None:
        self.loop.kill(self.process)
        for disk in self.disks.values():
            disk.power_cut(**choices)
        self.process = self.loop.process("node")

    def image(self) -> Image:
        return {name: disk.image() for name, disk in self.disks.items()}

    def load(self, image: Image) -> None:
        for name, disk in self.disks.items():
            disk.load(image[name])

    def end(self) -> None:
        failures = self.loop.failures
        self.loop.shutdown()
        assert failures == []


def ledgers(*numbers: int) -> list[LedgerId]:
    return [LedgerId(number) for number in numbers]


async def create(node: StorageNode, *numbers: int, durability: Durability = Durability.FSYNC) -> None:
    await asyncio.gather(*(node.create(ledger, MAKER, durability) for ledger in ledgers(*numbers)))


async def append(node: StorageNode, ledger: int, batches: Iterable[Batch], *, epoch: Epoch = MAKER) -> None:
    """One after the other, so that each is in a group of its own."""
    for batch in batches:
        await node.append(LedgerId(ledger), epoch, batch, max(batch.base_offset - 1, NO_OFFSET))


async def outcome(node: StorageNode, ledger: int, batch: Batch) -> str:
    """`whole` or `damaged`; wrong bytes fail, and an absence is raised as what it is."""
    try:
        found = await node.read(LedgerId(ledger), batch.base_offset, 1)
    except LedgerDamaged:
        return "damaged"
    assert found == [batch], f"ledger {ledger}, offset {batch.base_offset}: {found} instead of {batch}"
    return "whole"


Acked = Mapping[int, Sequence[Batch]]  # by ledger, in offset order


async def damaged_ledgers(node: StorageNode, acked: Acked) -> set[int]:
    """Reads everything that was ever acknowledged; the ledgers of which something is damaged."""
    harmed = set()
    for ledger, batches in acked.items():
        try:
            found = await node.read(LedgerId(ledger), batches[0].base_offset, PLENTY)
        except LedgerDamaged:
            found = []
        assert found == batches[: len(found)]
        for batch in batches[len(found) :]:
            if await outcome(node, ledger, batch) == "damaged":
                harmed.add(ledger)
    return harmed


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Lets time pass, a millisecond at a time, until it holds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came to pass"
        await asyncio.sleep(0.001)
