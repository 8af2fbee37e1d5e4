"""The object storage port, shared by all processes of a world and outliving them: slow, failing, forgetful, unkind.

A request that was sent lands, whatever became of who sent it: a killed or impatient caller may still create or delete.
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
TRAVEL_SECONDS_MAX = 0.02  # of a request, and of its answer
LATE_SECONDS_MAX = 8.0  # of a request that hangs
PATIENCE_SECONDS = 2.0  # then the caller is told that it failed, whether or not it lands later
KeyHook = Callable[[str], None]


def _ignore(key: str) -> None:
    """Nobody watches."""


class SimObjects:
    """Implements `ports.objects.Objects`, and the faults of row N6. Everything is undone by `heal` and `restore`."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.held: dict[str, bytes] = {}
        self.made: dict[str, bytes] = {}  # every object ever created, as it was then
        self.lost: dict[str, float] = {}  # objects that vanished, since when
        self.damaged: dict[str, float] = {}  # objects that changed by themselves, since when
        self.broken: set[str] = set()  # keys of what was lost or damaged at any time
        self.deleted: set[str] = set()  # keys that somebody deleted, whether or not there was anything
        self.read_whole: dict[str, float] = {}  # when all of an object was last read, to behind its end, and was right
        self.failing = 0.0  # the chance that a request fails before it does anything
        self.unsure = 0.0  # the chance that a request is done, and its answer lost
        self.slowness = 0.0  # seconds that a request takes longer, at most
        self.hanging = 0.0  # the chance that a request hangs, and lands when nobody expects it any more
        self.created: KeyHook = _ignore
        self.deleting: KeyHook = _ignore
        self._stale: list[str] | None = None  # what listings show, if not the truth
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
            self._forgive(key)
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
            self._forgive(key)

        await self._request("delete", key, remove)

    async def close(self) -> None:
        """Others use it, too."""

    def _get(self, key: str) -> bytes:
        if key not in self.held:
            raise ObjectMissing(key)
        return self.held[key]

    # -- the way there and back ----------------------------------------------------------------------------------------

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
            error = ObjectsFailed(f"{kind} of {key}: not now")
        else:
            try:
                result = effect()
            except DanubeError as refused:
                error = refused
            if unsure:
                error = ObjectsFailed(f"{kind} of {key}: the answer was lost")
        self._loop.trace(f"objects.{kind}", key, "ok" if error is None else error.code, unsure)
        back = self._random.uniform(0.0005, TRAVEL_SECONDS_MAX)
        self._loop.call_later(back, _tell, answer, result, error, context=self._loop.world)

    # -- faults --------------------------------------------------------------------------------------------------------

    def list_stale(self) -> None:
        """From now on listings show what is there now, whatever is made or deleted."""
        self._stale = sorted(self.held)

    def lose(self, place: int) -> None:
        """One of the objects is no longer there."""
        key = self._pick(place)
        if key is not None:
            self._loop.trace("objects.lost", key)
            del self.held[key]
            self.damaged.pop(key, None)
            self.lost[key] = self._loop.time()
            self.broken.add(key)

    def damage(self, place: int, amount: float) -> None:
        """A bit of one of the objects flips, or it is cut off."""
        key = self._pick(place)
        if key is None or key in self.damaged:
            return
        self._loop.trace("objects.damaged", key)
        data = self.held[key]
        at = int(amount * len(data))
        flipped = data[:at] + bytes([data[at] ^ (1 << place % 8)]) + data[at + 1 :]
        self.held[key] = data[:at] if place % 4 == 0 else flipped
        self.damaged[key] = self._loop.time()
        self.broken.add(key)

    def _pick(self, place: int) -> str | None:
        keys = sorted(self.held)
        return keys[place % len(keys)] if keys else None

    def heal(self) -> None:
        """Requests work from now on; those that hang land in time. What is lost or damaged stays so."""
        self.failing = self.unsure = self.slowness = self.hanging = 0.0
        self._stale = None

    def restore(self) -> None:
        """Somebody had a copy: whatever was lost or damaged, and is still meant to be there, is as it was."""
        for key in (*self.lost, *self.damaged):
            self.held[key] = self.made[key]
        self.lost.clear()
        self.damaged.clear()

    def _forgive(self, key: str) -> None:
        self.lost.pop(key, None)
        self.damaged.pop(key, None)


def _tell(answer: Future[Any], result: object, error: DanubeError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
