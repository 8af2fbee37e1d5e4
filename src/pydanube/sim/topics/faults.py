"""Faults of the connections between clients and brokers."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.sim.plan import Fault
from pydanube.sim.topics.broker import TopicBroker
from pydanube.sim.topics.world import TopicWorld
from pydanube.sim.world.faults import FaultInjector


@dataclass(slots=True)
class TopicFaultInjector(FaultInjector):
    def _hosts(self) -> list[TopicBroker]:
        assert isinstance(self.world, TopicWorld)
        return list(self.world.hosts.values())

    def _reset(self, fault: Fault) -> None:
        for host in self._hosts():
            if (end := host.sockets.chosen(fault.target)) is not None:
                host.sockets.reset(end)

    def _stall(self, fault: Fault) -> None:
        for host in self._hosts():
            if (end := host.sockets.chosen(fault.target)) is not None:
                host.sockets.stall(end, fault.seconds * 2)

    def heal(self) -> None:
        for host in self._hosts():
            host.sockets.heal()
        FaultInjector.heal(self)
