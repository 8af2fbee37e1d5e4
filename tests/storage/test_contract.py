"""Every kind of storage node keeps the public contract: on real and simulated disks, in memory, across a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.base.ids import Epoch, LedgerId
from pydanube.base.limits import KIB
from pydanube.ports.storage import LedgerStatus, StorageNode
from pydanube.sim.machine.network import Link, SimNetwork
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.node.registry import ClosableNode, Opening
from pydanube.storage.node.remote import NodeServer, RemoteCaller
from pydanube.storage.node.settings import NodeSettings
from pydanube.testing.storage_contract import DurableNodeContract, StorageNodeContract
from pydanube.wire.batch import Batch
from storage.node_world import NodeWorld
from storage.toy_node import ToyNode

SETTINGS = NodeSettings(file_bytes=64 * KIB)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
class TestDiskNodeOnARealDisk(DurableNodeContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, loop: str) -> Iterator[None]:
        self.loop = loop
        self.disk = PosixDisk(tmp_path)
        yield
        self.disk.close()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if self.loop == "uvloop" else None) as runner:
            runner.run(coroutine)

    async def open_node(self) -> StorageNode:
        return await DiskNode.open([self.disk], SETTINGS, SystemRandomness())

    async def reopen_node(self, node: StorageNode) -> StorageNode:
        await self.close_node(node)
        return await self.open_node()


@pytest.mark.parametrize("seed", range(5))
class TestDiskNodeOnASimulatedDisk(DurableNodeContract):
    @pytest.fixture(autouse=True)
    def _world(self, seed: int) -> Iterator[None]:
        self.world = NodeWorld(seed)
        yield
        self.world.end()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.world.run(coroutine)

    async def open_node(self) -> StorageNode:
        return await self.world.open()

    async def reopen_node(self, node: StorageNode) -> StorageNode:
        await self.close_node(node)
        return await self.open_node()


class TestMemoryNode(StorageNodeContract):
    async def open_node(self) -> StorageNode:
        return MemoryNode(SystemRandomness())


class TestToyNode(StorageNodeContract):
    async def open_node(self) -> StorageNode:
        return ToyNode(Opening(SystemRandomness()))


class Remote:
    """A node in another process, behind a network that doubles messages and lets them overtake each other."""

    @pytest.fixture(autouse=True)
    def _world(self, seed: int) -> Iterator[None]:
        self.world = NodeWorld(seed)
        link = Link(duplication=0.1)  # no loss: a lost request would be the caller's to repeat
        self.network = SimNetwork(self.world.loop, self.world.loop.fork_random("network"), link)
        self.caller = self.world.loop.process("caller")
        self.served: ClosableNode | None = None
        yield
        self.world.end()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.world.loop.run_until_complete(self.world.loop.spawn(self.caller, coroutine))

    async def open_here(self) -> ClosableNode:
        raise NotImplementedError

    async def open_node(self) -> StorageNode:
        async def serve() -> ClosableNode:
            node = await self.open_here()
            endpoint = self.network.endpoint("node", self.world.process)
            endpoint.listen(NodeServer(node, endpoint).receive)
            return node

        self.served = await self.world.loop.spawn(self.world.process, serve())
        endpoint = self.network.endpoint("caller", self.caller)
        remote = RemoteCaller(endpoint, "one life")
        endpoint.listen(remote.receive)
        return remote.node("node", self.served.identity)

    async def close_node(self, node: StorageNode) -> None:
        assert self.served is not None
        await self.world.loop.spawn(self.world.process, self.served.close())


@pytest.mark.parametrize("seed", range(3))
class TestRemoteDiskNode(Remote, DurableNodeContract):
    async def open_here(self) -> ClosableNode:
        return await self.world.open()

    async def reopen_node(self, node: StorageNode) -> StorageNode:
        await self.close_node(node)
        return await self.open_node()


@pytest.mark.parametrize("seed", range(3))
class TestRemoteMemoryNode(Remote, StorageNodeContract):
    async def open_here(self) -> ClosableNode:
        return MemoryNode(SimRandomness(Random(1)))


# -- the contract finds what it looks for ------------------------------------------------------------------------------


class ForgetsFences(ToyNode):
    def fence(self, ledger: LedgerId, epoch: Epoch) -> asyncio.Future[LedgerStatus]:
        answer = super().fence(ledger, epoch)
        if ledger in self._ledgers:
            self._ledgers[ledger].owner = self._ledgers[ledger].maker
        return answer


class KeepsTheLastOfTwo(ToyNode):
    def append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> asyncio.Future[None]:
        if ledger in self._ledgers:
            toy = self._ledgers[ledger]
            toy.entries = [other for other in toy.entries if other.base_offset != batch.base_offset]
        return super().append(ledger, epoch, batch, confirmed)


class ReadsAcrossGaps(ToyNode):
    def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> asyncio.Future[list[Batch]]:
        answer = super().read(ledger, offset, bytes_max)
        if answer.exception() is None:
            found = [batch for batch in self._ledgers[ledger].entries if batch.last_offset >= offset]
            answer = self._do(lambda: found)
        return answer


class ShowsWhatIsAboveTheSeal(ToyNode):
    def seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> asyncio.Future[None]:
        answer = super().seal(ledger, epoch, last)
        if ledger in self._ledgers:
            self._ledgers[ledger].end = 1 << 40
        return answer


class DeletesTooMuch(ToyNode):
    def delete(self, ledger: LedgerId) -> asyncio.Future[None]:
        return self._do(self._ledgers.clear)


MISTAKES = [ForgetsFences, KeepsTheLastOfTwo, ReadsAcrossGaps, ShowsWhatIsAboveTheSeal, DeletesTooMuch]


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_the_contract_finds_a_planted_mistake(kind: type[ToyNode]) -> None:
    class Contract(StorageNodeContract):
        async def open_node(self) -> StorageNode:
            return kind(Opening(SystemRandomness()))

    tests: list[Callable[[], None]] = [getattr(Contract(), name) for name in dir(Contract) if name.startswith("test_")]
    failed = []
    for test in tests:
        try:
            test()
        except Exception as error:
            failed.append(error)
    assert failed
