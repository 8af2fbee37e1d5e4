"""A whole broker in one simulated process, on a disk for its metadata and one for its storage node."""

from __future__ import annotations

from typing import NamedTuple

from pydanube.base.errors import DanubeError
from pydanube.base.limits import KIB
from pydanube.broker.directory.directory import Directory
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.offload import SimOffload
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.world.world import Machine, World
from pydanube.storage.local import LocalStorage, open_local
from pydanube.storage.stream.tail import TailCache

SUPERVISOR_SECONDS = 0.3  # until a broker that failed to start is started again
METADATA_LOG_BYTES = 64 * KIB  # small, so that the metadata continues in a new file now and then


class Standalone(NamedTuple):
    """What is below the door of such a broker."""

    storage: LocalStorage
    directory: Directory
    room: DiskRoom
    cache: TailCache
    offload: SimOffload


async def open_standalone(world: World, machine: Machine, randomness: SimRandomness) -> Standalone:
    """Starts a broker as `danube standalone` does, up to its door."""
    for_metadata, for_node = machine.disks
    storage = await open_local(for_metadata, for_node, world.settings(), randomness, log_bytes=METADATA_LOG_BYTES)
    node = machine.node = storage.node
    directory = Directory(storage.metadata)
    await directory.prepare()
    room = DiskRoom(world.plan.file_bytes, node.room, node.make_room)
    await room.start()
    fork = world.loop.fork_random
    cache = TailCache(fork(f"cache/{machine.lives}").choice((2_000, 20_000, 1_000_000)))
    return Standalone(storage, directory, room, cache, SimOffload(world.loop, fork(f"offload/{machine.lives}")))


def disks_of(world: World, name: str) -> list[SimDisk]:
    return [
        SimDisk(world.loop, world.loop.fork_random(f"{name}/{use}"), f"{name}/{use}", exists=False)
        for use in ("metadata", "node")
    ]


def start_again(world: World, machine: Machine, error: DanubeError) -> None:
    """Called in the broker's process when it could not start: it ends, and a supervisor starts another one."""
    world.loop.trace("broker.cannot_start", machine.name, error.code)
    world.loop.call_soon(_start_again, world, machine, context=world.loop.world)


def _start_again(world: World, machine: Machine) -> None:
    if not machine.down:
        world.kill(machine)
        world.loop.call_later(SUPERVISOR_SECONDS, world.restart, machine, context=world.loop.world)
