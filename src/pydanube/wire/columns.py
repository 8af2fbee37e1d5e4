"""The columns of a batch: which there are, how each may be stored, where its buffers lie, and whether they hold.

Readers get a `Section` only when its buffers lie within its bytes; its values only when `ordered` says that the offsets
in them do too. All buffers are Arrow's, padded to 8 bytes, so that `wire.arrow` wraps them as they are.
"""

from __future__ import annotations

from enum import IntEnum
from struct import unpack_from
from typing import NamedTuple

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import ATTRIBUTES_CHECKED_BYTES_MAX, BATCH_ATTRIBUTES_MAX
from pydanube.wire.lanes import rising


class Column(IntEnum):
    """In the order of their buffers; the value is the place of the two bits in the header's `columns`."""

    KEY = 0
    PUBLISH_TIME = 1
    EVENT_TIME = 2
    DELIVERY_TIME = 3
    SCHEMA_ID = 4
    SCHEMA_VERSION = 5
    PAYLOAD = 6
    ATTRIBUTES = 7


class Kind(IntEnum):
    ABSENT = 0  # every value null; of publish_time, every value the header's
    PLAIN = 1  # no nulls, no bitmap
    NULLABLE = 2  # a validity bitmap first
    CONSTANT = 3  # one value for all messages; only of fixed width


PLAIN_COLUMNS = tuple(Column)[:6]
PACKED_COLUMNS = tuple(Column)[6:]
WIDTHS = {  # bytes of a value, for the columns that have a fixed one
    Column.PUBLISH_TIME: 8,
    Column.EVENT_TIME: 8,
    Column.DELIVERY_TIME: 8,
    Column.SCHEMA_ID: 8,
    Column.SCHEMA_VERSION: 4,
}
_KINDS = tuple(Kind)
_CONTINUATIONS = bytes(byte & 0xC0 == 0x80 for byte in range(256))  # 1 for bytes within a UTF-8 character
_VARIABLE_BITS = 1 << 2 * Column.KEY | 1 << 2 * Column.PAYLOAD | 1 << 2 * Column.ATTRIBUTES
_PLAIN_BITS = (1 << 2 * len(PLAIN_COLUMNS)) - 1


class Fixed(NamedTuple):
    """Where a fixed-width column lies."""

    kind: Kind
    validity: int  # start of the bitmap, or -1
    values: int
    width: int


class Variable(NamedTuple):
    """Where a column of byte strings lies."""

    validity: int
    rows: int
    offsets: int
    data: int
    data_bytes: int


class Entries(NamedTuple):
    """Where a column of maps lies: offsets into the two columns of its names and texts."""

    validity: int
    offsets: int
    names: Variable
    texts: Variable


def kind_of(columns: int, column: Column) -> Kind:
    return _KINDS[columns >> 2 * column & 3]


def kinds_allowed(columns: int) -> bool:
    """Whether the header's `columns` names only columns and kinds that exist."""
    constants = columns & columns >> 1
    return (
        not columns >> 2 * len(Column)
        and not constants & _VARIABLE_BITS
        and columns >> 2 * Column.PUBLISH_TIME & 3 != Kind.NULLABLE
    )


def padded(size: int) -> int:
    return size + 7 & ~7


