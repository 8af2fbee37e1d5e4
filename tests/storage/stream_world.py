"""Streams on storage nodes in one process and in virtual time, for the tests of streams, their writers and recovery."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from pydanube.base.errors import DanubeError, NodeBusy, NodeUnreachable
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import CALL_SECONDS
from pydanube.ports.storage import StorageNode
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.world.catalog import SimCatalog
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream
from pydanube.stream.record import Copies
from pydanube.wire.batch import Batch, build

ONE = Copies(1, 1, 1)
THREE = Copies(3, 3, 2)


class Nodes:
    """Nodes in this process. One that is `down` refuses everything, a `silent` one answers nothing in time, and `busy`
    says how often each operation is refused as a busy node would."""

    def __init__(self, *nodes: MemoryNode | DiskNode) -> None:
        self.nodes = {node.identity: node for node in nodes}
        self.down: set[NodeIdentity] = set()
        self.silent: set[NodeIdentity] = set()
        self.busy: dict[str, int] = {}
        self.calls: Counter[str] = Counter()

    def get(self, identity: NodeIdentity) -> StorageNode:
        return Reached(self, identity)  # type: ignore[return-value]

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        return list(self.nodes)[:count]


class Reached:
    """A node as it can be reached at the moment of each call."""

    in_order = True

    def __init__(self, nodes: Nodes, identity: NodeIdentity) -> None:
        self._nodes = nodes
        self.identity = identity

    def __getattr__(self, name: str) -> Callable[..., asyncio.Future[Any]]:
        nodes = self._nodes

        def call(*arguments: object) -> asyncio.Future[Any]:
            nodes.calls[name] += 1
            if self.identity in nodes.down:
                return refused(NodeUnreachable("down"))
            if self.identity in nodes.silent:
                return refused(NodeUnreachable("no answer in time"), after=CALL_SECONDS)
            if nodes.busy.get(name, 0):
                nodes.busy[name] -= 1
                return refused(NodeBusy("not now"))
            answer: asyncio.Future[Any] = getattr(nodes.nodes[self.identity], name)(*arguments)
            return answer

        return call


def refused(error: DanubeError, *, after: float = 0.0) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    if after:
        loop.call_later(after, lambda: answer.done() or answer.set_exception(error))
    else:
        answer.set_exception(error)
    return answer


class Scene:
    """One loop, one catalogue; `take` becomes the owner of the stream `t`."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed, budget=200_000)
        self.catalog = SimCatalog(Random(seed))
        self.randomness = SimRandomness(Random(seed))

    def play(self, story: Callable[[Scene], Awaitable[None]]) -> None:
        try:
            self.loop.run_until_complete(story(self))
            assert not self.loop.failures, self.loop.failures
        finally:
            self.loop.shutdown()

    async def take(self, nodes: Nodes, copies: Copies, name: str = "t", **settings: object) -> Stream:
        chosen = StreamSettings(copies=copies, **settings)  # type: ignore[arg-type]
        return await Stream.take(name, self.catalog, nodes, SimClock(self.loop), self.randomness, chosen)

    async def disk_node(self, **settings: int) -> DiskNode:
        disk = SimDisk(self.loop, Random(3), "d")
        chosen = NodeSettings(file_bytes=1 << 18, **settings)  # type: ignore[arg-type]
        return await DiskNode.open([disk], chosen, self.randomness)

    def memory_nodes(self, count: int) -> Nodes:
        return Nodes(*(MemoryNode(self.randomness) for _ in range(count)))


def batch(number: int, size: int = 20) -> Batch:
    return build([f"{number}".encode().ljust(size, b".")], publish_time=1)


async def until(holds: Callable[[], bool]) -> None:
    """In virtual time, so that it costs nothing; a stalled loop ends it."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came true")


async def read_all(stream: Stream) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = stream.first
    while offset <= stream.confirmed:
        batches = await stream.read(offset, 1 << 20)
        for each in batches:
            found += each.payloads()
        offset = batches[-1].last_offset + 1
    return found
