"""A small world of simulated machines with storage nodes and brokers: it starts, kills and restarts them.

A machine is a process and its disks. The processes run the product's own code; only the ports are simulated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import JOURNAL_PENDING_BYTES_MAX
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import Process, SimLoop
from pydanube.sim.machine.network import Link, SimNetwork
from pydanube.sim.machine.objects import SimObjects
from pydanube.sim.plan import Plan
from pydanube.sim.world.history import History
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.messages import NODE_MESSAGES
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.peer.messages import MessageTable


@dataclass(slots=True)
class Machine:
    """One machine. Its disks outlive its processes."""

    name: str
    disks: list[SimDisk]
    clock: SimClock
    process: Process
    node: DiskNode | None = None
    identity: NodeIdentity | None = None  # of the node that runs or last ran here
    lives: int = 0
    down: bool = False


@dataclass
class World(ABC):
    """The state of one run: its machines, and what all of them share."""

    messages: ClassVar[MessageTable | None] = NODE_MESSAGES  # that the network makes frames of

    loop: SimLoop
    plan: Plan
    history: History = field(default_factory=History)
    storage: list[Machine] = field(default_factory=list)
    brokers: list[Machine] = field(default_factory=list)
    addresses: dict[NodeIdentity, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)  # the broker that the clients of each stream use
    deaf: dict[str, int] = field(default_factory=dict)  # nodes that ignore some deletions; the number selects which
    healed: bool = False

    def __post_init__(self) -> None:
        self.network = SimNetwork(self.loop, self.loop.fork_random("network"), Link(), self.messages)
        self.objects = SimObjects(self.loop, self.loop.fork_random("objects"))
        plan = self.plan
        if plan.embedded:
            self.storage.append(self._machine("b0", disks=True))
            self.brokers = self.storage
        else:
            self.storage += [self._machine(f"s{number}", disks=True) for number in range(plan.nodes)]
            self.brokers += [self._machine(f"b{number}", disks=False) for number in range(plan.brokers)]
        for number in range(plan.streams):
            name = self.plan.name_of(number)
            self.history.stream(name, plan.durabilities[number])
            self.owners[name] = self.brokers[number % len(self.brokers)].name

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
        """How often each storage node was started; None if it is down or starting."""
        return [None if machine.node is None else machine.lives for machine in self.storage]

    # -- starting and stopping ---------------------------------------------------------------------------------------

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
        """Kills the machine and empties its disks: it comes back as another node."""
        self.kill(machine)
        machine.disks = self._disks(f"{machine.name}.{machine.lives}")

    @abstractmethod
    def set_unreliable(self, probability: float) -> None:
        """From now on, the metadata loses answers with this probability."""

    @abstractmethod
    async def _main(self, machine: Machine) -> None:
        """What the process of the machine does from its start until it is killed."""

    # -- building ----------------------------------------------------------------------------------------------------

    def _machine(self, name: str, *, disks: bool) -> Machine:
        process = self.loop.process(name)
        return Machine(name, self._disks(name) if disks else [], SimClock(self.loop), process)

    def _disks(self, name: str) -> list[SimDisk]:
        count = self.plan.data_directories + self.plan.journal_apart
        return [
            SimDisk(self.loop, self.loop.fork_random(f"{name}/{number}"), f"{name}/{number}", exists=False)
            for number in range(count)
        ]
