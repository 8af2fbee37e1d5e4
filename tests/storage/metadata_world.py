"""The durable metadata store on a simulated disk, and what a run of it has promised."""

from __future__ import annotations

from random import Random
from typing import Any

from disk_world import World
from pydanube.base.limits import KIB
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.metadata.store import StateStore

LOG_BYTES = 32 * KIB  # a few transactions, so that files are replaced often
Shown = dict[str, tuple[bytes, int]]  # value and version by key


class MetadataWorld(World):
    """One store; `open` after a restart or a cut opens the same directory again."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(seed, **options)
        self.randomness = SimRandomness(Random(seed))

    async def open(self, **options: Any) -> RaftMetadata:
        return await RaftMetadata.open(self.disk, self.randomness, **{"log_bytes": LOG_BYTES, **options})


def shown(store: StateStore) -> Shown:
    return {key: (entry.value, entry.version) for key, entry in store.scan("")}


async def put(store: StateStore, **values: bytes | None) -> int:
    """Without checks."""
    return await store.transact((), list(values.items()))
