"""A cluster of metadata stores in one process, on simulated disks and a simulated network without faults."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from pydanube.base.errors import MembershipRefused
from pydanube.metadata.operations import AddMember, PromoteMember
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.network import SimNetwork
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.metadata.peers import SimPeers
from pydanube.storage.metadata.raft import RaftMetadata
from storage.metadata_world import LOG_BYTES


class ClusterWorld:
    """`form` makes a cluster of voters; the first store leads it."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop(seed)
        self.network = SimNetwork(self.loop, self.loop.fork_random("network"))
        self.process = self.loop.process("nodes")
        self.stores: list[RaftMetadata] = []
        self.disks: list[SimDisk] = []

    async def form(self, count: int = 3, **options: Any) -> list[RaftMetadata]:
        for _ in range(count):
            await self.join(**options)
        return self.stores

    async def join(self, **options: Any) -> RaftMetadata:
        """One more voter."""
        number = len(self.stores)
        disk = SimDisk(self.loop, self.loop.fork_random(f"disk{number}"), f"disk{number}", exists=False)
        joins = self.stores[0].node if self.stores else None
        randomness = SimRandomness(Random(number))
        store = await RaftMetadata.open(disk, randomness, **{"log_bytes": LOG_BYTES, "joins": joins, **options})
        self.attach(store, number)
        self.stores.append(store)
        self.disks.append(disk)
        leader = self.stores[0]
        await leader.change_members(AddMember(store.identity, address(number)))
        for _ in range(1000):
            try:
                await leader.change_members(PromoteMember(store.identity))
                break
            except MembershipRefused:  # it has not caught up yet
                await asyncio.sleep(0.05)
        await store.reach(await leader.barrier())
        return store

    def attach(self, store: RaftMetadata, number: int) -> None:
        store.attach(SimPeers(self.network.endpoint(f"n{number}", self.process), store.identity, store))

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(self.loop.spawn(self.process, coroutine))

    def end(self) -> None:
        failures = self.loop.failures
        self.loop.shutdown()
        assert [str(failure) for failure in failures] == []


def address(number: int) -> str:
    return f"n{number}:7650"
