"""The columns of a batch: what they are, how each is stored, where its buffers are, and whether they are valid.

A `Section` exists only if its buffers lie within its bytes. Its values may be read only once `check` has found that all
offsets do too. Buffers are in Arrow's format, padded to 8 bytes, so that `wire.arrow` wraps them in place.
"""

from __future__ import annotations

from enum import IntEnum
from struct import unpack_from
from typing import NamedTuple

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import ATTRIBUTES_CHECKED_BYTES_MAX, BATCH_ATTRIBUTES_MAX
from pydanube.wire.buffer_math import is_ascending


class Column(IntEnum):
    """In the order of their buffers; the value is the position of the two bits in the header's `columns`."""

    KEY = 0
    PUBLISH_TIME = 1
    EVENT_TIME = 2
    DELIVERY_TIME = 3
    SCHEMA_ID = 4
    SCHEMA_VERSION = 5
    PAYLOAD = 6
    ATTRIBUTES = 7


class ColumnKind(IntEnum):
    """How a column is stored."""

    ABSENT = 0  # every value is null; every publish_time is the header's
    PLAIN = 1  # no nulls, no bitmap
    NULLABLE = 2  # a validity bitmap, then the values
    CONSTANT = 3  # one value for all messages; fixed width only


PLAIN_COLUMNS = tuple(Column)[:6]
PACKED_COLUMNS = tuple(Column)[6:]
WIDTHS = {  # bytes per value of the fixed-width columns
    Column.PUBLISH_TIME: 8,
    Column.EVENT_TIME: 8,
    Column.DELIVERY_TIME: 8,
    Column.SCHEMA_ID: 8,
    Column.SCHEMA_VERSION: 4,
}
_KINDS = tuple(ColumnKind)
_CONTINUATIONS = bytes(byte & 0xC0 == 0x80 for byte in range(256))  # 1 for continuation bytes of UTF-8
_VARIABLE_BITS = 1 << 2 * Column.KEY | 1 << 2 * Column.PAYLOAD | 1 << 2 * Column.ATTRIBUTES
_PLAIN_BITS = (1 << 2 * len(PLAIN_COLUMNS)) - 1


class FixedBuffers(NamedTuple):
    """Where the buffers of a fixed-width column start."""

    kind: ColumnKind
    validity: int  # start of the bitmap, or -1
    values: int
    width: int


class StringBuffers(NamedTuple):
    """Where the buffers of a column of byte strings start."""

    validity: int
    rows: int
    offsets: int
    data: int
    data_bytes: int


class MapBuffers(NamedTuple):
    """Where the buffers of a column of maps start: offsets into the two columns of its names and texts."""

    validity: int
    offsets: int
    names: StringBuffers
    texts: StringBuffers


def kind_of(columns: int, column: Column) -> ColumnKind:
    return _KINDS[columns >> 2 * column & 3]


def kinds_allowed(columns: int) -> bool:
    """Whether the header's `columns` contains only columns and kinds that exist."""
    constants = columns & columns >> 1
    return (
        not columns >> 2 * len(Column)
        and not constants & _VARIABLE_BITS
        and columns >> 2 * Column.PUBLISH_TIME & 3 != ColumnKind.NULLABLE
    )


def padded(size: int) -> int:
    return size + 7 & ~7


