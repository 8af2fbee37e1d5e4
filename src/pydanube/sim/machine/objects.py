"""The object storage port, shared by all processes of a world and outliving them: slow, failing and forgetful.

A request that was sent takes effect, whatever happened to its sender: a process that was killed or gave up may still
create or delete an object.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from pydanube.base.errors import DanubeError, ObjectExists, ObjectMissing, ObjectsFailed
from pydanube.sim.machine.loop import SimLoop

Result = TypeVar("Result")
TRAVEL_SECONDS_MAX = 0.02  # for a request, and for its answer
LATE_SECONDS_MAX = 8.0  # for a request that hangs
PATIENCE_SECONDS = 2.0  # then the request fails for the caller, but may take effect later
KeyHook = Callable[[str], None]


def _ignore(key: str) -> None:
    """The default hook."""


class SimObjects:
    """Implements `ports.objects.Objects` and the faults of row N6, which `heal` and `restore` undo."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.held: dict[str, bytes] = {}
        self.made: dict[str, bytes] = {}  # every object that was ever created, with its original content
        self.lost: dict[str, float] = {}  # when objects vanished
        self.damaged: dict[str, float] = {}  # when objects were damaged
        self.broken: set[str] = set()  # keys of objects that were ever lost or damaged
        self.deleted: set[str] = set()  # keys that were deleted, whether or not they existed
        self.read_whole: dict[str, float] = {}  # when an object was last read beyond its end, and was intact
        self.failing = 0.0  # the probability that a request fails without effect
        self.unsure = 0.0  # the probability that a request takes effect, and its answer is lost
        self.slowness = 0.0  # additional seconds of a request, at most
        self.hanging = 0.0  # the probability that a request hangs, and takes effect much later
        self.created: KeyHook = _ignore
        self.deleting: KeyHook = _ignore
        self._stale: list[str] | None = None  # what listings show, if they are stale
        self._loop = loop
        self._random = random

    # -- the port ------------------------------------------------------------------------------------------------------

    async def create(self, key: str, data: bytes) -> None:
        content = bytes(data)

        def make() -> None:
            if key in self.held:
                raise ObjectExists(key)
            self.held[key] = content
            self.made.setdefault(key, content)
            self._clear_damage(key)
            self.created(key)

        await self._request("create", key, make)

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        def get() -> bytes:
            data = self._get(key)
            if start == 0 and (length is None or length > len(data)) and key not in self.damaged:
                self.read_whole[key] = self._loop.time()
            return data[start:] if length is None else data[start : start + length]

        return await self._request("read", key, get)

    async def size(self, key: str) -> int:
        return await self._request("size", key, lambda: len(self._get(key)))

    async def list(self, prefix: str) -> list[str]:
        def keys() -> list[str]:
            shown = sorted(self.held) if self._stale is None else self._stale
            return [key for key in shown if key.startswith(prefix)]

        return await self._request("list", prefix, keys)

    async def delete(self, key: str) -> None:
        def remove() -> None:
            if key in self.held or key in self.lost:
                self.deleting(key)
            self.held.pop(key, None)
            self.deleted.add(key)
            self._clear_damage(key)

        await self._request("delete", key, remove)

    async def close(self) -> None:
        """Does nothing: other processes use it too."""

    def _get(self, key: str) -> bytes:
        if key not in self.held:
            raise ObjectMissing(key)
        return self.held[key]

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _request(self, kind: str, key: str, effect: Callable[[], Result]) -> Result:
        draw, loop = self._random, self._loop
        arrives = loop.time() + draw.uniform(0.0005, TRAVEL_SECONDS_MAX) + draw.random() * self.slowness
        if draw.random() < self.hanging:
            arrives += draw.uniform(0.0, LATE_SECONDS_MAX)
        fails, unsure = draw.random() < self.failing, draw.random() < self.unsure
        answer: Future[Result] = loop.create_future()
        arguments = (kind, key, effect, answer, fails, unsure)
        loop.call_at(arrives, self._land, *arguments, context=loop.world)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await answer
        except TimeoutError:
            raise ObjectsFailed(f"{kind} of {key}: no answer in {PATIENCE_SECONDS:.0f} s") from None

    def _land(
        self, kind: str, key: str, effect: Callable[[], Any], answer: Future[Any], fails: bool, unsure: bool
    ) -> None:
        error: DanubeError | None = None
        result = None
        if fails:
            error = ObjectsFailed(f"{kind} of {key}: injected")
        else:
            try:
                result = effect()
            except DanubeError as refused:
                error = refused
            if unsure:
                error = ObjectsFailed(f"{kind} of {key}: the answer was lost")
        self._loop.trace(f"objects.{kind}", key, "ok" if error is None else error.code, unsure)
        back = self._random.uniform(0.0005, TRAVEL_SECONDS_MAX)
        self._loop.call_later(back, _complete, answer, result, error, context=self._loop.world)

    # -- faults --------------------------------------------------------------------------------------------------------

    def list_stale(self) -> None:
        """From now on listings show the present objects, whatever is created or deleted."""
        self._stale = sorted(self.held)

    def lose(self, target: int) -> None:
        key = self._pick(target)
        if key is not None:
            self._loop.trace("objects.lost", key)
            del self.held[key]
            self.damaged.pop(key, None)
            self.lost[key] = self._loop.time()
            self.broken.add(key)

    def damage(self, target: int, amount: float) -> None:
        """Flips a bit of one of the objects, or truncates it."""
        key = self._pick(target)
        if key is None or key in self.damaged:
            return
        self._loop.trace("objects.damaged", key)
        data = self.held[key]
        at = int(amount * len(data))
        flipped = data[:at] + bytes([data[at] ^ (1 << target % 8)]) + data[at + 1 :]
        self.held[key] = data[:at] if target % 4 == 0 else flipped
        self.damaged[key] = self._loop.time()
        self.broken.add(key)

    def _pick(self, target: int) -> str | None:
        keys = sorted(self.held)
        return keys[target % len(keys)] if keys else None

    def heal(self) -> None:
        """New requests work from now on. Objects that are lost or damaged stay so."""
        self.failing = self.unsure = self.slowness = self.hanging = 0.0
        self._stale = None

    def restore(self) -> None:
        """Restores lost and damaged objects that were not deleted, as if from a backup."""
        for key in (*self.lost, *self.damaged):
            self.held[key] = self.made[key]
        self.lost.clear()
        self.damaged.clear()

    def _clear_damage(self, key: str) -> None:
        self.lost.pop(key, None)
        self.damaged.pop(key, None)


def _complete(answer: Future[Any], result: object, error: DanubeError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
