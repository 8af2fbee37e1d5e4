"""Reads segments from object storage in an executor: only the row groups and columns that a task needs.

The location is in the plan, and credentials come from the executor's environment. A failure here is not an error of the
query, because the broker has the same messages. A location that fails is not used for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from pydanube.base.errors import ObjectMissing, ObjectsRefused, SegmentDamaged
from pydanube.operations.storage import SealedSegment
from pydanube.spark.broker_link import BrokerLink
from pydanube.spark.plan import ObjectLocation, Range

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.adapters.opendal_objects import OpendalObjects
    from pydanube.tier.segment_file import Footer

log = logging.getLogger(__name__)
CALL_SECONDS = 20.0  # of one request with its retries; after that, the broker is faster
UNUSED_SECONDS = 60.0  # until a location that failed is used again
GROUPS_AHEAD = 2  # that are read while one is decoded
SLICE_ROWS = 16_384  # that Spark gets at a time


class _RecentlyFailed(Exception):
    """The location failed recently, which was logged."""


class OpenSegment(NamedTuple):
    """A segment whose footer was read and checked."""

    objects: OpendalObjects
    footer: Footer


class Store:
    """Reads from one location in object storage, for one process."""

    def __init__(self, link: BrokerLink, location: ObjectLocation) -> None:
        self.link = link
        self._location = location
        self._objects: OpendalObjects | None = None
        self._unused_until = 0.0
        self._logged: set[str] = set()

    async def open(self, segment: SealedSegment) -> OpenSegment:
        from pydanube.tier.limits import TAIL_BYTES
        from pydanube.tier.segment_file import footer_bytes, read_footer

        objects = self._open_location()
        length = min(TAIL_BYTES, segment.object_bytes)
        tail = await _read(objects, segment, segment.object_bytes - length, length)
        length = footer_bytes(tail, segment.object_bytes)
        if length > len(tail):
            tail = await _read(objects, segment, segment.object_bytes - length, length)
        footer = read_footer(tail, segment.object_bytes)
        plan = footer.plan
        facts = (plan.first, plan.last, plan.epoch, footer.rows, footer.digest)
        if facts != (segment.first, segment.last, segment.epoch, segment.rows, segment.digest):
            raise SegmentDamaged(f"{segment.key}: it is not the segment in the plan")
        return OpenSegment(objects, footer)

    def _open_location(self) -> OpendalObjects:
        if monotonic() < self._unused_until:
            raise _RecentlyFailed
        if self._objects is None:
            from pydanube.adapters.objects_url import parse_objects_url
            from pydanube.adapters.opendal_objects import OpendalObjects

            found = parse_objects_url(self._location.url, dict(self._location.options), os.environ)
            if found.scheme == "fs" and not Path(found.options["root"]).is_dir():
                raise ObjectsRefused("the folder does not exist on this machine")  # opendal would create it
            self._objects = OpendalObjects(found, CALL_SECONDS)
        return self._objects

    def rows(self, wanted: Range, opening: Future[OpenSegment], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a range with these columns, in slices. May raise any error."""
        from pydanube.tier.projection import read_columns

        [segment] = wanted.stored
        objects, footer = opening.result()
        firsts = [group.first for group in footer.groups]
        groups = deque(range(max(bisect_left(firsts, wanted.begin + 1) - 1, 0), bisect_left(firsts, wanted.end)))
        coming: deque[tuple[int, Future[list[tuple[int, bytes]]]]] = deque()
        try:
            while groups or coming:
                while groups and len(coming) <= GROUPS_AHEAD:
                    index = groups.popleft()
                    coming.append((index, self.link.begin(_fetch(objects, footer, segment, index, names))))
                index, future = coming[0]
                rows = read_columns(footer, index, names, future.result())
                coming.popleft()
                yield from _slices(rows, wanted.begin, wanted.end)
        finally:
            for _, future in coming:
                future.cancel()

    def failed(self, error: Exception) -> None:
        """The rest is read through the broker. Logged once for each kind of error, however many tasks get it."""
        if isinstance(error, _RecentlyFailed):
            return
        only_here = isinstance(error, ObjectMissing | SegmentDamaged) or type(error).__name__ == "InvalidSegment"
        if not only_here and monotonic() >= self._unused_until:
            self._unused_until = monotonic() + UNUSED_SECONDS
        kind = type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("reading segments through the broker instead of object storage: %s: %s", kind, error)


async def _read(objects: OpendalObjects, segment: SealedSegment, start: int, length: int) -> bytes:
    data = await objects.read(segment.key, start, length)
    if len(data) != length:
        raise SegmentDamaged(f"{segment.key}: it is shorter than when it was written")
    return data


async def _fetch(
    objects: OpendalObjects, footer: Footer, segment: SealedSegment, index: int, names: Sequence[str]
) -> list[tuple[int, bytes]]:
    from pydanube.tier.projection import stretches

    ranges = stretches(footer, index, names)
    data = await asyncio.gather(*(_read(objects, segment, start, length) for start, length in ranges))
    return [(start, piece) for (start, _), piece in zip(ranges, data, strict=True)]


def _slices(rows: pa.RecordBatch, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """The rows with offsets from `begin` to `end`, some thousands at a time. Nothing is copied."""
    offsets = rows.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if first < begin or last >= end:
        values = offsets.to_numpy()
        at, stop = values.searchsorted([begin, end])
        rows = rows.slice(int(at), int(stop - at))
    for start in range(0, len(rows), SLICE_ROWS):
        yield rows.slice(start, SLICE_ROWS)


_stores: dict[tuple[int, ObjectLocation], Store] = {}
_lock = threading.Lock()


def store_at(link: BrokerLink, location: ObjectLocation) -> Store:
    """This process's store for the location, which uses the loop of its link."""
    key = (os.getpid(), location)
    with _lock:
        found = _stores.get(key)
        if found is None or found.link is not link:
            found = _stores[key] = Store(link, location)
        return found
