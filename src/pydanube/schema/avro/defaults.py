"""Whether the default of a field, which is JSON, is a value of the field's type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydanube.base.fields import shown
from pydanube.schema.avro.types import ABSENT, Array, AvroType, Enum, Fixed, Map, Primitive, Record, Union

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
_LATIN_1 = 256


def _is_whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -most - 1 <= value <= most


def _is_bytes(value: Any) -> bool:
    """Bytes are written as characters with the same numbers."""
    return isinstance(value, str) and all(ord(each) < _LATIN_1 for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_FITS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: _is_whole(value, INT_MAX),
    "long": lambda value: _is_whole(value, LONG_MAX),
    "float": _is_number,
    "double": _is_number,
    "bytes": _is_bytes,
    "string": lambda value: isinstance(value, str),
}


def default_problem(kind: AvroType, value: Any) -> str | None:
    """What is wrong with the default; None if nothing is. The default of a union is of its first branch."""
    if isinstance(kind, Union):
        if not fits(kind.branches[0], value):
            return f"the default {shown(value)} is not of the first type of the union, {kind.branches[0].title}"
    elif not fits(kind, value):
        return f"the default {shown(value)} is not of the type {kind.title}"
    return None


def fits(kind: AvroType, value: Any) -> bool:
    if isinstance(kind, Primitive):
        return _FITS[kind.kind](value)
    if isinstance(kind, Union):
        return fits(kind.branches[0], value)
    if isinstance(kind, Array):
        return isinstance(value, list) and all(fits(kind.items, each) for each in value)
    if isinstance(kind, Map):
        return isinstance(value, dict) and all(fits(kind.values, each) for each in value.values())
    if isinstance(kind, Fixed):
        return _is_bytes(value) and len(value) == kind.size
    if isinstance(kind, Enum):
        return value in kind.symbols
    return isinstance(value, dict) and _fits_record(kind, value)


def _fits_record(kind: Record, value: dict[str, Any]) -> bool:
    return all(
        fits(each.type, value[each.name]) if each.name in value else each.default is not ABSENT for each in kind.fields
    )
