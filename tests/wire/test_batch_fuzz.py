"""S3: any bytes give one of three errors, or a batch that all readers agree on."""

from __future__ import annotations

from itertools import pairwise
from struct import pack
from typing import Any

import lz4.block
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.wire.arrow import to_record_batch
from pydanube.wire.batch import STAMP_BYTES, Batch, Codec, build, length_of
from wire.batches import SAMPLES, TYPED, drafts, fields_of, resealed

INTERESTING = (0, 1, 3, 4, 7, 8, 255, 1 << 15, 1 << 17, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
SECTIONS_AT = 96


def explore(data: bytes) -> None:
    """Reads the bytes in every possible way. Fails on an unexpected error, or if readers disagree."""
    try:
        batch = Batch.parse(data)
    except TYPED:
        return
    assert length_of(data) == len(data)
    assert Batch.from_parts(*batch.parts()) == batch
    try:
        batch.check()
    except (BatchInvalid, BatchTooLarge):
        refused_by_all(data)
        return
    fields = fields_of(batch)
    stored = to_record_batch(Batch.parse(data))
    stored.validate(full=True)
    assert stored.column("payload").to_pylist() == fields["payloads"]
    whole = to_record_batch(Batch.parse(data), derived=True)
    assert whole.column("key").to_pylist() == fields["keys"]
    assert [message.payload for message in batch.messages()] == fields["payloads"]
    half = (batch.count + 1) // 2
    cut = Batch.parse(batch.slice(batch.count - half, half).to_bytes())
    assert fields_of(cut) == {name: rows[batch.count - half :] for name, rows in fields.items()}


def refused_by_all(data: bytes) -> None:
    """Arrow must be as strict as `check`, which it replaces if a batch is wrapped first."""
    readers = [to_record_batch, lambda batch: list(batch.messages())]
    if Batch.parse(data).count > 1:
        readers.append(lambda batch: batch.slice(0, 1))
    for reader in readers:
        try:
            reader(Batch.parse(data))
        except (BatchInvalid, BatchTooLarge):
            continue
        raise AssertionError(f"{reader} accepted what check refuses")


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[float, bytes]]:
    """A few changes: where (as a fraction of the bytes), and what to put there."""
    words = st.sampled_from(INTERESTING).map(lambda word: pack("<I", word))
    return draw(st.lists(st.tuples(st.floats(0, 1), words | st.binary(min_size=1, max_size=8)), min_size=1, max_size=3))


def mutated(data: bytes, changes: list[tuple[float, bytes]], *, align: int = 1) -> bytes:
    for where, new in changes:
        at = int(where * (len(data) - 1)) // align * align
        data = (data[:at] + new + data[at + len(new) :])[: max(len(data), 1)]
    return data


@given(st.binary(max_size=300))
def test_noise(data: bytes) -> None:
    explore(data)
    if len(data) >= 36:
        explore(resealed(data))


@settings(max_examples=300)
@given(st.sampled_from(sorted(SAMPLES)), mutations(), st.sampled_from([1, 4]))
def test_changed_anywhere_under_right_checksums(name: str, changes: list[tuple[float, bytes]], align: int) -> None:
    explore(resealed(mutated(SAMPLES[name].to_bytes(), changes, align=align)))


@settings(max_examples=300)
@given(drafts(), mutations(), st.sampled_from([1, 4]))
def test_changed_in_the_columns(draft: dict[str, Any], changes: list[tuple[float, bytes]], align: int) -> None:
    data = build(**draft).to_bytes()
    explore(resealed(data[:SECTIONS_AT] + mutated(data[SECTIONS_AT:], changes, align=align)))


@settings(max_examples=300)
@given(drafts(), mutations(), st.sampled_from([Codec.LZ4, Codec.ZSTD]))
def test_changed_below_the_compression(draft: dict[str, Any], changes: list[tuple[float, bytes]], codec: Codec) -> None:
    batch = build(**{**draft, "codec": Codec.NONE})
    if not batch.raw_bytes:
        return
    plain = batch.content[64 : 64 + batch.plain_bytes]
    raw = mutated(batch.content[64 + batch.plain_bytes :], changes, align=4)
    if codec == Codec.LZ4:
        packed = lz4.block.compress(raw, store_size=False)
    else:
        packed = zstandard.ZstdCompressor().compress(raw)
    head = bytearray(batch.content[:64])
    head[9] = codec
    head[24:28] = pack("<I", len(packed))
    explore(resealed(batch.stamp + head + plain + packed + bytes(-len(packed) % 8)))


@given(drafts(), drafts())
def test_parts_of_two_batches_put_together(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = build(**one).to_bytes(), build(**other).to_bytes()
    for cut in (STAMP_BYTES, SECTIONS_AT, SECTIONS_AT + 16):
        explore(first[:cut] + second[cut:])
        explore(resealed(first[:cut] + second[cut:]))


def test_every_word_of_every_sample_replaced_by_every_interesting_one() -> None:
    for batch in SAMPLES.values():
        good = batch.to_bytes()
        for at, after in pairwise(range(STAMP_BYTES, len(good) + 4, 4)):
            for word in INTERESTING:
                explore(resealed(good[:at] + pack("<I", word) + good[after:]))
