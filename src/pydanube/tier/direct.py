"""Segments over object storage, in this process. What is heavy runs where `offload` says.

An object is made once, whole, and read again before anything is said of it. One that is there already is taken for
ours if it has our rows: a writer that was interrupted anywhere is simply repeated.
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
from pydanube.base.limits import SMALL_OBJECT_BYTES_MAX
from pydanube.ledger.segments import Segment, SegmentPlan
from pydanube.ledger.tables import Folded, TableListing
from pydanube.ports.objects import Objects
from pydanube.ports.offload import Offload
from pydanube.tier.limits import GATHERED_BYTES, GATHERED_ROWS, OBJECT_BYTES_MAX, SEGMENT_BATCHES_BYTES_MAX
from pydanube.tier.reading import SegmentReader
from pydanube.tier.rows import rows_of
from pydanube.tier.segment_file import SegmentWriter, Unsound, check_whole, checksum_of, made
from pydanube.wire.batch import Batch

STEPS = ("gather", "encode", "create", "created", "read", "check", "done")  # of a write, each named before it begins


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
                raise BatchTooLarge(f"a segment is made of at most {SEGMENT_BATCHES_BYTES_MAX} bytes of batches")
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
            data = await self._whole(source, segment.size)
            await self._checked(source, _add_segment, writer, data, segment)
        return await self._finish(key, stream, writer, sum(segment.bytes for _, segment in sources))

    async def _finish(self, key: str, stream: str, writer: SegmentWriter, batch_bytes: int) -> Segment:
        self._step("encode")
        data: bytes = await self._run(writer.finish)
        if len(data) > OBJECT_BYTES_MAX:
            raise BatchTooLarge(f"a segment of {len(data)} bytes, at most {OBJECT_BYTES_MAX}")
        segment: Segment = await self._run(made, data, batch_bytes)
        self._step("create")
        try:
            await self._objects.create(key, data)
        except ObjectExists:
            return await self._adopt(key, segment, stream)
        del data  # it is about to be read again, and twice is enough
        self._step("created")
        try:
            self._step("read")
            again = await self._whole(key, segment.size)
        except SegmentMissing:
            raise ObjectsFailed(f"{key} was made, and is not there") from None
        self._step("check")
        await self._checked(key, _check, again, segment)
        self._step("done")
        return segment

    async def _adopt(self, key: str, ours: Segment, stream: str) -> Segment:
        """An object is there: of an earlier attempt, of another writer of this plan, or something else."""
        try:
            size = await self._objects.size(key)
            if size > OBJECT_BYTES_MAX:
                raise SegmentConflict(f"{key}: an object of {size} bytes is there")
            self._step("read")
            theirs = await self._objects.read(key, 0, size)
        except ObjectMissing:
            raise ObjectsFailed(f"{key} was there, and is gone") from None
        self._step("check")
        try:
            segment: Segment = await self._run(_same, theirs, ours, stream)
        except Unsound as error:
            raise SegmentConflict(f"{key}: {error}") from None
        self._step("done")
        return segment

    # -- checking and reading ----------------------------------------------------------------------------------------

    async def verify(self, key: str, segment: Segment) -> None:
        data = await self._whole(key, segment.size)
        await self._checked(key, _check, data, segment)

    async def read(self, key: str, segment: Segment, offset: int, bytes_max: int) -> list[Batch]:
        return await self._reader.read(key, segment, offset, bytes_max)

    async def _whole(self, key: str, size: int) -> bytes:
        """All of an object that should have so many bytes; `SegmentDamaged` if it has more or less."""
        try:
            data = await self._objects.read(key, 0, size + 1)
        except ObjectMissing:
            raise SegmentMissing(key) from None
        if len(data) != size:
            raise SegmentDamaged(f"{key}: {'more' if len(data) > size else 'less'} than the {size} bytes written")
        return data

    # -- tables --------------------------------------------------------------------------------------------------------

    async def follow_table(self, listing: TableListing) -> tuple[Folded, ...]:
        if self._follow_table is None:
            raise ObjectsRefused("tables cannot be made at this place of object storage")
        return await self._follow_table(listing)

    # -- small objects -----------------------------------------------------------------------------------------------

    async def create(self, key: str, data: bytes) -> None:
        try:
            await self._objects.create(key, data)
        except ObjectExists:
            try:
                found = await self._objects.read(key, 0, len(data) + 1)
            except ObjectMissing:
                raise ObjectsFailed(f"{key} was there, and is gone") from None
            if found != data:
                raise SegmentConflict(f"{key}: another object is there") from None

    async def load(self, key: str) -> bytes:
        data = await self._objects.read(key, 0, SMALL_OBJECT_BYTES_MAX + 1)
        if len(data) > SMALL_OBJECT_BYTES_MAX:
            raise SegmentDamaged(f"{key}: more than {SMALL_OBJECT_BYTES_MAX} bytes")
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

    async def _checked(self, key: str, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return await self._run(function, *arguments)
        except Unsound as error:
            raise SegmentDamaged(f"{key}: {error}") from None


def _add(writer: SegmentWriter, batches: Sequence[Batch]) -> None:
    writer.add(rows_of(batches))


def _check(data: bytes, segment: Segment) -> None:
    if len(data) != segment.size or checksum_of(data) != segment.checksum:
        raise Unsound("size or checksum are not those of what was written")
    check_whole(data).check(segment)


def _same(theirs: bytes, ours: Segment, stream: str) -> Segment:
    """What to record of an object that has our rows, whoever made it and however it is grouped."""
    footer = check_whole(theirs)
    if (footer.stream, footer.plan, footer.rows, footer.digest) != (stream, ours.plan, ours.rows, ours.digest):
        raise Unsound("it has other rows")
    return footer.segment(ours.bytes, len(theirs), checksum_of(theirs))


def _add_segment(writer: SegmentWriter, data: bytes, segment: Segment) -> None:
    """Checks on the way; what was added of a damaged segment is thrown away with the writer."""
    if len(data) != segment.size or checksum_of(data) != segment.checksum:
        raise Unsound("size or checksum are not those of what was written")
    check_whole(data, writer.add).check(segment)
