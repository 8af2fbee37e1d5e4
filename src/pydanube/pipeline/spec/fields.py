"""The values of a declaration, by their keys. A wrong value is a `FlowInvalid` of one line. Pure.

The line begins with the path of the key, such as `sink[1].upsert.keys`, and suggests the nearest name for a wrong one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from pydanube.base.errors import FlowInvalid
from pydanube.base.fields import SHOWN_CHARACTERS, Fields, listed
from pydanube.base.fields import shown as shown
from pydanube.base.limits import DAY, KIB, MILLISECOND, SECOND
from pydanube.base.redaction import is_secret
from pydanube.base.units import bytes_of, microseconds_of
from pydanube.pipeline.spec.locations import scheme_of

FILE_BYTES_MAX = 256 * KIB  # of a declaration
TEXT_CHARACTERS_MAX = 128 * KIB  # of one value: SQL and schemas are long
LIST_MAX = 1_000
DURATION_MICROSECONDS_MAX = 10 * 366 * DAY
_UNITS = {"second": SECOND, "millisecond": MILLISECOND, "microsecond": 1}


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of an error about an unknown name."""
    lower = {each.lower().replace("_", ""): each for each in known}
    asked = name[:SHOWN_CHARACTERS].lower().replace("_", "").replace("-", "")
    begun = [each for each in lower if asked and each.startswith(asked)]
    close = begun or get_close_matches(asked, lower, 1, 0.5)
    if close:
        return f"did you mean {lower[close[0]]}?"
    return "the keys are " + ", ".join(known)


# -- durations, sizes, locations ---------------------------------------------------------------------------------------


class Duration(int):
    """Microseconds. As text, it is an interval that Spark understands."""

    def __str__(self) -> str:
        unit = next(unit for unit, size in _UNITS.items() if self % size == 0)
        return f"{self // _UNITS[unit]} {unit}s"

    @property
    def seconds(self) -> float:
        return self / SECOND


def parse_duration(path: str, value: object) -> Duration:
    """`10 minutes`, `1 hour 30 minutes`, `250ms`, or a number of seconds."""
    try:
        found = microseconds_of(value)  # type: ignore[arg-type]  # other types are refused
    except ValueError as error:
        raise FlowInvalid(f"{path}: {error}") from None
    if found > DURATION_MICROSECONDS_MAX:
        raise FlowInvalid(f"{path}: must be a duration such as 10m or 1 week, at most ten years, got {shown(value)}")
    return Duration(found)


def parse_size(path: str, value: object, most: int) -> int:
    """Bytes: 1000000 or 64 MiB."""
    try:
        size = bytes_of(value)  # type: ignore[arg-type]  # as above
    except ValueError as error:
        raise FlowInvalid(f"{path}: {error}") from None
    if not 1 <= size <= most:
        raise FlowInvalid(f"{path}: must be a size such as 64 MiB, at most {most} bytes, got {shown(value)}")
    return size


def parse_location(path: str, value: object, folder: str) -> str:
    """A path, which is made absolute, or a URL without credentials."""
    text = checked_text(path, value)
    if scheme_of(text):
        check_no_secrets(path, text)
        return text
    if "://" in text or text.lower().startswith("file:"):
        raise FlowInvalid(f"{path}: must be a path or a URL such as s3://bucket/folder, got {shown(text)}")
    return absolute(text, folder)


def absolute(text: str, folder: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(text)))


def check_no_secrets(path: str, url: str) -> None:
    """Declarations are shown and shared, so they must not contain credentials."""
    try:
        parts = urlsplit(url)
        secrets = [name for name, _ in parse_qsl(parts.query) if is_secret(name)]
        found = bool(parts.password) or bool(secrets) or ("@" in parts.netloc and parts.scheme.startswith("s3"))
    except ValueError:
        raise FlowInvalid(f"{path}: is not a valid URL: {shown(url.split('@')[-1])}") from None
    if found:
        raise FlowInvalid(f"{path}: must not contain a credential; credentials come from the environment")


