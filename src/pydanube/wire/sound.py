"""Whether a batch lying in a larger buffer is whole: the journal's scanner asks this a million times a second."""

from __future__ import annotations

from struct import Struct

from pydanube.base.checksum import crc32c
from pydanube.wire.header import PREFIX_BYTES, STAMP_BYTES, stamp_check

_PLACE = Struct("<qqQIII")  # the stamp, then the content's own checksum
_COUNT = Struct("<I")
_COUNT_AT = STAMP_BYTES + 16


def is_sound(data: bytes, start: int, length: int, crc: int, base_offset: int, count: int) -> bool:
    """True if the `length` bytes at `start` are the batch that the other arguments describe, to the bit."""
    if length < PREFIX_BYTES or start + length > len(data):
        return False
    offset, _, _, check, reserved, own = _PLACE.unpack_from(data, start)
    if own != crc or offset != base_offset or reserved or _COUNT.unpack_from(data, start + _COUNT_AT)[0] != count:
        return False
    body = start + STAMP_BYTES + 4
    return crc32c(data[body : start + length]) == crc and stamp_check(data[start : start + 24], crc) == check
