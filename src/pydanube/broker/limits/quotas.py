"""Counts stored bytes: those of a namespace, and those that the subscriptions of a topic have not finished.

Pure: numbers in, numbers out. Within a ledger, bytes are assumed to be spread evenly over its messages, so a backlog
is exact at the boundaries of ledgers and an estimate between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Extent(NamedTuple):
    """The offsets of a ledger, and its size."""

    first: int
    last: int
    bytes: int


def bytes_from(extents: Sequence[Extent], offset: int) -> int:
    """The bytes from `offset` on. The extents are in the order of their offsets."""
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
    """The lowest offset from which on there are at most this many bytes; 0 if all extents together have no more."""
    for extent in reversed(extents):
        if extent.bytes > bytes:
            count = extent.last - extent.first + 1
            return extent.last + 1 - bytes * count // extent.bytes
        bytes -= extent.bytes
    return 0


class Usage:
    """The stored bytes of a namespace: their sum, and how many each of its topics and partitions has."""

    def __init__(self) -> None:
        self.bytes = 0
        self._partitions: dict[str, int] = {}  # by topic or partition; as many as the directory has

    def set(self, partition: str, bytes: int) -> None:
        """Replaces what was counted for a partition by what was measured."""
        self.bytes += bytes - self._partitions.get(partition, 0)
        self._partitions[partition] = bytes

    def add(self, partition: str, bytes: int) -> None:
        self.bytes += bytes
        self._partitions[partition] = self._partitions.get(partition, 0) + bytes

    def forget(self, partition: str) -> None:
        self.bytes -= self._partitions.pop(partition, 0)
