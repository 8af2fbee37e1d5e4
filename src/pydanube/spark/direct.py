"""Segments straight from object storage, in an executor: only the row groups and columns that a task needs.

The place comes with the plan, the credentials from the executor's own environment. Whatever goes wrong here is no error
of the query: the broker has the same messages. A place that fails is left alone for a while.
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
from pydanube.spark.broker_link import BrokerLink
from pydanube.spark.plan import ObjectLocation, Range, StoredSegment

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.adapters.opendal_objects import OpendalObjects
    from pydanube.tier.segment_file import Footer

log = logging.getLogger(__name__)
CALL_SECONDS = 20.0  # of one request, with its retries: then the broker is quicker
AWAY_SECONDS = 60.0  # until a place that failed is tried again
GROUPS_AHEAD = 2  # read while one is decoded
SLICE_ROWS = 16_384  # of what is handed to Spark at a time


class _AwayError(Exception):
    """The place failed a moment ago, and somebody was told."""


class Opened(NamedTuple):
    """A segment whose footer is read and is the right one."""

    objects: OpendalObjects
    footer: Footer


class Store:
    """A place in object storage, for one process."""

    def __init__(self, link: BrokerLink, place: ObjectLocation) -> None:
        self._link = link
        self._place = place
        self._objects: OpendalObjects | None = None
        self._away_until = 0.0
        self._told: set[str] = set()

    def works_on(self, link: BrokerLink) -> bool:
        return self._link is link

    async def open(self, segment: StoredSegment) -> Opened:
        from pydanube.tier.limits import TAIL_BYTES
        from pydanube.tier.segment_file import footer_bytes, read_footer

        objects = self._open_place()
        length = min(TAIL_BYTES, segment.size)
        tail = await _read(objects, segment, segment.size - length, length)
        length = footer_bytes(tail, segment.size)
        if length > len(tail):
            tail = await _read(objects, segment, segment.size - length, length)
        footer = read_footer(tail, segment.size)
        plan = footer.plan
        facts = (plan.first, plan.last, plan.epoch, footer.rows, footer.digest)
        if facts != (segment.first, segment.last, segment.epoch, segment.rows, segment.digest):
            raise SegmentDamaged(f"{segment.key}: it is not the segment that was planned")
        return Opened(objects, footer)

    def _open_place(self) -> OpendalObjects:
        if monotonic() < self._away_until:
            raise _AwayError
        if self._objects is None:
            from pydanube.adapters.objects_url import parse_objects_url
            from pydanube.adapters.opendal_objects import OpendalObjects

            found = parse_objects_url(self._place.url, dict(self._place.options), os.environ)
            if found.scheme == "fs" and not Path(found.options["root"]).is_dir():
                raise ObjectsRefused("the folder does not exist on this machine")  # opendal would make it
            self._objects = OpendalObjects(found, CALL_SECONDS)
        return self._objects

    def rows(self, wanted: Range, opening: Future[Opened], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Its rows with those columns, in slices. Raises anything."""
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
                    coming.append((index, self._link.begin(_fetch(objects, footer, segment, index, names))))
                index, future = coming[0]
                rows = read_columns(footer, index, names, future.result())
                coming.popleft()
                yield from _slices(rows, wanted.begin, wanted.end)
        finally:
            for _, future in coming:
                future.cancel()

    def failed(self, error: Exception) -> None:
        """The broker is asked from here on. Said once for each kind of reason, however many tasks find out."""
        if isinstance(error, _AwayError):
            return
        alone = isinstance(error, ObjectMissing | SegmentDamaged) or type(error).__name__ == "InvalidSegment"
        if not alone and monotonic() >= self._away_until:
            self._away_until = monotonic() + AWAY_SECONDS
        kind = type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            log.warning("reading segments through the broker instead of object storage: %s: %s", kind, error)


async def _read(objects: OpendalObjects, segment: StoredSegment, start: int, length: int) -> bytes:
    data = await objects.read(segment.key, start, length)
    if len(data) != length:
        raise SegmentDamaged(f"{segment.key}: it is shorter than when it was written")
    return data


async def _fetch(
    objects: OpendalObjects, footer: Footer, segment: StoredSegment, index: int, names: Sequence[str]
) -> list[tuple[int, bytes]]:
    from pydanube.tier.projection import stretches

    places = stretches(footer, index, names)
    data = await asyncio.gather(*(_read(objects, segment, start, length) for start, length in places))
    return [(start, piece) for (start, _), piece in zip(places, data, strict=True)]


def _slices(rows: pa.RecordBatch, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """Those with offsets from `begin` to `end`, a few thousand at a time; nothing is copied."""
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


def store_at(link: BrokerLink, place: ObjectLocation) -> Store:
    """The process's own. It works on the loop of its link."""
    key = (os.getpid(), place)
    with _lock:
        found = _stores.get(key)
        if found is None or not found.works_on(link):
            found = _stores[key] = Store(link, place)
        return found
