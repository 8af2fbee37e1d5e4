"""Slices of a section: byte ranges of its buffers with offsets rebased. No value is decoded."""

from __future__ import annotations

from typing import NamedTuple

from pydanube.wire.buffer_math import rebased
from pydanube.wire.columns import PACKED_COLUMNS, PLAIN_COLUMNS, Column, ColumnKind, Section, StringBuffers
from pydanube.wire.encode import bitmap, padding


class Rows(NamedTuple):
    """`length` rows from row `first` on; for names and texts these are entries, for data bytes."""

    first: int
    length: int

    @property
    def after(self) -> int:
        return self.first + self.length


def slice_section(section: Section, rows: Rows, *, packed: bool) -> tuple[int, list[bytes]]:
    """A section with only these rows: the kinds of its columns, as bits of the header's `columns`, and its parts."""
    columns = 0
    parts: list[bytes] = []
    for column in PACKED_COLUMNS if packed else PLAIN_COLUMNS:
        kind, buffers = _slice_column(section, column, rows)
        columns |= kind << 2 * column
        parts += buffers
    return columns, parts


def _slice_column(section: Section, column: Column, rows: Rows) -> tuple[ColumnKind, list[bytes]]:
    if column in (Column.KEY, Column.PAYLOAD):
        return _slice_strings(section, rows)
    if column == Column.ATTRIBUTES:
        return _slice_maps(section, rows)
    return _slice_fixed(section, column, rows)


def _slice_validity(section: Section, validity: int, rows: Rows) -> tuple[ColumnKind, list[bytes]]:
    """The kind of the column in these rows, which may have no nulls or no values, and its bitmap."""
    if validity < 0:
        return ColumnKind.PLAIN, []
    first_byte, skip = divmod(rows.first, 8)
    bits = section.buffer[validity + first_byte : validity + (rows.after + 7) // 8]
    kept = int.from_bytes(bits, "little") >> skip & (1 << rows.length) - 1
    if not kept:
        return ColumnKind.ABSENT, []
    if kept.bit_count() == rows.length:
        return ColumnKind.PLAIN, []
    return ColumnKind.NULLABLE, [bitmap(kept, rows.length)]


def _slice_fixed(section: Section, column: Column, rows: Rows) -> tuple[ColumnKind, list[bytes]]:
    where = section.fixed.get(column)
    if where is None:
        return ColumnKind.ABSENT, []
    if where.kind == ColumnKind.CONSTANT:
        return ColumnKind.CONSTANT, [section.buffer[where.values : where.values + 8]]
    kind, parts = _slice_validity(section, where.validity, rows)
    if not kind:
        return kind, parts
    at = where.values + rows.first * where.width
    size = rows.length * where.width
    return kind, [*parts, section.buffer[at : at + size], padding(size)]


def _slice_strings(section: Section, rows: Rows) -> tuple[ColumnKind, list[bytes]]:
    where = section.strings
    if where is None:
        return ColumnKind.ABSENT, []
    kind, parts = _slice_validity(section, where.validity, rows)
    return kind, parts + _slice_data(section, where, rows) if kind else []


def _slice_maps(section: Section, rows: Rows) -> tuple[ColumnKind, list[bytes]]:
    where = section.maps
    if where is None:
        return ColumnKind.ABSENT, []
    kind, parts = _slice_validity(section, where.validity, rows)
    if not kind:
        return kind, parts
    offsets, kept = _slice_offsets(section, where.offsets, rows)
    names = _slice_data(section, where.names, kept)
    return kind, [*parts, *offsets, *names, *_slice_data(section, where.texts, kept)]


def _slice_data(section: Section, where: StringBuffers, rows: Rows) -> list[bytes]:
    offsets, data = _slice_offsets(section, where.offsets, rows)
    return [*offsets, section.buffer[where.data + data.first : where.data + data.after], padding(data.length)]


def _slice_offsets(section: Section, at: int, rows: Rows) -> tuple[list[bytes], Rows]:
    """The offsets of these rows, starting at 0 again, and the range that they referred to."""
    buffer = section.buffer[at + 4 * rows.first : at + 4 * (rows.after + 1)]
    first = int.from_bytes(buffer[:4], "little")
    last = int.from_bytes(buffer[-4:], "little")
    return [rebased(buffer, first), padding(len(buffer))], Rows(first, last - first)