def packed_bytes_min(columns: int, count: int) -> int:
    """The least that payloads and attributes of this many messages take before they are compressed."""
    least = 0
    for column in PACKED_COLUMNS:
        kind = kind_of(columns, column)
        if kind:
            least += padded(4 * (count + 1)) + (padded((count + 7) // 8) if kind == Kind.NULLABLE else 0)
    return least


class Section:
    """One section of a batch: its bytes, and where the buffers of each column lie in them.

    `buffer` holds the section from `start` to `end`. Made only if every buffer lies inside, every padding is zero and
    nothing is left over. `check` says the rest: offsets never run backwards, texts are UTF-8.
    """

    __slots__ = ("buffer", "count", "entries", "fixed", "ordered", "variable")

    def __init__(self, buffer: bytes, start: int, end: int, columns: int, count: int, packed: bool) -> None:
        self.buffer = buffer
        self.count = count
        self.ordered = False
        self.fixed: dict[Column, Fixed] = {}
        self.variable: Variable | None = None  # key in the plain section, payload in the packed one
        self.entries: Entries | None = None
        walk = _Walk(buffer, start, end)
        if packed:
            self.variable = walk.variable(kind_of(columns, Column.PAYLOAD), count)
            self.entries = walk.entries(kind_of(columns, Column.ATTRIBUTES), count)
        else:
            self.variable = walk.variable(kind_of(columns, Column.KEY), count)
            if columns & _PLAIN_BITS > 3:
                self._locate_fixed(walk, columns)
        if walk.at != end:
            raise BatchInvalid(f"{end - walk.at} bytes of a section belong to no column")

    def _locate_fixed(self, walk: _Walk, columns: int) -> None:
        for column, width in WIDTHS.items():
            kind = kind_of(columns, column)
            if kind:
                self.fixed[column] = walk.fixed(kind, self.count, width)

    @property
    def entries_bytes(self) -> int:
        """Of all attributes, with their offsets."""
        entries = self.entries
        return 0 if entries is None else entries.texts.data + entries.texts.data_bytes - entries.offsets

    def check(self) -> None:
        """Raises unless all offsets rise and all attribute texts are UTF-8. The answer is remembered."""
        if self.ordered:
            return
        if self.variable is not None:
            self._check_offsets(self.variable.offsets, self.count)
        if self.entries is not None:
            self._check_offsets(self.entries.offsets, self.count)
            self._check_text(self.entries.names)
            self._check_text(self.entries.texts)
        self.ordered = True

    def check_briefly(self) -> None:
        """As `check`, but attributes that would take long are left to whoever reads them."""
        if self.entries_bytes <= ATTRIBUTES_CHECKED_BYTES_MAX:
            self.check()
        elif self.variable is not None:
            self._check_offsets(self.variable.offsets, self.count)

    def _check_offsets(self, at: int, rows: int) -> None:
        if not rising(self.buffer, at, rows + 1):
            raise BatchInvalid("offsets of a column run backwards")

    def _check_text(self, where: Variable) -> None:
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


class _Walk:
    """Takes buffer after buffer from a section, each only if it lies inside and its padding is zero."""

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

    def validity(self, kind: Kind, count: int) -> int:
        if kind != Kind.NULLABLE:
            return -1
        at = self.take((count + 7) // 8)
        if count & 7 and self.buffer[at + count // 8] >> (count & 7):
            raise BatchInvalid("a validity bitmap has bits for messages that do not exist")
        return at

    def fixed(self, kind: Kind, count: int, width: int) -> Fixed:
        validity = self.validity(kind, count)
        return Fixed(kind, validity, self.take(width if kind == Kind.CONSTANT else width * count), width)

    def offsets(self, rows: int) -> tuple[int, int]:
        """Where `rows` + 1 offsets start, and the last of them: how much follows."""
        size = 4 * (rows + 1)
        at = self.take(size)
        buffer = self.buffer
        last = int.from_bytes(buffer[at + size - 4 : at + size], "little")
        if buffer[at : at + 4] != b"\0\0\0\0" or last > 0x7FFF_FFFF:
            raise BatchInvalid("offsets of a column do not start at 0 or end below it")
        return at, last

    def variable(self, kind: Kind, count: int) -> Variable | None:
        if not kind:
            return None
        validity = self.validity(kind, count)
        offsets, size = self.offsets(count)
        return Variable(validity, count, offsets, self.take(size), size)

    def entries(self, kind: Kind, count: int) -> Entries | None:
        if not kind:
            return None
        validity = self.validity(kind, count)
        offsets, total = self.offsets(count)
        if total > BATCH_ATTRIBUTES_MAX:
            raise BatchTooLarge(f"the batch has {total} attributes; the maximum is {BATCH_ATTRIBUTES_MAX}")
        strings = []
        for _ in range(2):
            at, size = self.offsets(total)
            strings.append(Variable(-1, total, at, self.take(size), size))
        return Entries(validity, offsets, strings[0], strings[1])
