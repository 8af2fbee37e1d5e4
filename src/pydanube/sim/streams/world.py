"""A world whose brokers serve bare streams, without topics on top of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.base.ids import LedgerId
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.streams.broker import StreamBroker
from pydanube.sim.world.catalog import SimCatalog
from pydanube.sim.world.cluster import Cluster, SimNodes
from pydanube.sim.world.world import Machine


@dataclass
class StreamWorld(Cluster):
    hosts: dict[str, StreamBroker] = field(default_factory=dict)  # by machine, of those that are up

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalog = SimCatalog(self.loop.fork_random("catalogue"))

    def set_unreliable(self, probability: float) -> None:
        self.catalog.unreliable = probability

    def known_ledgers(self) -> tuple[frozenset[LedgerId], LedgerId]:
        return self.catalog.known(), self.catalog.next_ledger

    async def serve(self, machine: Machine, randomness: SimRandomness, nodes: SimNodes) -> None:
        broker = self.hosts[machine.name] = StreamBroker(self, machine.name, machine.clock, randomness, nodes)
        await broker.run()

    def kill(self, machine: Machine) -> None:
        self.hosts.pop(machine.name, None)
        super().kill(machine)
