"""Decodes JSON objects one by one, with a reason for those that do not fit. This defines which values fit.

Whatever Arrow's parser accepts is accepted here too, with the same value: a test compares them.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydanube.base.limits import DAY, SECOND
from pydanube.spark.decode import Decoded, PayloadInvalid, by_rows

if TYPE_CHECKING:
    import pyarrow as pa

DEPTH_MAX = 500  # of nested brackets: Python's parser is recursive
TIME_MIN, TIME_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999 in microseconds
DAY_MIN, DAY_MAX = TIME_MIN // DAY, TIME_MAX // DAY
EPOCH = datetime(1970, 1, 1)
SHOWN_CHARS_MAX = 40
INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5})?", re.ASCII)
TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?(?:Z|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# Strings are matched as a whole, also one that does not end, so that none is scanned twice.
INF = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|\bInf\b', re.DOTALL)
BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)

Read = Callable[[Any, str], Any]  # the parsed value and its path


class Number(str):
    """A number as it is written, because no type of Python can represent them all."""

    __slots__ = ()


class DuplicateNames(dict[str, Any]):
    """An object in which a name occurs more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.names = {name for name, _ in pairs if name in seen or seen.add(name)}  # type: ignore[func-returns-value]


class JsonRows:
    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._read = _struct(kind, "")

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return by_rows(values, self.row, self._build)

    def _build(self, found: list[Any]) -> pa.Array:
        import pyarrow as pa

        return pa.array(found, self.kind)

    def row(self, payload: bytes) -> Any:
        """Raises `PayloadInvalid`."""
        found = _parsed(payload)
        if type(found) not in (dict, DuplicateNames):
            raise PayloadInvalid(f"expected an object, got {_called(found)}")
        return self._read(found, "")


def is_too_deep(payload: bytes) -> bool:
    if payload.count(b"{") + payload.count(b"[") <= DEPTH_MAX:
        return False
    depth = 0
    for each in BRACKETS.finditer(payload):
        mark = each[0]
        depth += (mark in b"[{") - (mark in b"]}")
        if depth > DEPTH_MAX:
            return True
    return False