def packed_bytes_min(columns: int, count: int) -> int:
    """The minimum size of the uncompressed payloads and attributes of this many messages."""
    least = 0
    for column in PACKED_COLUMNS:
        kind = kind_of(columns, column)
        if kind:
            least += padded(4 * (count + 1)) + (padded((count + 7) // 8) if kind == ColumnKind.NULLABLE else 0)
    return least


class Section:
    """One section of a batch: its bytes, and where the buffers of each column start in them.

    `buffer` contains the section from `start` to `end`. The constructor raises unless every buffer lies inside, all
    padding is zero and nothing is left over. `check` does the rest: offsets never decrease, texts are UTF-8.
    """

    __slots__ = ("buffer", "count", "fixed", "maps", "ordered", "strings")

    def __init__(self, buffer: bytes, start: int, end: int, columns: int, count: int, packed: bool) -> None:
        self.buffer = buffer
        self.count = count
        self.ordered = False  # `check` has passed
        self.fixed: dict[Column, FixedBuffers] = {}
        self.strings: StringBuffers | None = None  # keys in the plain section, payloads in the packed one
        self.maps: MapBuffers | None = None
        walk = _BufferWalk(buffer, start, end)
        if packed:
            self.strings = walk.strings(kind_of(columns, Column.PAYLOAD), count)
            self.maps = walk.maps(kind_of(columns, Column.ATTRIBUTES), count)
        else:
            self.strings = walk.strings(kind_of(columns, Column.KEY), count)
            if columns & _PLAIN_BITS > 3:
                self._locate_fixed(walk, columns)
        if walk.at != end:
            raise BatchInvalid(f"{end - walk.at} bytes of a section belong to no column")

    def _locate_fixed(self, walk: _BufferWalk, columns: int) -> None:
        for column, width in WIDTHS.items():
            kind = kind_of(columns, column)
            if kind:
                self.fixed[column] = walk.fixed(kind, self.count, width)

    @property
    def maps_bytes(self) -> int:
        """The size of all attributes, with their offsets."""
        entries = self.maps
        return 0 if entries is None else entries.texts.data + entries.texts.data_bytes - entries.offsets

    def check(self) -> None:
        """Raises unless all offsets ascend and all attributes are UTF-8. Checked only once."""
        if self.ordered:
            return
        if self.strings is not None:
            self._check_offsets(self.strings.offsets, self.count)
        if self.maps is not None:
            self._check_offsets(self.maps.offsets, self.count)
            self._check_text(self.maps.names)
            self._check_text(self.maps.texts)
        self.ordered = True

    def check_briefly(self) -> None:
        """Like `check`, but large attributes, which take long to check, are left to their readers."""
        if self.maps_bytes <= ATTRIBUTES_CHECKED_BYTES_MAX:
            self.check()
        elif self.strings is not None:
            self._check_offsets(self.strings.offsets, self.count)

    def _check_offsets(self, at: int, rows: int) -> None:
        if not is_ascending(self.buffer, at, rows + 1):
            raise BatchInvalid("offsets of a column run backwards")

    def _check_text(self, where: StringBuffers) -> None:
        self._check_offsets(where.offsets, where.rows)
        data = self.buffer[where.data : where.data + where.data_bytes]
        if data.isascii():
            return
        try:
            data.decode()
        except UnicodeDecodeError:
            raise BatchInvalid("an attribute is not UTF-8") from None
        inside = data.translate(_CONTINUATIONS) + b"\0"
        if any(map(inside.__getitem__, unpack_from(f"<{where.rows + 1}i", self.buffer, where.offsets))):
            raise BatchInvalid("an attribute ends within a character")


class _BufferWalk:
    """Goes through the buffers of a section, and checks that each lies inside and its padding is zero."""

    __slots__ = ("at", "buffer", "end")

    def __init__(self, buffer: bytes, start: int, end: int) -> None:
        self.buffer = buffer
        self.at = start
        self.end = end

    def take(self, size: int) -> int:
        """Where the next buffer of `size` bytes starts."""
        at = self.at
        self.at = after = at + padded(size)
        if after > self.end:
            raise BatchInvalid("a column runs past the end of its section")
        if size & 7 and any(self.buffer[at + size : after]):
            raise BatchInvalid("padding of a column is not zero")
        return at

    def validity(self, kind: ColumnKind, count: int) -> int:
        if kind != ColumnKind.NULLABLE:
            return -1
        at = self.take((count + 7) // 8)
        if count & 7 and self.buffer[at + count // 8] >> (count & 7):
            raise BatchInvalid("a validity bitmap has bits for messages that do not exist")
        return at

    def fixed(self, kind: ColumnKind, count: int, width: int) -> FixedBuffers:
        validity = self.validity(kind, count)
        return FixedBuffers(kind, validity, self.take(width if kind == ColumnKind.CONSTANT else width * count), width)

    def offsets(self, rows: int) -> tuple[int, int]:
        """Where `rows` + 1 offsets start, and the last of them, which is the size of what follows."""
        size = 4 * (rows + 1)
        at = self.take(size)
        buffer = self.buffer
        last = int.from_bytes(buffer[at + size - 4 : at + size], "little")
        if buffer[at : at + 4] != b"\0\0\0\0" or last > 0x7FFF_FFFF:
            raise BatchInvalid("offsets of a column do not start at 0 or end below it")
        return at, last

    def strings(self, kind: ColumnKind, count: int) -> StringBuffers | None:
        if not kind:
            return None
        validity = self.validity(kind, count)
        offsets, size = self.offsets(count)
        return StringBuffers(validity, count, offsets, self.take(size), size)

    def maps(self, kind: ColumnKind, count: int) -> MapBuffers | None:
        if not kind:
            return None
        validity = self.validity(kind, count)
        offsets, total = self.offsets(count)
        if total > BATCH_ATTRIBUTES_MAX:
            raise BatchTooLarge(f"the batch has {total} attributes; the maximum is {BATCH_ATTRIBUTES_MAX}")
        strings = []
        for _ in range(2):
            at, size = self.offsets(total)
            strings.append(StringBuffers(-1, total, at, self.take(size), size))
        return MapBuffers(validity, offsets, strings[0], strings[1])
