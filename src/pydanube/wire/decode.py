"""Decodes column buffers into lists. Sections must have passed `Section.check`."""

from __future__ import annotations

from io import BytesIO
from itertools import islice, pairwise
from operator import sub
from struct import unpack_from
from typing import TypeVar

from pydanube.wire.buffer_math import flags_of
from pydanube.wire.columns import Column, ColumnKind, FixedBuffers, Section, StringBuffers

_CODES = {4: "i", 8: "q"}
_Value = TypeVar("_Value")


def decode_bytes(section: Section, rows: range | None = None) -> list[bytes | None]:
    """The keys of a plain section or the payloads of a packed one, of all rows or some."""
    where = section.strings
    rows = range(section.count) if rows is None else rows
    if where is None:
        return [None] * len(rows)
    offsets = _offsets(section, where.offsets + 4 * rows.start, len(rows))
    reader = BytesIO(section.buffer)  # shares the bytes; a third faster than a slice per value
    reader.seek(where.data + offsets[0])
    return _nulled(section, where.validity, list(map(reader.read, map(sub, islice(offsets, 1, None), offsets))), rows)


def decode_fixed(section: Section, column: Column, rows: range | None = None) -> list[int | None]:
    """The values of a fixed-width column, of all rows or some."""
    where = section.fixed.get(column)
    rows = range(section.count) if rows is None else rows
    if where is None:
        return [None] * len(rows)
    if where.kind == ColumnKind.CONSTANT:
        return [decode_constant(section, where)] * len(rows)
    start = where.values + where.width * rows.start
    values = list(unpack_from(f"<{len(rows)}{_CODES[where.width]}", section.buffer, start))
    return _nulled(section, where.validity, values, rows)


def decode_constant(section: Section, where: FixedBuffers) -> int:
    """The one value of a constant column."""
    return int.from_bytes(section.buffer[where.values : where.values + where.width], "little", signed=True)


def decode_attributes(section: Section) -> list[dict[str, str] | None]:
    where = section.maps
    if where is None:
        return [None] * section.count
    entries = list(zip(_texts(section, where.names), _texts(section, where.texts), strict=True))
    rows = [dict(entries[a:b]) for a, b in pairwise(_offsets(section, where.offsets))]
    return _nulled(section, where.validity, rows, range(section.count))


def _offsets(section: Section, at: int, rows: int | None = None) -> tuple[int, ...]:
    return unpack_from(f"<{(section.count if rows is None else rows) + 1}i", section.buffer, at)


def _texts(section: Section, where: StringBuffers) -> list[str]:
    data = section.buffer[where.data : where.data + where.data_bytes]
    spans = pairwise(_offsets(section, where.offsets, where.rows))
    if data.isascii():
        text = data.decode()
        return [text[a:b] for a, b in spans]
    return [data[a:b].decode() for a, b in spans]


def _nulled(section: Section, validity: int, values: list[_Value], rows: range) -> list[_Value | None]:
    """The values, with None where the bitmap at `validity` has a zero."""
    if validity < 0 or not rows:
        return values  # type: ignore[return-value]  # a list of values is a list of values or None that has no None
    first, skipped = divmod(rows.start, 8)
    bits = int.from_bytes(section.buffer[validity + first : validity + (rows.stop + 7) // 8], "little") >> skipped
    flags = flags_of(bits & (1 << len(rows)) - 1, len(rows))
    return [value if flag == "1" else None for value, flag in zip(values, flags, strict=True)]
