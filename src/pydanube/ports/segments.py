"""The cold tier as a broker sees it: it writes, reads, checks and removes segments; the heavy work happens elsewhere.

Errors are those of `ports.objects`, and `SegmentMissing`, `SegmentDamaged` and `SegmentConflict`, which name the key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from pydanube.stream.delta_table import Folded, TableListing
from pydanube.stream.segments import Segment, SegmentPlan
from pydanube.wire.batch import Batch


class Segments(Protocol):
    async def write(self, key: str, plan: SegmentPlan, stream: str, batches: AsyncIterator[Batch]) -> Segment:
        """Creates the object from these batches, reads it back, and returns what is in it.

        The batches cover the plan, in order. An object that already exists is adopted if it has the same rows;
        otherwise `SegmentConflict`. It may be repeated.
        """

    async def merge(self, key: str, plan: SegmentPlan, stream: str, sources: Sequence[tuple[str, Segment]]) -> Segment:
        """Like `write`, with the rows of these segments, which cover the plan and are checked as they are read."""

    async def verify(self, key: str, segment: Segment) -> None:
        """Reads the whole object; raises unless its size, its checksum and the digest of its rows are as recorded."""

    async def read(self, key: str, segment: Segment, offset: int, bytes_max: int) -> list[Batch]:
        """Batches from `offset` on, or from the next row after a gap; at least one, about `bytes_max` in all."""

    async def create(self, key: str, data: bytes) -> None:
        """Creates a small object. `SegmentConflict` if the key already has an object with other content."""

    async def load(self, key: str) -> bytes:
        """Reads a small object; `ObjectMissing`, or `SegmentDamaged` if it exceeds `SMALL_OBJECT_BYTES_MAX`."""

    async def follow_table(self, listing: TableListing) -> tuple[Folded, ...]:
        """Brings the topic's table into line with the listing, in one commit; or changes nothing, and returns the
        ranges that must first be listed file by file. It may be repeated. `OwnershipLost` if a later owner has written
        to the table."""

    async def list(self, prefix: str) -> list[str]: ...

    async def delete(self, key: str) -> None: ...

    async def close(self) -> None: ...
