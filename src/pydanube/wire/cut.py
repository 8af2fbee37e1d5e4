"""Rows cut out of a section: byte ranges of its buffers, offsets rebased, no value decoded."""

from __future__ import annotations

from typing import NamedTuple

from pydanube.wire.columns import PACKED_COLUMNS, PLAIN_COLUMNS, Column, Kind, Section, Variable
from pydanube.wire.encode import bitmap, padding
from pydanube.wire.lanes import rebased


class Rows(NamedTuple):
    """`length` rows from row `first` on; of names and texts, entries; of data, bytes."""

    first: int
    length: int

    @property
    def after(self) -> int:
        return self.first + self.length


def cut_section(section: Section, rows: Rows, *, packed: bool) -> tuple[int, list[bytes]]:
    """The kinds of the columns (as bits of the header's `columns`) and the parts of a section with only these rows."""
    columns = 0
    parts: list[bytes] = []
    for column in PACKED_COLUMNS if packed else PLAIN_COLUMNS:
        kind, buffers = _cut(section, column, rows)
        columns |= kind << 2 * column
        parts += buffers
    return columns, parts


def _cut(section: Section, column: Column, rows: Rows) -> tuple[Kind, list[bytes]]:
    if column in (Column.KEY, Column.PAYLOAD):
        return _cut_variable(section, rows)
    if column == Column.ATTRIBUTES:
        return _cut_entries(section, rows)
    return _cut_fixed(section, column, rows)


def _cut_validity(section: Section, validity: int, rows: Rows) -> tuple[Kind, list[bytes]]:
    """What kind the column has in these rows: with the others its nulls, or all its values, may be gone."""
    if validity < 0:
        return Kind.PLAIN, []
    first_byte, skip = divmod(rows.first, 8)
    bits = section.buffer[validity + first_byte : validity + (rows.after + 7) // 8]
    kept = int.from_bytes(bits, "little") >> skip & (1 << rows.length) - 1
    if not kept:
        return Kind.ABSENT, []
    if kept.bit_count() == rows.length:
        return Kind.PLAIN, []
    return Kind.NULLABLE, [bitmap(kept, rows.length)]


def _cut_fixed(section: Section, column: Column, rows: Rows) -> tuple[Kind, list[bytes]]:
    where = section.fixed.get(column)
    if where is None:
        return Kind.ABSENT, []
    if where.kind == Kind.CONSTANT:
        return Kind.CONSTANT, [section.buffer[where.values : where.values + 8]]
    kind, parts = _cut_validity(section, where.validity, rows)
    if not kind:
        return kind, parts
    at = where.values + rows.first * where.width
    size = rows.length * where.width
    return kind, [*parts, section.buffer[at : at + size], padding(size)]


def _cut_variable(section: Section, rows: Rows) -> tuple[Kind, list[bytes]]:
    where = section.variable
    if where is None:
        return Kind.ABSENT, []
    kind, parts = _cut_validity(section, where.validity, rows)
    return kind, parts + _cut_strings(section, where, rows) if kind else []


def _cut_entries(section: Section, rows: Rows) -> tuple[Kind, list[bytes]]:
    where = section.entries
    if where is None:
        return Kind.ABSENT, []
    kind, parts = _cut_validity(section, where.validity, rows)
    if not kind:
        return kind, parts
    offsets, kept = _cut_offsets(section, where.offsets, rows)
    names = _cut_strings(section, where.names, kept)
    return kind, [*parts, *offsets, *names, *_cut_strings(section, where.texts, kept)]


def _cut_strings(section: Section, where: Variable, rows: Rows) -> list[bytes]:
    offsets, data = _cut_offsets(section, where.offsets, rows)
    return [*offsets, section.buffer[where.data + data.first : where.data + data.after], padding(data.length)]


def _cut_offsets(section: Section, at: int, rows: Rows) -> tuple[list[bytes], Rows]:
    """The offsets of these rows, starting at 0 again, and the range they pointed to."""
    buffer = section.buffer[at + 4 * rows.first : at + 4 * (rows.after + 1)]
    first = int.from_bytes(buffer[:4], "little")
    last = int.from_bytes(buffer[-4:], "little")
    return [rebased(buffer, first), padding(len(buffer))], Rows(first, last - first)
