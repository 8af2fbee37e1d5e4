"""The metadata of a simulated cluster: one store that outlives all processes, and what each of them knows of it.

The product's own store decides every transaction. Transactions take a while and their answers may be lost, and what a
process reads may be a little behind, as in a cluster whose metadata is replicated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from random import Random

from pydanube.base.errors import NodeUnreachable
from pydanube.metadata.records import NO_SESSION, Check, Entry, Record, Repeat, RequestedChange
from pydanube.sim.machine.loop import Process, SimLoop
from pydanube.storage.metadata.store import MemoryMetadata, StoreWatch

BEHIND_SECONDS_MAX = 0.02  # what a process reads is at most this old


class SharedMetadata(MemoryMetadata):
    """Decides for all processes, and remembers what it decided."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        super().__init__()
        self.unreliable = 0.0  # the probability that an answer is lost
        self.decided: list[tuple[int, Record | None]] = []  # every record, with its revision
        self._loop = loop
        self._random = random
        self._followers: list[tuple[Process, FollowedMetadata]] = []

    def of(self, process: Process) -> FollowedMetadata:
        """The store as a process that has just started sees it."""
        follower = FollowedMetadata(self)
        self._followers = [each for each in self._followers if each[0].alive]
        self._followers.append((process, follower))
        return follower

    def _replay(self, revision: int, record: Record | None) -> None:
        super()._replay(revision, record)
        self.decided.append((revision, record))
        for process, follower in self._followers:
            delay = self._random.uniform(0.0, BEHIND_SECONDS_MAX)
            arguments = (process, follower.catch_up, len(self.decided))
            self._loop.call_later(delay, self._loop.run_in, *arguments, context=self._loop.world)

    async def travel(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0002, 0.003))
        if self.unreliable and self._random.random() < self.unreliable:
            await asyncio.sleep(self._random.uniform(0.05, 1.0))
            raise NodeUnreachable("the metadata did not answer")


class FollowedMetadata:
    """A `MetadataStore` of one process: it reads its own copy, and asks the shared store to decide."""

    def __init__(self, shared: SharedMetadata) -> None:
        self._shared = shared
        self._copy = _Copy()
        self._known = 0  # how many of the decided records the copy has
        self.catch_up(len(shared.decided))

    def catch_up(self, count: int) -> None:
        """Applies the decided records up to this number."""
        for revision, record in islice(self._shared.decided, self._known, count):
            self._copy.apply(revision, record)
        self._known = max(self._known, count)

    # -- the port ------------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._copy.revision

    def get(self, key: str) -> Entry | None:
        return self._copy.get(key)

    def scan(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[tuple[str, Entry]]:
        return self._copy.scan(prefix, after=after, limit=limit)

    def count(self, prefix: str) -> int:
        return self._copy.count(prefix)

    def watch(self, prefix: str) -> StoreWatch:
        return self._copy.watch(prefix)

    async def transact(
        self,
        checks: Sequence[Check],
        changes: Sequence[RequestedChange],
        *,
        session: int = NO_SESSION,
        reserve: bool = False,
        empty: str = "",
        repeat: Repeat | None = None,
    ) -> int:
        shared = self._shared
        await shared.travel()
        revision = await shared.transact(checks, changes, session=session, reserve=reserve, empty=empty, repeat=repeat)
        count = len(shared.decided)
        await shared.travel()
        self.catch_up(count)
        return revision

    async def barrier(self) -> int:
        await self._shared.travel()
        self.catch_up(len(self._shared.decided))
        return self.revision

    async def reach(self, revision: int) -> int:
        if self.revision < revision:
            await self.barrier()
        return revision

    async def open_session(self, seconds: float) -> int:
        await self._shared.travel()
        return await self._shared.open_session(seconds)

    async def keep_alive(self, session: int) -> None:
        await self._shared.travel()
        await self._shared.keep_alive(session)

    async def close_session(self, session: int) -> None:
        await self._shared.travel()
        await self._shared.close_session(session)

    async def close(self) -> None:
        await self._copy.close()


class _Copy(MemoryMetadata):
    def apply(self, revision: int, record: Record | None) -> None:
        self._replay(revision, record)
