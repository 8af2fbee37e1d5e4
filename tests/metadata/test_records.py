"""Transactions as bytes: whatever goes in comes out, and whatever bytes come, either changes or a typed error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import MetadataDamaged, MetadataInvalid
from pydanube.base.limits import METADATA_OPERATIONS_MAX, MIB
from pydanube.metadata.records import KeyChange, check_transaction, decode_changes, encode_changes

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
sessions = st.integers(0, (1 << 64) - 1)
changes = st.builds(KeyChange, keys, st.none() | st.binary(max_size=50), sessions)
transactions = st.lists(changes, max_size=METADATA_OPERATIONS_MAX, unique_by=lambda change: change.key)


@given(transactions)
def test_changes_come_back_as_they_were(wanted: list[KeyChange]) -> None:
    assert decode_changes(encode_changes(wanted)) == tuple(wanted)


@given(transactions, st.data())
def test_cut_or_longer_bytes_are_no_changes(wanted: list[KeyChange], data: st.DataObject) -> None:
    payload = encode_changes(wanted)
    with pytest.raises(MetadataDamaged):
        decode_changes(payload[: data.draw(st.integers(0, len(payload) - 1))])
    with pytest.raises(MetadataDamaged):
        decode_changes(payload + data.draw(st.binary(min_size=1, max_size=5)))


@given(st.binary(max_size=200))
def test_any_bytes_give_changes_or_a_typed_error(payload: bytes) -> None:
    try:
        found = decode_changes(payload)
    except MetadataDamaged:
        return
    check_transaction((), [(change.key, change.value) for change in found])
    assert encode_changes(found) == payload


def test_a_count_that_lies_is_not_believed() -> None:
    payload = encode_changes([KeyChange("a", b"1")])
    with pytest.raises(MetadataDamaged):
        decode_changes(b"\xff\xff\xff\xff" + payload[4:])


def test_a_transaction_is_bounded_as_a_whole() -> None:
    with pytest.raises(MetadataInvalid):
        encode_changes([KeyChange(f"{number}", bytes(MIB)) for number in range(8)])
