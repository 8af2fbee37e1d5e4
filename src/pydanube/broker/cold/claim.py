"""A location in object storage belongs to one broker: a mark there and a note in the metadata have the same id.

So a wrong URL, a folder that is not mounted, or a prefix that another broker uses is noticed before anything is
written or deleted.
"""

from __future__ import annotations

import json

from pydanube.base.errors import ObjectMissing, ObjectsRefused, SegmentConflict, SegmentDamaged
from pydanube.broker.directory.notes import Notes
from pydanube.ports.randomness import Randomness
from pydanube.ports.segments import Segments

MARK = "_danube.json"
NOTE = "objects"


class Claim:
    """The claim of one broker to its location, which is shown to people as `location`.

    `used` says whether the metadata lists anything in object storage: then a missing mark is an error.
    """

    def __init__(self, segments: Segments, notes: Notes, randomness: Randomness, location: str, *, used: bool) -> None:
        self._segments = segments
        self._notes = notes
        self._randomness = randomness
        self._location = location
        self._used = used

    async def take(self) -> None:
        """Returns if the location is this broker's. Raises if it is not, or if object storage does not answer."""
        noted = self._notes.get(NOTE)
        found = await self._mark()
        if noted is not None:
            own = _id_of(noted)
            if found is None and not self._used:
                await self._write(own)
                self._used = True
                return
            if found is None:
                raise ObjectsRefused(
                    f"{self._location} is not where this broker's segments are: {MARK} is missing. "
                    "Is storage.objects.url right, and the folder mounted?"
                )
            if found != own:
                raise ObjectsRefused(
                    f"{self._location} belongs to another broker, according to {MARK}; give this one its own prefix"
                )
            self._used = True  # from now on, a missing mark is an error
            return
        if found is not None:
            raise ObjectsRefused(
                f"{self._location} belongs to another broker, according to {MARK}; give this one its own prefix"
            )
        own = self._randomness.bytes(16).hex()
        await self._notes.put(NOTE, _encode(own))
        await self._write(own)
        self._used = True

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


async def check_mark(segments: Segments, notes: Notes, location: str) -> None:
    """Raises unless a claimed location answers and still has the mark of this broker."""
    noted = notes.get(NOTE)
    try:
        found = await segments.load(MARK)
    except ObjectMissing:
        if noted is None:  # object storage in memory is never claimed
            return
        raise ObjectsRefused(f"{MARK} is missing in {location}") from None
    if noted is None or found != noted:
        raise ObjectsRefused(f"{location} belongs to another broker, according to {MARK}")


def _encode(own: str) -> bytes:
    return json.dumps({"broker": own}).encode()


def _id_of(data: bytes) -> str:
    return str(json.loads(data)["broker"])
