"""Object storage in a dict, with faults to order: fails, fails after success, hangs, lists stale, loses objects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from pydanube.base.errors import ObjectExists, ObjectMissing, ObjectsFailed

Result = TypeVar("Result")


class Fault(Enum):
    FAILS = "fails"
    FAILS_AFTER = "fails after success"
    SLOW = "slow"
    STALE = "stale list"
    LOST = "lost object"


class WorldObjects:
    """Implements `ports.objects.Objects`. `faults` names, for an operation, what goes wrong at its next calls."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.bytes_read = 0
        self.faults: dict[str, list[Fault | None]] = {}
        self.hanging = asyncio.Event()  # set while a call hangs
        self.go_on = asyncio.Event()  # what hanging calls wait for
        self.closed = False
        self._listed: list[str] = []

    async def create(self, key: str, data: bytes) -> None:
        def make() -> None:
            if key in self.objects:
                raise ObjectExists(key)
            self.objects[key] = bytes(data)

        await self._call("create", make, key)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = await self._call("read", lambda: self._get(key), key)
        found = data[start:] if length is None else data[start : start + length]
        self.bytes_read += len(found)
        return found

    async def size(self, key: str) -> int:
        return len(await self._call("size", lambda: self._get(key), key))

    async def list(self, prefix: str) -> list[str]:
        assert prefix.endswith("/")
        if self._next("list") is Fault.STALE:
            return [key for key in self._listed if key.startswith(prefix)]
        self._listed = sorted(self.objects)
        return await self._call("list", lambda: [key for key in self._listed if key.startswith(prefix)])

    async def delete(self, key: str) -> None:
        await self._call("delete", lambda: self.objects.pop(key, None), key)

    async def close(self) -> None:
        self.closed = True

    def _get(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key]

    def _next(self, operation: str) -> Fault | None:
        waiting = self.faults.get(operation, [])
        return waiting[0] if waiting else None

    async def _call(self, operation: str, do: Callable[[], Result], key: str = "") -> Result:
        self.calls[operation] += 1
        waiting = self.faults.get(operation, [])
        fault = waiting.pop(0) if waiting else None
        if fault is Fault.FAILS:
            raise ObjectsFailed(f"{operation} {key}: planted")
        if fault is Fault.SLOW:
            self.hanging.set()
            await self.go_on.wait()
        result = do()
        if fault is Fault.FAILS_AFTER:
            raise ObjectsFailed(f"{operation} {key}: planted, after success")
        if fault is Fault.LOST:
            self.objects.pop(key, None)
        return result
