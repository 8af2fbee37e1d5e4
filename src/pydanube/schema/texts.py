"""Reads the text of a definition, within the bounds of the registry."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

from pydanube.base.errors import SchemaInvalid, SchemaTooComplex
from pydanube.base.limits import SCHEMA_BYTES_MAX, SCHEMA_DEPTH_MAX

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DIGITS_MAX = 40  # of a whole number


def text_of(definition: bytes) -> str:
    """The text of a definition as a client sent it."""
    if len(definition) > SCHEMA_BYTES_MAX:
        raise SchemaTooComplex(f"the definition has {len(definition)} bytes; the maximum is {SCHEMA_BYTES_MAX}")
    try:
        text = definition.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaInvalid(f"byte {error.start} of the definition is not UTF-8") from None
    if found := _CONTROL.search(text):
        raise SchemaInvalid(f"character {found.start()} of the definition is a control character")
    return text


def read_json(text: str) -> Any:
    """The value that the text is in JSON, without names that are given twice."""
    try:
        value = _DECODER.decode(text)
        text.encode() if "\\u" not in text else write_json(value).encode()
    except UnicodeEncodeError:
        raise SchemaInvalid("a string of the definition has half a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise SchemaInvalid(f"the definition is not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def write_json(value: Any) -> str:
    """The canonical text of a JSON value: compact, with sorted names."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(SCHEMA_DEPTH_MAX + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> SchemaTooComplex:
    return SchemaTooComplex(f"the definition is nested more than {SCHEMA_DEPTH_MAX} levels deep")


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS_MAX:
        raise SchemaInvalid(f"the definition has a number of {len(digits)} digits; the maximum is {_DIGITS_MAX}")
    return int(digits)


def _fraction(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise SchemaInvalid("the definition has a number that is too large")
    return number


def _constant(name: str) -> float:
    raise SchemaInvalid(f"the definition is not valid JSON: {name}")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise SchemaInvalid("the definition gives a name twice in one object")
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_whole, parse_float=_fraction, parse_constant=_constant
)
