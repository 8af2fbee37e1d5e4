"""A world of three or five nodes with the product's metadata store, which elect, replicate, restart, and are replaced.

The first node founds the cluster; the others join it. On each node, clients work with its store, and someone looks
after the members: nodes that should not be members are removed, others added and promoted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from pydanube.base.errors import DanubeError
from pydanube.base.limits import KIB
from pydanube.metadata.operations import AddMember, MemberOperation, PromoteMember, RemoveMember, TransferLead
from pydanube.metadata.records import Record
from pydanube.sim.machine.network import Link
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.metadata.clients import Clients
from pydanube.sim.metadata.history import MetadataHistory
from pydanube.sim.metadata.peers import SimPeers
from pydanube.sim.plan import Fault
from pydanube.sim.world.faults import FaultInjector
from pydanube.sim.world.world import Machine, World
from pydanube.storage.metadata.raft import SETTINGS, RaftMetadata
from pydanube.storage.metadata.writer import ReceivedSnapshot
from pydanube.wire.peer.hello import Node

LOG_BYTES = 32 * KIB  # small, so that files are replaced often
SIM_SETTINGS = replace(SETTINGS, kept_bytes=6 * KIB, append_bytes=2 * KIB, in_flight_max=8, in_flight_bytes_max=8 * KIB)
LATE_FOR_A_LEADER = Link(delay_min=1.5, delay_max=3.0)  # an election takes about one
# Awake for moments only, a leader hardly notices that no one answers; meanwhile another one can end a session.
FROZEN_SECONDS = ((0.0, 0.9), (0.93, 2.8))
POLL_SECONDS = 0.05
SUPERVISOR_SECONDS = 0.3  # until a node that could not start is started again
VOTE_SECONDS = 0.003  # in which a node dies after it has voted: less than most writes take
SOON_SECONDS = 0.01  # until it starts again
RESET_SECONDS = 0.01  # until others learn that a process has died


class WatchedStore(RaftMetadata):
    """Tells the history what it replays."""

    world: MetadataWorld
    name: str
    voted = ""

    @property
    def history(self) -> MetadataHistory:
        return self.world.metadata

    def _replay(self, revision: int, record: Record | None) -> None:
        super()._replay(revision, record)
        point = self._raft.log.point(revision)
        assert point is not None
        self.history.replayed(self.name, point, record)

    def carry_on(self, *, at_once: bool = False) -> None:
        vote = self._raft.hard.vote
        if vote not in ("", self.identity) and vote != self.voted:
            self.world.votes(self.name)
        self.voted = vote
        super().carry_on(at_once=at_once)

    def halt(self, error: DanubeError) -> None:
        self.world.history.check(False, "I6", f"{self.name} stopped: {error}")
        super().halt(error)

    def on_installed(self, received: ReceivedSnapshot) -> None:
        self.history.same(self.name, received.point)
        super().on_installed(received)


@dataclass
class MetadataWorld(World):
    """`plan.messages` is how often each client does something, roughly."""

    messages = None  # `SimPeers` makes the frames, for the identity that a node has in each life

    metadata: MetadataHistory = field(init=False)
    founded: Node | None = None  # what the first node says about itself
    formed: bool = False  # all nodes were voters once; then faults begin
    stores: dict[str, WatchedStore] = field(default_factory=dict)  # of the nodes that run, by machine
    clients: dict[str, Clients] = field(default_factory=dict)
    links: dict[str, SimPeers] = field(default_factory=dict)
    out: dict[str, None] = field(default_factory=dict)  # machines that should not be members now
    voters: dict[str, int] = field(default_factory=dict)  # how often machines will still die while they vote

    def __post_init__(self) -> None:
        super().__post_init__()
        self.metadata = MetadataHistory(self.history)
        self._aim = self.loop.fork_random("aim")
        self.pause = self.plan.seconds / self.plan.messages

    def set_unreliable(self, probability: float) -> None:
        """Nothing: links and disks fail instead."""

    # -- a life of a node ----------------------------------------------------------------------------------------------

    async def _main(self, machine: Machine) -> None:
        random = self.loop.fork_random(f"{machine.name}/{machine.lives}")
        await self.until(lambda: self.founded is not None or machine is self.machines[0])
        try:
            store = await self._open(machine, SimRandomness(random))
        except DanubeError as error:
            self.loop.trace("node.cannot_start", machine.name, error.code)
            self.loop.call_soon(self._give_up, machine, context=self.loop.world)
            return
        machine.identity = store.identity
        self.founded = self.founded or store.node
        peers = SimPeers(self.network.endpoint(machine.name, machine.process), store.identity, store)
        self.stores[machine.name], self.links[machine.name] = store, peers
        store.attach(peers)
        name = f"{machine.name}/{machine.lives}"
        clients = Clients(name, store, self.metadata, random, machine.process, machine.clock)
        self.clients[machine.name] = clients
        await asyncio.gather(clients.run(self.pause), self._look_after_members(store))

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in count():
            if condition():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _open(self, machine: Machine, randomness: SimRandomness) -> WatchedStore:
        class Store(WatchedStore):
            world, name = self, machine.name

        store = await Store.open(
            machine.disks[0], randomness, log_bytes=LOG_BYTES, joins=self.founded, settings=SIM_SETTINGS
        )
        assert isinstance(store, WatchedStore)
        return store

    def _give_up(self, machine: Machine) -> None:
        if not machine.down:
            self.kill(machine)
            self.loop.call_later(SUPERVISOR_SECONDS, self.restart, machine, context=self.loop.world)

    def kill(self, machine: Machine) -> None:
        self.stores.pop(machine.name, None)
        self.clients.pop(machine.name, None)
        self.links.pop(machine.name, None)
        super().kill(machine)
        for other in self.machines:
            if other.name in self.links and machine.identity and not self.network.is_cut(machine.name, other.name):
                self.loop.call_later(RESET_SECONDS, self._reset, other, machine, context=self.loop.world)

    def _reset(self, other: Machine, dead: Machine) -> None:
        links = self.links.get(other.name)
        if links is not None and dead.identity is not None and not self.network.is_cut(dead.name, other.name):
            self.loop.run_in(other.process, links.lost, dead.identity)

    def votes(self, name: str) -> None:
        """A node gives its vote now: it may be meant to die of that."""
        if self.voters.get(name, 0) and not self.healed:
            self.voters[name] -= 1
            self.loop.call_later(self._aim.uniform(0.0, VOTE_SECONDS), self._strike, name, context=self.loop.world)

    def _strike(self, name: str) -> None:
        machine = next(machine for machine in self.machines if machine.name == name)
        if not machine.down:
            self.power_cut(machine)
            self.loop.call_later(SOON_SECONDS, self.restart, machine, context=self.loop.world)

    # -- members -------------------------------------------------------------------------------------------------------

    async def _look_after_members(self, store: WatchedStore) -> None:
        random = self.loop.fork_random(f"members/{store.identity}/{store.node.boot}")
        while True:
            await asyncio.sleep(random.uniform(0.05, 0.2) if not self.formed else random.uniform(0.3, 1.5))
            if not store.is_leader and random.random() < 0.7:
                continue
            wanted = self._wanted(store)
            if wanted is None:
                self.formed = self.formed or len(store.members.voters) == len(self.machines)
                continue
            try:
                await store.change_members(wanted)
            except DanubeError as error:
                self.loop.trace("members.refused", wanted.identity, error.code)

    def _wanted(self, store: WatchedStore) -> MemberOperation | None:
        """The next change of the members that is due, if any."""
        machines: dict[str, Machine] = {each.identity: each for each in self.machines if each.identity}
        members = store.members
        for member in members:
            if member.identity not in machines or machines[member.identity].name in self.out:
                return RemoveMember(member.identity)
        for identity, machine in machines.items():
            found, address = members.get(identity), f"{machine.name}:7650"
            if machine.name in self.out:
                continue
            if found is None or found.address != address:
                return AddMember(identity, address)
            if not found.voter:
                return PromoteMember(identity)
        return None


@dataclass(slots=True)
class MetadataFaultInjector(FaultInjector):
    """Faults begin when the cluster is formed."""

    def inject(self, fault: Fault) -> None:
        world = self.world
        assert isinstance(world, MetadataWorld)
        if world.formed:
            FaultInjector.inject(self, fault)
        elif not world.healed:
            self.later(0.5, self.inject, fault)

    def _any(self, fault: Fault) -> Machine:
        """Every second time it is the leader that is hit."""
        world = self.world
        assert isinstance(world, MetadataWorld)
        leaders = self._leaders()
        return leaders[0] if leaders and fault.target // 11 % 2 else FaultInjector._any(self, fault)

    def _voting(self, fault: Fault) -> None:
        world = self.world
        assert isinstance(world, MetadataWorld)
        machine = world.machines[fault.target % len(world.machines)]
        others = [each.name for each in world.machines if each is not machine]
        world.network.partition([(machine.name, other) for other in others])
        self.later(3 * fault.seconds, world.network.heal)
        world.voters[machine.name] = 2
        if not machine.down:
            world.kill(machine)
            self.later(1.0, world.restart, machine)

    def _deposed(self, fault: Fault) -> None:
        world = self.world
        assert isinstance(world, MetadataWorld)
        for machine in self._leaders():
            self._late_from(machine.name, LATE_FOR_A_LEADER)
            self.later(0.2, self._late_from, machine.name, None)
            aimed = replace(fault, target=world.machines.index(machine))
            self.later(0.2 + 0.3 * fault.amount, self._kill_unless_healed, aimed)

    def _kill_unless_healed(self, fault: Fault) -> None:
        if not self.world.healed:
            self._kill(fault)

    def _late_from(self, name: str, link: Link | None) -> None:
        for other in self.world.machines:
            self.world.network.set_link(name, other.name, link)

    def _split(self, fault: Fault) -> None:
        """Halves, or two groups that only one machine reaches."""
        names = [machine.name for machine in self.world.machines]
        at = fault.target % len(names)
        names = names[at:] + names[:at]
        middle = len(names) // 2
        bridge = names[middle : middle + 1] if fault.target // 7 % 2 else []
        self.world.network.partition([names[: middle + len(bridge)], names[middle:]])
        self.later(fault.seconds * 2, self.world.network.heal)

    def _members(self, fault: Fault) -> None:
        """One machine leaves the cluster for a while, or the lead moves."""
        world = self.world
        assert isinstance(world, MetadataWorld)
        name = self._any(fault).name
        store = world.stores.get(name)
        if fault.target // 7 % 3 == 0 and store is not None:
            voters = sorted(store.members.voters)
            if voters:
                world.loop.spawn(
                    self._any(fault).process, self._change(store, TransferLead(voters[fault.target % len(voters)]))
                )
        elif len(world.machines) - len(world.out) > 2:
            world.out[name] = None
            self.later(fault.seconds * 3, world.out.pop, name, None)

    def _leaders(self) -> list[Machine]:
        """Those that believe so."""
        world = self.world
        assert isinstance(world, MetadataWorld)
        running = [machine for machine in world.machines if machine.name in world.stores]
        return [machine for machine in running if world.stores[machine.name].is_leader]

    def _frozen(self, fault: Fault) -> None:
        loop, network = self.world.loop, self.world.network
        for machine in self._leaders():
            network.isolate(machine.name)
            for begin, end in FROZEN_SECONDS:
                self.later(begin, loop.pause, machine.process)
                self.later(end, loop.resume, machine.process)
            self.later(FROZEN_SECONDS[-1][1] + fault.amount, network.heal, machine.name)

    def _greedy(self, fault: Fault) -> None:
        world = self.world
        assert isinstance(world, MetadataWorld)
        for machine in self._leaders():
            store = world.stores[machine.name]
            world.network.isolate(machine.name)
            self.later(fault.seconds * 2, world.network.heal, machine.name)
            for other in sorted(store.members.voters - {store.identity}):
                world.loop.spawn(machine.process, self._change(store, RemoveMember(other)))

    async def _change(self, store: WatchedStore, operation: MemberOperation) -> None:
        try:
            await store.change_members(operation)
        except DanubeError:
            return

    def heal(self) -> None:
        world = self.world
        assert isinstance(world, MetadataWorld)
        world.out.clear()
        FaultInjector.heal(self)
