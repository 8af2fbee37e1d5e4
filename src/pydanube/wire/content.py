"""The content of a batch, as a producer makes it: header, plain section and packed section under one checksum."""

from __future__ import annotations

from pydanube.base.checksum import crc32c, crc32c_extend
from pydanube.base.limits import BATCH_RAW_BYTES_MAX, KIB
from pydanube.wire.encode import padding
from pydanube.wire.header import CODECS, Header
from pydanube.wire.packing import pack

_CHECKED_AT_ONCE_BYTES = 64 * KIB  # the checksum library takes only bytes, so it is given copies of bounded size


def seal(header: Header, plain_parts: list[bytes], packed_parts: list[bytes]) -> bytes:
    """Builds the content from columns, compressed as `header.codec` says. Sets codec, sizes and checksum in it."""
    header.plain_bytes = sum(map(len, plain_parts))
    header.raw_bytes = header.packed_bytes = sum(map(len, packed_parts))
    if header.codec and header.raw_bytes <= BATCH_RAW_BYTES_MAX:
        header.codec, packed = pack(b"".join(packed_parts), CODECS[header.codec])
        header.packed_bytes = len(packed)
        packed_parts = [packed, padding(len(packed))]
    header.check()
    head = header.to_bytes()[4:]
    crc = crc32c(head)
    for part in plain_parts:
        crc = crc32c_extend(crc, part)
    for part in packed_parts:
        crc = crc32c_extend(crc, part)
    header.crc = crc
    return b"".join((crc.to_bytes(4, "little"), head, *plain_parts, *packed_parts))


def content_check(content: bytes) -> int:
    """The checksum that the first four bytes of the content should have."""
    if len(content) <= _CHECKED_AT_ONCE_BYTES:
        return crc32c(content[4:])
    check = 0
    for at in range(4, len(content), _CHECKED_AT_ONCE_BYTES):
        check = crc32c_extend(check, content[at : at + _CHECKED_AT_ONCE_BYTES])
    return check
