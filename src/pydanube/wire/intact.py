"""Checks a batch inside a larger buffer without parsing it: the journal's scanner does it a million times a second."""

from __future__ import annotations

from struct import Struct

from pydanube.base.checksum import crc32c
from pydanube.wire.header import PREFIX_BYTES, STAMP_BYTES, stamp_check

_STAMP_AND_CRC = Struct("<qqQIII")  # the stamp, then the checksum of the content
_COUNT = Struct("<I")
_COUNT_AT = STAMP_BYTES + 16


def is_intact(data: bytes, start: int, length: int, crc: int, base_offset: int, count: int) -> bool:
    """Whether the `length` bytes at `start` are exactly the batch that the other arguments describe."""
    if length < PREFIX_BYTES or start + length > len(data):
        return False
    offset, _, _, check, reserved, own = _STAMP_AND_CRC.unpack_from(data, start)
    if own != crc or offset != base_offset or reserved or _COUNT.unpack_from(data, start + _COUNT_AT)[0] != count:
        return False
    body = start + STAMP_BYTES + 4
    return crc32c(data[body : start + length]) == crc and stamp_check(data[start : start + 24], crc) == check
