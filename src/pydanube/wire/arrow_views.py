"""Numpy views of Arrow arrays: the same memory, without the part in front of a slice."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]  # 1 where a row has a value
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

_NOTHING: Bytes = np.zeros(0, np.uint8)


def integers(array: pa.Array) -> Integers:
    """The values of a fixed-width column. In place of a null there may be any value."""
    width = array.type.bit_width // 8
    found: Integers = np.frombuffer(array.buffers()[1], f"<i{width}", len(array), width * array.offset)
    return found


def flags(array: pa.Array) -> Flags | None:
    """Which rows have a value; None if all of them do."""
    if not array.null_count:
        return None
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :]


def spans(array: pa.Array) -> Integers:
    """The offsets of a column of byte strings or maps, one more than rows: into `contents` or the entries of maps."""
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(len(array) + 1, np.int32)  # Arrow may omit the offsets of an empty column
    found: Integers = np.frombuffer(buffer, "<i4", len(array) + 1, 4 * array.offset)
    return found


def contents(array: pa.Array) -> Bytes:
    """The bytes that the `spans` of a column of byte strings refer to."""
    buffer = array.buffers()[2]
    return _NOTHING if buffer is None else np.frombuffer(buffer, np.uint8)


def bitmap(valid: Flags) -> bytes:
    return np.packbits(valid, bitorder="little").tobytes()
