"""A cursor never passes what is not done, forgets nothing that is, and refuses what cannot be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pydanube.base.errors import AckInvalid, AcksScattered, ArgumentInvalid, OffsetNotConfirmed
from pydanube.base.limits import ACK_RANGES_MAX, CURSOR_CHUNK_OFFSETS
from pydanube.topic.ackset import AckSet
from pydanube.topic.cursor import Cursor, merged
from pydanube.topic.records import Acked, Cause, Moved

CHUNK = CURSOR_CHUNK_OFFSETS
END = 2 * CHUNK + 100
ID = 3

near = st.builds(lambda base, away: max(0, base + away), st.sampled_from([0, CHUNK, 2 * CHUNK]), st.integers(-8, 8))
places = st.one_of(near, st.integers(0, END - 1))
ranges = st.one_of(
    places.map(lambda at: (at, at)),
    st.tuples(places, places).map(lambda pair: (min(pair), max(pair))),
)


def of(*records: tuple[int, int], floor: int = 0) -> Cursor:
    cursor = Cursor(ID, floor)
    for first, last in records:
        cursor.replay(Acked(ID, 0, ((first, last),)))
    return cursor


class CursorAgainstSet(RuleBasedStateMachine):
    """The model is the set of offsets that are done, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor(ID)
        self.done: set[int] = set()
        self.generation = 0

    @rule(group=st.lists(ranges, max_size=6))
    def ack(self, group: list[tuple[int, int]]) -> None:
        new = {offset for first, last in group for offset in range(first, last + 1)} - self.done
        record = self.cursor.decide_ack(group, END)
        assert (record is None) == (not new)
        if record is not None:
            assert record.generation == self.generation
            assert self.cursor.replay(record) == len(new)
        self.done |= new

    @rule(at=places)
    def ack_one(self, at: int) -> None:
        self.ack([(at, at)])

    @rule(step=st.integers(0, 5))
    def ack_in_order(self, step: int) -> None:
        if self.cursor.floor + step < END:
            self.ack([(self.cursor.floor, self.cursor.floor + step)])

    @rule(floor=st.integers(0, END))
    def seek(self, floor: int) -> None:
        record = self.cursor.decide_move(floor, END, Cause.SEEK)
        assert record is not None
        assert record.passed == len(set(range(floor)) - self.done)
        self.cursor.replay(record)
        self.done = set(range(floor))
        self.generation += 1

    @rule(floor=st.integers(0, END), cause=st.sampled_from([Cause.EXPIRED, Cause.DROPPED, Cause.SKIPPED]))
    def skip(self, floor: int, cause: Cause) -> None:
        new = set(range(floor)) - self.done
        record = self.cursor.decide_move(floor, END, cause)
        assert (record is None) == (not new)
        if record is not None:
            assert record.passed == len(new)
            self.cursor.replay(record)
        self.done |= new

    @rule(at=places)
    def ack_of_an_older_generation(self, at: int) -> None:
        assert self.cursor.replay(Acked(ID, self.generation - 1, ((at, at),))) == 0

    @invariant()
    def it_knows_what_is_done(self) -> None:
        floor = next(offset for offset in range(END + 1) if offset not in self.done)
        assert self.cursor.floor == floor
        assert self.cursor.generation == self.generation
        assert self.cursor.above.count == len(self.done) - floor
        pending = [offset for first, last in self.cursor.pending(0, END) for offset in range(first, last + 1)]
        assert pending == [offset for offset in range(END + 1) if offset not in self.done]


CursorAgainstSet.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestCursorAgainstSet = CursorAgainstSet.TestCase


@given(st.lists(ranges, max_size=10))
def test_deciding_only_reads(group: list[tuple[int, int]]) -> None:
    cursor, same = of((5, 9), (20, 20)), of((5, 9), (20, 20))
    cursor.decide_ack(group, END)
    cursor.decide_move(30, END, Cause.SEEK)
    assert (cursor.floor, cursor.generation, cursor.above) == (same.floor, same.generation, same.above)


@given(st.lists(ranges, max_size=10))
def test_ranges_are_merged_into_as_few_as_can_be(group: list[tuple[int, int]]) -> None:
    found = merged(group)
    assert {at for first, last in found for at in range(first, last + 1)} == {
        at for first, last in group for at in range(first, last + 1)
    }
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found))


