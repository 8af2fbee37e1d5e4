"""Reads the JSON of an Avro schema into its types, and says where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import log10
from typing import Any

from pydanube.base.errors import SchemaInvalid
from pydanube.base.fields import shown
from pydanube.schema.avro.defaults import default_problem
from pydanube.schema.avro.types import (
    ABSENT,
    PRIMITIVES,
    Array,
    AvroType,
    Decimal,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Primitive,
    Record,
    Union,
)
from pydanube.schema.schema import join

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_ORDERS = ("ascending", "descending", "ignore")
_FIXED_BYTES_MAX = 1 << 20
_Definition = dict[str, Any]


class AvroParser:
    """Reads the definitions of one schema in order; later ones can use the named types of earlier ones."""

    def __init__(self) -> None:
        self.named: dict[str, Named] = {}
        self._defaults: list[tuple[str, AvroType, Any]] = []  # checked at the end, when all types are complete

    def parse(self, value: Any) -> AvroType:
        found = self._type(value, "", "")
        for path, kind, default in self._defaults:
            if problem := default_problem(kind, default):
                raise _wrong(path, problem)
        self._defaults.clear()
        return found

    def _type(self, value: Any, namespace: str, path: str) -> AvroType:
        if isinstance(value, str):
            return self._reference(value, namespace, path)
        if isinstance(value, list):
            return self._union(value, namespace, path)
        if not isinstance(value, dict):
            raise _wrong(path, f"a type must be a name, a list or an object, got {shown(value)}")
        kind = value.get("type")
        if isinstance(kind, dict | list):
            return self._type(kind, namespace, path)
        if not isinstance(kind, str):
            raise _wrong(path, "the type is missing" if kind is None else f"type must be a string, got {shown(kind)}")
        reader = _READERS.get(kind)
        if reader is not None:
            return reader(self, value, namespace, path)
        found = self._reference(kind, namespace, path)
        if isinstance(found, Primitive) and found.kind == "bytes" and value.get("logicalType") == "decimal":
            found.decimal = _decimal(value, path, None)
        return found

    def _reference(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self.named.get(full) or self.named.get(name)
        if found is None:
            raise _wrong(path, f"unknown type {name[:100]!r}")
        assert isinstance(found, Fixed | Enum | Record)
        return found

    def _union(self, value: list[Any], namespace: str, path: str) -> Union:
        if not value:
            raise _wrong(path, "a union needs at least one type")
        branches = [self._type(each, namespace, path) for each in value]
        seen: set[str] = set()
        for each in branches:
            if isinstance(each, Union):
                raise _wrong(path, "a union cannot directly contain another union")
            if each.title in seen:
                raise _wrong(path, f"the union has {each.title} twice")
            seen.add(each.title)
        return Union(branches)

    def _array(self, value: _Definition, namespace: str, path: str) -> Array:
        return Array(self._type(_required(value, "items", path), namespace, join(path, "[]")))

    def _map(self, value: _Definition, namespace: str, path: str) -> Map:
        return Map(self._type(_required(value, "values", path), namespace, join(path, "{}")))

    def _fixed(self, value: _Definition, namespace: str, path: str) -> Fixed:
        name, _, aliases = self._names(value, namespace, path)
        size = _required(value, "size", path)
        if not _is_whole(size) or not 0 <= size <= _FIXED_BYTES_MAX:
            raise _wrong(path, f"size must be a whole number from 0 to {_FIXED_BYTES_MAX}, got {shown(size)}")
        decimal = _decimal(value, path, size) if value.get("logicalType") == "decimal" else None
        found = Fixed(name, aliases, size, decimal)
        self._enter(found, path)
        return found

    def _enum(self, value: _Definition, namespace: str, path: str) -> Enum:
        name, _, aliases = self._names(value, namespace, path)
        symbols = _required(value, "symbols", path)
        if not isinstance(symbols, list) or not symbols:
            raise _wrong(path, "symbols must be a list with at least one name")
        for each in symbols:
            if not isinstance(each, str) or not _NAME.fullmatch(each):
                raise _wrong(path, f"{shown(each)} is not a valid symbol")
        if len(set(symbols)) < len(symbols):
            raise _wrong(path, "a symbol is given twice")
        default = value.get("default")
        if default is not None and default not in symbols:
            raise _wrong(path, f"the default {shown(default)} is not one of the symbols")
        found = Enum(name, aliases, symbols, default)
        self._enter(found, path)
        return found

    def _record(self, value: _Definition, namespace: str, path: str) -> Record:
        name, inner, aliases = self._names(value, namespace, path)
        found = Record(name, aliases)
        self._enter(found, path)
        fields = _required(value, "fields", path)
        if not isinstance(fields, list):
            raise _wrong(path, f"fields must be a list, got {shown(fields)}")
        known: set[str] = set()
        for each in fields:
            one = self._field(each, inner, path)
            for name in (one.name, *one.aliases):
                if name in known:
                    raise _wrong(path, f"the field {name} is given twice")
                known.add(name)
            found.fields.append(one)
        return found

    def _field(self, value: Any, namespace: str, path: str) -> Field:
        if not isinstance(value, dict):
            raise _wrong(path, f"a field must be an object, got {shown(value)}")
        name = _required(value, "name", path)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _wrong(path, f"{shown(name)} is not a valid name of a field")
        path = join(path, name)
        aliases = _names_of(value, path, _NAME)
        if value.get("order", "ascending") not in _ORDERS:
            raise _wrong(path, f"order must be one of {', '.join(_ORDERS)}")
        kind = self._type(_required(value, "type", path), namespace, path)
        default = value.get("default", ABSENT)
        if default is not ABSENT:
            self._defaults.append((path, kind, default))
        return Field(name, aliases, kind, default)

    def _names(self, value: _Definition, namespace: str, path: str) -> tuple[str, str, tuple[str, ...]]:
        """The full name of a named type, the namespace inside it, and the full names that it had."""
        name, own = _required(value, "name", path), value.get("namespace")
        if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
            raise _wrong(path, f"{shown(name)} is not a valid name of a type")
        if own is not None and (not isinstance(own, str) or (own and not _FULL_NAME.fullmatch(own))):
            raise _wrong(path, f"{shown(own)} is not a valid namespace")
        if "." not in name:
            inside = namespace if own is None else own
            name = f"{inside}.{name}" if inside else name
        inner = name.rpartition(".")[0]
        aliases = _names_of(value, path, _FULL_NAME)
        return name, inner, tuple(each if "." in each or not inner else f"{inner}.{each}" for each in aliases)

    def _enter(self, found: Named, path: str) -> None:
        if found.name in PRIMITIVES:
            raise _wrong(path, f"{found.name} is the name of a primitive type")
        if found.name in self.named:
            raise _wrong(path, f"the type {found.name} is defined twice")
        self.named[found.name] = found


_Reader = Callable[[AvroParser, _Definition, str, str], AvroType]
_READERS: dict[str, _Reader] = {
    "array": AvroParser._array,
    "map": AvroParser._map,
    "fixed": AvroParser._fixed,
    "enum": AvroParser._enum,
    "record": AvroParser._record,
    "error": AvroParser._record,
}


def _names_of(value: _Definition, path: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    aliases = value.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(each, str) and pattern.fullmatch(each) for each in aliases):
        raise _wrong(path, "aliases must be a list of names")
    return tuple(aliases)


def _decimal(value: _Definition, path: str, size: int | None) -> Decimal | None:
    """The digits of a decimal; None if they are not valid, because the type then is what it is without them."""
    precision, scale = value.get("precision"), value.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return None
    if size is not None and precision > (8 * size - 1) * log10(2):
        return None
    return Decimal(precision, scale)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _required(value: _Definition, name: str, path: str) -> Any:
    if name not in value:
        raise _wrong(path, f"{name} is missing")
    return value[name]


def _wrong(path: str, reason: str) -> SchemaInvalid:
    return SchemaInvalid(f"{path}: {reason}" if path else reason)
