"""Compression of a batch's packed section. Sizes are checked before anything is unpacked."""

from __future__ import annotations

import lz4.block
import zstandard

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import BATCH_RAW_BYTES_MAX, LZ4_FRONT_BYTES_MAX, LZ4_JUDGED_BYTES_MAX
from pydanube.wire.header import Codec

ZSTD_LEVEL = 3
FRAME_HEAD_BYTES_MAX = 18  # of a zstd frame; all that `check_claims` needs
_LZ4_MATCH_BYTES_MIN = 4
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_BYTES_MAX = 1 << BATCH_RAW_BYTES_MAX.bit_length()  # zstd's own windows are powers of two


def pack(raw: bytes, codec: Codec) -> tuple[Codec, bytes]:
    """The compressed section, or the original one if compression does not make it smaller."""
    if not raw or codec == Codec.NONE:
        return Codec.NONE, raw
    if codec == Codec.LZ4:
        packed: bytes = lz4.block.compress(raw, store_size=False)
    else:
        packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(raw)  # not thread-safe, so one per call
    return (codec, packed) if len(packed) < len(raw) else (Codec.NONE, raw)


def check_claims(packed: bytes, codec: Codec, raw_bytes: int) -> None:
    """Raises if the zstd frame header contradicts the batch header. Nothing is unpacked; lz4 blocks have no header."""
    if codec != Codec.ZSTD:
        return
    if not packed.startswith(_ZSTD_MAGIC):
        raise BatchInvalid("a section is not one zstd frame")
    try:
        frame = zstandard.get_frame_parameters(packed)
    except zstandard.ZstdError as error:
        raise BatchInvalid("a section is not one zstd frame") from error
    if frame.content_size != raw_bytes or frame.dict_id or frame.window_size > _ZSTD_WINDOW_BYTES_MAX:
        raise BatchInvalid("a zstd frame does not match its header")


def unpack(packed: bytes, codec: Codec, raw_bytes: int) -> bytes:
    """The uncompressed section. `raw_bytes` is from the header, and was checked against the limits."""
    raw = _unpack_lz4(packed, raw_bytes) if codec == Codec.LZ4 else _unpack_zstd(packed, raw_bytes)
    if len(raw) != raw_bytes:
        raise BatchInvalid("a section does not unpack to the size in its header")
    return raw


def unpack_front(packed: bytes, codec: Codec, raw_bytes: int, size: int) -> bytes:
    """The first `size` bytes of a section, without unpacking more than necessary.

    The library cannot stop within an lz4 block. So a short front is unpacked here, and a long one with the whole block,
    which is refused if it is large.
    """
    if codec == Codec.LZ4:
        if size <= LZ4_FRONT_BYTES_MAX:
            return _lz4_front(packed, size)
        if raw_bytes > LZ4_JUDGED_BYTES_MAX:
            raise BatchTooLarge(
                f"an lz4 batch of {raw_bytes} bytes has too many messages for the broker to look at their sizes; "
                f"send at most {LZ4_JUDGED_BYTES_MAX} bytes at once, or use zstd"
            )
        return unpack(packed, codec, raw_bytes)[:size]
    check_claims(packed, codec, raw_bytes)
    try:
        front = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).stream_reader(packed).read(size)
    except zstandard.ZstdError as error:
        raise BatchInvalid("a section is not one zstd frame") from error
    if len(front) != size:
        raise BatchInvalid("a section does not unpack to the size in its header")
    return front


def _lz4_front(packed: bytes, size: int) -> bytes:
    """The first `size` bytes of an lz4 block, which consists of literals and copies of earlier bytes."""
    front, at = bytearray(), 0
    try:
        while len(front) < size:
            token = packed[at]
            length, at = _lz4_length(packed, at + 1, token >> 4)
            front += packed[at : at + min(length, size)]
            at += length
            if len(front) >= size:
                break
            distance = packed[at] | packed[at + 1] << 8
            length, at = _lz4_length(packed, at + 2, token & 15)
            if not 0 < distance <= len(front):
                raise BatchInvalid("a section is not lz4")
            copied = bytes(front[-distance:])
            length = min(length + _LZ4_MATCH_BYTES_MIN, size - len(front))
            front += (copied * (length // distance + 1))[:length]
    except IndexError:
        raise BatchInvalid("a section is not lz4") from None
    return bytes(front[:size])


def _lz4_length(packed: bytes, at: int, length: int) -> tuple[int, int]:
    """Reads a length of four bits that continues in further bytes while they are 255; returns it and where it ends.

    Stops reading once the length exceeds the largest valid one.
    """
    if length == 15:
        end = at
        while packed[end] == 255 and 255 * (end - at) < LZ4_FRONT_BYTES_MAX:
            end += 1
        length += 255 * (end - at) + packed[end]
        at = end + 1
    return length, at


def _unpack_lz4(packed: bytes, raw_bytes: int) -> bytes:
    try:
        raw: bytes = lz4.block.decompress(packed, uncompressed_size=raw_bytes)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise BatchInvalid("a section is not lz4") from error
    return raw


def _unpack_zstd(packed: bytes, raw_bytes: int) -> bytes:
    check_claims(packed, Codec.ZSTD, raw_bytes)
    try:
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompress(
            packed, max_output_size=raw_bytes, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise BatchInvalid("a section is not one zstd frame") from error
