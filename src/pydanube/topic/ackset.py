"""Offsets done out of order, as one bitmap per chunk of offsets. An operation costs as much as its chunk, not the set.

The set spans a bounded number of chunks from where it starts, which bounds both its memory and the time to walk
through it. It knows nothing of subscriptions; a cursor moves its start.
"""

from __future__ import annotations

import re

from pydanube.base.errors import AcksScattered, StateInvalid
from pydanube.base.limits import CURSOR_CHUNK_OFFSETS, CURSOR_CHUNKS_MAX
from pydanube.base.ranges import extend_ranges

_SHIFT = CURSOR_CHUNK_OFFSETS.bit_length() - 1
_MASK = CURSOR_CHUNK_OFFSETS - 1
FULL_CHUNK = (1 << CURSOR_CHUNK_OFFSETS) - 1
_ZEROS = re.compile("0+")
assert CURSOR_CHUNK_OFFSETS == 1 << _SHIFT


class AckSet:
    """A set of offsets at or above `start`; bit n of chunk c is offset c * CURSOR_CHUNK_OFFSETS + n."""

    __slots__ = ("_chunks", "_first_chunk", "ceiling", "count")

    def __init__(self, start: int = 0) -> None:
        self._first_chunk = start >> _SHIFT
        self.ceiling = (self._first_chunk + CURSOR_CHUNKS_MAX) << _SHIFT  # it can hold no offset from here; only rises
        self._chunks: dict[int, int] = {}  # none is empty; all full ones are the same object, FULL_CHUNK
        self.count = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AckSet):
            return NotImplemented
        return self._first_chunk == other._first_chunk and self._chunks == other._chunks

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __contains__(self, offset: int) -> bool:
        bits = self._chunks.get(offset >> _SHIFT)
        return bits is not None and bits >> (offset & _MASK) & 1 == 1

    def chunks(self) -> dict[int, int]:
        """Number and bitmap of each chunk, in any order. This is a copy, and cheap, because bitmaps are immutable."""
        return self._chunks.copy()

    def load_chunk(self, number: int, bits: int) -> None:
        """Loads one of the `chunks()` of a set with the same start."""
        if number in self._chunks or not self._first_chunk <= number < self.ceiling >> _SHIFT:
            raise StateInvalid(
                f"chunk {number} already exists, or is out of range: the set starts at {self._first_chunk}"
            )
        self._merge(number, bits)

    def add(self, first: int, last: int) -> int:
        """Adds a range, completely or not at all; returns how many of its offsets are new."""
        if last >= self.ceiling:
            raise AcksScattered(
                f"offset {last} was acknowledged, but the cursor holds only offsets below {self.ceiling}"
            )
        number = first >> _SHIFT
        if first == last:
            return self._add_one(number, 1 << (first & _MASK))
        last_number = last >> _SHIFT
        if number == last_number:
            return self._merge(number, ((2 << (last - first)) - 1) << (first & _MASK))
        added = self._merge(number, FULL_CHUNK >> (first & _MASK) << (first & _MASK))
        for between in range(number + 1, last_number):
            added += self._merge(between, FULL_CHUNK)
        return added + self._merge(last_number, (2 << (last & _MASK)) - 1)

    def next_missing(self, offset: int) -> int:
        """The first offset at or above `offset` that is not in the set."""
        number = offset >> _SHIFT
        bits = self._chunks.get(number)
        if bits is None:
            return offset
        bits >>= offset & _MASK
        if not bits & 1:
            return offset
        ones = (~bits & (bits + 1)).bit_length() - 1
        if (offset & _MASK) + ones <= _MASK:
            return offset + ones
        number += 1
        while (bits := self._chunks.get(number, 0)) == FULL_CHUNK:
            number += 1
        return (number << _SHIFT) + (~bits & (bits + 1)).bit_length() - 1

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges within [first, last] that are not in the set, in order."""
        found: list[tuple[int, int]] = []
        while first <= last:
            number = first >> _SHIFT
            bits = self._chunks.get(number)
            if bits is None:
                stop = last if first >= self.ceiling else min(last, number << _SHIFT | _MASK)
                extend_ranges(found, first, stop)
            else:
                stop = min(last, number << _SHIFT | _MASK)
                low, length = first & _MASK, stop - first + 1
                text = format(bits >> low & ((1 << length) - 1), f"0{length}b")[::-1]
                for run in _ZEROS.finditer(text):
                    extend_ranges(found, first + run.start(), first + run.end() - 1)
            first = stop + 1
        return found

    def count_below(self, offset: int) -> int:
        number, low = offset >> _SHIFT, offset & _MASK
        below = sum(bits.bit_count() for chunk, bits in self._chunks.items() if chunk < number)
        return below + (self._chunks.get(number, 0) & ((1 << low) - 1)).bit_count()

    def drop_below(self, offset: int) -> None:
        """Removes everything below `offset`, where the set starts from now on."""
        number, low = offset >> _SHIFT, offset & _MASK
        if number > self._first_chunk:
            passed = number - self._first_chunk
            for gone in range(self._first_chunk, number) if passed <= len(self._chunks) else list(self._chunks):
                if gone < number:
                    self.count -= self._chunks.pop(gone, 0).bit_count()
            self._first_chunk = number
            self.ceiling = (number + CURSOR_CHUNKS_MAX) << _SHIFT
        bits = self._chunks.get(number)
        if bits is None:
            return
        kept = bits >> low << low
        if kept != bits:
            self.count -= (bits ^ kept).bit_count()
            if kept:
                self._chunks[number] = kept
            else:
                del self._chunks[number]

    def _add_one(self, number: int, bit: int) -> int:
        bits = self._chunks.get(number, 0)
        if bits & bit:
            return 0
        bits |= bit
        self._chunks[number] = FULL_CHUNK if bits == FULL_CHUNK else bits
        self.count += 1
        return 1

    def _merge(self, number: int, mask: int) -> int:
        bits = self._chunks.get(number, 0)
        added = (mask & ~bits).bit_count()
        if added:
            bits |= mask
            self._chunks[number] = FULL_CHUNK if bits == FULL_CHUNK else bits
            self.count += added
        return added
