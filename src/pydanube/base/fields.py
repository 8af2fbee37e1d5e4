"""Reads fields of objects that come from outside, by name, each with its type, bounds and default.

An invalid value raises the caller's error, with the same sentence everywhere: `count must be a whole number from 1 to
10, got 'many'`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import EllipsisType
from typing import Any, TypeVar

SHOWN_CHARACTERS = 80  # of an invalid value in an error
_DIGITS_MAX = 20  # of a number in text; more are not converted
_KINDS: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_WORDS = {None: "null", True: "true", False: "false"}
Kind = TypeVar("Kind")
Default = TypeVar("Default")


def shown(value: object) -> str:
    """An invalid value for an error, shortened to fit a line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple | set):
        return "a list"
    text = _WORDS[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def listed(names: Collection[object]) -> str:
    """`a, b or c`."""
    *most, last = (str(name) for name in names)
    return f"{', '.join(most)} or {last}" if most else last


def values_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots by name. Nothing is copied, unlike with `asdict`."""
    return {name: getattr(record, name) for name in record.__slots__}


class Fields:
    """The fields of one object. A field without a default is required; a default is not checked."""

    def __init__(
        self, error: Callable[[str], Exception], values: Mapping[str, Any], called: Callable[[str], str] = str
    ) -> None:
        self._error = error
        self._values = values
        self._called = called  # turns the name of a field into its name in errors

    def wrong(self, name: str, why: str) -> Exception:
        return self._error(f"{self._called(name)} {why}")

    def is_not(self, name: str, expected: str, value: object) -> Exception:
        return self.wrong(name, f"must be {expected}, got {shown(value)}")

    def field(
        self, name: str, kind: type[Kind], default: Default | EllipsisType = ..., *, expected: str | None = None
    ) -> Kind | Default:
        value: object = self._values.get(name, default)
        if value is default:
            if isinstance(default, EllipsisType):
                raise self.wrong(name, "is missing")
            return default
        value = self._read(value, kind)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.is_not(name, expected or _KINDS[kind], value)
        return value

    def text(
        self, name: str, default: Default | EllipsisType = ..., *, least: int = 0, most: int | None = None
    ) -> str | Default:
        """Reads a string; the bounds are in bytes."""
        found = self.field(name, str, default)
        if most is not None and isinstance(found, str) and found is not default:
            size = len(found.encode("utf-8", "surrogatepass"))
            if not least <= size <= most:
                bounds = f"{least} to {most}" if least else f"at most {most}"
                raise self.wrong(name, f"must be a string of {bounds} bytes, got {size} bytes")
        return found

    def whole(self, name: str, least: int, most: int | None, default: Default | EllipsisType = ...) -> int | Default:
        value = self._values.get(name)
        if type(value) is int and least <= value and (most is None or value <= most):
            return value  # as nearly all are: the sentence below costs more than all of this
        expected = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"
        found = self.field(name, int, default, expected=expected)
        if found is not default and isinstance(found, int) and (found < least or (most is not None and found > most)):
            raise self.is_not(name, expected, found)
        return found

    def flag(self, name: str, default: Default | EllipsisType = ...) -> bool | Default:
        return self.field(name, bool, default)

    def one_of(self, name: str, choices: Collection[str], default: Default | EllipsisType = ...) -> str | Default:
        found = self.field(name, str, default, expected=listed(choices))
        if found is not default and found not in choices:
            raise self.is_not(name, listed(choices), found)
        return found

    def texts(self, name: str, count_max: int, bytes_max: int) -> tuple[str, ...]:
        """Reads a list of strings, none of them empty."""
        found = self.field(name, list)
        if len(found) > count_max:
            raise self.wrong(name, f"must have at most {count_max} entries, got {len(found)}")
        return tuple(
            Fields(self._error, {name: each}, self._called).text(name, least=1, most=bytes_max) for each in found
        )

    def _read(self, value: object, kind: type) -> object:
        return value


class TextFields(Fields):
    """Fields whose values are all strings, such as the options of a data source."""

    def _read(self, value: object, kind: type) -> object:
        text = str(value).strip()
        if kind is int:
            return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else text
        return {"true": True, "false": False}.get(text.lower(), text) if kind is bool else value
