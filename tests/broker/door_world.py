"""A whole broker below its faces, metadata and storage node each on a simulated disk, that loses power at any step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from pydanube.access.principals import ANONYMOUS, SYSTEM
from pydanube.access.rights import Action
from pydanube.base.limits import KIB
from pydanube.broker.directory.directory import Directory
from pydanube.broker.door.door import Door
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.topic.served import ServedSubscription
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.offload import SimOffload
from pydanube.sim.machine.platter import Keep
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.local import open_local
from pydanube.storage.node.settings import NodeSettings

Work = Callable[[Door], Coroutine[Any, Any, None]]


def caller(door: Door) -> Session:
    return door.session(ANONYMOUS, Origin("test"))


async def served(door: Door, topic: str, **options: Any) -> OpenTopic:
    return await door.topics.open(SYSTEM, Action.TOPIC_SERVE, topic, **options)


def host_of(door: Door, topic: str, subscription: str) -> ServedSubscription | None:
    """As it is served now; None if the topic is not open, or has none of that name."""
    found = [each.topic.subscriptions.get(subscription) for each in door.topics.opened() if str(each.name) == topic]
    return found[0] if found else None


class DoorWorld:
    """The disks outlive the broker."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop(seed)
        self.disks = [SimDisk(self.loop, self.loop.fork_random(use), use) for use in ("metadata", "node")]
        self.clock = SimClock(self.loop)
        self.randomness = SimRandomness(Random(seed))
        self.process = self.loop.process("broker")

    async def start(self) -> Door:
        for_metadata, for_node = self.disks
        settings = NodeSettings(file_bytes=256 * KIB, retry_seconds=0.05)
        storage = await open_local(for_metadata, for_node, settings, self.randomness)
        directory = Directory(storage.metadata)
        await directory.prepare()
        offload = SimOffload(self.loop, self.loop.fork_random("offload"))
        return Door(directory, storage.catalog, storage.nodes, self.clock, self.randomness, offload=offload)

    def run(self, *works: Work) -> None:
        """One after the other in one life, which ends with a loss of power."""

        async def life() -> None:
            door = await self.start()
            for work in works:
                await work(door)

        self.loop.run_until_complete(self.loop.spawn(self.process, life()))
        self._cut()

    def run_until_cut(self, before: Work, work: Work, changes: int) -> bool:
        """The power goes after so many changes of the disks in `work`; whether it was over before that."""
        cut: asyncio.Future[None] = self.loop.create_future()
        left = changes
        over = False

        def step(_: int) -> None:
            nonlocal left
            left -= 1
            if left < 0 and not cut.done():
                cut.set_result(None)
                for disk in self.disks:
                    disk.freeze()

        async def life() -> None:
            nonlocal over
            door = await self.start()
            await before(door)
            for disk in self.disks:
                disk.on_boundary = step
            working = asyncio.ensure_future(work(door))
            await asyncio.wait([working, cut], return_when=asyncio.FIRST_COMPLETED)
            over = working.done() and not cut.done()
            if over:
                working.result()

        self.loop.run_until_complete(self.loop.spawn(self.process, life()))
        for disk in self.disks:
            disk.on_boundary = None
        self._cut(keep=None if changes else lambda *_: False)  # after none nothing of it is left, whatever the seed
        return over

    def _cut(self, keep: Keep | None = None) -> None:
        self.loop.kill(self.process)
        for disk in self.disks:
            disk.power_cut(keep=keep)
        self.process = self.loop.process("broker")

    def end(self) -> None:
        failures = self.loop.failures
        self.loop.shutdown()
        assert failures == []
