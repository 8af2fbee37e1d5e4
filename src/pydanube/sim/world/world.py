"""A small world of storage nodes and brokers on simulated machines; it starts, kills and restarts them.

Machines are a process and its disks. The processes run the product's own node, stream and remote code; only ports are
simulated.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from dataclasses import dataclass, field
from typing import Any, cast

from pydanube.base.errors import DanubeError, NodeUnreachable, QuorumLost
from pydanube.base.ids import LedgerId, NodeIdentity
from pydanube.base.limits import JOURNAL_PENDING_BYTES_MAX
from pydanube.ports.storage import StorageNode
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import Process, SimLoop
from pydanube.sim.machine.network import Link, SimNetwork
from pydanube.sim.machine.objects import SimObjects
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.plan import Plan
from pydanube.sim.streams.history import History
from pydanube.sim.streams.publishing import Broker
from pydanube.sim.topics.swarm import TopicBroker, TopicMemory, memory_for
from pydanube.sim.topics.tier_history import TierHistory
from pydanube.sim.world.catalog import SimCatalog
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.remote import NodeServer, RemoteCaller
from pydanube.storage.node.settings import NodeSettings

CALL_SECONDS = 1.0


@dataclass(slots=True)
class Machine:
    """One host: its disks outlive its processes."""

    name: str
    disks: list[SimDisk]
    clock: SimClock
    process: Process
    node: DiskNode | None = None
    identity: NodeIdentity | None = None  # of the node that lives or last lived here
    lives: int = 0
    down: bool = False


class Nodes:
    """The storage nodes as one broker sees them: by identity, wherever it lives now."""

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
        return node if name not in self._world.deaf else cast(StorageNode, Deaf(node, self._world.deaf[name]))

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        """As a membership service would: those that seem to be up first, in any order."""
        if self._local is not None:
            return [self._local.identity]
        storage = self._random.sample(self._world.storage, len(self._world.storage))
        known = [machine for machine in storage if machine.identity is not None]
        if len(known) < count:
            raise QuorumLost(f"{len(known)} storage nodes are known, {count} are needed")
        best = sorted(known, key=lambda machine: machine.node is None)[:count]
        return [machine.identity for machine in best if machine.identity is not None]


class Deaf:
    """A storage node that hears of some deletions only, and of everything else."""

    def __init__(self, node: StorageNode, which: int) -> None:
        self._node = node
        self._which = which

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._node, operation)

    def delete(self, ledger: LedgerId) -> Future[None]:
        if (ledger + self._which) % 3:
            return self._node.delete(ledger)
        answer: Future[None] = asyncio.get_running_loop().create_future()
        answer.set_exception(NodeUnreachable(f"ledger {ledger} stays for now"))
        return answer


@dataclass
class World:
    """Everything of one run."""

    loop: SimLoop
    plan: Plan
    history: History = field(default_factory=History)
    storage: list[Machine] = field(default_factory=list)
    brokers: list[Machine] = field(default_factory=list)
    addresses: dict[NodeIdentity, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)  # stream: machine that should own it
    hosts: dict[str, Broker] = field(default_factory=dict)
    topics: dict[str, TopicMemory] = field(default_factory=dict)  # in a world of topics
    topic_hosts: dict[str, TopicBroker] = field(default_factory=dict)
    read_out: set[str] = field(default_factory=set)  # topics that are read as a whole: nothing of them is deleted now
    deaf: dict[str, int] = field(default_factory=dict)  # storage nodes that do not delete every ledger, and which
    healed: bool = False

    def __post_init__(self) -> None:
        self.network = SimNetwork(self.loop, self.loop.fork_random("network"), Link())
        self.catalog = SimCatalog(self.loop.fork_random("catalogue"))
        self.objects = SimObjects(self.loop, self.loop.fork_random("objects"))
        self.tier = TierHistory(self.history, self.objects, self.loop)
        plan = self.plan
        if self.tiered:
            self.catalog.watch = self.tier.stored
        if plan.embedded:
            self.storage.append(self._machine("b0", disks=True))
            self.brokers = self.storage
        else:
            self.storage += [self._machine(f"s{place}", disks=True) for place in range(plan.nodes)]
            self.brokers += [self._machine(f"b{place}", disks=False) for place in range(plan.brokers)]
        for place in range(plan.streams):
            name = f"t{place}"
            self.history.stream(name, plan.durabilities[place])
            self.owners[name] = self.brokers[place % len(self.brokers)].name
            if plan.topics:
                self.topics[name] = memory_for(self, name, plan.durabilities[place])

    @property
    def tiered(self) -> bool:
        return "tier" in self.plan.traits

    @property
    def machines(self) -> list[Machine]:
        return self.storage if self.plan.embedded else self.storage + self.brokers

    def settings(self) -> NodeSettings:
        plan = self.plan
        return NodeSettings(
            file_bytes=plan.file_bytes,
            pending_bytes_max=plan.pending_bytes or JOURNAL_PENDING_BYTES_MAX,
            journal_bytes_max=4 * plan.file_bytes if plan.journal_apart else None,
            copy_bytes_per_second=4_000_000,
            index_cache_bytes=4096,
            retry_seconds=0.2,
        )

    def storage_lives(self) -> list[int | None]:
        """Which life each storage node is in; None if it is down or starting."""
        return [None if machine.node is None else machine.lives for machine in self.storage]

    # -- lives -------------------------------------------------------------------------------------------------------

    def start_all(self) -> None:
        for machine in self.machines:
            self.start(machine)

    def start(self, machine: Machine) -> None:
        machine.down = False
        machine.lives += 1
        if machine.lives > 1:
            machine.process = self.loop.process(machine.name)
        self.loop.spawn(machine.process, self._main(machine), name=f"main {machine.name}")

    def restart(self, machine: Machine) -> None:
        if machine.down:
            self.start(machine)

    def kill(self, machine: Machine) -> None:
        machine.node = None
        machine.down = True
        self.hosts.pop(machine.name, None)
        self.topic_hosts.pop(machine.name, None)
        self.loop.kill(machine.process)

    def power_cut(self, machine: Machine) -> None:
        for disk in machine.disks:
            disk.freeze()
        self.kill(machine)
        for disk in machine.disks:
            disk.power_cut()
        if machine.disks:
            self.history.power_lost = True

    def wipe(self, machine: Machine) -> None:
        """The machine comes back with empty disks, so as another node."""
        self.kill(machine)
        machine.disks = self._disks(f"{machine.name}.{machine.lives}")

    async def _main(self, machine: Machine) -> None:
        """What a process does from start to crash: open the node, join the network, own streams."""
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
            nodes = Nodes(self, caller, local)
            if self.plan.topics:
                topics = self.topic_hosts[machine.name] = TopicBroker(
                    self, machine.name, machine.clock, randomness, nodes
                )
                await topics.run()
            broker = self.hosts[machine.name] = Broker(self, machine.name, machine.clock, randomness, nodes)
            await broker.run()

    async def _open(
        self, machine: Machine, journal: SimDisk, data: list[SimDisk], randomness: SimRandomness
    ) -> DiskNode:
        """As a supervisor would: a node that cannot start is started again."""
        while True:
            try:
                node = await DiskNode.open(data, self.settings(), randomness, journal=journal)
                await node.reconcile_with_catalog(self.catalog.known(), self.catalog.next_ledger)
                return node
            except DanubeError as error:
                self.loop.trace("node.cannot_start", machine.name, error.code)
                for disk in machine.disks:
                    await disk.unlock()
                await asyncio.sleep(0.3)

    # -- building ----------------------------------------------------------------------------------------------------

    def _machine(self, name: str, *, disks: bool) -> Machine:
        process = self.loop.process(name)
        return Machine(name, self._disks(name) if disks else [], SimClock(self.loop), process)

    def _disks(self, name: str) -> list[SimDisk]:
        count = self.plan.data_directories + self.plan.journal_apart
        return [
            SimDisk(self.loop, self.loop.fork_random(f"{name}/{place}"), f"{name}/{place}", there=False)
            for place in range(count)
        ]
