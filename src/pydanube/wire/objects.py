"""The JSON objects in control frames: bounded in size and depth, without duplicate names, and checked field by field.

Whatever the bytes, `read_object` gives a dict or raises `Unfit` with a sentence; the caller knows whose fault it is.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

from pydanube.base.limits import CONTROL_BYTES_MAX, JSON_DEPTH_MAX

NUMBER_MAX = (1 << 64) - 1
NUMBER_MIN = -(1 << 63)
_DIGITS_MAX = 20  # of a number that may lie between the two; looked at before it is converted

Object = dict[str, Any]


class Unfit(ValueError):
    """A body or a field that is not as the protocol wants it; becomes a `ProtocolError`."""


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS_MAX or not NUMBER_MIN <= (number := int(digits)) <= NUMBER_MAX:
        raise Unfit("a number has more than 64 bits")
    return number


def _fraction(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise Unfit("a number is too large")
    return number


def _constant(name: str) -> float:
    raise Unfit(f"{name} is no JSON")


def _members(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unfit("a name comes twice in one object")
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=_whole, parse_float=_fraction, parse_constant=_constant
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # closed or not, in one step
_BRACKET = re.compile(r"[\[\]{}]")
_SURROGATE = re.compile(r"\\u[dD]")


def read_object(body: bytes, bytes_max: int = CONTROL_BYTES_MAX, values_max: int | None = None) -> Object:
    """The one object that these bytes are. With `values_max` it has about as many values at most, however small."""
    if len(body) > bytes_max:
        raise Unfit(f"{len(body)} bytes of JSON, at most {bytes_max}")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Unfit("the text is not UTF-8") from None
    _check_shape(text, values_max)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise Unfit(f"no JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(value, dict):
        raise Unfit("not a JSON object")
    if _SURROGATE.search(text):
        _check_text(value)
    return value


def write_object(value: Object) -> bytes:
    """The bytes that `read_object` reads as this value."""
    try:
        text = _ENCODER.encode(value)
        body = text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit(f"cannot be JSON: {error}") from None
    if len(body) > CONTROL_BYTES_MAX:
        raise Unfit(f"{len(body)} bytes of JSON, at most {CONTROL_BYTES_MAX}")
    _check_shape(text)
    return body


def _check_shape(text: str, values_max: int | None = None) -> None:
    """What the decoder would make many small things of, or a deep stack, is refused before."""
    if values_max is None and text.count("[") + text.count("{") <= JSON_DEPTH_MAX:
        return
    if values_max is not None and text.count('"') - text.count('\\"') > 4 * values_max:
        raise Unfit(f"JSON with more than about {values_max} values")
    bare = _STRING.sub("", text)
    if values_max is not None and bare.count(",") > values_max:
        raise Unfit(f"JSON with more than {values_max} values")
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > JSON_DEPTH_MAX:
            raise Unfit(f"JSON nested more than {JSON_DEPTH_MAX} deep")


def _check_text(value: Object) -> None:
    """Half a surrogate pair, written as an escape, is no character: nobody could write it down again."""
    try:
        _ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        raise Unfit("a text has half a surrogate pair") from None


# -- fields ----------------------------------------------------------------------------------------------------------


def text_in(value: Object, name: str, bytes_max: int, *, empty: bool = False) -> str:
    found = _there(value, name)
    if not isinstance(found, str):
        raise Unfit(f"{name!r} is not a text")
    size = len(found.encode("utf-8"))
    if size > bytes_max:
        raise Unfit(f"{name!r} has {size} bytes, at most {bytes_max}")
    if not found and not empty:
        raise Unfit(f"{name!r} is empty")
    return found


def number_in(value: Object, name: str, least: int, most: int) -> int:
    found = _there(value, name)
    if type(found) is not int:  # True is an int to Python, and to nobody else
        raise Unfit(f"{name!r} is not a whole number")
    if not least <= found <= most:
        raise Unfit(f"{name!r} is {found}, not {least} to {most}")
    return found


def flag_in(value: Object, name: str) -> bool:
    found = _there(value, name)
    if not isinstance(found, bool):
        raise Unfit(f"{name!r} is neither true nor false")
    return found


def texts_in(value: Object, name: str, count_max: int, bytes_max: int) -> tuple[str, ...]:
    found = _there(value, name)
    if not isinstance(found, list):
        raise Unfit(f"{name!r} is not a list")
    if len(found) > count_max:
        raise Unfit(f"{name!r} has {len(found)} entries, at most {count_max}")
    return tuple(text_in({name: entry}, name, bytes_max) for entry in found)


def _there(value: Object, name: str) -> Any:
    try:
        return value[name]
    except KeyError:
        raise Unfit(f"{name!r} is missing") from None
