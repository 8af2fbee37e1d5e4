"""D4 and D5 of the fault table: every flipped bit, missing byte and extra byte of a batch is detected."""

from __future__ import annotations

import pytest

from pydanube.base.errors import BatchDamaged, BatchInvalid
from pydanube.wire.batch import PREFIX_BYTES, Batch, length_of
from wire.batches import SAMPLES, TYPED, resealed

each_sample = pytest.mark.parametrize("name", SAMPLES)


@each_sample
def test_every_flipped_bit_is_damage(name: str) -> None:
    good = SAMPLES[name].to_bytes()
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BatchDamaged):
            Batch.parse(bytes(data))


@each_sample
def test_every_truncation_is_damage(name: str) -> None:
    good = SAMPLES[name].to_bytes()
    for length in range(len(good)):
        with pytest.raises(BatchDamaged):
            Batch.parse(good[:length])


@each_sample
def test_every_extension_is_damage(name: str) -> None:
    good = SAMPLES[name].to_bytes()
    for more in [bytes(length) for length in range(1, 65)] + [b"\xff" * 8, good, good[:32], good[32:]]:
        with pytest.raises(BatchDamaged):
            Batch.parse(good + more)


@each_sample
def test_a_missing_start_is_damage(name: str) -> None:
    good = SAMPLES[name].to_bytes()
    for length in range(1, len(good)):
        with pytest.raises(BatchDamaged):
            Batch.parse(good[length:])


@each_sample
def test_another_length_is_refused_even_if_the_checksums_agree(name: str) -> None:
    good = SAMPLES[name].to_bytes()
    for length in range(PREFIX_BYTES, len(good)):
        with pytest.raises(BatchInvalid):
            Batch.parse(resealed(good[:length]))
    for length in range(1, 65):
        with pytest.raises(BatchInvalid):
            Batch.parse(resealed(good + bytes(length)))


@each_sample
def test_a_flipped_bit_of_the_prefix_never_sends_a_scanner_beyond_the_limit(name: str) -> None:
    good = SAMPLES[name].to_bytes()
    for bit in range(8 * PREFIX_BYTES):
        data = bytearray(good[:PREFIX_BYTES])
        data[bit // 8] ^= 1 << bit % 8
        try:
            length = length_of(bytes(data))
        except TYPED:
            continue
        assert PREFIX_BYTES <= length < 1 << 24


@each_sample
def test_too_short_a_prefix_has_no_length(name: str) -> None:
    good = SAMPLES[name].to_bytes()
    for length in range(PREFIX_BYTES):
        with pytest.raises(BatchInvalid):
            length_of(good[:length])


def test_zeros_are_not_a_batch() -> None:
    for length in range(0, 4096, 8):
        with pytest.raises(TYPED):
            Batch.parse(bytes(length))
        with pytest.raises(TYPED):
            length_of(bytes(length))
