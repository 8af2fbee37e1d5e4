"""One place in object storage belongs to one broker: a mark there and a note in the metadata say the same.

So a wrong URL, a folder that is not mounted, or a prefix that another broker uses is found before anything is written,
evicted or deleted.
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
    """`used` says whether the metadata knows of anything in object storage."""

    def __init__(self, segments: Segments, notes: Notes, randomness: Randomness, shown: str, *, used: bool) -> None:
        self._segments = segments
        self._notes = notes
        self._randomness = randomness
        self._shown = shown
        self._used = used

    async def take(self) -> None:
        """Returns when the place is ours; raises why it is not, or why that cannot be told yet."""
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
                    f"{self._shown} is not where this broker's segments are: {MARK} is missing. "
                    "Is storage.objects.url right, and the folder mounted?"
                )
            if found != own:
                raise ObjectsRefused(
                    f"{self._shown} belongs to another broker, according to {MARK}; give this one its own prefix"
                )
            self._used = True  # from now on the mark must be there
            return
        if found is not None:
            raise ObjectsRefused(
                f"{self._shown} belongs to another broker, according to {MARK}; give this one its own prefix"
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
            raise SegmentDamaged(f"{MARK} in {self._shown} cannot be read") from None

    async def _write(self, own: str) -> None:
        try:
            await self._segments.create(MARK, _encode(own))
        except SegmentConflict:
            raise ObjectsRefused(f"{self._shown} was just taken by another broker") from None


async def check_mark(segments: Segments, notes: Notes, shown: str) -> None:
    """Raises unless a place that was claimed answers, and has our mark still."""
    noted = notes.get(NOTE)
    try:
        found = await segments.load(MARK)
    except ObjectMissing:
        if noted is None:  # none is made where objects are forgotten with the process
            return
        raise ObjectsRefused(f"{MARK} is missing in {shown}") from None
    if noted is None or found != noted:
        raise ObjectsRefused(f"{shown} belongs to another broker, according to {MARK}")


def _encode(own: str) -> bytes:
    return json.dumps({"broker": own}).encode()


def _id_of(data: bytes) -> str:
    return str(json.loads(data)["broker"])
