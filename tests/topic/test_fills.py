"""Parts of decided batches: one is filled at a time, and a crash finds what it needs."""

from __future__ import annotations

import pytest

from pydanube.base.errors import StateInvalid
from pydanube.topic.fills import Fills
from pydanube.topic.records import Filled, Filling, FillsForgotten, FillState, Record

A, B = bytes(16), bytes(15) + b"b"


def made(*records: Filling | Filled | FillsForgotten | FillState) -> Fills:
    fills = Fills()
    for record in records:
        fills.replay(record)
    return fills


@pytest.mark.parametrize(
    "records",
    [
        (Filling(A, 1, 0, 5), Filling(B, 2, 5, 5)),
        (Filled(A, 1),),
        (Filling(A, 1, 0, 5), Filled(A, 2)),
        (Filling(A, 1, 0, 5), Filled(B, 1)),
        (Filling(A, 1, 0, 5), Filled(A, 1), Filled(A, 1)),
        (FillState(A, 1, 0, 5), FillState(B, 2, 5, 5)),
    ],
)
def test_records_that_contradict_each_other_are_refused(
    records: tuple[Filling | Filled | FillsForgotten | FillState, ...],
) -> None:
    with pytest.raises(StateInvalid):
        made(*records)


def test_a_part_is_filled_until_its_writer_fills_another_or_is_forgotten() -> None:
    fills = made(Filling(A, 1, 0, 5), Filled(A, 1), Filling(B, 2, 5, 5), Filled(B, 2))
    assert (fills.is_filled(A, 1), fills.is_filled(B, 2), fills.is_filled(A, 2)) == (True, True, False)
    fills.replay(Filling(A, 3, 10, 1))
    assert fills.is_filled(A, 1)
    fills.replay(Filled(A, 3))
    assert (fills.is_filled(A, 1), fills.is_filled(A, 3)) == (False, True)
    fills.replay(FillsForgotten((A,)))
    assert (fills.is_filled(A, 3), fills.is_filled(B, 2)) == (False, True)


def test_only_writers_whose_decision_is_not_open_are_forgotten() -> None:
    fills = made(Filling(A, 1, 0, 5), Filled(A, 1), Filling(B, 2, 5, 5), Filled(B, 2))
    found: list[Record] = [*fills.decide_begin(A, 3, 10, 1, lambda sink, batch: (sink, batch) == (A, 1))]
    assert found == [FillsForgotten((B,)), Filling(A, 3, 10, 1)]
    assert fills.decide_begin(A, 3, 10, 1, lambda *_: True) == [Filling(A, 3, 10, 1)]


def test_messages_are_needed_from_the_first_row_until_the_end_is_durable() -> None:
    fills = made(Filling(A, 1, 7, 5))
    assert fills.needed_from == 7
    fills.durable(0)
    fills.replay(Filled(A, 1))
    fills.replay(Filling(B, 2, 12, 5))
    fills.replay(Filled(B, 2))
    assert fills.needed_from == 7
    fills.durable(1)
    assert fills.needed_from == 12
    fills.durable(2)
    assert fills.needed_from is None
