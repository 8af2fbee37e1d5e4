"""What is stored, counted: the bytes of a namespace, and those that the subscriptions of a topic have not finished.

Pure: numbers in, numbers out. Bytes between two offsets of one ledger are taken in proportion to its messages, so a
backlog is known exactly per ledger and about within one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Extent(NamedTuple):
    """A ledger's offsets, and its bytes."""

    first: int
    last: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """How far the slowest subscription of a topic may fall behind. None is no such limit."""

    bytes: int | None = None
    seconds: int | None = None
    drop_oldest: bool = False  # else publishing is refused


def bytes_from(extents: Sequence[Extent], offset: int) -> int:
    """The bytes at `offset` and after. Extents come in the order of their offsets."""
    total = 0
    for extent in reversed(extents):
        if extent.last < offset:
            break
        if extent.first >= offset:
            total += extent.bytes
        else:
            total += extent.bytes * (extent.last - offset + 1) // (extent.last - extent.first + 1)
    return total


def offset_leaving(extents: Sequence[Extent], bytes: int) -> int:
    """The lowest offset at and after which there are at most this many bytes; 0 if all of them are."""
    for extent in reversed(extents):
        if extent.bytes > bytes:
            count = extent.last - extent.first + 1
            return extent.last + 1 - bytes * count // extent.bytes
        bytes -= extent.bytes
    return 0


class Usage:
    """Stored bytes of one namespace: a sum that is kept, and the part of it that each of its places has."""

    def __init__(self) -> None:
        self.bytes = 0
        self._places: dict[str, int] = {}  # topic or partition; there are no more than the directory has

    def set(self, place: str, bytes: int) -> None:
        """What was found to be stored there."""
        self.bytes += bytes - self._places.get(place, 0)
        self._places[place] = bytes

    def add(self, place: str, bytes: int) -> None:
        self.bytes += bytes
        self._places[place] = self._places.get(place, 0) + bytes

    def forget(self, place: str) -> None:
        self.bytes -= self._places.pop(place, 0)
