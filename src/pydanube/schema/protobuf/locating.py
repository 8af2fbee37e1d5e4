"""Finds the place where a payload is not a message of its type, once the library has refused it without a place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydanube.base.limits import SCHEMA_PAYLOAD_DEPTH_MAX
from pydanube.schema.schema import join

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_VARINT_BYTES = 10
_STRING, _MESSAGE = 9, 11
_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)


class _Wrong(Exception):
    pass


def fault_of(payload: bytes, message: Descriptor) -> tuple[str, str] | None:
    """The place and the reason; None if nothing is found."""
    return _walk(payload, message, "", 0)


def _walk(data: bytes, message: Descriptor, path: str, depth: int) -> tuple[str, str] | None:
    if depth > SCHEMA_PAYLOAD_DEPTH_MAX:
        return path, f"messages are inside each other more than {SCHEMA_PAYLOAD_DEPTH_MAX} times"
    at = 0
    while at < len(data):
        try:
            tag, at = _varint(data, at)
            number, wire = tag >> 3, tag & 7
            if not number:
                raise _Wrong("a field has the number 0")
        except _Wrong as wrong:
            return path, str(wrong)
        field = message.fields_by_number.get(number)
        place = join(path, f"field {number}" if field is None else field.name)
        try:
            value, at = _value(data, at, wire)
        except _Wrong as wrong:
            return place, str(wrong)
        if field is not None and wire == _LENGTH and (found := _inner(value, field, place, depth)):
            return found
    return None


def _inner(value: bytes, field: FieldDescriptor, place: str, depth: int) -> tuple[str, str] | None:
    if field.type == _MESSAGE and field.message_type is not None:
        return _walk(value, field.message_type, place, depth + 1)
    if field.type == _STRING:
        try:
            value.decode()
        except UnicodeDecodeError:
            return place, "the string is not UTF-8"
    return None


def _value(data: bytes, at: int, wire: int) -> tuple[bytes, int]:
    if wire == _VARINT:
        return b"", _varint(data, at)[1]
    if wire in (_FIXED64, _FIXED32):
        size = 8 if wire == _FIXED64 else 4
    elif wire == _LENGTH:
        size, at = _varint(data, at)
    elif wire in (_START, _END):
        raise _Wrong("groups are not supported")
    else:
        raise _Wrong(f"unknown wire type {wire}")
    if size > len(data) - at:
        raise _Wrong("the payload ends too early")
    return data[at : at + size], at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(_VARINT_BYTES):
        if at >= len(data):
            raise _Wrong("the payload ends too early")
        byte = data[at]
        at += 1
        found |= (byte & 127) << 7 * shift
        if byte < 128:
            return found, at
    raise _Wrong("a number has more than 10 bytes")
