"""Segments over object storage, in this process. Heavy work runs where `offload` puts it.

An object is created once, as a whole, and read back before it is reported. An object that already exists is adopted if
it has our rows, so an interrupted write is simply repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pydanube.base.errors import (
    BatchTooLarge,
    ObjectExists,
    ObjectMissing,
    ObjectsFailed,
    ObjectsRefused,
    SegmentConflict,
    SegmentDamaged,
    SegmentMissing,
)
from pydanube.base.limits import SEGMENT_BATCHES_BYTES_MAX, SMALL_OBJECT_BYTES_MAX
from pydanube.ports.objects import Objects
from pydanube.ports.offload import Offload
from pydanube.stream.delta_table import Folded, TableListing
from pydanube.stream.segments import Segment, SegmentPlan
from pydanube.tier.limits import GATHERED_BYTES, GATHERED_ROWS, OBJECT_BYTES_MAX, TAIL_BYTES
from pydanube.tier.reading import SegmentReader
from pydanube.tier.rows import rows_of
from pydanube.tier.segment_file import Footer, InvalidSegment, SegmentScan, SegmentWriter, footer_bytes, made
from pydanube.wire.batch import Batch

STEPS = ("gather", "encode", "create", "created", "check", "done")  # of a write; each is reported before it begins


FollowTable = Callable[[TableListing], Awaitable[tuple[Folded, ...]]]


class DirectSegments:
    def __init__(
        self,
        objects: Objects,
        offload: Offload | None = None,
        step: Callable[[str], None] | None = None,
        follow_table: FollowTable | None = None,
    ) -> None:
        self._objects = objects
        self._offload = offload
        self._step = step or (lambda _: None)
        self._follow_table = follow_table
        self._reader = SegmentReader(objects, self._run)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write(self, key: str, plan: SegmentPlan, stream: str, batches: AsyncIterator[Batch]) -> Segment:
        self._step("gather")
        writer = SegmentWriter(plan, stream)
        gathered: list[Batch] = []
        rows = unpacked = total = 0
        async for batch in batches:
            gathered.append(batch)
            rows += batch.count
            unpacked += batch.plain_bytes + batch.raw_bytes
            total += batch.size
            if total > SEGMENT_BATCHES_BYTES_MAX:
                raise BatchTooLarge(f"a segment can hold at most {SEGMENT_BATCHES_BYTES_MAX} bytes of batches")
            if rows >= GATHERED_ROWS or unpacked >= GATHERED_BYTES:
                await self._run(_add, writer, gathered)
                gathered = []
                rows = unpacked = 0
        if gathered:
            await self._run(_add, writer, gathered)
        return await self._finish(key, stream, writer, total)

    async def merge(self, key: str, plan: SegmentPlan, stream: str, sources: Sequence[tuple[str, Segment]]) -> Segment:
        self._step("gather")
        writer = SegmentWriter(plan, stream)
        for source, segment in sources:
            await self._check(source, segment, writer.add)
        return await self._finish(key, stream, writer, sum(segment.bytes for _, segment in sources))

    async def _finish(self, key: str, stream: str, writer: SegmentWriter, batch_bytes: int) -> Segment:
        self._step("encode")
        data: bytes = await self._run(writer.finish)
        if len(data) > OBJECT_BYTES_MAX:
            raise BatchTooLarge(f"the segment has {len(data)} bytes; the maximum is {OBJECT_BYTES_MAX}")
        segment: Segment = await self._run(made, data, batch_bytes)
        self._step("create")
        try:
            await self._objects.create(key, data)
        except ObjectExists:
            return await self._adopt(key, segment, stream)
        del data  # frees memory before the object is read back
        self._step("created")
        self._step("check")
        try:
            await self._check(key, segment)
        except SegmentMissing:
            raise ObjectsFailed(f"{key} was written but does not exist") from None
        self._step("done")
        return segment

    async def _adopt(self, key: str, ours: Segment, stream: str) -> Segment:
        """Adopts an existing object, from an earlier attempt or another writer of this plan, unless it is foreign."""
        try:
            size = await self._objects.size(key)
        except ObjectMissing:
            raise ObjectsFailed(f"{key} existed but is gone") from None
        self._step("check")
        try:
            if size > OBJECT_BYTES_MAX:
                raise InvalidSegment(f"it has {size} bytes")
            footer, checksum = await self._scan(key, size)
            if (footer.stream, footer.plan, footer.rows, footer.digest) != (stream, ours.plan, ours.rows, ours.digest):
                raise InvalidSegment("it has different rows")
        except InvalidSegment as error:
            raise SegmentConflict(f"{key}: another object exists there: {error}") from None
        segment = footer.segment(ours.bytes, size, checksum)
        self._step("done")
        return segment

    # -- checking and reading ----------------------------------------------------------------------------------------

    async def verify(self, key: str, segment: Segment) -> None:
        await self._check(key, segment)

    async def read(self, key: str, segment: Segment, offset: int, bytes_max: int) -> list[Batch]:
        return await self._reader.read(key, segment, offset, bytes_max)

    async def _check(self, key: str, segment: Segment, take: Callable[[Any], None] | None = None) -> None:
        """Reads the whole object and passes its rows to `take`; `SegmentDamaged` unless it is the one recorded."""
        try:
            footer, checksum = await self._scan(key, segment.size, take)
            if checksum != segment.checksum:
                raise InvalidSegment("the checksum differs from what was written")
            footer.check(segment)
        except InvalidSegment as error:
            raise SegmentDamaged(f"{key}: {error}") from None
        except ObjectMissing:
            raise SegmentMissing(f"{key} is missing") from None

    async def _scan(self, key: str, size: int, take: Callable[[Any], None] | None = None) -> tuple[Footer, str]:
        """The footer and the checksum of an object of this size, read part by part, so that little is in memory."""
        tail = await self._range(key, max(size - TAIL_BYTES, 0), min(TAIL_BYTES, size), last=True)
        length = footer_bytes(tail, size)
        if length > len(tail):
            tail = await self._range(key, size - length, length, last=True)
        scan: SegmentScan = await self._run(SegmentScan, tail, size)
        for start, length in scan.parts():
            rows = await self._run(scan.take, await self._range(key, start, length))
            if take is not None:
                await self._run(take, rows)
        return scan.footer, await self._run(scan.finish)

    async def _range(self, key: str, start: int, length: int, *, last: bool = False) -> bytes:
        """Reads a part; for the last one it asks for one byte more, which should not exist."""
        data = await self._objects.read(key, start, length + last)
        if len(data) != length:
            raise InvalidSegment("it is longer or shorter than what was written")
        return data

    # -- tables --------------------------------------------------------------------------------------------------------

    async def follow_table(self, listing: TableListing) -> tuple[Folded, ...]:
        if self._follow_table is None:
            raise ObjectsRefused("tables cannot be created in this object storage")
        return await self._follow_table(listing)

    # -- small objects -----------------------------------------------------------------------------------------------

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self._objects.create(key, data)
        except ObjectExists:
            try:
                found = await self._objects.read(key, 0, len(data) + 1)
            except ObjectMissing:
                raise ObjectsFailed(f"{key} existed but is gone") from None
            if found != data:
                raise SegmentConflict(f"{key}: another object exists there") from None

    async def load(self, key: str) -> bytes:
        data = await self._objects.read(key, 0, SMALL_OBJECT_BYTES_MAX + 1)
        if len(data) > SMALL_OBJECT_BYTES_MAX:
            raise SegmentDamaged(f"{key} has more than {SMALL_OBJECT_BYTES_MAX} bytes")
        return data

    async def list(self, prefix: str) -> list[str]:
        return await self._objects.list(prefix)

    async def delete(self, key: str) -> None:
        self._reader.forget(key)
        await self._objects.delete(key)

    async def close(self) -> None:
        await self._reader.close()
        await self._objects.close()

    # -- work --------------------------------------------------------------------------------------------------------

    async def _run(self, function: Callable[..., Any], *arguments: object) -> Any:
        if self._offload is None:
            return function(*arguments)
        return await self._offload.run(function, *arguments)


def _add(writer: SegmentWriter, batches: Sequence[Batch]) -> None:
    writer.add(rows_of(batches))
