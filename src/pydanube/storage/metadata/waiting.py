"""Callers that wait until an entry is replayed, or until reads show a revision."""

from __future__ import annotations

import asyncio
from asyncio import Future
from heapq import heappop, heappush
from typing import NamedTuple

from pydanube.base.errors import DanubeError, MetadataUnavailable, NotLeader
from pydanube.metadata.records import Record
from pydanube.raft.log import Log


class _Logged(NamedTuple):
    """An entry that this node has put into the log, and has not replayed yet."""

    term: int
    record: Record | None
    replayed: Future[int]


class Waiting:
    """An entry may be replaced by that of another leader: then its callers get `NotLeader`, as nothing has changed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._logged: dict[int, _Logged] = {}  # by index
        self._reads: list[tuple[int, int, Future[None]]] = []  # a heap by revision
        self._count = 0

    def add(self, index: int, term: int, record: Record | None) -> Future[int]:
        before = self._logged.get(index)
        if before is not None:  # this node led before, and what it had there was cut off
            _refuse(before, NotLeader("another leader's entry has taken its place"))
        replayed: Future[int] = self._loop.create_future()
        self._logged[index] = _Logged(term, record, replayed)
        return replayed

    async def logged(self, index: int) -> int:
        """Returns when the entry is replayed, if it is one that waits for that."""
        found = self._logged.get(index)
        return index if found is None else await asyncio.shield(found.replayed)

    async def until(self, revision: int) -> None:
        reached: Future[None] = self._loop.create_future()
        self._count += 1
        heappush(self._reads, (revision, self._count, reached))
        await reached

    def record(self, index: int, term: int) -> Record | None:
        """What this node has put there, if it was that."""
        found = self._logged.get(index)
        return found.record if found is not None and found.term == term else None

    def replayed(self, index: int, term: int) -> None:
        found = self._logged.pop(index, None)
        if found is not None:
            if found.term != term:
                _refuse(found, NotLeader("another leader's entry has taken its place"))
            elif not found.replayed.done():
                found.replayed.set_result(index)
        self._reach(index)

    def jumped(self, index: int) -> None:
        """Reads show what a snapshot had. Whether entries before it were those of this node is not known."""
        for each in [each for each in self._logged if each <= index]:
            _refuse(self._logged.pop(each), MetadataUnavailable("this node got a snapshot of what followed"))
        self._reach(index)

    def _reach(self, index: int) -> None:
        while self._reads and self._reads[0][0] <= index:
            reached = heappop(self._reads)[2]
            if not reached.done():
                reached.set_result(None)

    def fail_cut(self, log: Log, error: DanubeError) -> None:
        """What the log does not have any more never counts."""
        for index, logged in list(self._logged.items()):
            point = log.point(index)
            if point is None or point.term != logged.term:
                _refuse(self._logged.pop(index), error)

    def fail_all(self, error: DanubeError) -> None:
        for index in list(self._logged):
            _refuse(self._logged.pop(index), error)
        reads, self._reads = self._reads, []
        for _, _, reached in reads:
            if not reached.done():
                reached.set_exception(error)


def _refuse(logged: _Logged, error: DanubeError) -> None:
    if not logged.replayed.done():
        logged.replayed.set_exception(error)
        logged.replayed.exception()  # marks it as retrieved: perhaps its caller has given up
