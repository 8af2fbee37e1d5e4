"""The JSON objects in control frames: bounded in size and depth, and without duplicate names.

Whatever the bytes, `read_object` returns a dict or raises `MalformedBody` with a sentence. The caller decides whose
fault it is.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate, count
from math import isfinite
from operator import sub
from typing import Any

from pydanube.base.limits import CONTROL_BYTES_MAX, JSON_DEPTH_MAX, JSON_OBJECTS_MAX

NUMBER_MAX = (1 << 64) - 1
NUMBER_MIN = -(1 << 63)
_DIGITS_MAX = 20  # of a number in this range; checked before it is converted

Object = dict[str, Any]


class MalformedBody(ValueError):
    """A body or one of its fields violates the protocol; the caller turns this into a `ProtocolError`."""


def whole_number(digits: str) -> int:
    """The number, if it has at most 64 bits."""
    if len(digits) > _DIGITS_MAX or not NUMBER_MIN <= (number := int(digits)) <= NUMBER_MAX:
        raise MalformedBody("a number has more than 64 bits")
    return number


def _fraction(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise MalformedBody("a number is too large")
    return number


def _constant(name: str) -> float:
    raise MalformedBody(f"{name} is not valid JSON")


def _members(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedBody("a name is given twice in one object")
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_members, parse_int=whole_number, parse_float=_fraction, parse_constant=_constant
)
_PLAIN_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_float=_fraction, parse_constant=_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LONG = re.compile("[0-9]{19}")  # may have more than 64 bits; one search is cheaper than checking each number
_BRACKETS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{]}")
_SURROGATE = re.compile(r"\\u[dD]")


def read_object(body: bytes, bytes_max: int = CONTROL_BYTES_MAX, values_max: int | None = None) -> Object:
    """Reads the bytes as one object. `values_max` limits how many values it has, approximately.

    It then has at most `JSON_OBJECTS_MAX` objects and lists too, because each of them takes much memory.
    """
    if len(body) > bytes_max:
        raise MalformedBody(f"the JSON has {len(body)} bytes; the maximum is {bytes_max}")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedBody("the text is not UTF-8") from None
    _check_shape(text, values_max)
    try:
        value = (_DECODER if _LONG.search(text) else _PLAIN_DECODER).decode(text)
    except json.JSONDecodeError as error:
        raise MalformedBody(f"not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise MalformedBody(f"the JSON is nested more than {JSON_DEPTH_MAX} levels deep") from None
    if not isinstance(value, dict):
        raise MalformedBody("not a JSON object")
    if _SURROGATE.search(text):
        _check_text(value)
    return value


def write_object(value: Object, values_max: int | None = None) -> bytes:
    """The JSON of a value. What `read_object` would refuse is refused here too."""
    try:
        text = _ENCODER.encode(value)
        body = text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedBody(f"cannot be written as JSON: {error}") from None
    if len(body) > CONTROL_BYTES_MAX:
        raise MalformedBody(f"the JSON has {len(body)} bytes; the maximum is {CONTROL_BYTES_MAX}")
    _check_shape(text, values_max)
    if _LONG.search(text):
        _DECODER.decode(text)  # refuses numbers with more than 64 bits
    return body


def _check_shape(text: str, values_max: int | None = None) -> None:
    """Refuses text from which the decoder would build too many small objects, or a deep stack, before it does so."""
    opened = text.count("{") + text.count("[")
    if opened <= JSON_DEPTH_MAX and (values_max is None or text.count(",") <= values_max):
        return
    if values_max is not None and text.count('"') - text.count('\\"') > 4 * values_max:
        raise MalformedBody(f"the JSON has more than about {values_max} values")
    bare = _without_strings(text)
    if values_max is not None and bare.count(b",") > values_max:
        raise MalformedBody(f"the JSON has more than {values_max} values")
    if values_max is not None and bare.count(b"{") + bare.count(b"[") > JSON_OBJECTS_MAX:
        raise MalformedBody(f"the JSON has more than {JSON_OBJECTS_MAX} objects and lists")
    brackets = bare.translate(_BRACKETS, _NO_BRACKETS)
    # The nesting depth: an opening bracket counts 2, a closing one 0, and each 1 less.
    if max(map(sub, accumulate(brackets), count(1)), default=0) > JSON_DEPTH_MAX:
        raise MalformedBody(f"the JSON is nested more than {JSON_DEPTH_MAX} levels deep")


def _without_strings(text: str) -> bytes:
    """The text between the strings, if it is valid JSON. Otherwise it may be anything: such text is refused later."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    return "".join(text.split('"')[::2]).encode()


def _check_text(value: Object) -> None:
    """Refuses half a surrogate pair, written as an escape: it is not a character and cannot be encoded."""
    try:
        _ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedBody("a string has half a surrogate pair") from None
