"""A simulated disk and the process that uses it, for tests of either."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pydanube.ports.disk import Disk, DiskFile
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop


class World:
    """One disk, and the process that uses it."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.loop = SimLoop(seed)
        self.disk = SimDisk(self.loop, self.loop.fork_random("disk"), "disk", **options)
        self.process = self.loop.process("node")

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(self.loop.spawn(self.process, coroutine))

    def start(self, coroutine: Coroutine[Any, Any, Any], seconds: float) -> None:
        """Starts it and lets that much time pass."""
        self.loop.spawn(self.process, coroutine)
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def restart(self) -> None:
        self.loop.kill(self.process)
        self.process = self.loop.process("node")

    def cut(self, **choices: Any) -> None:
        self.loop.kill(self.process)
        self.disk.power_cut(**choices)
        self.process = self.loop.process("node")

    def end(self) -> None:
        failures = self.loop.failures
        self.loop.shutdown()
        assert failures == []


def lose(write: int, sector: int) -> bool:
    return False


async def make(disk: Disk, name: str = "a", reserve: int = 0) -> DiskFile:
    """A file that survives."""
    file = await disk.create(name, reserve=reserve)
    await file.sync()
    await disk.sync_directory()
    return file
