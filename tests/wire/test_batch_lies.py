"""S1: bytes with correct checksums and false claims are refused with a typed error, before memory is allocated."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import pack

import pytest

from pydanube.base.errors import BatchInvalid, BatchTooLarge
from pydanube.base.limits import BATCH_ATTRIBUTES_MAX, BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, MIB
from pydanube.wire.arrow import to_record_batch
from pydanube.wire.batch import STAMP_BYTES, Batch, length_of
from pydanube.wire.columns import Column, ColumnKind
from wire.batches import SAMPLES, fields_of, forged, patched

LIE_BYTES_MAX = MIB // 4  # memory for checking a batch of a few hundred bytes


def read_everything(data: bytes) -> None:
    batch = Batch.parse(data)
    batch.check()
    fields_of(batch)


READERS: dict[str, Callable[[Batch], object]] = {
    "check": Batch.check,
    "lists": fields_of,
    "messages": Batch.messages,
    "slice": lambda batch: batch.slice(0, 1),
    "arrow": to_record_batch,
    "whole table": lambda batch: to_record_batch(batch, derived=True),
}
to_record_batch(SAMPLES["all columns"], derived=True)  # what pyarrow allocates once does not count
each_reader = pytest.mark.parametrize("reader", READERS)


@contextmanager
def allocating_at_most(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


# -- sizes and counts of the header ----------------------------------------------------------------------------------

U32_FIELDS = {"columns": 12, "count": 16, "plain_bytes": 20, "packed_bytes": 24, "raw_bytes": 28}
U32_LIES = (0, 1, 7, 8, BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX + 1, BATCH_BYTES_MAX, BATCH_BYTES_MAX + 1)
LARGE_LIES = (1 << 31, (1 << 31) - 1, (1 << 32) - 1, (1 << 32) - 8)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("field", U32_FIELDS)
def test_a_lie_about_a_size_or_count_is_refused_cheaply(name: str, field: str) -> None:
    good = SAMPLES[name].to_bytes()
    at = STAMP_BYTES + U32_FIELDS[field]
    for lie in (*U32_LIES, *LARGE_LIES):
        data = patched(good, at, pack("<I", lie))
        if data == good or (name == "one tombstone" and field == "count" and lie <= BATCH_MESSAGES_MAX and lie):
            continue  # a batch without columns may claim any number of tombstones
        with allocating_at_most(LIE_BYTES_MAX), pytest.raises((BatchInvalid, BatchTooLarge)):
            read_everything(data)


@pytest.mark.parametrize("field", ["count", "plain_bytes", "packed_bytes", "raw_bytes"])
@pytest.mark.parametrize("lie", LARGE_LIES)
def test_a_scanner_already_refuses_what_no_batch_may_have(field: str, lie: int) -> None:
    data = patched(SAMPLES["zstd"].to_bytes(), STAMP_BYTES + U32_FIELDS[field], pack("<I", lie))
    with pytest.raises(BatchTooLarge):
        length_of(data)
    with pytest.raises(BatchTooLarge):
        Batch.parse(data)


@pytest.mark.parametrize(
    ("at", "new"),
    [
        pytest.param(0, pack("<q", -1), id="base offset below 0"),
        pytest.param(0, pack("<q", (1 << 62) - 3), id="last offset above the largest"),
        pytest.param(8, pack("<q", -1), id="append time below 0"),
        pytest.param(16, pack("<Q", 0), id="offset without epoch"),
        pytest.param(16, pack("<Q", 1 << 63), id="epoch above int64"),
        pytest.param(36, b"DNB2", id="magic"),
        pytest.param(40, b"\0", id="version 0"),
        pytest.param(40, b"\2", id="version 2"),
        pytest.param(41, b"\3", id="unknown codec"),
        pytest.param(41, b"\xff", id="unknown codec"),
        pytest.param(42, b"\1\0", id="flags"),
        pytest.param(42, b"\0\x80", id="flags"),
        pytest.param(72, pack("<Q", 1 << 63), id="producer id above int64"),
        pytest.param(80, pack("<q", -1), id="sequence below 0"),
        pytest.param(80, pack("<q", (1 << 62) - 3), id="last sequence above the largest"),
        pytest.param(88, b"\1", id="reserved"),
        pytest.param(95, b"\x80", id="reserved"),
    ],
)
def test_a_field_out_of_range_is_refused(at: int, new: bytes) -> None:
    data = patched(SAMPLES["all columns, stamped"].to_bytes(), at, new)
    for read in (Batch.parse, length_of):
        with pytest.raises(BatchInvalid):
            read(data)


@pytest.mark.parametrize("bit", range(16, 32))
def test_columns_that_do_not_exist_are_refused(bit: int) -> None:
    batch = SAMPLES["all columns"]
    with pytest.raises(BatchInvalid):
        Batch.parse(patched(batch.to_bytes(), STAMP_BYTES + 12, pack("<I", batch.columns | 1 << bit)))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (Column.KEY, ColumnKind.CONSTANT),
        (Column.PAYLOAD, ColumnKind.CONSTANT),
        (Column.ATTRIBUTES, ColumnKind.CONSTANT),
        (Column.PUBLISH_TIME, ColumnKind.NULLABLE),
    ],
)
def test_kinds_that_a_column_cannot_have_are_refused(column: Column, kind: ColumnKind) -> None:
    with pytest.raises(BatchInvalid):
        Batch.parse(forged(bytes(64), bytes(64), columns=kind << 2 * column))


@pytest.mark.parametrize("codec", [1, 2])
def test_an_empty_section_is_never_compressed(codec: int) -> None:
    for sizes in ({"raw_bytes": 0}, {"packed_bytes": 0, "raw_bytes": 8}):
        with pytest.raises(BatchInvalid):
            Batch.parse(forged(codec=codec, columns=0, **sizes))


# -- columns ---------------------------------------------------------------------------------------------------------


def offsets_of(batch: Batch) -> dict[str, tuple[int, int]]:
    """Where each buffer of offsets starts in the bytes of a batch, and how many offsets it has."""
    key, packed = batch.plain_section().strings, batch.packed_section()
    payload, entries = packed.strings, packed.maps
    assert key is not None and payload is not None and entries is not None  # noqa: PT018
    return {
        "key": (STAMP_BYTES + key.offsets, batch.count + 1),
        "payload": (STAMP_BYTES + payload.offsets, batch.count + 1),
        "attributes": (STAMP_BYTES + entries.offsets, batch.count + 1),
        "names": (STAMP_BYTES + entries.names.offsets, entries.names.rows + 1),
        "texts": (STAMP_BYTES + entries.texts.offsets, entries.texts.rows + 1),
    }


OFFSET_LIES = (1, 2, 3, 100, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 32) - 4)


def offset_lies(column: str) -> Iterator[bytes]:
    """The batch with every offset of the column replaced by each invalid value."""
    batch = SAMPLES["all columns"]
    good = batch.to_bytes()
    at, count = offsets_of(batch)[column]
    values = [int.from_bytes(good[at + 4 * row : at + 4 * row + 4], "little") for row in range(count)]
    for row in range(count):
        allowed = range(values[row - 1] if row else 0, (values[row + 1] if row + 1 < count else values[row]) + 1)
        for lie in OFFSET_LIES:
            if lie not in allowed or row == 0:
                yield patched(good, at + 4 * row, pack("<I", lie))


@each_reader
@pytest.mark.parametrize("column", offsets_of(SAMPLES["all columns"]))
def test_offsets_that_run_backwards_or_beyond_the_data_are_refused(column: str, reader: str) -> None:
    lies = list(offset_lies(column))
    assert len(lies) > 20
    for data in lies:
        batch = Batch.parse(data)
        with allocating_at_most(LIE_BYTES_MAX), pytest.raises((BatchInvalid, BatchTooLarge)):
            READERS[reader](batch)


def buffers_of(batch: Batch) -> Iterator[tuple[int, int]]:
    """The start and size of every buffer of an uncompressed batch."""
    bitmaps = []
    for where in batch.plain_section().fixed.values():
        yield where.values, where.width * (1 if where.kind == ColumnKind.CONSTANT else batch.count)
        bitmaps.append(where.validity)
    for section in (batch.plain_section(), batch.packed_section()):
        entries = section.maps
        if entries:
            yield entries.offsets, 4 * (batch.count + 1)
        for strings in (section.strings, entries and entries.names, entries and entries.texts):
            if strings:
                yield strings.offsets, 4 * (strings.rows + 1)
                yield strings.data, strings.data_bytes
        bitmaps += [where.validity for where in (section.strings, entries) if where]
    yield from ((at, (batch.count + 7) // 8) for at in bitmaps if at >= 0)


@each_reader
@pytest.mark.parametrize("name", ["payloads and keys", "constants", "all columns"])
def test_padding_that_is_not_zero_is_refused(name: str, reader: str) -> None:
    batch = SAMPLES[name]
    buffers = list(buffers_of(batch))
    assert sum(size + 7 & ~7 for _, size in buffers) == batch.plain_bytes + batch.raw_bytes
    for start, size in buffers:
        for at in range(start + size, start + (size + 7 & ~7)):
            for byte in (b"\1", b"\x80"):
                with pytest.raises(BatchInvalid):
                    READERS[reader](Batch.parse(patched(batch.to_bytes(), STAMP_BYTES + at, byte)))


def test_padding_behind_a_compressed_section_is_refused_at_once() -> None:
    batch = SAMPLES["lz4"]
    assert batch.packed_bytes % 8
    for at in range(96 + batch.plain_bytes + batch.packed_bytes, batch.size):
        with pytest.raises(BatchInvalid):
            Batch.parse(patched(batch.to_bytes(), at, b"\1"))


@each_reader
def test_validity_bits_of_messages_that_do_not_exist_are_refused(reader: str) -> None:
    batch = SAMPLES["all columns"]
    good = batch.to_bytes()
    sections = (batch.plain_section().strings, batch.packed_section().strings, batch.packed_section().maps)
    places = [where.validity for where in (*sections, *batch.plain_section().fixed.values()) if where]
    assert len([at for at in places if at >= 0]) == 7
    for at in (STAMP_BYTES + at for at in places if at >= 0):
        for bit in range(batch.count, 8):
            data = patched(good, at, bytes([good[at] | 1 << bit]))
            with pytest.raises(BatchInvalid):
                READERS[reader](Batch.parse(data))


@each_reader
@pytest.mark.parametrize("section", ["plain", "packed"])
def test_bytes_that_belong_to_no_column_are_refused(section: str, reader: str) -> None:
    data = forged(**{section: bytes(8)}, columns=0, count=2)  # type: ignore[arg-type]
    with pytest.raises(BatchInvalid):
        READERS[reader](Batch.parse(data))


@each_reader
def test_attributes_that_are_not_utf8_are_refused(reader: str) -> None:
    batch = SAMPLES["all columns"]
    entries = batch.packed_section().maps
    assert entries is not None
    at = STAMP_BYTES + entries.texts.data
    good = batch.to_bytes()
    assert good[at : at + 2] == "ü".encode()
    for new in (b"\xff", b"\xc3\xc3", b"1\xbc", b"\xed\xa0\x80"):
        with pytest.raises(BatchInvalid):
            READERS[reader](Batch.parse(patched(good, at, new)))


@each_reader
def test_attributes_that_end_within_a_character_are_refused(reader: str) -> None:
    batch = SAMPLES["all columns"]
    entries = batch.packed_section().maps
    assert entries is not None
    at = STAMP_BYTES + entries.texts.offsets + 4
    good = batch.to_bytes()
    assert good[at : at + 4] == pack("<i", 3)
    with pytest.raises(BatchInvalid):
        READERS[reader](Batch.parse(patched(good, at, pack("<i", 1))))
    assert Batch.parse(patched(good, at, pack("<i", 2))).attributes()[0] == {"trace": "ü", "": "1"}


def test_more_attributes_than_a_batch_may_have_are_too_many() -> None:
    total = BATCH_ATTRIBUTES_MAX + 1
    offsets = pack("<2i", 0, total)
    strings = bytes(4 * (total + 1) + 7 & ~7)
    data = forged(packed=offsets + strings + strings, columns=ColumnKind.PLAIN << 2 * Column.ATTRIBUTES)
    with pytest.raises(BatchTooLarge):
        Batch.parse(data).check()


def test_a_refused_batch_stays_refused() -> None:
    at, _ = offsets_of(SAMPLES["all columns"])["payload"]
    batch = Batch.parse(patched(SAMPLES["all columns"].to_bytes(), at + 4, pack("<i", -1)))
    for reader in READERS.values():
        with pytest.raises(BatchInvalid):
            reader(batch)