def test_the_floor_moves_over_everything_done() -> None:
    cursor = of((1, 5), (7, 7))
    assert cursor.floor == 0
    cursor.replay(Acked(ID, 0, ((0, 0),)))
    assert cursor.floor == 6
    cursor.replay(Acked(ID, 0, ((6, 6),)))
    assert (cursor.floor, cursor.above) == (8, AckSet(8))


def test_an_ack_of_what_is_done_is_not_logged() -> None:
    cursor = of((0, 9), (12, 14))
    assert cursor.decide_ack([(3, 3)], END) is None
    assert cursor.decide_ack([(12, 14)], END) is None
    assert cursor.decide_ack([(13, 13), (0, 9)], END) is None
    assert cursor.decide_ack([], END) is None


def test_a_range_is_logged_from_its_first_offset_that_is_not_done() -> None:
    cursor = of((0, 9), (12, 14))
    assert cursor.decide_ack([(5, 20)], END) == Acked(ID, 0, ((10, 20),))
    assert cursor.decide_ack([(12, 20), (3, 4), (30, 30)], END) == Acked(ID, 0, ((15, 20), (30, 30)))
    assert cursor.decide_ack([(11, 11), (10, 10)], END, Cause.POISON) == Acked(ID, 0, ((10, 11),), Cause.POISON)


@pytest.mark.parametrize("others", [[], [(1, 1)]], ids=["alone", "in a group"])
@pytest.mark.parametrize(
    ("wrong", "error"),
    [((END, END), OffsetNotConfirmed), ((5, END), OffsetNotConfirmed), ((-1, 3), AckInvalid), ((7, 6), AckInvalid)],
)
def test_an_ack_of_what_cannot_be_is_refused(
    wrong: tuple[int, int], others: list[tuple[int, int]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Cursor(ID).decide_ack([*others, wrong], END)


def test_an_ack_in_too_many_pieces_is_refused() -> None:
    pieces = [(2 * at + 1, 2 * at + 1) for at in range(ACK_RANGES_MAX + 1)]
    with pytest.raises(AckInvalid):
        Cursor(ID).decide_ack(pieces, 1 << 40)
    assert Cursor(ID).decide_ack(pieces[:-1], 1 << 40) is not None


@pytest.mark.parametrize("others", [[], [(3, 3)]], ids=["alone", "in a group"])
def test_an_ack_above_the_ceiling_is_refused_until_the_oldest_are_done(others: list[tuple[int, int]]) -> None:
    cursor, end = Cursor(ID), 1 << 60
    far = cursor.ceiling
    with pytest.raises(AcksScattered):
        cursor.decide_ack([*others, (far, far)], end)
    with pytest.raises(AcksScattered):
        cursor.decide_ack([*others, (5, far)], end)
    record = cursor.decide_ack([*others, (0, CHUNK)], end)
    assert record is not None
    cursor.replay(record)
    record = cursor.decide_ack([*others, (far, far)], end)
    assert record is not None
    assert cursor.replay(record) == 1


def test_a_range_from_the_floor_on_may_be_as_long_as_the_topic() -> None:
    cursor, end = of((7, 7)), 1 << 60
    record = cursor.decide_ack([(0, end - 1)], end)
    assert record is not None
    assert cursor.replay(record) == end - 1
    assert (cursor.floor, cursor.above.count) == (end, 0)


def test_a_seek_forgets_what_was_done_above_and_other_moves_keep_it() -> None:
    cursor = of((10, 19))
    cursor.replay(Moved(ID, 0, 15, Cause.EXPIRED, 10))
    assert (cursor.floor, cursor.generation) == (20, 0)
    cursor = of((10, 19))
    cursor.replay(Moved(ID, 1, 5, Cause.SEEK, 0))
    assert cursor.pending(0, 30) == [(5, 30)]
    assert cursor.generation == 1


@pytest.mark.parametrize(
    ("floor", "cause", "error"),
    [
        (-1, Cause.SEEK, ArgumentInvalid),
        (END + 1, Cause.SEEK, OffsetNotConfirmed),
        (END + 1, Cause.DROPPED, OffsetNotConfirmed),
        (5, Cause.ACKED, ArgumentInvalid),
    ],
)
def test_a_move_to_where_no_cursor_can_be_is_refused(floor: int, cause: Cause, error: type[Exception]) -> None:
    with pytest.raises(error):
        Cursor(ID).decide_move(floor, END, cause)