def checked_text(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise FlowInvalid(f"{path}: must be a string, got {shown(value)}")
    if not value.strip():
        raise FlowInvalid(f"{path}: must not be empty")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise FlowInvalid(f"{path}: has {len(value)} characters; the maximum is {TEXT_CHARACTERS_MAX}")
    if any(each == "\0" or "\ud800" <= each <= "\udfff" for each in value):
        raise FlowInvalid(f"{path}: has characters that are not text")
    return value


# -- a mapping with known keys -----------------------------------------------------------------------------------------


class Section:
    """A mapping in the declaration. A value of null counts as not given."""

    def __init__(self, path: str, found: object, keys: Sequence[str], folder: str = ".") -> None:
        self.path, self.folder = path, folder
        if not isinstance(found, Mapping):
            raise FlowInvalid(
                f"{path or 'the declaration'}: must be a mapping of {', '.join(keys)}, got {shown(found)}"
            )
        self._values: dict[str, Any] = {}
        for key, value in found.items():
            if not isinstance(key, str) or key not in keys:
                name = key if isinstance(key, str) else str(key)
                raise FlowInvalid(f"{self.key(_plain(name))}: unknown key; {nearest(name, keys)}")
            if value is not None:
                self._values[key] = value
        self._fields = Fields(FlowInvalid, self._values, lambda name: f"{self.key(name)}:")

    def key(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, why: str) -> Exception:
        return self._fields.wrong(name, why)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def raw(self, name: str) -> Any:
        if name not in self._values:
            raise self.wrong(name, "is missing")
        return self._values[name]

    def text(self, name: str, default: str | None = None) -> str:
        if name not in self._values and default is not None:
            return default
        return checked_text(self.key(name), self.raw(name))

    def maybe_text(self, name: str) -> str | None:
        return self.text(name) if name in self else None

    def one_of(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        found = self._values.get(name)
        if isinstance(found, str) and found not in choices:
            close = get_close_matches(found[:SHOWN_CHARACTERS].lower(), choices, 1, 0.5)
            end = f"; did you mean {close[0]}?" if close else ""
            raise self.wrong(name, f"must be {listed(choices)}, got {shown(found)}{end}")
        return self._fields.one_of(name, choices, ... if default is None else default)

    def flag(self, name: str, default: bool) -> bool:
        return self._fields.flag(name, default)

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int | None:
        return self._fields.whole(name, least, most, default)

    def duration(self, name: str, default: Duration | None = None, *, least: int = 0) -> Duration:
        if name not in self._values and default is not None:
            return default
        found = parse_duration(self.key(name), self.raw(name))
        if found < least:
            raise self.wrong(name, f"must be at least {Duration(least)}, got {shown(self.raw(name))}")
        return found

    def names(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        """A list of different texts. A single text is a list of one."""
        if name not in self._values and not required:
            return ()
        return text_list(self.key(name), self.raw(name))

    def location(self, name: str) -> str:
        return parse_location(self.key(name), self.raw(name), self.folder)

    def maybe_location(self, name: str) -> str | None:
        return self.location(name) if name in self else None

    def scalars(self, name: str) -> dict[str, str]:
        """A mapping whose values are texts, numbers or booleans, all returned as texts."""
        found = self._values.get(name, {})
        path = self.key(name)
        if not isinstance(found, Mapping):
            raise FlowInvalid(f"{path}: must be a mapping, got {shown(found)}")
        texts: dict[str, str] = {}
        for key, value in found.items():
            checked_text(f"{path}.{_plain(str(key))}", key)
            if isinstance(value, bool):
                texts[key] = str(value).lower()
            elif isinstance(value, int | float):
                texts[key] = str(value)
            elif isinstance(value, str):
                texts[key] = checked_text(f"{path}.{_plain(key)}", value) if value else ""
            else:
                raise FlowInvalid(
                    f"{path}.{_plain(key)}: must be a string, a number, true or false, got {shown(value)}"
                )
        return texts


def _plain(name: str) -> str:
    """A key as errors show it, without anything that would break the line."""
    text = name if name.isprintable() and name else repr(name)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def text_list(path: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise FlowInvalid(f"{path}: must be a list of names, got {shown(value)}")
    if len(value) > LIST_MAX:
        raise FlowInvalid(f"{path}: has {len(value)} entries; the maximum is {LIST_MAX}")
    texts = tuple(checked_text(f"{path}[{at}]", each) for at, each in enumerate(value))
    twice = next((each for at, each in enumerate(texts) if each in texts[:at]), None)
    if twice is not None:
        raise FlowInvalid(f"{path}: {shown(twice)} is given twice")
    return texts


# -- YAML --------------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Plain values only. `on`, `off`, `yes`, `no`, dates and 1:30 stay texts."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            peek: Any = self.peek_event
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=peek().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for name, _ in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(problem="`<<` is not allowed", problem_mark=name.start_mark)
            if isinstance(name, yaml.ScalarNode):
                if name.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{_plain(name.value)} is given twice", problem_mark=name.start_mark
                    )
                seen.add(name.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*)\.[0-9]*(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def parse_yaml(data: bytes) -> Any:
    """Raises `FlowInvalid` with line and column."""
    if len(data) > FILE_BYTES_MAX:
        raise FlowInvalid(f"the file has more than {FILE_BYTES_MAX} bytes")
    try:
        loader = _Loader(data.decode())
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise FlowInvalid(where + " ".join(str(error.problem or error.context).split())) from None
    except UnicodeDecodeError as error:
        raise FlowInvalid(f"the file is not UTF-8: byte {error.start} is not text") from None
    except yaml.reader.ReaderError as error:
        raise FlowInvalid(f"the file has a character that YAML does not allow, at {error.position}") from None
    except RecursionError:
        raise FlowInvalid("the file is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise FlowInvalid(" ".join(str(error).split())[:200]) from None
