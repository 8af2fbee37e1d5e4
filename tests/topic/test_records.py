"""Every record survives its bytes, its bytes never change between versions, and no other bytes are a record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import StateInvalid
from pydanube.base.limits import (
    ACK_RANGES_MAX,
    DEDUP_WINDOW_BATCHES,
    FILLED_MAX,
    NAME_BYTES_MAX,
    OFFSET_MAX,
    PRODUCERS_FORGOTTEN_MAX,
    STATE_RECORD_BYTES_MAX,
    SUBSCRIPTION_OPTIONS_BYTES_MAX,
)
from pydanube.topic.ackset import FULL_CHUNK
from pydanube.topic.records import (
    CHUNKS_IN_RECORD_MAX,
    MOVES,
    NUMBER_MAX,
    SNAPSHOT_VERSION,
    Acked,
    Cause,
    CursorChunks,
    Filled,
    Filling,
    FillsForgotten,
    FillState,
    Moved,
    ProducerAttached,
    ProducersForgotten,
    ProducerState,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    SubscriptionChanged,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionKind,
    SubscriptionState,
    decode,
    encode,
)

GOLDEN: list[tuple[Record, str]] = [
    (
        SubscriptionCreated(1, "süd", SubscriptionKind.SHARED, 258, b"\x07"),
        "01 0100000000000000 01 0201000000000000 04 73c3bc64 07",
    ),
    (SubscriptionChanged(2, b"opt"), "02 0200000000000000 6f7074"),
    (SubscriptionDeleted(3), "03 0300000000000000"),
    (Acked(1, 2, ((5, 5),)), "04 0100000000000000 0200000000000000 00 0500000000000000 0500000000000000"),
    (
        Acked(1, 2, ((5, 6), (8, 9)), Cause.POISON),
        "04 0100000000000000 0200000000000000 010500000000000000 0600000000000000 0800000000000000 0900000000000000",
    ),
    (
        Moved(1, 3, 4, Cause.SEEK, 5),
        "05 0100000000000000 0300000000000000 0400000000000000 07 0500000000000000",
    ),
    (ProducerAttached(1, "p", 2, 3), "06 0100000000000000 0200000000000000 0300000000000000 00 70"),
    (ProducerAttached(1, "p", 2, 3, True), "06 0100000000000000 0200000000000000 0300000000000000 01 70"),
    (ProducersForgotten((1, 2)), "07 0100000000000000 0200000000000000"),
    (
        SnapshotBegin(1, 2, 3, 4, 5),
        "10 01 0200000000000000 0300000000000000 0400000000000000 0500000000000000",
    ),
    (
        SubscriptionState(1, "s", SubscriptionKind.KEY_SHARED, 2, 3, 4, tuple(range(10)), b"o"),
        "11 0100000000000000 03 0200000000000000 0300000000000000 0400000000000000"
        + "".join(f"{count:02x}00000000000000" for count in range(10))
        + "01 73 6f",
    ),
    (
        CursorChunks(1, ((2, 0x0180), (3, FULL_CHUNK))),
        "12 0100000000000000 0200000000000000 0200 8001 0300000000000000 0000",
    ),
    (
        ProducerState(1, "p", 2, 3, True, 4, 9, (4, 7), (10, 20)),
        (
            "13 0100000000000000 0200000000000000 0300000000000000 01 0400000000000000 0900000000000000 01 70"
            "0400000000000000 0a00000000000000 0700000000000000 1400000000000000"
        ),
    ),
    (SnapshotEnd(7), "14 0700000000000000"),
    (
        Filling(bytes(range(16)), 1, 2, 3),
        "09 000102030405060708090a0b0c0d0e0f 0100000000000000 0200000000000000 0300000000000000",
    ),
    (Filled(bytes(range(16)), 1), "0a 000102030405060708090a0b0c0d0e0f 0100000000000000"),
    (
        FillsForgotten((bytes(range(16)), bytes(16))),
        "0b 000102030405060708090a0b0c0d0e0f 00000000000000000000000000000000",
    ),
    (
        FillState(bytes(range(16)), 1, 2, 3),
        "15 000102030405060708090a0b0c0d0e0f 0100000000000000 0200000000000000 0300000000000000",
    ),
    (
        FillState(bytes(range(16)), 1, 0, 0),
        "15 000102030405060708090a0b0c0d0e0f 0100000000000000 0000000000000000 0000000000000000",
    ),
]


@pytest.mark.parametrize(("record", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_of_a_record_never_change(record: Record, data: str) -> None:
    assert encode(record) == bytes.fromhex(data)
    assert decode(bytes.fromhex(data)) == record


numbers = st.integers(0, NUMBER_MAX)
ids = st.integers(1, NUMBER_MAX)
sinks = st.binary(min_size=16, max_size=16)
floors = st.integers(0, OFFSET_MAX + 1)
names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=60)
options = st.binary(max_size=100)
kinds = st.sampled_from(SubscriptionKind)
counts = st.tuples(*[numbers] * len(Cause))
bitmaps = st.one_of(st.just(FULL_CHUNK), st.just(1 << 2047), st.integers(1, FULL_CHUNK - 1))


def ascending(most: int, highest: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, highest), max_size=most, unique=True).map(sorted)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    borders = draw(ascending(20, OFFSET_MAX // 2 - 1))
    borders = borders[: len(borders) // 2 * 2] or [0, 5]
    return tuple((2 * first, 2 * last) for first, last in zip(borders[::2], borders[1::2], strict=True))


@st.composite
def producers(draw: st.DrawFn) -> ProducerState:
    who = draw(ids), draw(names), draw(ids), draw(numbers), draw(st.booleans())
    sequences, bases = draw(ascending(9, OFFSET_MAX)), draw(ascending(9, OFFSET_MAX))
    if len(sequences) < 2:
        return ProducerState(*who, 0, 0, (), ())
    start, *firsts, following = sequences
    window = min(len(firsts), len(bases))
    return ProducerState(*who, start, following, tuple(firsts[:window]), tuple(bases[:window]))


records: st.SearchStrategy[Record] = st.one_of(
    st.builds(SubscriptionCreated, numbers, names, kinds, floors, options),
    st.builds(SubscriptionChanged, numbers, options),
    st.builds(SubscriptionDeleted, numbers),
    st.builds(Acked, numbers, numbers, ranges(), st.sampled_from([c for c in Cause if c is not Cause.SEEK])),
    st.builds(Moved, numbers, numbers, floors, st.sampled_from(sorted(MOVES)), numbers),
    st.builds(ProducerAttached, ids, names, ids, numbers, st.booleans()),
    st.builds(ProducersForgotten, st.lists(ids, min_size=1, max_size=9, unique=True).map(tuple)),
    st.builds(SnapshotBegin, st.just(SNAPSHOT_VERSION), numbers, numbers, numbers, numbers),
    st.builds(SubscriptionState, numbers, names, kinds, floors, floors, numbers, counts, options),
    st.builds(
        CursorChunks,
        numbers,
        st.dictionaries(st.integers(0, 1 << 40), bitmaps, min_size=1, max_size=4).map(
            lambda d: tuple(sorted(d.items()))
        ),
    ),
    producers(),
    st.builds(Filling, sinks, ids, floors, ids),
    st.builds(Filled, sinks, ids),
    st.builds(FillsForgotten, st.lists(sinks, min_size=1, max_size=9, unique=True).map(tuple)),
    st.builds(FillState, sinks, ids, floors, ids),
    st.builds(FillState, sinks, ids, st.just(0), st.just(0)),
    st.builds(SnapshotEnd, numbers),
)


@given(records)
@settings(max_examples=400)
def test_a_record_survives_its_bytes(record: Record) -> None:
    again = decode(encode(record))
    assert again == record
    assert type(again) is type(record)
    assert [type(field) for field in again] == [type(field) for field in record]


@given(records, st.data())
@settings(max_examples=400)
def test_bytes_are_one_record_or_none(record: Record, draw: st.DataObject) -> None:
    """Whatever decodes encodes to the same bytes: there is one way only to write a record."""
    data = bytearray(encode(record))
    for _ in range(draw.draw(st.integers(1, 3))):
        how = draw.draw(st.sampled_from(["change", "cut", "add"]))
        at = draw.draw(st.integers(0, max(0, len(data) - 1)))
        if how == "change" and data:
            data[at] = draw.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1]))
        elif how == "cut":
            del data[at:]
        else:
            data += draw.draw(st.binary(max_size=20))
    check_one_record_or_none(bytes(data))


@given(
    st.one_of(
        st.binary(max_size=200), st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(1, 21), st.binary())
    )
)
@settings(max_examples=400)
def test_noise_is_refused_by_one_error(data: bytes) -> None:
    check_one_record_or_none(data)


def check_one_record_or_none(data: bytes) -> None:
    try:
        record = decode(data)
    except StateInvalid:
        return
    assert encode(record) == data


LARGEST: list[Record] = [
    SubscriptionCreated(
        NUMBER_MAX, "x" * NAME_BYTES_MAX, SubscriptionKind.SHARED, OFFSET_MAX, bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX)
    ),
    SubscriptionChanged(1, bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX)),
    Acked(1, 1, tuple((2 * at, 2 * at) for at in range(ACK_RANGES_MAX))),
    ProducersForgotten(tuple(range(1, PRODUCERS_FORGOTTEN_MAX + 1))),
    SubscriptionState(
        1, "ü" * 127, SubscriptionKind.SHARED, 0, 0, 0, (0,) * len(Cause), bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX)
    ),
    CursorChunks(1, tuple((number, FULL_CHUNK - 1) for number in range(CHUNKS_IN_RECORD_MAX))),
    ProducerState(
        1, "x" * NAME_BYTES_MAX, 1, 1, False, 0, DEDUP_WINDOW_BATCHES, *[tuple(range(DEDUP_WINDOW_BATCHES))] * 2
    ),
    FillsForgotten(tuple(number.to_bytes(16, "big") for number in range(FILLED_MAX))),
]


@pytest.mark.parametrize("record", LARGEST, ids=lambda record: type(record).__name__)
def test_the_largest_record_of_a_kind_fits(record: Record) -> None:
    data = encode(record)
    assert len(data) <= STATE_RECORD_BYTES_MAX
    assert decode(data) == record


NO_COUNTS = (0,) * len(Cause)
TOO_MUCH: list[Record] = [
    SubscriptionCreated(1, "x", SubscriptionKind.SHARED, 0, bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX + 1)),
    SubscriptionCreated(1, "x", SubscriptionKind.SHARED, OFFSET_MAX + 2),
    SubscriptionCreated(-1, "x", SubscriptionKind.SHARED, 0),
    SubscriptionChanged(1, bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX + 1)),
    SubscriptionChanged(-1, b""),
    SubscriptionDeleted(-1),
    Acked(1, 1, ()),
    Acked(1, -1, ((1, 1),)),
    Acked(1, 1, ((5, 4),)),
    Acked(1, 1, ((-1, 4),)),
    Acked(1, 1, ((1, OFFSET_MAX + 1),)),
    Acked(1, 1, ((1, 2), (3, 4))),
    Acked(1, 1, ((5, 6), (1, 2))),
    Acked(1, 1, ((1, 1),), Cause.SEEK),
    Acked(1, 1, tuple((2 * at, 2 * at) for at in range(ACK_RANGES_MAX + 1))),
    Moved(1, 1, 1, Cause.ACKED, 0),
    Moved(1, 1, -1, Cause.SEEK, 0),
    Moved(1, 1, 1, Cause.SEEK, -1),
    ProducerAttached(0, "x", 1, 0),
    ProducerAttached(1, "x", 0, 0),
    ProducerAttached(1, "x", 1, -1),
    ProducersForgotten(()),
    ProducersForgotten((1, 1)),
    ProducersForgotten((0,)),
    ProducersForgotten(tuple(range(1, PRODUCERS_FORGOTTEN_MAX + 2))),
    SnapshotBegin(SNAPSHOT_VERSION + 1, 0, 0, 0, 0),
    SnapshotBegin(SNAPSHOT_VERSION, -1, 0, 0, 0),
    SubscriptionState(-1, "x", SubscriptionKind.SHARED, 0, 0, 0, NO_COUNTS, b""),
    SubscriptionState(1, "x", SubscriptionKind.SHARED, -1, 0, 0, NO_COUNTS, b""),
    SubscriptionState(1, "x", SubscriptionKind.SHARED, 0, OFFSET_MAX + 2, 0, NO_COUNTS, b""),
    SubscriptionState(1, "x", SubscriptionKind.SHARED, 0, 0, -1, NO_COUNTS, b""),
    SubscriptionState(1, "x", SubscriptionKind.SHARED, 0, 0, 0, (-1, *NO_COUNTS[1:]), b""),
    SubscriptionState(1, "x", SubscriptionKind.SHARED, 0, 0, 0, NO_COUNTS, bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX + 1)),
    CursorChunks(-1, ((1, 1),)),
    CursorChunks(1, ()),
    CursorChunks(1, ((2, 1), (2, 1))),
    CursorChunks(1, ((-1, 1),)),
    CursorChunks(1, ((1, 1 << 2048),)),
    CursorChunks(1, ((OFFSET_MAX, 1),)),
    ProducerState(0, "x", 1, 0, False, 0, 0, (), ()),
    ProducerState(1, "x", 0, 0, False, 0, 0, (), ()),
    ProducerState(1, "x", 1, -1, False, 0, 0, (), ()),
    ProducerState(1, "x", 1, 0, False, -1, 1, (), ()),
    ProducerState(1, "x", 1, 0, False, 5, 5, (), ()),
    ProducerState(1, "x", 1, 0, False, 5, 9, (4,), (0,)),
    ProducerState(1, "x", 1, 0, False, 5, 9, (9,), (0,)),
    ProducerState(1, "x", 1, 0, False, 0, 0, (0,), (0,)),
    ProducerState(1, "x", 1, 0, False, 0, 9, (0, 0), (0, 1)),
    ProducerState(1, "x", 1, 0, False, 0, 9, (0, 1), (1, 1)),
    ProducerState(1, "x", 1, 0, False, 0, 9, (0,), (-1,)),
    ProducerState(1, "x", 1, 0, False, 0, 9, (0,), (OFFSET_MAX + 1,)),
    ProducerState(1, "x", 1, 0, False, 0, 200, *[tuple(range(DEDUP_WINDOW_BATCHES + 1))] * 2),
    Filling(bytes(16), 0, 0, 1),
    Filling(bytes(16), 1, 0, 0),
    Filling(bytes(16), 1, -1, 1),
    Filled(bytes(16), 0),
    FillsForgotten(()),
    FillsForgotten((bytes(16), bytes(16))),
    FillsForgotten(tuple(number.to_bytes(16, "big") for number in range(FILLED_MAX + 1))),
    FillState(bytes(16), 0, 0, 1),
    FillState(bytes(16), 1, 5, 0),
    FillState(bytes(16), 1, 5, -1),
    SnapshotEnd(-1),
]


@pytest.mark.parametrize("record", TOO_MUCH, ids=lambda record: type(record).__name__)
def test_a_record_that_says_what_cannot_be_is_refused(record: Record) -> None:
    with pytest.raises(StateInvalid):
        decode(encode(record))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x08" + bytes(8),
        b"\xff",
        bytes.fromhex("06 0100000000000000 0200000000000000 0300000000000000"),  # no name
        bytes.fromhex("06 0100000000000000 0200000000000000 0300000000000000 0a"),  # a control character
        bytes.fromhex("06 0100000000000000 0200000000000000 0300000000000000 c3"),  # half a character
        bytes.fromhex("12 0100000000000000 0200000000000000 0200 8000"),  # an empty byte at the end
        bytes.fromhex("12 0100000000000000 0200000000000000 0001") + b"\xff" * 256,  # full, written out
        b"\x02" + bytes(STATE_RECORD_BYTES_MAX),
    ],
)
def test_bytes_that_no_version_wrote_are_refused(data: bytes) -> None:
    with pytest.raises(StateInvalid):
        decode(data)
