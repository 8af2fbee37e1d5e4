"""Storage nodes and brokers on a simulated network, each on its own machine or all on one."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from asyncio import Future
from dataclasses import dataclass
from typing import Any, cast

from pydanube.base.errors import DanubeError, NodeUnreachable, QuorumLost
from pydanube.base.ids import LedgerId, NodeIdentity
from pydanube.ports.storage import StorageNode
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.world.world import Machine, World
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.remote import NodeServer, RemoteCaller

CALL_SECONDS = 1.0


class SimNodes:
    """The storage nodes as one broker sees them: by identity, on whichever machine they are now."""

    def __init__(self, world: World, caller: RemoteCaller | None, local: DiskNode | None) -> None:
        self._world = world
        self._caller = caller
        self._local = local
        self._random = world.loop.fork_random(f"choose/{world.loop.events}")

    def get(self, identity: NodeIdentity) -> StorageNode:
        name = self._world.addresses[identity]
        if self._local is not None and identity == self._local.identity:
            node: StorageNode = self._local
        else:
            assert self._caller is not None
            node = self._caller.node(name, identity)
        return node if name not in self._world.deaf else cast(StorageNode, DeafNode(node, self._world.deaf[name]))

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        """Chooses like a membership service: nodes that seem to be up first, in random order."""
        if self._local is not None:
            return [self._local.identity]
        storage = self._random.sample(self._world.storage, len(self._world.storage))
        known = [machine for machine in storage if machine.identity is not None]
        if len(known) < count:
            raise QuorumLost(f"{len(known)} storage nodes are known, {count} are needed")
        best = sorted(known, key=lambda machine: machine.node is None)[:count]
        return [machine.identity for machine in best if machine.identity is not None]


class DeafNode:
    """A storage node that ignores a third of the deletions."""

    def __init__(self, node: StorageNode, which: int) -> None:
        self._node = node
        self._which = which

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._node, operation)

    def delete(self, ledger: LedgerId) -> Future[None]:
        if (ledger + self._which) % 3:
            return self._node.delete(ledger)
        answer: Future[None] = asyncio.get_running_loop().create_future()
        answer.set_exception(NodeUnreachable(f"ledger {ledger} is not deleted yet"))
        return answer


@dataclass
class Cluster(World):
    """A world whose brokers find storage nodes by their identity. What a broker serves is up to the subclass."""

    async def _main(self, machine: Machine) -> None:
        """Opens the node, joins the network and serves, until the process is killed."""
        random = self.loop.fork_random(f"{machine.name}/{machine.lives}")
        randomness = SimRandomness(random)
        network = self.network.endpoint(machine.name, machine.process)
        if machine.disks:
            journal, *data = machine.disks
            if not self.plan.journal_apart:
                data = machine.disks
            node = await self._open(machine, journal, data, randomness)
            self.addresses[node.identity] = machine.name
            machine.identity = node.identity
            server = NodeServer(node, network)
            network.listen(server.receive)
            machine.node = node
        if machine in self.brokers:
            local = machine.node if self.plan.embedded else None
            caller = (
                None if local is not None else RemoteCaller(network, randomness.bytes(8).hex(), seconds=CALL_SECONDS)
            )
            if caller is not None:
                network.listen(caller.receive)
            await self.serve(machine, randomness, SimNodes(self, caller, local))

    @abstractmethod
    async def serve(self, machine: Machine, randomness: SimRandomness, nodes: SimNodes) -> None:
        """Runs the broker on this machine until its process is killed."""

    @abstractmethod
    def known_ledgers(self) -> tuple[frozenset[LedgerId], LedgerId]:
        """Every ledger of every stream, and the next number."""

    async def _open(
        self, machine: Machine, journal: SimDisk, data: list[SimDisk], randomness: SimRandomness
    ) -> DiskNode:
        """Opens the node, repeatedly if it fails, as a supervisor would."""
        while True:
            try:
                node = await DiskNode.open(data, self.settings(), randomness, journal=journal)
                await node.reconcile_with_catalog(*self.known_ledgers())
                return node
            except DanubeError as error:
                self.loop.trace("node.cannot_start", machine.name, error.code)
                for disk in machine.disks:
                    await disk.unlock()
                await asyncio.sleep(0.3)
