"""Checks payloads in Avro's binary encoding, byte by byte and without making objects of them.

A check is a function from the payload and a position to the position behind the value. It is made once for each type of
a schema. Values that are too short, too long, or not of their type raise `Wrong` with the place.
"""

from __future__ import annotations

from collections.abc import Callable

from pydanube.base.limits import SCHEMA_PAYLOAD_DEPTH_MAX
from pydanube.schema.avro.types import Array, AvroType, Enum, Fixed, Map, Primitive, Record, Union
from pydanube.schema.schema import join

Check = Callable[[bytes, int], int]
_LONG_BYTES = 10  # of the longest number of 64 bits
_INT_BYTES = 5
INT_MAX = (1 << 31) - 1


class Wrong(Exception):
    def __init__(self, reason: str) -> None:
        self.path = ""
        self.reason = reason

    def within(self, step: str) -> None:
        self.path = join(step, self.path)


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """The number, and the position behind it."""
    byte = data[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    end, shift, found = at + _LONG_BYTES, 0, 0
    while True:
        found |= (byte & 127) << shift
        at += 1
        if byte < 128:
            break
        if at == end:
            raise Wrong("a number has more than 10 bytes")
        byte = data[at]
        shift += 7
    if found >> 64:
        raise Wrong("a number has more than 64 bits")
    return (found >> 1) ^ -(found & 1), at


def _null(data: bytes, at: int) -> int:
    return at


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise Wrong(f"a boolean is 0 or 1, and this is {data[at]}")
    return at + 1


def _int(data: bytes, at: int) -> int:
    if data[at] < 128:
        return at + 1
    value, at = read_long(data, at)
    if not -INT_MAX - 1 <= value <= INT_MAX:
        raise Wrong("an int has more than 32 bits")
    return at


def _long(data: bytes, at: int) -> int:
    if data[at] < 128:
        return at + 1
    return read_long(data, at)[1]


def _float(data: bytes, at: int) -> int:
    return at + 4


def _double(data: bytes, at: int) -> int:
    return at + 8


def _bytes(data: bytes, at: int) -> int:
    size, at = read_long(data, at)
    if size < 0:
        raise Wrong(f"a length is {size}")
    if at + size > len(data):
        raise IndexError
    return at + size


def _string(data: bytes, at: int) -> int:
    byte = data[at]
    if byte < 128 and not byte & 1:
        at += 1
        end = at + (byte >> 1)
    else:
        size, at = read_long(data, at)
        if size < 0:
            raise Wrong(f"a length is {size}")
        end = at + size
    if end > len(data):
        raise IndexError
    text = data[at:end]
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            raise Wrong("the string is not UTF-8") from None
    return end


_PRIMITIVES: dict[str, Check] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


class Checks:
    """The checks of one schema. A record inside itself is counted, so that no payload exhausts the stack."""

    def __init__(self, whole: AvroType) -> None:
        self._made: dict[int, Check] = {}
        self._types: list[AvroType] = []
        self._open: list[int] = []  # records that are being made
        self._empty = Emptiness()
        self._whole = self.of(whole)

    def fault(self, data: bytes) -> tuple[str, str] | None:
        """Where the payload is wrong, and why; None if it is not."""
        try:
            end = self._whole(data, 0)
        except IndexError:
            return "", "the payload ends too early"
        except Wrong as wrong:
            return wrong.path, wrong.reason
        if end == len(data):
            return None
        if end > len(data):
            return "", "the payload ends too early"
        return "", f"{len(data) - end} bytes are left after the value"

    def of(self, kind: AvroType) -> Check:
        key = id(kind)
        if key in self._open:
            return self._inside_itself(key)
        found = self._made.get(key)
        if found is None:
            self._types.append(kind)  # its identity is the key
            found = self._made[key] = self._make(kind)
        return found

    def _make(self, kind: AvroType) -> Check:
        if isinstance(kind, Primitive):
            return _PRIMITIVES[kind.kind]
        if isinstance(kind, Fixed):
            size = kind.size
            return lambda data, at: at + size
        if isinstance(kind, Enum):
            return _enum(kind)
        if isinstance(kind, Union):
            return _union([self.of(each) for each in kind.branches], [each.title for each in kind.branches])
        if isinstance(kind, Array):
            return _blocks(None, self.of(kind.items), "[]", self._empty.of(kind.items))
        if isinstance(kind, Map):
            return _blocks(_string, self.of(kind.values), "{}", False)
        self._open.append(id(kind))
        check = _record([(each.name, self.of(each.type)) for each in kind.fields if not self._empty.of(each.type)])
        self._open.pop()
        return check

    def _inside_itself(self, key: int) -> Check:
        depth = 0

        def check(data: bytes, at: int) -> int:
            nonlocal depth
            if depth >= SCHEMA_PAYLOAD_DEPTH_MAX:
                raise Wrong(f"a record is inside itself more than {SCHEMA_PAYLOAD_DEPTH_MAX} times")
            depth += 1
            try:
                return self._made[key](data, at)
            finally:
                depth -= 1

        return check


class Emptiness:
    """Which types have only values that take no byte. These are never walked through: there can be any number of them
    in a payload of one byte, and a record of them can have any number of records inside."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def of(self, kind: AvroType) -> bool:
        if isinstance(kind, Primitive):
            return kind.kind == "null"
        if isinstance(kind, Fixed):
            return kind.size == 0
        if not isinstance(kind, Record):
            return False
        if id(kind) not in self._known:
            self._known[id(kind)] = False  # inside itself: a record without an end has no values
            self._known[id(kind)] = all(self.of(each.type) for each in kind.fields)
        return self._known[id(kind)]


def _enum(kind: Enum) -> Check:
    count = len(kind.symbols)

    def check(data: bytes, at: int) -> int:
        number, at = read_long(data, at)
        if not 0 <= number < count:
            raise Wrong(f"the enum has {count} symbols, and this is number {number}")
        return at

    return check


def _union(branches: list[Check], titles: list[str]) -> Check:
    count = len(branches)

    def check(data: bytes, at: int) -> int:
        number, at = read_long(data, at)
        if not 0 <= number < count:
            raise Wrong(f"the union has {count} types, and this is number {number}")
        return branches[number](data, at)

    return check


def _record(fields: list[tuple[str, Check]]) -> Check:
    def check(data: bytes, at: int) -> int:
        name = ""
        try:
            for name, field in fields:  # noqa: B007 - the handlers below use it
                at = field(data, at)
        except Wrong as wrong:
            wrong.within(name)
            raise
        except IndexError:
            early = Wrong("the payload ends too early")
            early.within(name)
            raise early from None
        return at

    return check


def _blocks(key: Check | None, value: Check, step: str, empty: bool) -> Check:
    """Items of an array, or pairs of a map, in blocks. Items that take no byte are not counted one by one."""

    def check(data: bytes, at: int) -> int:
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return at
            if count < 0:
                count, (_, at) = -count, read_long(data, at)
            if empty:
                continue
            if count > len(data) - at:
                raise Wrong(f"{count} items are announced, and {max(0, len(data) - at)} bytes are left")
            try:
                for _ in range(count):
                    if key is not None:
                        at = key(data, at)
                    at = value(data, at)
            except Wrong as wrong:
                wrong.within(step)
                raise

    return check
