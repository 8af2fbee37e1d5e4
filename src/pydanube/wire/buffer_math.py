"""Arithmetic on whole buffers of int32 and on bitmaps, as Python's big integers: C speed without numpy.

A buffer of n little-endian int32 is one integer with n digits of 32 bits. As long as no digit borrows from the next,
one subtraction works on all of them. Long buffers are handled in pieces, so that constants and integers stay small.
"""

from __future__ import annotations

from functools import lru_cache

_PIECE = 8192  # digits at a time: 32 KiB fit into the first-level cache
_CACHED = 64  # the batches of one producer mostly have few different counts; an entry has at most 32 KiB


@lru_cache(_CACHED)
def _ones(count: int) -> int:
    """1 in every digit."""
    return int.from_bytes(b"\1\0\0\0" * count, "little")


@lru_cache(_CACHED)
def _tops(count: int) -> int:
    """The top bit of every digit."""
    return _ones(count) << 31


@lru_cache(_CACHED)
def _borrowable(count: int) -> int:
    """The top bit of every digit, and one full digit above them for the last to borrow from."""
    return _tops(count) | 0xFFFF_FFFF << 32 * count


def is_ascending(buffer: bytes, at: int, count: int) -> bool:
    """Whether none of the `count` int32 that start at byte `at` is negative or smaller than the one before it."""
    end = at + 4 * count
    for start in range(at, end, 4 * _PIECE):
        piece = buffer[max(at, start - 4) : min(end, start + 4 * _PIECE)]  # with the last int32 of the piece before
        if not _piece_ascends(piece):
            return False
    return True


def _piece_ascends(piece: bytes) -> bool:
    count = len(piece) // 4
    values = int.from_bytes(piece, "little")
    tops = _tops(count)
    if values & tops:
        return False
    # Each digit with its top bit set, minus the digit before it: the top bit stays set unless the digit was smaller.
    return ((values | _borrowable(count)) - (values << 32)) & tops == tops


def steps_within(buffer: bytes, at: int, count: int, most: int) -> bool:
    """Whether no int32 of an ascending buffer exceeds the one before it by more than `most`."""
    end = at + 4 * count
    for start in range(at, end - 4, 4 * _PIECE):
        piece = buffer[start : min(end, start + 4 * _PIECE + 4)]
        steps = len(piece) // 4 - 1
        before, after = int.from_bytes(piece[:-4], "little"), int.from_bytes(piece[4:], "little")
        tops = _tops(steps)
        if ((before + most * _ones(steps)) | tops) - after & tops != tops:
            return False
    return True


def rebased(buffer: bytes, base: int) -> bytes:
    """Subtracts `base` from every int32 of an ascending buffer; `base` is at most the first of them."""
    if not base:
        return buffer
    pieces = []
    for start in range(0, len(buffer), 4 * _PIECE):
        piece = buffer[start : start + 4 * _PIECE]
        shifted = int.from_bytes(piece, "little") - base * _ones(len(piece) // 4)
        pieces.append(shifted.to_bytes(len(piece), "little"))
    return b"".join(pieces)


def bits_of(flags: str) -> int:
    """The bitmap in which bit i is set if character i of `flags` is "1"."""
    return int(flags[::-1], 2)


def flags_of(bits: int, count: int) -> str:
    """The inverse of `bits_of`: one "0" or "1" per row."""
    return f"{bits:0{count}b}"[::-1]
