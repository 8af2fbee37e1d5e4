"""Kinds of storage node by name. `disk` and `memory` are built in; packages add others by entry point.

A package that offers a kind names, in the entry-point group `pydanube.storage_nodes`, an async function that takes
`Opening` and returns a `StorageNode` with a `close` coroutine. `pydanube.testing.storage_contract` tests it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol

from pydanube.base.errors import StorageKindUnknown
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNode
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.node.settings import NodeSettings

GROUP = "pydanube.storage_nodes"


class ClosableNode(StorageNode, Protocol):
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """What a storage node gets to start with."""

    randomness: Randomness
    directories: Sequence[Disk] = ()
    journal: Disk | None = None
    settings: NodeSettings = field(default_factory=NodeSettings)


Opener = Callable[[Opening], Awaitable[ClosableNode]]


async def open_disk(opening: Opening) -> ClosableNode:
    return await DiskNode.open(opening.directories, opening.settings, opening.randomness, journal=opening.journal)


async def open_memory(opening: Opening) -> ClosableNode:
    return MemoryNode(opening.randomness)


async def open_node(kind: str, opening: Opening) -> ClosableNode:
    """Starts a node of the configured kind."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in found:
        raise StorageKindUnknown(f"`{kind}` is not one of {', '.join(sorted(found))}")
    opener: Opener = found[kind].load()
    return await opener(opening)
