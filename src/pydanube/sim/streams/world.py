"""A world whose brokers serve bare streams, without topics on top of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.streams.broker import StreamBroker
from pydanube.sim.world.cluster import Cluster, SimNodes
from pydanube.sim.world.world import Machine


@dataclass
class StreamWorld(Cluster):
    hosts: dict[str, StreamBroker] = field(default_factory=dict)  # by machine, of those that are up

    async def serve(self, machine: Machine, randomness: SimRandomness, nodes: SimNodes) -> None:
        broker = self.hosts[machine.name] = StreamBroker(self, machine.name, machine.clock, randomness, nodes)
        await broker.run()

    def kill(self, machine: Machine) -> None:
        self.hosts.pop(machine.name, None)
        super().kill(machine)
