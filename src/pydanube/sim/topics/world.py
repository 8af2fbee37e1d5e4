"""A world whose brokers serve topics, with producers, subscriptions and, in some plans, a cold tier.

Either one process is a whole broker, with its own metadata and storage node, or several brokers share metadata and
storage nodes. What is above these is the product's: directory, door, housekeeping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydanube.access.principals import SYSTEM
from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, TopicExists
from pydanube.base.ids import LedgerId
from pydanube.base.names import parse_topic
from pydanube.broker.directory.directory import Directory
from pydanube.broker.routing.router import Router
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.offload import SimOffload
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.topics.broker import TopicBroker
from pydanube.sim.topics.catalog import ObservedCatalog
from pydanube.sim.topics.memory import TopicMemory, defaults_of, memory_for
from pydanube.sim.topics.observed import ObservedDoor, Observer
from pydanube.sim.topics.tier_history import TierHistory
from pydanube.sim.topics.tiering import LISTED_MAX, cold_tier, space_of
from pydanube.sim.world.cluster import Cluster, SimNodes
from pydanube.sim.world.metadata import SharedMetadata
from pydanube.sim.world.standalone import disks_of, open_standalone, start_again
from pydanube.sim.world.world import Machine
from pydanube.storage.stream.assignments import Assignments
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.storage.stream.tail import TailCache
from pydanube.stream.record import StreamRecord

SLOW_METADATA_SECONDS = 10.0  # times the probability that a shared one would lose an answer


@dataclass
class TopicWorld(Cluster):
    hosts: dict[str, TopicBroker] = field(default_factory=dict)  # by machine, of those that are up
    topics: dict[str, TopicMemory] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of topics, by stream

    def __post_init__(self) -> None:
        super().__post_init__()
        self.metadata = SharedMetadata(self.loop, self.loop.fork_random("metadata"))
        self.tier = TierHistory(self.history, self.objects, self.loop, self.names, self.is_released)
        self._ledgers = 0
        for name, stream in self.history.streams.items():
            self.topics[name] = memory_for(self.plan, name, stream.durability)

    @property
    def tiered(self) -> bool:
        return "tier" in self.plan.traits

    def is_buffered(self, memory: TopicMemory) -> bool:
        return memory.durability is Durability.BUFFERED

    def kill(self, machine: Machine) -> None:
        self.hosts.pop(machine.name, None)
        super().kill(machine)

    # -- metadata ------------------------------------------------------------------------------------------------------

    def set_unreliable(self, probability: float) -> None:
        """A broker's own metadata is slow instead."""
        if not self.plan.embedded:
            self.metadata.unreliable = probability
        elif probability:
            [machine] = self.brokers
            machine.disks[0].slow(SLOW_METADATA_SECONDS * probability, until=self.loop.time() + 2.0, only="sync")

    def known_ledgers(self) -> tuple[frozenset[LedgerId], LedgerId]:
        return MetadataCatalog(self.metadata).known(), LedgerId(self._ledgers + 1)

    def _number_ledgers(self) -> Iterator[int]:
        while True:
            self._ledgers += 1
            yield self._ledgers

    def owner(self, stream: str) -> str | None:
        """The broker that owns the topic, without delay; None if there can be only one owner."""
        owner = None if self.plan.embedded else Assignments(self.metadata).get(stream)[0]
        return None if owner is None else owner.broker

    def is_released(self, stream: str) -> bool:
        """Whether the topic belongs to no broker any more, because it was deleted."""
        if not self.plan.embedded:
            return Assignments(self.metadata).get(stream)[0] is None
        return all(Assignments(host.door.directory.store).get(stream)[0] is None for host in self.hosts.values())

    def _stored(self, stream: str, record: StreamRecord, version: int) -> None:
        if self.tiered and stream in self.names:
            self.tier.stored(stream, record, version)

    # -- brokers -------------------------------------------------------------------------------------------------------

    async def _main(self, machine: Machine) -> None:
        if not self.plan.embedded:
            return await super()._main(machine)
        randomness = SimRandomness(self.loop.fork_random(f"{machine.name}/{machine.lives}"))
        try:
            below = await open_standalone(self, machine, randomness)
            catalog = ObservedCatalog(below.storage.metadata, self._stored)
            observer = Observer(self, machine.name, machine.clock)
            store = below.storage.metadata
            router = Router.of(store.identity, store, catalog, randomness)
            await router.begin()
            observer.clock.begin(catalog.newest_time())
            door = ObservedDoor(
                observer, below.directory, catalog, below.storage.nodes, observer.clock, randomness,
                router=router, cache=below.cache, room=below.room, offload=below.offload, **self._settings(machine),
            )  # fmt: skip
            await self._make_topics(door)
        except DanubeError as error:
            return start_again(self, machine, error)
        door.reopen()
        await self._run(machine, door)

    async def serve(self, machine: Machine, randomness: SimRandomness, nodes: SimNodes) -> None:
        fork = self.loop.fork_random
        store = self.metadata.of(machine.process)
        directory = Directory(store)
        catalog = ObservedCatalog(store, self._stored, self._number_ledgers())
        observer = Observer(self, machine.name, machine.clock)
        router = Router.of(machine.name, store, catalog, randomness)
        await router.begin()
        observer.clock.begin(catalog.newest_time())
        cache = TailCache(fork(f"cache/{machine.name}/{machine.lives}").choice((2_000, 20_000, 1_000_000)))
        door = ObservedDoor(
            observer, directory, catalog, nodes, observer.clock, randomness, router=router, cache=cache,
            offload=SimOffload(self.loop, fork(f"offload/{machine.name}/{machine.lives}")), **self._settings(machine),
        )  # fmt: skip
        while True:
            try:
                await directory.prepare()
                await self._make_topics(door)
                break
            except DanubeError as error:
                self.loop.trace("broker.cannot_start", machine.name, error.code)
                await asyncio.sleep(0.1)
        await self._run(machine, door)

    def _settings(self, machine: Machine) -> dict[str, Any]:
        settings: dict[str, Any] = {"auto_create": False, "defaults": defaults_of(self.plan)}
        if self.tiered:
            random = self.loop.fork_random(f"tier/{machine.name}/{machine.lives}")
            settings |= {"tier": cold_tier(self, random), "space": space_of(random)}
        return settings

    async def _make_topics(self, door: ObservedDoor) -> None:
        for name, memory in self.topics.items():
            try:
                made = await door.lifecycle.create_topic(
                    SYSTEM, name, durability=memory.durability, policies=memory.policies
                )
            except TopicExists:
                made = door.directory.get(parse_topic(name))
            memory.stream = made.stream(None)
            self.names[memory.stream] = name

    async def _run(self, machine: Machine, door: ObservedDoor) -> None:
        if door.tiering is not None:
            door.tiering.listed_max = LISTED_MAX
        broker = self.hosts[machine.name] = TopicBroker(self, machine, door)
        await broker.run()

    def _disks(self, name: str) -> list[SimDisk]:
        return disks_of(self, name) if self.plan.embedded else super()._disks(name)
