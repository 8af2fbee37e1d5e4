"""Checks from the bytes of a request, before it is decoded, whether it has more fields than allowed.

Decoding many attributes takes a thousand times as long as counting them. It does not check whether a message is valid.
"""

from __future__ import annotations

from pydanube.base.limits import GRPC_FIELDS_MAX

_SMALLEST_ATTRIBUTE_BYTES = 5  # of a map, with a key of its own
_VARINT_BYTES_MAX = 10
_FIXED_BYTES = {1: 8, 5: 4}
_VARINT, _SIZED = 0, 2


def has_too_many_fields(body: bytes, most: int = GRPC_FIELDS_MAX) -> bool:
    """Each attribute of a message counts, and so does each value of a list; fields inside them do not count."""
    size = len(body)
    if size <= _SMALLEST_ATTRIBUTE_BYTES * most:
        return False
    at = count = 0
    while at < size:
        count += 1
        if count > most:
            return True
        tag, at = _varint(body, at)
        kind = tag & 7
        if kind == _SIZED:
            length, at = _varint(body, at)
            at += length
        elif kind == _VARINT:
            _, at = _varint(body, at)
        else:
            at += _FIXED_BYTES.get(kind, 0)
    return False


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Its value, and where it ends. For an invalid one, the end of the body: the decoder will report it."""
    if at < len(body) and body[at] < 0x80:
        return body[at], at + 1  # nearly all have one byte
    value = 0
    for place, byte in enumerate(body[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return 0, len(body)
