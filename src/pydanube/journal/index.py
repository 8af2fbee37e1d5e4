"""Where the entries of each ledger are in one journal file: runs of offsets, and the block where their group starts.

An index is derived data: a scan rebuilds it when its own file is missing or damaged. It has one run for each ledger and
group, so its cost does not grow with the number of messages.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydanube.base.checksum import crc32c
from pydanube.base.ids import NO_OFFSET, LedgerId

_HEAD = struct.Struct("<4sIQQQI4x")  # magic, crc, generation, salt, end of the valid part, ledgers
_LEDGER = struct.Struct("<QqQI4x")  # ledger, confirmed, bytes, runs
_MAGIC = b"DJI2"
_RUN_BYTES = 20
_LEDGER_BYTES = 500  # measured memory of one ledger: an entry of a dict and three arrays
if sys.byteorder != "little":  # pragma: no cover - arrays are written as they are in memory
    raise ImportError("Danube's storage files need a little-endian machine")


def _offsets() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Runs:
    """The runs of one ledger in one file, in offset order; they never overlap."""

    firsts: array[int] = field(default_factory=_offsets)
    lasts: array[int] = field(default_factory=_offsets)
    blocks: array[int] = field(default_factory=lambda: array("I"))
    confirmed: int = NO_OFFSET
    bytes: int = 0

    def add(self, first: int, last: int, block: int) -> None:
        if not self.lasts or first > self.lasts[-1]:
            self.firsts.append(first)
            self.lasts.append(last)
            self.blocks.append(block)
            return
        at = bisect_right(self.firsts, first)  # late or recovered entries may have lower offsets than earlier ones
        self.firsts.insert(at, first)
        self.lasts.insert(at, last)
        self.blocks.insert(at, block)

    def find(self, first: int, last: int) -> int | None:
        """The block of a group that holds an offset within [first, last]."""
        at = bisect_right(self.firsts, last) - 1
        return self.blocks[at] if at >= 0 and first <= self.lasts[at] else None

    def next_first(self, offset: int) -> int | None:
        """Where the first run at or after `offset` starts."""
        at = bisect_left(self.firsts, offset)
        return self.firsts[at] if at < len(self.firsts) else None

    def behind(self, offset: int) -> int:
        """The offset after the run that holds `offset`."""
        return self.lasts[bisect_right(self.firsts, offset) - 1] + 1


@dataclass(slots=True)
class FileIndex:
    """All runs of one file."""

    ledgers: dict[LedgerId, Runs] = field(default_factory=dict)

    def add(self, ledger: LedgerId, first: int, last: int, block: int, confirmed: int, size: int) -> None:
        runs = self.ledgers.get(ledger)
        if runs is None:
            runs = self.ledgers[ledger] = Runs()
        runs.add(first, last, block)
        runs.bytes += size
        if confirmed > runs.confirmed:
            runs.confirmed = confirmed

    def find(self, ledger: LedgerId, first: int, last: int) -> int | None:
        runs = self.ledgers.get(ledger)
        return None if runs is None else runs.find(first, last)

    def next_first(self, ledger: LedgerId, offset: int) -> int | None:
        runs = self.ledgers.get(ledger)
        return None if runs is None else runs.next_first(offset)

    def behind(self, ledger: LedgerId, offset: int) -> int:
        return self.ledgers[ledger].behind(offset)

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        return sum(_LEDGER_BYTES + _RUN_BYTES * len(runs.firsts) for runs in self.ledgers.values())

    def summaries(self) -> Iterator[Summary]:
        for ledger, runs in self.ledgers.items():
            yield Summary(ledger, runs.firsts[0], runs.lasts[-1], runs.confirmed, runs.bytes)

    def encode(self, generation: int, salt: int, end: int) -> bytes:
        parts = []
        for ledger, runs in self.ledgers.items():
            parts.append(_LEDGER.pack(ledger, runs.confirmed, runs.bytes, len(runs.firsts)))
            parts += [runs.firsts.tobytes(), runs.lasts.tobytes(), runs.blocks.tobytes()]
        body = b"".join(parts)
        head = _HEAD.pack(_MAGIC, 0, generation, salt, end, len(self.ledgers))
        return head[:4] + crc32c(head[8:] + body).to_bytes(4, "little") + head[8:] + body


@dataclass(frozen=True, slots=True)
class Summary:
    """What the node knows about one ledger in a closed file without loading the file's index."""

    ledger: LedgerId
    first: int
    last: int
    confirmed: int
    bytes: int


def decode_index(data: bytes, generation: int, salt: int) -> tuple[FileIndex, int] | None:
    """The index and the end of the file's valid part; None if it is damaged or belongs to another file.

    Generations repeat between nodes and in backups; only the salt shows that the index belongs to this file.
    """
    if len(data) < _HEAD.size:
        return None
    magic, crc, *owner, end, ledgers = _HEAD.unpack_from(data)
    if magic != _MAGIC or owner != [generation, salt] or crc != crc32c(data[8:]):
        return None
    index = FileIndex()
    at = _HEAD.size
    for _ in range(ledgers):
        if at + _LEDGER.size > len(data):
            return None
        ledger, confirmed, size, count = _LEDGER.unpack_from(data, at)
        at += _LEDGER.size
        if not 0 < count <= (len(data) - at) // _RUN_BYTES:
            return None
        runs = Runs(confirmed=confirmed, bytes=size)
        runs.firsts.frombytes(data[at : at + 8 * count])
        runs.lasts.frombytes(data[at + 8 * count : at + 16 * count])
        runs.blocks.frombytes(data[at + 16 * count : at + _RUN_BYTES * count])
        at += _RUN_BYTES * count
        index.ledgers[LedgerId(ledger)] = runs
    return (index, end) if at == len(data) else None
