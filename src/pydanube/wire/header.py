"""The 96 bytes in front of a batch's columns: the broker's stamp and the producer's header, and their valid values.

Nothing here looks at the columns. Every field is checked before any length in it is used to read or allocate. The
bytes are specified in `docs/internals/batch.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from pydanube.base.checksum import crc32c
from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, BATCH_RAW_BYTES_MAX, OFFSET_MAX
from pydanube.wire.columns import kinds_allowed

STAMP_BYTES = 32
HEADER_BYTES = 64
PREFIX_BYTES = STAMP_BYTES + HEADER_BYTES  # what `length_of` needs
MAGIC = int.from_bytes(b"DNB1", "little")
VERSION = 1
NUMBER_MAX = (1 << 63) - 1  # epochs, producer ids and times fit a signed 64-bit column, as in Parquet

STAMP_FIELDS = Struct("<qqQII")  # base offset, append time, epoch, check, reserved
_STAMP_HEAD = Struct("<qqQI")  # what the check covers: the stamp's fields and the content's checksum
_STAMP_TAIL = Struct("<II")
HEADER_FIELDS = Struct("<IIBBHIIIIIqQqQ")  # the fields of `Header`, in order


class Codec(IntEnum):
    """How the packed section (payloads and attributes) is compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


CODECS = tuple(Codec)


@dataclass(slots=True)
class Header:
    """The producer's 64 bytes, field by field and in order."""

    crc: int = 0
    magic: int = MAGIC
    version: int = VERSION
    codec: int = 0
    flags: int = 0
    columns: int = 0
    count: int = 0
    plain_bytes: int = 0
    packed_bytes: int = 0
    raw_bytes: int = 0
    publish_time: int = 0
    producer_id: int = 0
    first_sequence: int = 0
    reserved: int = 0

    @property
    def content_bytes(self) -> int:
        """Header, both sections and the padding behind them."""
        return HEADER_BYTES + self.plain_bytes + (self.packed_bytes + 7 & ~7)

    def to_bytes(self) -> bytes:
        return HEADER_FIELDS.pack(
            self.crc,
            self.magic,
            self.version,
            self.codec,
            self.flags,
            self.columns,
            self.count,
            self.plain_bytes,
            self.packed_bytes,
            self.raw_bytes,
            self.publish_time,
            self.producer_id,
            self.first_sequence,
            self.reserved,
        )

    def check(self) -> None:
        """Raises unless every field is valid for a batch of this version."""
        if self.magic != MAGIC:
            raise BatchInvalid("not a batch: wrong magic")
        if self.version != VERSION:
            raise BatchInvalid(f"batch version {self.version} is not supported; this reader knows {VERSION}")
        if self.flags or self.reserved:
            raise BatchInvalid("a reserved header field is not zero")
        if not kinds_allowed(self.columns):
            raise BatchInvalid(f"unknown columns {self.columns:#x}")
        if self.count > BATCH_MESSAGES_MAX:
            raise BatchTooLarge(f"the batch has {self.count} messages; the maximum is {BATCH_MESSAGES_MAX}")
        if self.count < 1:
            raise BatchInvalid("a batch must have at least one message")
        if not -NUMBER_MAX - 1 <= self.publish_time <= NUMBER_MAX:
            raise BatchInvalid(f"publish time {self.publish_time} is out of range")
        if not 0 <= self.producer_id <= NUMBER_MAX:
            raise BatchInvalid(f"producer id {self.producer_id} is out of range")
        if not 0 <= self.first_sequence <= OFFSET_MAX - self.count + 1:
            raise BatchInvalid(f"first sequence {self.first_sequence} is out of range")
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.raw_bytes > BATCH_RAW_BYTES_MAX:
            raise BatchTooLarge(f"the batch unpacks to {self.raw_bytes} bytes; the maximum is {BATCH_RAW_BYTES_MAX}")
        if STAMP_BYTES + self.content_bytes > BATCH_BYTES_MAX:
            raise BatchTooLarge(
                f"the batch has {STAMP_BYTES + self.content_bytes} bytes; the maximum is {BATCH_BYTES_MAX}"
            )
        if self.plain_bytes & 7 or self.raw_bytes & 7:
            raise BatchInvalid("the size of a section is not a multiple of 8")
        if self.codec == Codec.NONE:
            if self.packed_bytes != self.raw_bytes:
                raise BatchInvalid("packed and raw size differ without compression")
        elif self.codec not in CODECS:
            raise BatchInvalid(f"codec {self.codec} is unknown")
        elif not self.packed_bytes or not self.raw_bytes:
            raise BatchInvalid("an empty section must not be compressed")
        elif self.codec == Codec.LZ4 and self.raw_bytes > 255 * self.packed_bytes + 64:
            raise BatchInvalid("lz4 cannot unpack to that size")


def read_header(content: bytes) -> Header:
    """The header at the start of `content`, which has at least 64 bytes. It is not checked yet."""
    return Header(*HEADER_FIELDS.unpack_from(content))


def make_stamp(base_offset: int, append_time: int, epoch: int, content_crc: int) -> bytes:
    """The check covers the checksum of the content, so that a stamp is valid for one content only."""
    checked = _STAMP_HEAD.pack(base_offset, append_time, epoch, content_crc)
    return checked[:24] + _STAMP_TAIL.pack(crc32c(checked), 0)


def stamp_check(head: bytes, content_crc: int) -> int:
    return crc32c(head + content_crc.to_bytes(4, "little"))


def check_stamp(base_offset: int, append_time: int, epoch: int, count: int) -> None:
    """Raises unless the values are valid in a stamp. Epoch 0 means "not stamped yet": then all must be zero."""
    if epoch == 0:
        if base_offset or append_time:
            raise BatchInvalid("it has an offset or append time but no epoch")
    elif not 0 < epoch <= NUMBER_MAX:
        raise BatchInvalid(f"epoch {epoch} is out of range")
    elif not 0 <= base_offset <= OFFSET_MAX - count + 1:
        raise BatchInvalid(f"base offset {base_offset} is out of range")
    elif not 0 <= append_time <= NUMBER_MAX:
        raise BatchInvalid(f"append time {append_time} is out of range")


def length_of(prefix: bytes) -> int:
    """The length of the whole batch that starts with these 96 bytes (more may follow).

    For scanners: checks every field, but no checksum. Raises `BatchInvalid` or `BatchTooLarge`.
    """
    if len(prefix) < PREFIX_BYTES:
        raise BatchInvalid(f"{len(prefix)} bytes are too few for the start of a batch")
    header = read_header(prefix[STAMP_BYTES:PREFIX_BYTES])
    header.check()
    base_offset, append_time, epoch, _, reserved = STAMP_FIELDS.unpack_from(prefix)
    check_stamp(base_offset, append_time, epoch, header.count)
    if reserved:
        raise BatchInvalid("a reserved stamp field is not zero")
    return STAMP_BYTES + header.content_bytes
