"""Encodes lists of values as column buffers. The usual lists (no nulls, ASCII keys) take a fast path at C speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from struct import error as struct_error
from struct import pack
from typing import TypeVar

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import BATCH_ATTRIBUTES_MAX, BATCH_BYTES_MAX
from pydanube.wire.buffer_math import bits_of
from pydanube.wire.columns import ColumnKind, padded

_PADDING = tuple(b"\0" * (-size % 8) for size in range(8))
_CODES = {4: "i", 8: "q"}
_Value = TypeVar("_Value")


def padding(size: int) -> bytes:
    """The zeros that follow a buffer of `size` bytes."""
    return _PADDING[size & 7]


def bitmap(bits: int, count: int) -> bytes:
    return bits.to_bytes(padded((count + 7) // 8), "little")


def _validity(values: Sequence[_Value | None]) -> tuple[ColumnKind, list[bytes]]:
    """The kind of a column with these values, and its bitmap if it has one."""
    bits = bits_of("".join(["0" if value is None else "1" for value in values]))
    if not bits:
        return ColumnKind.ABSENT, []
    if bits.bit_count() == len(values):
        return ColumnKind.PLAIN, []
    return ColumnKind.NULLABLE, [bitmap(bits, len(values))]


def _offsets(lengths: Iterable[int], count: int, total: int) -> list[bytes]:
    """The offsets of values with these lengths, which have `total` bytes together, and padding."""
    if total > BATCH_BYTES_MAX:
        raise BatchTooLarge(f"a column has {total} bytes; the maximum for a batch is {BATCH_BYTES_MAX}")
    buffer = pack(f"<{count + 1}i", *accumulate(lengths, initial=0))
    return [buffer, padding(len(buffer))]


def _strings(values: Sequence[bytes], data: bytes) -> list[bytes]:
    parts = _offsets(map(len, values), len(values), len(data))
    if int.from_bytes(parts[0][-4:], "little") != len(data):
        raise BatchInvalid("a value's length is not its number of bytes")  # such as a memoryview of int32
    parts += data, padding(len(data))
    return parts


def encode_bytes(values: Sequence[bytes | None]) -> tuple[ColumnKind, list[bytes]]:
    """A column of payloads."""
    try:
        return ColumnKind.PLAIN, _strings(values, b"".join(values))  # type: ignore[arg-type]  # a None raises
    except TypeError:
        kind, parts = _validity(values)
    try:
        filled = [b"" if value is None else value for value in values]
        return kind, parts + _strings(filled, b"".join(filled)) if kind else []
    except TypeError:
        raise BatchInvalid("a payload or key must be bytes or None") from None


def encode_keys(values: Sequence[bytes | str | None]) -> tuple[ColumnKind, list[bytes]]:
    """A column of keys; text is stored as UTF-8."""
    try:
        text = "".join(values)  # type: ignore[arg-type]  # anything but text raises
    except TypeError:
        pass
    else:
        return ColumnKind.PLAIN, _encode_text(values, text)  # type: ignore[arg-type]
    try:
        return encode_bytes([value.encode() if isinstance(value, str) else value for value in values])
    except UnicodeEncodeError:
        raise BatchInvalid("a key is not Unicode text") from None


def _encode_text(values: Sequence[str], text: str) -> list[bytes]:
    """Strings whose concatenation is `text`."""
    if text.isascii():
        data = text.encode()
        return [*_offsets(map(len, values), len(values), len(data)), data, padding(len(data))]
    try:
        encoded = [value.encode() for value in values]
    except UnicodeEncodeError:
        raise BatchInvalid("a text has a lone surrogate") from None
    return _strings(encoded, b"".join(encoded))


def encode_attributes(rows: Sequence[Mapping[str, str] | None]) -> tuple[ColumnKind, list[bytes]]:
    """A column of maps from text to text."""
    kind, parts = _validity(rows)
    if not kind:
        return kind, []
    names: list[str] = []
    texts: list[str] = []
    try:
        for row in rows:
            if row:
                names.extend(row)
                texts.extend(row.values())
        if len(names) > BATCH_ATTRIBUTES_MAX:
            raise BatchTooLarge(f"the batch has {len(names)} attributes; the maximum is {BATCH_ATTRIBUTES_MAX}")
        parts += _offsets([len(row) if row else 0 for row in rows], len(rows), len(names))
        return kind, parts + _encode_text(names, "".join(names)) + _encode_text(texts, "".join(texts))
    except (TypeError, AttributeError):
        raise BatchInvalid("attributes must be None or a mapping from str to str") from None


def encode_fixed(values: Sequence[int | None], width: int) -> tuple[ColumnKind, list[bytes]]:
    """A column of integers of `width` bytes; a single value if all are equal."""
    code = _CODES[width]
    first = values[0]
    try:
        if values.count(first) == len(values):
            if first is None:
                return ColumnKind.ABSENT, []
            return ColumnKind.CONSTANT, [pack(f"<{code}", first), padding(width)]
        if None not in values:
            return ColumnKind.PLAIN, _integers(code, values, width)
        kind, parts = _validity(values)
        return kind, parts + _integers(code, [value or 0 for value in values], width)
    except struct_error:
        raise BatchInvalid(f"a value is not an integer of {width} bytes") from None


def _integers(code: str, values: Sequence[int | None], width: int) -> list[bytes]:
    return [pack(f"<{len(values)}{code}", *values), padding(len(values) * width)]
