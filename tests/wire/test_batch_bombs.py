"""S2: compressed sections that would unpack to more than they claim, or more than is allowed."""

from __future__ import annotations

import tracemalloc
from struct import pack

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import BATCH_RAW_BYTES_MAX, LZ4_FRONT_BYTES_MAX, MIB
from pydanube.wire.batch import Batch, Codec, build
from pydanube.wire.columns import Column, ColumnKind
from pydanube.wire.header import HEADER_BYTES
from pydanube.wire.packing import unpack_front
from wire.batches import NOW, forged

PAYLOAD_ONLY = ColumnKind.PLAIN << 2 * Column.PAYLOAD


def section(size: int) -> bytes:
    """The packed section of one message of zeros, with `size` bytes in total."""
    return pack("<2i", 0, size - 8) + bytes(size - 8)


def zstd(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(raw)


def zstd_saying(frame: bytes, size: int) -> bytes:
    """The frame with another content size in its header."""
    descriptor = frame[4]
    width = (1 if descriptor & 0x20 else 0, 2, 4, 8)[descriptor >> 6]
    at = 5 + (0 if descriptor & 0x20 else 1)
    assert width in (4, 8)
    return frame[:at] + size.to_bytes(width, "little") + frame[at + width :]


def test_a_bomb_within_the_limits_unpacks_to_no_more_than_the_limit() -> None:
    size = BATCH_RAW_BYTES_MAX
    packed = zstd(section(size))
    assert size > 1000 * len(packed)
    batch = Batch.parse(forged(packed=packed, codec=Codec.ZSTD, raw_bytes=size, columns=PAYLOAD_ONLY))
    tracemalloc.start()
    assert len(batch.payloads()[0] or b"") == size - 8
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * BATCH_RAW_BYTES_MAX  # the section, the data, the one payload


@pytest.mark.parametrize("raw_bytes", [BATCH_RAW_BYTES_MAX + 8, 1 << 30, (1 << 32) - 8])
@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_that_says_its_size_is_refused_by_its_header(codec: Codec, raw_bytes: int) -> None:
    packed = bytes(max(8, raw_bytes // 1_000_000))
    with pytest.raises(BatchTooLarge):
        Batch.parse(forged(packed=packed, codec=codec, raw_bytes=raw_bytes, columns=PAYLOAD_ONLY))


@pytest.mark.parametrize("ratio", [1000, 1_000_000])
def test_lz4_that_promises_more_than_lz4_can_is_refused_before_anything_is_allocated(ratio: int) -> None:
    packed = bytes(8 * MIB // ratio)
    with pytest.raises(BatchInvalid):
        Batch.parse(forged(packed=packed, codec=Codec.LZ4, raw_bytes=8 * MIB, columns=PAYLOAD_ONLY))


def refused(packed: bytes, codec: Codec, raw_bytes: int, *, peak_max: int = MIB // 4) -> None:
    """Parses the batch, whose header is valid, and expects an error when it is unpacked, within `peak_max` bytes."""
    batch = Batch.parse(forged(packed=packed, codec=codec, raw_bytes=raw_bytes, columns=PAYLOAD_ONLY))
    tracemalloc.start()
    with pytest.raises(BatchInvalid):
        batch.check()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < peak_max


@pytest.mark.parametrize("raw_bytes", [8, 4096, BATCH_RAW_BYTES_MAX])
def test_a_zstd_bomb_of_another_size_than_the_header_says_is_refused_unopened(raw_bytes: int) -> None:
    refused(zstd(section(64 * MIB)), Codec.ZSTD, raw_bytes)


@pytest.mark.parametrize("raw_bytes", [4096, 1 << 20, BATCH_RAW_BYTES_MAX])
def test_a_zstd_bomb_that_lies_in_its_own_header_stops_at_the_size_it_said(raw_bytes: int) -> None:
    frame = zstd_saying(zstd(section(64 * MIB)), raw_bytes)
    refused(frame, Codec.ZSTD, raw_bytes, peak_max=raw_bytes + MIB // 4)


def test_zstd_that_unpacks_to_less_than_it_said_is_refused() -> None:
    frame = zstd_saying(zstd(section(1 << 20)), 1 << 21)
    refused(frame, Codec.ZSTD, 1 << 21, peak_max=(1 << 21) + MIB // 4)


def test_zstd_of_unknown_size_is_refused() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    refused(stream.compress(section(4096)) + stream.flush(), Codec.ZSTD, 4096)


def test_zstd_with_a_window_above_the_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=4096)
    frame = stream.compress(section(4096)) + stream.flush()
    single_segment = frame[4] & 0x20
    if single_segment:  # the window is the size of the content: claim a window of 128 MiB instead
        width = (1, 2, 4, 8)[frame[4] >> 6]
        frame = frame[:4] + bytes([frame[4] & ~0x20, 17 << 3]) + frame[5 : 5 + width] + frame[5 + width :]
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 27
    refused(frame, Codec.ZSTD, 4096)


def test_zstd_that_needs_a_dictionary_is_refused() -> None:
    dictionary = zstandard.ZstdCompressionDict(b"payload" * 100, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(section(4096))
    trained = zstandard.train_dictionary(1024, [b"some text %d and more of it" % row for row in range(5000)])
    with_id = zstandard.ZstdCompressor(dict_data=trained).compress(section(4096))
    assert zstandard.get_frame_parameters(with_id).dict_id
    refused(with_id, Codec.ZSTD, 4096)
    batch = Batch.parse(forged(packed=frame, codec=Codec.ZSTD, raw_bytes=4096, columns=PAYLOAD_ONLY))
    try:
        batch.check()  # without an id it is refused if it uses the dictionary, and correct if it does not
    except BatchInvalid:
        return
    assert batch.payloads() == [bytes(4088)]


@pytest.mark.parametrize("after", [b"\0", bytes(8), zstd(b"more"), pack("<II", 0x184D2A50, 4) + bytes(4)])
def test_bytes_after_a_zstd_frame_are_refused(after: bytes) -> None:
    refused(zstd(section(4096)) + after, Codec.ZSTD, 4096)


def test_a_zstd_frame_to_be_skipped_is_refused() -> None:
    skipped = pack("<II", 0x184D2A50, 4096) + bytes(4096)
    refused(skipped, Codec.ZSTD, 4096)
    refused(skipped + zstd(section(4096)), Codec.ZSTD, 4096)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_noise_is_refused(codec: Codec) -> None:
    for seed in range(256):
        refused(bytes((seed * 7 + at * 13) % 256 for at in range(64)), codec, 64)
    if codec == Codec.ZSTD:
        for length in range(4, 18):
            refused(zstd(section(4096))[:length], codec, 4096)


@pytest.mark.parametrize("raw_bytes", [8, 4088, 4104, 255 * 24])
def test_lz4_of_another_size_than_the_header_says_is_refused(raw_bytes: int) -> None:
    packed = lz4.block.compress(section(4096), store_size=False)
    refused(packed, Codec.LZ4, raw_bytes)


def test_lz4_that_is_cut_or_longer_is_refused() -> None:
    packed = lz4.block.compress(section(4096), store_size=False)
    for length in range(18, len(packed)):
        refused(packed[:length], Codec.LZ4, 4096)
    refused(packed + b"\0", Codec.LZ4, 4096)


def test_a_compressed_batch_of_the_largest_size_goes_through() -> None:
    payload = bytes(BATCH_RAW_BYTES_MAX - 8)
    for codec in (Codec.LZ4, Codec.ZSTD):
        batch = Batch.parse(build([payload], publish_time=NOW, codec=codec).to_bytes())
        assert batch.codec == codec
        assert batch.payloads() == [payload]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("payloads", [[b"x" * 1000, None, b""], [b"x" * 1000], [b"abc"] * 1000])
def test_the_largest_payload_is_judged_by_the_offsets_alone(codec: Codec, payloads: list[bytes | None]) -> None:
    batch = build(payloads, publish_time=NOW, codec=codec, attributes=[{"a": "b"}] * len(payloads))
    largest = max(len(payload or b"") for payload in payloads)
    assert batch.payloads_within(largest)
    assert not batch.payloads_within(largest - 1)
    assert batch._packed is None, "nothing is kept"


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"ab" * 700, bytes(5000)])), max_size=99))
def test_the_front_of_an_lz4_block_is_what_it_unpacks_to(payloads: list[bytes | None]) -> None:
    batch = build([bytes(8000), *payloads], publish_time=NOW, codec=Codec.LZ4)
    raw = batch.packed_section().buffer
    packed = batch.content[HEADER_BYTES + batch.plain_bytes :][: batch.packed_bytes]
    for size in (1, 7, LZ4_FRONT_BYTES_MAX // 2, LZ4_FRONT_BYTES_MAX):
        assert unpack_front(packed, batch.codec, len(raw), size) == raw[:size]


@given(st.binary(max_size=200))
def test_the_front_of_noise_is_refused_or_short(packed: bytes) -> None:
    try:
        front = unpack_front(packed, Codec.LZ4, 16 * MIB, LZ4_FRONT_BYTES_MAX)
    except BatchInvalid:
        return
    assert len(front) == LZ4_FRONT_BYTES_MAX


def test_a_large_lz4_batch_of_many_messages_is_not_unpacked_to_be_judged() -> None:
    batch = build([b"x" * 1000] * 3000, publish_time=NOW, codec=Codec.LZ4)
    assert batch.payloads_within(3 * MIB), "all of them together are smaller"
    with pytest.raises(BatchTooLarge, match="or use zstd"):
        batch.payloads_within(1000)


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
def test_of_a_bomb_only_the_offsets_are_unpacked(codec: Codec) -> None:
    batch = build([bytes(15 * MIB)], publish_time=NOW, codec=codec)
    tracemalloc.start()
    try:
        assert not batch.payloads_within(1 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 * MIB
