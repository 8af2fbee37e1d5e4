"""Ranges behave like a set of offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.ranges import Ranges, ranges_of

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda span: (span[0], span[0] + span[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "cut", "take"]), SPANS), max_size=30)


def offsets_of(ranges: list[tuple[int, int]]) -> list[int]:
    return [offset for first, last in ranges for offset in range(first, last + 1)]


@given(STEPS, SPANS)
def test_ranges_are_a_set_of_offsets(steps: list[tuple[str, tuple[int, int]]], probe: tuple[int, int]) -> None:
    ranges, model = Ranges(), set[int]()
    for step, (first, last) in steps:
        span = set(range(first, last + 1))
        if step == "add":
            ranges.add(first, last)
            model |= span
        elif step == "cut":
            assert offsets_of(ranges.cut(first, last)) == sorted(model & span)
            model -= span
        else:
            lowest = sorted(model)[: last - first]
            assert offsets_of(ranges.take(last - first)) == lowest
            model -= set(lowest)
        assert list(ranges) == ranges_of(sorted(model))
        assert ranges.count == len(model)
        assert bool(ranges) == bool(model)
        assert not model or ranges.first == ranges.head[0] == min(model)
    assert offsets_of(ranges.within(*probe)) == [offset for offset in sorted(model) if probe[0] <= offset <= probe[1]]
    assert [offset in ranges for offset in range(60)] == [offset in model for offset in range(60)]


def test_ranges_that_touch_become_one() -> None:
    ranges = Ranges([(0, 4), (10, 14), (5, 9)])
    assert list(ranges) == [(0, 14)]
    ranges.clear()
    assert (list(ranges), ranges.count) == ([], 0)


@given(st.lists(SPANS, max_size=20), st.integers(0, 60), st.lists(SPANS, max_size=5))
def test_everything_from_an_offset_on_can_be_moved_below_another_set(
    spans: list[tuple[int, int]], first: int, above: list[tuple[int, int]]
) -> None:
    ranges, other = Ranges(spans), Ranges()
    top = ranges.last + 1 if ranges else 0
    for start, end in above:
        other.add(top + start, top + end)
    before, after = offsets_of(list(ranges)), offsets_of(list(other))
    ranges.move_from(first, other)
    kept = [offset for offset in before if offset < first]
    moved = [offset for offset in before if offset >= first] + after
    assert (list(ranges), ranges.count) == (ranges_of(kept), len(kept))
    assert (list(other), other.count) == (ranges_of(moved), len(moved))
