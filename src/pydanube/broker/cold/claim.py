"""A location in object storage belongs to one broker: a mark there and a record in the metadata have the same id.

This detects a wrong URL, a folder that is not mounted, or a prefix that another broker uses before anything is written
or deleted.
"""

from __future__ import annotations

import json

from pydanube.base.errors import ObjectMissing, ObjectsRefused, SegmentConflict, SegmentDamaged
from pydanube.metadata import tables
from pydanube.ports.metadata import MetadataStore
from pydanube.ports.randomness import Randomness
from pydanube.ports.segments import Segments
from pydanube.storage.metadata.table import Table

MARK = "_danube.json"


class Claim:
    """The claim of one broker to its location, which is shown to people as `location`.

    `used` says whether the metadata lists anything in object storage: then a missing mark is an error.
    """

    def __init__(
        self, segments: Segments, metadata: MetadataStore, randomness: Randomness, location: str, *, used: bool
    ) -> None:
        self._segments = segments
        self._table = Table(metadata, tables.OBJECTS)
        self._randomness = randomness
        self._location = location
        self._used = used

    async def take(self) -> None:
        """Returns if the location is this broker's. Raises if it is not, or if object storage does not answer."""
        claim, found = self._table.get(), await self._mark()
        own = None if claim is None else claim.broker
        if found is not None and found != own:
            raise ObjectsRefused(
                f"{self._location} belongs to another broker, according to {MARK}; give this one its own prefix"
            )
        if found is None and own is not None and self._used:
            raise ObjectsRefused(
                f"{self._location} is not where this broker's segments are: {MARK} is missing. "
                "Is storage.objects.url right, and the folder mounted?"
            )
        if own is None:
            own = self._randomness.bytes(16).hex()
            await self._table.replace("", 0, tables.Claim(own))
        if found is None:
            await self._write(own)
        self._used = True  # from now on, a missing mark is an error

    async def _mark(self) -> str | None:
        try:
            data = await self._segments.load(MARK)
        except ObjectMissing:
            return None
        try:
            return _id_of(data)
        except (ValueError, KeyError, TypeError):
            raise SegmentDamaged(f"{MARK} in {self._location} cannot be read") from None

    async def _write(self, own: str) -> None:
        try:
            await self._segments.create(MARK, _encode(own))
        except SegmentConflict:
            raise ObjectsRefused(f"{self._location} was just taken by another broker") from None


async def check_mark(segments: Segments, metadata: MetadataStore, location: str) -> None:
    """Raises unless a claimed location answers and still has the mark of this broker."""
    claim = Table(metadata, tables.OBJECTS).get()
    try:
        found = await segments.load(MARK)
    except ObjectMissing:
        if claim is None:  # object storage in memory is never claimed
            return
        raise ObjectsRefused(f"{MARK} is missing in {location}") from None
    if claim is None or found != _encode(claim.broker):
        raise ObjectsRefused(f"{location} belongs to another broker, according to {MARK}")


def _encode(own: str) -> bytes:
    return json.dumps({"broker": own}).encode()


def _id_of(data: bytes) -> str:
    return str(json.loads(data)["broker"])
