"""After everything healed: all nodes take transactions again, are voters, and have the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import Any

from pydanube.sim.metadata.world import POLL_SECONDS, MetadataWorld
from pydanube.sim.world.world import Machine

PATIENCE_SECONDS = 15.0  # of virtual time for one answer


async def drain_metadata(world: MetadataWorld) -> None:
    for machine in world.machines:
        await _until_it_writes(world, machine)
    await world.until(lambda: _is_whole(world))
    for machine in world.machines:
        await _in_time(world, machine, world.clients[machine.name].read())
    await _settle(world)
    world.metadata.check()


async def _until_it_writes(world: MetadataWorld, machine: Machine) -> None:
    for _ in count():
        clients = world.clients.get(machine.name)
        if clients is not None and await _in_time(world, machine, clients.transact()):
            return
        await asyncio.sleep(POLL_SECONDS)


async def _in_time(world: MetadataWorld, machine: Machine, work: Coroutine[Any, Any, bool]) -> bool:
    """Whether the machine's process says so, which may die meanwhile."""
    task = world.loop.spawn(machine.process, work)
    done, _ = await asyncio.wait([task], timeout=PATIENCE_SECONDS)
    return bool(done) and task.result()


def _is_whole(world: MetadataWorld) -> bool:
    """Whether every machine is a voter, and knows it."""
    identities = {machine.identity for machine in world.machines}
    stores = list(world.stores.values())
    return len(stores) == len(world.machines) and all(store.members.voters == identities for store in stores)


async def _settle(world: MetadataWorld) -> None:
    """At the same revision, all nodes show the same."""
    last = world.metadata.truth.revision
    stores = [(machine, world.stores[machine.name]) for machine in world.machines]
    await world.until(lambda: all(store.revision >= last for _, store in stores))
    truth = world.metadata.truth
    for machine, store in stores:
        if store.revision == truth.revision:
            same = store.scan("") == truth.scan("")
            world.history.check(same, "I6", f"{machine.name} shows something else at {store.revision}")


def explain_metadata(world: MetadataWorld) -> str:
    told = []
    for machine in world.machines:
        store = world.stores.get(machine.name)
        if store is None:
            told.append(f"{machine.name} is down")
        else:
            told.append(
                f"{machine.name}: term {store.term}, leader {store.leader}, revision {store.revision}, members"
                f" {[(each.identity[:4], each.voter) for each in store.members]}"
            )
    return "; ".join(told)
