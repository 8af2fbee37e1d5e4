"""A world of one whole broker, including its metadata, for jobs that write exactly once (§32, §33).

The process runs the product's metadata store, storage node, directory and door on two simulated disks. Jobs write to
three partitions of two topics, which other clients publish to and read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from pydanube.access.principals import SYSTEM
from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, TopicExists
from pydanube.base.limits import KIB
from pydanube.broker.door.door import Door
from pydanube.sim.jobs.clients import Clients, ProducerMemory
from pydanube.sim.jobs.history import SinkHistory, WriterMemory
from pydanube.sim.jobs.jobs import Jobs
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.plan import Fault
from pydanube.sim.world.faults import FaultInjector
from pydanube.sim.world.standalone import disks_of, open_standalone, start_again
from pydanube.sim.world.world import Machine, World
from pydanube.storage.node.settings import NodeSettings
from pydanube.topic.sinks import Once, SinkKey

SINGLE, SPLIT = "/default/plain", "/default/parted"
SPLIT_PARTITIONS = (f"{SPLIT}-part-0", f"{SPLIT}-part-1")
PARTITIONS = (SINGLE, *SPLIT_PARTITIONS)
STAGED_BYTES_MAX = 20_000
INDEX_CACHE_BYTES = 64 * KIB
AIM_SECONDS = 0.06  # a fault that waits for a commit strikes within this time: before, during or after it


@dataclass
class SinkWorld(World):
    """`plan.messages` is how many batches each job writes."""

    sinks: SinkHistory = field(init=False)
    door: Door | None = None  # while the broker is up
    batches: int = 0
    over: bool = False  # jobs do not come back after the next restart
    waiting_faults: list[Callable[[], None]] = field(default_factory=list)  # faults that wait for a commit
    producers: list[ProducerMemory] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sinks = SinkHistory(self.history)
        self.batches = self.plan.messages
        self.pause = self.plan.seconds / self.batches / 3  # between two batches of a job
        self._aim = self.loop.fork_random("aim")
        for partition in PARTITIONS:
            self.history.stream(partition, Durability.FSYNC)
            self.producers += [ProducerMemory(partition, ""), ProducerMemory(partition, "named")]
        for name, target, once, partitions in (
            ("w0", SPLIT, Once.STREAM, SPLIT_PARTITIONS),
            ("w1", "*", Once.STREAM, PARTITIONS),
            ("w2", SINGLE, Once.VERSION, (SINGLE,)),
        ):
            self.sinks.writers[name] = WriterMemory(name, SinkKey(f"query {name}", target), once, partitions)

    @property
    def broker(self) -> Machine:
        return self.brokers[0]

    def commit_begins(self) -> None:
        """Lets a fault that waited for a commit strike in a moment."""
        if self.waiting_faults:
            delay = self._aim.uniform(0.0, AIM_SECONDS)
            self.loop.call_later(delay, self.waiting_faults.pop(0), context=self.loop.world)

    def settings(self) -> NodeSettings:
        return replace(super().settings(), index_cache_bytes=INDEX_CACHE_BYTES)

    def kill(self, machine: Machine) -> None:
        self.door = None
        super().kill(machine)

    # -- a life of the broker ------------------------------------------------------------------------------------------

    async def _main(self, machine: Machine) -> None:
        randomness = SimRandomness(self.loop.fork_random(f"{machine.name}/{machine.lives}"))
        try:
            door = await self._open_door(machine, randomness)
            await self._make_topics(door)
        except DanubeError as error:
            return start_again(self, machine, error)
        door.reopen()
        self.door = door
        self.loop.trace("broker.serves", machine.lives)
        jobs, clients = Jobs(self, door), Clients(self, door)
        writers = [] if self.over else list(self.sinks.writers.values())
        await asyncio.gather(
            *(jobs.write(writer) for writer in writers),
            *(jobs.repeat_late(writer) for writer in writers),
            *(jobs.start_over(writer) for writer in writers),
            *(clients.publish(producer) for producer in self.producers),
            *(clients.watch(partition) for partition in PARTITIONS),
            *(clients.read(partition) for partition in PARTITIONS),
            clients.roll(),
        )

    async def _open_door(self, machine: Machine, randomness: SimRandomness) -> Door:
        below = await open_standalone(self, machine, randomness)
        storage = below.storage
        door = Door(
            below.directory,
            storage.catalog,
            storage.nodes,
            machine.clock,
            randomness,
            cache=below.cache,
            room=below.room,
            offload=below.offload,
        )
        door.sinks.staged_bytes_max = STAGED_BYTES_MAX
        door.sinks.own.window_bytes = self.loop.fork_random(f"window/{machine.lives}").choice((1, 2_000, 1_000_000))
        return door

    async def _make_topics(self, door: Door) -> None:
        for name, partitions in ((SINGLE, 0), (SPLIT, len(SPLIT_PARTITIONS))):
            try:
                await door.lifecycle.create_topic(SYSTEM, name, partitions=partitions)
            except TopicExists:
                continue

    def _disks(self, name: str) -> list[SimDisk]:
        return disks_of(self, name)

    def set_unreliable(self, probability: float) -> None:
        """Nothing: the metadata is in the broker's own process, and fails with its disk."""


@dataclass(slots=True)
class SinkFaultInjector(FaultInjector):
    """Most crashes wait for a commit and strike in the middle of it, and so do most errors of the metadata disk."""

    away: list[SimDisk] = field(default_factory=list)  # the broker's disks, while one of them is replaced
    older: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # the node's disk at the last replacement

    def inject(self, fault: Fault) -> None:
        world, strike = self.world, partial(FaultInjector.inject, self, fault)
        assert isinstance(world, SinkWorld)
        if fault.kind in ("kill", "power") and fault.target % 4:
            world.waiting_faults.append(strike)
        elif fault.kind in ("write_error", "sync_error") and fault.target % 4:
            world.waiting_faults.append(partial(self._forget_to_write, fault))
        else:
            strike()

    def _forget_to_write(self, fault: Fault) -> None:
        """Fails a write of the metadata and kills the process before it can find out whether the decision is stored."""
        if not self.world.healed:
            self.done.append(fault.kind)
            self.world.brokers[0].disks[0].fail_next(fault.kind.removesuffix("_error"))
            self.later(0.2 * fault.amount, partial(FaultInjector.inject, self), replace(fault, kind="kill"))

    def _unmounted(self, fault: Fault) -> None:
        """Replaces a disk. The broker must notice that it is not the right directory, and change nothing."""
        world = self.world
        assert isinstance(world, SinkWorld)
        machine = world.broker
        if self.away or world.door is None:
            return
        world.kill(machine)
        self.away = list(machine.disks)
        index, kind = fault.target // 2 % 2, fault.target % 3
        older, self.older = self.older, machine.disks[1].image()
        if kind == 2 and older:
            index = 1
        name = f"{machine.disks[index].name} instead"
        strange = SimDisk(world.loop, world.loop.fork_random(f"{name}/{machine.lives}"), name, exists=kind > 0)
        if kind == 2 and older:
            strange.load(older)
        machine.disks = [strange if index == 0 else self.away[0], strange if index == 1 else self.away[1]]
        self.later(0.1, world.restart, machine)
        self.later(0.5 + fault.seconds, self._mount)

    def _mount(self) -> None:
        if self.away:
            machine = self.world.brokers[0]
            if not machine.down:
                self.world.kill(machine)
            machine.disks, self.away = self.away, []
            self.world.restart(machine)

    def heal(self) -> None:
        self._mount()
        FaultInjector.heal(self)
