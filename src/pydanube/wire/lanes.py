"""Arithmetic on whole buffers of int32 and on bitmaps, done on Python's big integers: C speed without numpy.

A buffer of n little-endian int32 is one integer of n 32-bit lanes. As long as no lane borrows from the next, one
subtraction works on all of them. Long buffers go piece by piece, so that neither the constants nor the integers grow.
"""

from __future__ import annotations

from functools import lru_cache

_PIECE = 8192  # lanes at a time: 32 KiB, which the first cache holds
_CACHED = 64  # batches of one producer mostly have few different counts; an entry is at most 32 KiB


@lru_cache(_CACHED)
def _ones(lanes: int) -> int:
    """1 in every lane."""
    return int.from_bytes(b"\1\0\0\0" * lanes, "little")


@lru_cache(_CACHED)
def _tops(lanes: int) -> int:
    """The top bit of every lane."""
    return _ones(lanes) << 31


@lru_cache(_CACHED)
def _fence(lanes: int) -> int:
    """The top bit of every lane, and one full lane behind them for the last to borrow from."""
    return _tops(lanes) | 0xFFFF_FFFF << 32 * lanes


def rising(buffer: bytes, at: int, lanes: int) -> bool:
    """Whether none of the `lanes` int32 that start at byte `at` is negative or smaller than the one before it."""
    end = at + 4 * lanes
    for start in range(at, end, 4 * _PIECE):
        piece = buffer[max(at, start - 4) : min(end, start + 4 * _PIECE)]  # with the last of the piece before
        if not _piece_rises(piece):
            return False
    return True


def _piece_rises(piece: bytes) -> bool:
    lanes = len(piece) // 4
    values = int.from_bytes(piece, "little")
    tops = _tops(lanes)
    if values & tops:
        return False
    # Each lane, with its top bit set, less the lane before it: the top bit stays exactly where it was not the smaller.
    return ((values | _fence(lanes)) - (values << 32)) & tops == tops


def steps_within(buffer: bytes, at: int, lanes: int, most: int) -> bool:
    """Whether no int32 of a rising buffer is larger by more than `most` than the one before it."""
    end = at + 4 * lanes
    for start in range(at, end - 4, 4 * _PIECE):
        piece = buffer[start : min(end, start + 4 * _PIECE + 4)]
        count = len(piece) // 4 - 1
        before, after = int.from_bytes(piece[:-4], "little"), int.from_bytes(piece[4:], "little")
        tops = _tops(count)
        if ((before + most * _ones(count)) | tops) - after & tops != tops:
            return False
    return True


def rebased(buffer: bytes, base: int) -> bytes:
    """The int32 of a rising buffer, each less by `base`, which is at most the first of them."""
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
    """The inverse of `bits_of`: one "0" or "1" a row."""
    return f"{bits:0{count}b}"[::-1]
