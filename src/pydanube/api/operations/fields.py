"""Reads the fields of a request and checks their types, for every face."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import OFFSET_MAX
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.served import LATEST
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.objects import Object

_TYPES: dict[type, str] = {  # as JSON calls them
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "an array",
    dict: "an object",
    NoneType: "null",
}


def field(fields: Object, name: str, kind: type, default: Any = ...) -> Any:
    value = fields.get(name, default)
    if value is ...:
        raise RequestInvalid(f"{name} is missing")
    if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise RequestInvalid(f"{name} must be {_TYPES[kind]}, got {_TYPES.get(type(value), type(value).__name__)}")
    return value


def text(fields: Object, name: str, default: Any = ...) -> Any:
    return field(fields, name, str, default)


def number(fields: Object, name: str, default: Any = ...) -> Any:
    return field(fields, name, int, default)


def flag(fields: Object, name: str, default: Any = ...) -> Any:
    return field(fields, name, bool, default)


def kind_of(fields: Object) -> SubscriptionKind:
    name = text(fields, "type", "exclusive")
    try:
        return SubscriptionKind[name.upper().replace("-", "_")]
    except KeyError:
        raise RequestInvalid(
            f"unknown subscription type {name[:50]!r}; use exclusive, shared, failover or key_shared"
        ) from None


def place(fields: Object, name: str, default: Any = LATEST) -> str | int | Mapping[str, int]:
    found = fields.get(name, default)
    if isinstance(found, bool) or not isinstance(found, str | int | dict):
        raise RequestInvalid(f"{name} must be `earliest`, `latest`, an offset, or {{'time': microseconds}}")
    if isinstance(found, dict) and (found.keys() != {"time"} or type(found["time"]) is not int):
        raise RequestInvalid(f"{name} by time must be {{'time': microseconds}}")
    if isinstance(found, int):
        check_offset(name, found)
    return found


def check_offset(name: str, found: int) -> None:
    if not 0 <= found <= OFFSET_MAX:
        raise RequestInvalid(f"{name} must be an offset of 0 to {OFFSET_MAX}, got {str(found)[:30]}")


def options_of(fields: Object) -> SubscriptionOptions | None:
    options = field(fields, "options", dict, None)
    return None if options is None else SubscriptionOptions.from_json(options)
