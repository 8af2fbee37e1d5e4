"""A world whose brokers serve topics, with producers, subscriptions and, in some plans, a cold tier."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.topics.broker import TopicBroker, TopicMemory, memory_for
from pydanube.sim.topics.tier_history import TierHistory
from pydanube.sim.world.cluster import Cluster, SimNodes
from pydanube.sim.world.world import Machine


@dataclass
class TopicWorld(Cluster):
    hosts: dict[str, TopicBroker] = field(default_factory=dict)  # by machine, of those that are up
    topics: dict[str, TopicMemory] = field(default_factory=dict)
    reading_out: set[str] = field(default_factory=set)  # topics that are being read to the end: nothing is deleted

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tier = TierHistory(self.history, self.objects, self.loop)
        if self.tiered:
            self.catalog.watch, self.catalog.released = self.tier.stored, self.tier.released
        for name, stream in self.history.streams.items():
            self.topics[name] = memory_for(self.plan, name, stream.durability)

    @property
    def tiered(self) -> bool:
        return "tier" in self.plan.traits

    async def serve(self, machine: Machine, randomness: SimRandomness, nodes: SimNodes) -> None:
        broker = self.hosts[machine.name] = TopicBroker(self, machine.name, machine.clock, randomness, nodes)
        await broker.run()

    def kill(self, machine: Machine) -> None:
        self.hosts.pop(machine.name, None)
        super().kill(machine)
