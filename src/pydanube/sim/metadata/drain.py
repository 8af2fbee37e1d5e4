"""After everything healed: all nodes take transactions again, are voters, and have the same."""

from __future__ import annotations

import asyncio
from itertools import count

from pydanube.sim.metadata.world import POLL_SECONDS, MetadataWorld


async def drain_metadata(world: MetadataWorld) -> None:
    for machine in world.machines:
        for _ in count():
            if await _writes(world, machine.name):
                break
            await asyncio.sleep(POLL_SECONDS)
    await world.until(lambda: _is_whole(world))
    for machine in world.machines:
        clients = world.clients[machine.name]
        await world.loop.spawn(machine.process, clients.read())
    await _settle(world)
    world.metadata.check()


async def _writes(world: MetadataWorld, name: str) -> bool:
    clients = world.clients.get(name)
    if clients is None:
        return False
    machine = next(machine for machine in world.machines if machine.name == name)
    return await world.loop.spawn(machine.process, clients.transact())


def _is_whole(world: MetadataWorld) -> bool:
    """Whether every machine is a voter, and knows it."""
    identities = {machine.identity for machine in world.machines}
    stores = list(world.stores.values())
    return len(stores) == len(world.machines) and all(store.members.voters == identities for store in stores)


async def _settle(world: MetadataWorld) -> None:
    """At the same revision, all nodes show the same."""
    last = world.metadata.truth.revision
    stores = [(machine, world.stores[machine.name]) for machine in world.machines]
    for machine, store in stores:
        await world.loop.spawn(machine.process, store.reach(last))
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
