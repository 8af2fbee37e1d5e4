"""The newest confirmed batches of all topics, within one limit of memory: live consumers never read from disk.

The limit counts the memory that batches take, not their bytes: a batch with one small message takes ten times as much.
The unpacked content of a batch is not kept here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from pydanube.base.limits import TAIL_CACHE_BYTES
from pydanube.wire.batch import Batch

_COMPACT_AT = 1024  # dropped batches of one topic before its lists are shortened


class TailCache:
    """Shared by all topics of a broker; when it is full, the oldest batch of all topics is dropped."""

    def __init__(self, bytes_max: int = TAIL_CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  # of memory
        self._order: deque[tuple[Tail, int]] = deque()  # in the order they were added, with their sizes

    def tail(self) -> Tail:
        return Tail(self)

    def added(self, tail: Tail, size: int) -> None:
        self._order.append((tail, size))
        self.bytes += size
        while self.bytes > self.bytes_max:
            oldest, its_size = self._order.popleft()
            self.bytes -= its_size
            oldest.drop_oldest()


class Tail:
    """The batches of one topic in offset order, without gaps: a batch that does not follow the last clears the tail."""

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._batches: list[Batch | None] = []
        self._head = 0  # batches before this index were dropped
        self._forgotten = 0  # batches that `clear` dropped and the cache still counts

    def add(self, batch: Batch) -> None:
        if len(self._bases) > self._head and batch.base_offset != self._next:
            self.clear()
        self._bases.append(batch.base_offset)
        self._batches.append(batch.without_unpacked())
        self._cache.added(self, batch.memory)

    @property
    def _next(self) -> int:
        newest = self._batches[-1]
        assert newest is not None
        return newest.last_offset + 1

    def find(self, offset: int) -> Batch | None:
        """The batch that contains `offset`, if it is cached."""
        at = bisect_right(self._bases, offset, self._head) - 1
        if at < self._head:
            return None
        batch = self._batches[at]
        assert batch is not None
        return batch.without_unpacked() if offset <= batch.last_offset else None

    def drop_oldest(self) -> None:
        """Called by the cache, once for each batch that was added."""
        if self._forgotten:
            self._forgotten -= 1
            return
        self._batches[self._head] = None
        self._head += 1
        if self._head >= _COMPACT_AT:
            del self._bases[: self._head], self._batches[: self._head]
            self._head = 0

    def clear(self) -> None:
        self._forgotten += len(self._bases) - self._head
        self._bases, self._batches, self._head = [], [], 0