def _parsed(payload: bytes) -> Any:
    if not payload.strip():
        raise PayloadInvalid("the payload is empty")
    if is_too_deep(payload):
        raise PayloadInvalid(f"nested more than {DEPTH_MAX} levels deep")
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadInvalid(f"not UTF-8 at byte {error.start}") from None
    try:
        return _parse(text)
    except RecursionError:
        raise PayloadInvalid("nested too deep") from None
    except ValueError as error:
        if "Inf" not in text:
            raise PayloadInvalid(f"not JSON: {error}") from None
    try:
        return _parse(INF.sub(lambda found: found[1] or "Infinity", text))
    except (ValueError, RecursionError) as error:
        raise PayloadInvalid(f"not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else DuplicateNames(pairs)


_parse = json.JSONDecoder(object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=Number).decode


# -- one reader for each type ----------------------------------------------------------------------------------------


def _reader(kind: pa.DataType, at: str) -> Read:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return _struct(kind, f"{at}.")
    if pa.types.is_map(kind):
        return _map(kind, at)
    if pa.types.is_list(kind):
        return _list(kind, at)
    if pa.types.is_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    readers: dict[pa.DataType, Read] = {
        pa.string(): _text,
        pa.binary(): _bytes,
        pa.bool_(): _flag,
        pa.float32(): _double,
        pa.float64(): _double,
        pa.date32(): _date,
        pa.timestamp("us", tz="UTC"): _time,
    }
    return readers[kind]


def _struct(kind: pa.DataType, before: str) -> Read:
    readers = [(each.name, _reader(each.type, before + each.name), before + each.name) for each in kind]

    def read(value: Any, at: str) -> dict[str, Any]:
        if type(value) is not dict:
            _check_object(value, at)
            for name, _, path in readers:
                if name in value.names:
                    raise _unfit(path, "is given twice")
        found = {}
        for name, reader, path in readers:
            given = value.get(name)
            found[name] = None if given is None else reader(given, path)
        return found

    return read


def _map(kind: pa.DataType, path: str) -> Read:
    reader = _reader(kind.item_type, path)

    def read(value: Any, at: str) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            _check_object(value, at)
            raise _unfit(at, f"the key {_shown(min(value.names))} is given twice")
        for name in value:
            _text(name, at)
        return [(name, None if each is None else reader(each, at)) for name, each in value.items()]

    return read


def _list(kind: pa.DataType, path: str) -> Read:
    reader = _reader(kind.value_type, path)

    def read(value: Any, at: str) -> list[Any]:
        if type(value) is not list:
            raise _wanted("an array", value, at)
        return [None if each is None else reader(each, at) for each in value]

    return read


def _integer(bits: int) -> Read:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def read(value: Any, at: str) -> int:
        if type(value) is not Number or not INTEGER.fullmatch(value):
            raise _wanted("a whole number", value, at)
        found = int(value)
        if not low <= found <= high:
            raise _unfit(at, f"{value} does not fit into {bits} bits")
        return found

    return read


def _decimal(digits: int, scale: int) -> Read:
    def read(value: Any, at: str) -> Decimal:
        if type(value) not in (Number, str) or not DECIMAL.fullmatch(value) or len(value) > 1_000:
            raise _wanted("a number", value, at)
        sign, figures, exponent = Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        whole = int("".join(map(str, figures)))
        while whole and whole % 10 == 0:
            whole, exponent = whole // 10, exponent + 1
        if whole == 0:
            return Decimal(0)
        if exponent < -scale or len(str(whole)) + exponent > digits - scale:
            raise _unfit(at, f"{_shown(value)} does not fit into DECIMAL({digits},{scale})")
        return Decimal((sign, tuple(map(int, str(whole))), exponent))

    return read


def _text(value: Any, at: str) -> str:
    if type(value) is not str:
        raise _wanted("a string", value, at)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _unfit(at, "half a surrogate pair") from None
    return value


def _bytes(value: Any, at: str) -> bytes:
    if type(value) is not str:
        raise _wanted("a string", value, at)
    try:
        return b64decode(value, validate=True)
    except ValueError:
        raise _wanted("base64", value, at) from None


def _flag(value: Any, at: str) -> bool:
    if type(value) is not bool:
        raise _wanted("true or false", value, at)
    return value


def _double(value: Any, at: str) -> float:
    if type(value) is not Number:
        raise _wanted("a number", value, at)
    return float(value)


def _date(value: Any, at: str) -> date:
    if type(value) is str and DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise _wanted("a date like 2026-01-31", value, at)


def _time(value: Any, at: str) -> int:
    found = TIME.fullmatch(value) if type(value) is str else None
    if found is None:
        raise _wanted("a time like 2026-01-31T12:00:00Z", value, at)
    *clock, fraction, sign, hours, minutes = found.groups("0")
    try:
        time = datetime(*map(int, clock)) - EPOCH  # type: ignore[arg-type]
    except ValueError:
        raise _wanted("a time like 2026-01-31T12:00:00Z", value, at) from None
    ahead = int(hours) * 60 + int(minutes)
    if int(hours) > 23 or int(minutes) > 59:
        raise _wanted("a time zone like +01:00", value, at)
    since = time.days * DAY + time.seconds * SECOND + int(fraction.ljust(9, "0")[:6])
    since += ahead * 60 * SECOND * (1 if sign == "-" else -1)
    if not TIME_MIN <= since <= TIME_MAX:
        raise _wanted("a time in the years 1 to 9999", value, at)
    return since


def _check_object(value: Any, at: str) -> None:
    if type(value) is not DuplicateNames:
        raise _wanted("an object", value, at)


def _wanted(what: str, value: Any, at: str) -> PayloadInvalid:
    return _unfit(at, f"expected {what}, got {_called(value)}")


def _unfit(at: str, reason: str) -> PayloadInvalid:
    return PayloadInvalid(f"field {at[:100]}: {reason}")


def _called(value: Any) -> str:
    if isinstance(value, Number):
        return _shown(value)
    if isinstance(value, str):
        return f"the string {_shown(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, list) else "null"


def _shown(text: str) -> str:
    short = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
    return short if isinstance(text, Number) else repr(short)
