"""Transactions as bytes: whatever goes in comes out, and whatever bytes come, either changes or a typed error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import MetadataDamaged, MetadataInvalid
from pydanube.base.limits import METADATA_OPERATIONS_MAX, MIB
from pydanube.metadata.records import (
    Changes,
    KeyChange,
    Record,
    Repeat,
    SessionEnded,
    SessionOpened,
    check_transaction,
    decode,
    encode,
)

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
sessions = st.integers(0, (1 << 64) - 1)
changes = st.builds(KeyChange, keys, st.none() | st.binary(max_size=50), sessions)
repeats = st.builds(Repeat, sessions, st.integers(1, (1 << 64) - 1), sessions)
unique = st.lists(changes, max_size=METADATA_OPERATIONS_MAX, unique_by=lambda change: change.key).map(tuple)
transactions = st.builds(Changes, unique, st.none() | repeats)
records = (
    transactions
    | st.builds(SessionOpened, st.floats(allow_nan=False), st.text(st.characters(exclude_categories=["Cs"])))
    | st.builds(SessionEnded, sessions)
)


@given(records)
def test_a_record_comes_back_as_it_was(wanted: Record) -> None:
    assert decode(encode(wanted)) == wanted


@given(transactions | st.builds(SessionEnded, sessions), st.data())
def test_cut_or_longer_bytes_are_refused(wanted: Record, data: st.DataObject) -> None:
    payload = encode(wanted)
    with pytest.raises(MetadataDamaged):
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))])
    with pytest.raises(MetadataDamaged):
        decode(payload + data.draw(st.binary(min_size=1, max_size=5)))


def test_a_kind_of_record_that_is_not_known_stops_the_reader() -> None:
    with pytest.raises(MetadataDamaged, match="kind 77"):
        decode(b"\x4d and more")


@given(st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(0, 4), st.binary(max_size=200)))
def test_any_bytes_give_a_record_or_a_typed_error(payload: bytes) -> None:
    try:
        found = decode(payload)
    except MetadataDamaged:
        return
    if isinstance(found, Changes):
        check_transaction((), [(change.key, change.value) for change in found.changes])
    assert encode(found) == payload or isinstance(found, Changes)  # without a number, a repeat is none


def test_a_count_that_lies_is_not_believed() -> None:
    payload = encode(Changes((KeyChange("a", b"1"),)))
    with pytest.raises(MetadataDamaged):
        decode(payload[:25] + b"\xff\xff\xff\xff" + payload[29:])


def test_a_transaction_is_bounded_as_a_whole() -> None:
    with pytest.raises(MetadataInvalid):
        check_transaction((), [(f"{number}", bytes(MIB)) for number in range(9)])
