"""Reads segments in parts: the footer once, then row groups as they are needed, and the next one ahead.

A part is a range of the object; it is used only after its checksum was verified. Recently read parts are cached.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from pydanube.base.errors import DanubeError, ObjectMissing, SegmentDamaged, SegmentMissing
from pydanube.base.limits import BATCHES_READ_AT_ONCE
from pydanube.ports.objects import Objects
from pydanube.stream.segments import Segment
from pydanube.tier.cutting import CutRows
from pydanube.tier.limits import FOOTER_CACHE_BYTES, GROUP_CACHE_BYTES, READ_BYTES_MAX, READS_AT_ONCE, TAIL_BYTES
from pydanube.tier.segment_file import Footer, InvalidSegment, footer_bytes, read_footer, read_group
from pydanube.wire.batch import Batch

_FOOTER_COST = 4  # bytes that a footer takes in memory for each byte in the object
_GroupId = tuple[str, str, int]  # key, checksum of the object, row group
Key = TypeVar("Key")
Value = TypeVar("Value")


class Run(Protocol):
    """Runs an expensive function, here or elsewhere."""

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Awaitable[Any]: ...


class SizedCache(Generic[Key, Value]):
    """A cache bounded by bytes, which drops the least recently used value first. A value larger than the bound stays
    until another is added.
    """

    def __init__(self, bytes_max: int) -> None:
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes_max = bytes_max
        self.bytes = 0

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
        self._entries[key] = (value, size)
        self.bytes += size
        while self.bytes > self._bytes_max and len(self._entries) > 1:
            self.bytes -= self._entries.popitem(last=False)[1][1]

    def drop(self, which: Callable[[Key], bool]) -> None:
        for key in [key for key in self._entries if which(key)]:
            self.bytes -= self._entries.pop(key)[1]


class SegmentReader:
    def __init__(self, objects: Objects, run: Run) -> None:
        self._objects = objects
        self._run = run
        self._footers: SizedCache[tuple[str, str], Footer] = SizedCache(FOOTER_CACHE_BYTES)
        self._groups: SizedCache[_GroupId, CutRows] = SizedCache(GROUP_CACHE_BYTES)
        self._coming: dict[_GroupId, Task[CutRows]] = {}  # row groups that are being read

    async def read(self, key: str, segment: Segment, offset: int, bytes_max: int) -> list[Batch]:
        footer = await self._footer(key, segment)
        index = max(bisect_right(segment.groups, offset) - 1, 0)
        bytes_max = min(bytes_max, READ_BYTES_MAX)
        while index < len(footer.groups):
            cut = await self._group(key, segment, footer, index)
            self._read_ahead(key, segment, footer, index + 1)
            batches: list[Batch] = await self._checked(key, _take, cut, offset, bytes_max)
            if batches:
                return batches
            index += 1  # a gap extends to the end of the row group
        return []

    def forget(self, key: str) -> None:
        self._footers.drop(lambda cached: cached[0] == key)
        self._groups.drop(lambda cached: cached[0] == key)

    async def close(self) -> None:
        tasks = list(self._coming.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _footer(self, key: str, segment: Segment) -> Footer:
        cached = self._footers.get((key, segment.checksum))
        if cached is not None:
            return cached
        tail = await self._range(key, max(segment.size - TAIL_BYTES, 0), min(TAIL_BYTES, segment.size))
        length = await self._checked(key, footer_bytes, tail, segment.size)
        if length > len(tail):
            tail = await self._range(key, segment.size - length, length)
        footer: Footer = await self._checked(key, _footer_of, tail, segment)
        self._footers.put((key, segment.checksum), footer, _FOOTER_COST * footer.length)
        return footer

    async def _group(self, key: str, segment: Segment, footer: Footer, index: int) -> CutRows:
        group_id = (key, segment.checksum, index)
        cached = self._groups.get(group_id)
        if cached is not None:
            return cached
        task = self._coming.get(group_id) or self._fetch(group_id, footer)
        return await asyncio.shield(task)  # others may wait for it too

    def _read_ahead(self, key: str, segment: Segment, footer: Footer, index: int) -> None:
        group_id = (key, segment.checksum, index)
        known = group_id in self._coming or self._groups.get(group_id) is not None
        if index < len(footer.groups) and not known and len(self._coming) < READS_AT_ONCE:
            self._fetch(group_id, footer)

    def _fetch(self, group_id: _GroupId, footer: Footer) -> Task[CutRows]:
        task = self._coming[group_id] = asyncio.create_task(self._fetch_group(group_id, footer))
        task.add_done_callback(lambda done: self._fetched(group_id, done))
        return task

    def _fetched(self, group_id: _GroupId, task: Task[CutRows]) -> None:
        del self._coming[group_id]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: waiting callers get it, and after a read ahead, the next reader

    async def _fetch_group(self, group_id: _GroupId, footer: Footer) -> CutRows:
        key, _, index = group_id
        group = footer.groups[index]
        data = await self._range(key, group.start, group.length)
        cut, size = await self._checked(key, _cut_group, footer, index, data)
        self._groups.put(group_id, cut, size)
        assert isinstance(cut, CutRows)
        return cut

    async def _range(self, key: str, start: int, length: int) -> bytes:
        try:
            return await self._objects.read(key, start, length)
        except ObjectMissing:
            raise SegmentMissing(f"{key} is missing") from None

    async def _checked(self, key: str, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return await self._run(function, *arguments)
        except InvalidSegment as error:
            raise SegmentDamaged(f"{key}: {error}") from None


def _footer_of(tail: bytes, segment: Segment) -> Footer:
    footer = read_footer(tail, segment.size)
    footer.check(segment)
    return footer


def _cut_group(footer: Footer, index: int, data: bytes) -> tuple[CutRows, int]:
    rows = read_group(footer, index, data)
    return CutRows(rows), rows.get_total_buffer_size()


def _take(cut: CutRows, offset: int, bytes_max: int) -> list[Batch]:
    found: list[Batch] = []
    size = 0
    try:
        for index in range(cut.holding(offset), len(cut)):
            batch = cut.batch(index)
            if batch.base_offset < offset:
                batch = batch.slice(offset - batch.base_offset, batch.last_offset - offset + 1)
            size += batch.size
            if found and (size > bytes_max or len(found) == BATCHES_READ_AT_ONCE):
                break
            found.append(batch)
    except DanubeError as error:
        raise InvalidSegment(f"its rows are not batches: {error}") from None
    return found
