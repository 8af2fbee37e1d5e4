"""The cold tier as a broker sees it: segments are written, read, checked and removed; what is heavy happens elsewhere.

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
        """Makes the object of these batches, reads it again, and says what is in it.

        The batches cover the plan, in order. An object that already exists is adopted if it has these very rows,
        else `SegmentConflict`. To repeat it is fine.
        """
        ...

    async def merge(self, key: str, plan: SegmentPlan, stream: str, sources: Sequence[tuple[str, Segment]]) -> Segment:
        """As `write`, of the rows of these segments, which cover the plan and are checked on the way."""
        ...

    async def verify(self, key: str, segment: Segment) -> None:
        """Reads all of it; raises unless size, checksum and the digest of its rows are what they should be."""
        ...

    async def read(self, key: str, segment: Segment, offset: int, bytes_max: int) -> list[Batch]:
        """Batches from `offset` on, or from the next row behind a gap; at least one, about `bytes_max` in all."""
        ...

    async def create(self, key: str, data: bytes) -> None:
        """A small object. `SegmentConflict` if there is another one under that key; the same one is fine."""
        ...

    async def load(self, key: str) -> bytes:
        """A small object. `ObjectMissing`; more than `SMALL_OBJECT_BYTES_MAX` is `SegmentDamaged`."""
        ...

    async def follow_table(self, listing: TableListing) -> tuple[Folded, ...]:
        """Brings the topic's table to the listing, in one commit; or says which stretches must be listed file by file
        first, and changes nothing. To repeat it is fine. `OwnershipLost` if a later owner has been there.
        """
        ...

    async def list(self, prefix: str) -> list[str]: ...

    async def delete(self, key: str) -> None: ...

    async def close(self) -> None: ...
