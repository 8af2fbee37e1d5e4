"""Offsets done out of order: the same answers as a plain set, at a cost that does not grow with it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import AcksScattered, StateInvalid
from pydanube.base.limits import CURSOR_CHUNK_OFFSETS, CURSOR_CHUNKS_MAX
from pydanube.topic.ackset import FULL_CHUNK, AckSet

CHUNK = CURSOR_CHUNK_OFFSETS
END = 4 * CHUNK

# Around the borders of chunks, where mistakes live.
near_borders = st.builds(lambda chunk, away: max(0, chunk * CHUNK + away), st.integers(0, 3), st.integers(-3, 3))
offsets = st.one_of(near_borders, st.integers(0, END))
ranges = st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair)))


def of(*done: tuple[int, int], start: int = 0) -> AckSet:
    acks = AckSet(start)
    for first, last in done:
        acks.add(first, last)
    return acks


def spread(done: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in done for offset in range(first, last + 1)}


@given(st.lists(ranges, max_size=8), ranges, offsets)
@settings(max_examples=150)
def test_it_answers_as_a_plain_set_does(done: list[tuple[int, int]], asked: tuple[int, int], offset: int) -> None:
    acks, model = AckSet(), set[int]()
    for first, last in done:
        new = spread([(first, last)]) - model
        assert acks.add(first, last) == len(new)
        model |= new
    assert acks.count == len(model)
    assert (offset in acks) == (offset in model)
    assert acks.next_missing(offset) == next(at for at in range(offset, END + 2) if at not in model)
    assert acks.count_below(offset) == sum(1 for at in model if at < offset)
    missing = acks.missing(*asked)
    assert spread(missing) == spread([asked]) - model
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(missing))


@given(st.lists(ranges, max_size=8), offsets, st.lists(ranges, max_size=3))
@settings(max_examples=150)
def test_what_lies_below_its_start_is_forgotten(
    done: list[tuple[int, int]], start: int, later: list[tuple[int, int]]
) -> None:
    acks = of(*done)
    acks.drop_below(start)
    model = {offset for offset in spread(done) if offset >= start}
    for first, last in later:
        if first >= start:
            acks.add(first, last)
            model |= spread([(first, last)])
    assert acks.count == len(model)
    assert acks.count_below(start) == 0
    assert spread(acks.missing(start, END)) == set(range(start, END + 1)) - model


@given(st.lists(ranges, max_size=8), offsets)
def test_its_chunks_make_the_same_set_again(done: list[tuple[int, int]], start: int) -> None:
    acks = of(*done)
    acks.drop_below(start)
    again = AckSet(start)
    for number, bits in acks.chunks().items():
        again.load_chunk(number, bits)
    assert again == acks
    assert again.count == acks.count


def test_a_full_chunk_shares_its_memory_with_all_others() -> None:
    acks = of((0, CHUNK - 2), (CHUNK - 1, CHUNK - 1), (CHUNK, 2 * CHUNK))
    assert [bits is FULL_CHUNK for _, bits in sorted(acks.chunks().items())] == [True, True, False]


def test_a_set_that_ends_with_its_chunk_goes_on_missing_in_the_next() -> None:
    assert of((5, CHUNK - 1)).next_missing(5) == CHUNK
    assert of((5, 3 * CHUNK - 1)).next_missing(5) == 3 * CHUNK
    assert of((5, 3 * CHUNK)).next_missing(5) == 3 * CHUNK + 1


@pytest.mark.parametrize("start", [0, CHUNK - 1, CHUNK, 10 * CHUNK + 7])
def test_it_holds_what_lies_below_its_ceiling_and_refuses_the_rest_whole(start: int) -> None:
    acks = AckSet(start)
    assert acks.ceiling == (start // CHUNK + CURSOR_CHUNKS_MAX) * CHUNK
    with pytest.raises(AcksScattered):
        acks.add(start, acks.ceiling)
    with pytest.raises(AcksScattered):
        acks.add(acks.ceiling, acks.ceiling)
    assert acks == AckSet(start)
    assert acks.add(acks.ceiling - 1, acks.ceiling - 1) == 1
    assert acks.missing(start, acks.ceiling + 10) == [(start, acks.ceiling - 2), (acks.ceiling, acks.ceiling + 10)]


def test_the_ceiling_rises_with_the_start() -> None:
    acks = of((7, 9))
    ceiling = acks.ceiling
    acks.drop_below(CHUNK - 1)
    assert acks.ceiling == ceiling
    acks.drop_below(CHUNK)
    assert acks.ceiling == ceiling + CHUNK
    acks.drop_below(1 << 60)
    assert acks.ceiling > 1 << 60
    assert acks.count == 0


def test_missing_far_beyond_the_set_is_one_step() -> None:
    assert of((5, 5)).missing(0, 1 << 61) == [(0, 4), (6, 1 << 61)]


@pytest.mark.parametrize("number", [1, 2 + CURSOR_CHUNKS_MAX, 3])
def test_a_chunk_that_cannot_be_of_this_set_is_refused(number: int) -> None:
    acks = AckSet(2 * CHUNK)
    acks.load_chunk(3, 1)
    with pytest.raises(StateInvalid):
        acks.load_chunk(number, 1)


def test_it_is_like_no_other_thing() -> None:
    assert AckSet() != 0
    with pytest.raises(TypeError):
        {AckSet()}
