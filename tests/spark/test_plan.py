"""From offsets to ranges to tasks: nothing twice, nothing left out, tasks of about the same size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.operations.storage import SealedSegment
from pydanube.spark.offsets import TopicOffsets
from pydanube.spark.plan import (
    MIB,
    Range,
    TopicState,
    ranges_between,
    shares,
    split,
    tasks_wanted,
    with_stored,
)

LAGS = st.lists(st.integers(0, 10**6), max_size=20)


def state(name: str, ends: list[int], firsts: list[int] | None = None, message_bytes: int = 100) -> TopicState:
    firsts = firsts or [0] * len(ends)
    return TopicState(name, 7, len(ends), tuple(firsts), tuple(ends), message_bytes * (sum(ends) - sum(firsts)))


def covered(tasks: list[tuple[Range, ...]]) -> list[tuple[str, int, int]]:
    """All ranges with neighbours put together again."""
    found: list[tuple[str, int, int]] = []
    for each in (each for task in tasks for each in task):
        if found and found[-1][0] == each.name and found[-1][2] == each.begin:
            found[-1] = (each.name, found[-1][1], each.end)
        else:
            found.append((each.name, each.begin, each.end))
    return found


# -- ranges ------------------------------------------------------------------------------------------------------------


def test_a_range_lies_between_start_and_end() -> None:
    states = {"a": state("a", [10, 20])}
    start, end = {"a": TopicOffsets(7, (3, 20))}, {"a": TopicOffsets(7, (10, 20))}
    assert ranges_between(start, end, states) == [Range("a", 7, 0, "a-part-0", 3, 10, True)]


def test_a_new_partition_and_a_new_topic_begin_at_their_first_offset() -> None:
    states = {"a": state("a", [10, 20], [0, 5]), "b": state("b", [4])}
    start = {"a": TopicOffsets(7, (10,))}
    end = {name: each.latest for name, each in states.items()}
    found = ranges_between(start, end, states)
    assert [(each.name, each.begin, each.end, each.expected) for each in found] == [
        ("a-part-1", 5, 20, False),
        ("b-part-0", 0, 4, False),
    ]


def test_a_topic_that_is_gone_has_no_ranges() -> None:
    assert ranges_between({}, {"a": TopicOffsets(7, (10,))}, {}) == []


# -- tasks -------------------------------------------------------------------------------------------------------------


@given(LAGS, st.integers(1, 64), st.none() | st.integers(1, 50), st.integers(1, 5000))
def test_tasks_cover_exactly_the_ranges(lags: list[int], cores: int, tasks_min: int | None, message: int) -> None:
    topic = state("a", lags, message_bytes=message)
    ranges = ranges_between({"a": TopicOffsets(7, (0,) * len(lags))}, {"a": topic.latest}, {"a": topic})
    tasks = split(ranges, {"a": topic}, tasks_min, cores)
    assert covered(tasks) == [(each.name, each.begin, each.end) for each in ranges]
    assert all(each.messages > 0 for task in tasks for each in task)
    assert all(tasks)
    if tasks_min is not None:
        assert len(tasks) >= min(tasks_min, sum(lags))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20), st.integers(2, 16))
def test_tasks_are_of_about_the_same_size(lags: list[int], tasks_min: int) -> None:
    topic = state("a", lags)
    ranges = ranges_between({}, {"a": topic.latest}, {"a": topic})
    sizes = [sum(each.messages for each in task) for task in split(ranges, {"a": topic}, tasks_min, 1)]
    assert max(sizes) - min(sizes) <= 2


def test_small_tails_of_many_partitions_share_a_task() -> None:
    topic = state("a", [50] * 100)
    ranges = ranges_between({}, {"a": topic.latest}, {"a": topic})
    assert len(ranges) == 100
    assert len(split(ranges, {"a": topic}, None, 8)) == 1


def test_there_are_as_many_tasks_as_pay() -> None:
    assert tasks_wanted(0, 0, None, 4) == 0
    assert tasks_wanted(1 * MIB, 1000, None, 4) == 1
    assert tasks_wanted(100 * MIB, 10**6, None, 4) == 4
    assert tasks_wanted(10_000 * MIB, 10**8, None, 4) == 20
    assert tasks_wanted(10_000 * MIB, 10**8, 33, 4) == 33
    assert tasks_wanted(1 * MIB, 3, 10, 4) == 3


# -- shares ------------------------------------------------------------------------------------------------------------


@given(LAGS, st.integers(1, 10**7), st.integers(0, 1000))
def test_shares_use_the_limit_and_never_more(lags: list[int], limit: int, turn: int) -> None:
    found = shares(lags, limit, turn)
    assert sum(found) == min(limit, sum(lags))
    assert all(0 <= share <= lag for share, lag in zip(found, lags, strict=True))
    if limit >= len([lag for lag in lags if lag]):
        assert all(share for share, lag in zip(found, lags, strict=True) if lag)


def test_shares_go_by_what_is_there() -> None:
    assert shares([900, 90, 10], 100, 0) == [90, 9, 1]


def test_where_the_limit_is_small_all_have_their_turn() -> None:
    lags, read, turn = [5, 5, 5, 5], [0, 0, 0, 0], 0
    for _ in range(10):
        found = shares(lags, 2, turn)
        lags = [lag - share for lag, share in zip(lags, found, strict=True)]
        read = [before + share for before, share in zip(read, found, strict=True)]
        turn += sum(found)
        assert max(read) - min(read) <= 1
    assert lags == [0, 0, 0, 0]


def stored(first: int, last: int) -> SealedSegment:
    return SealedSegment(f"{first}-{last}", first, last, 1, last - first + 1, 2000, 1000, "")


@pytest.mark.parametrize(
    ("begin", "end", "segments", "pieces"),
    [
        (0, 100, [], [(0, 100, None)]),
        (0, 100, [stored(0, 99)], [(0, 100, "0-99")]),
        (10, 20, [stored(0, 99)], [(10, 20, "0-99")]),
        (0, 100, [stored(0, 49), stored(50, 79)], [(0, 50, "0-49"), (50, 80, "50-79"), (80, 100, None)]),
        (
            5,
            60,
            [stored(10, 19), stored(30, 99)],
            [(5, 10, None), (10, 20, "10-19"), (20, 30, None), (30, 60, "30-99")],
        ),
        (0, 100, [stored(0, 49), stored(40, 79)], [(0, 50, "0-49"), (50, 80, "40-79"), (80, 100, None)]),
        (0, 10, [stored(20, 30)], [(0, 10, None)]),
    ],
    ids=["none", "all", "within", "a tail", "gaps", "merged meanwhile", "elsewhere"],
)
def test_pieces_of_a_range_are_the_range(
    begin: int, end: int, segments: list[SealedSegment], pieces: list[tuple[int, int, str | None]]
) -> None:
    found = Range("/default/t", 1, 0, "/default/t", begin, end, True, tuple(segments)).pieces()
    assert [(each.begin, each.end, each.stored[0].key if each.stored else None) for each in found] == pieces


def test_tasks_know_the_segments_of_their_ranges() -> None:
    sealed = {"/default/t": [stored(0, 9), stored(10, 19), stored(30, 39)]}
    bounds = [(0, 10), (5, 15), (19, 31), (20, 30), (35, 50), (40, 60)]
    task = tuple(Range("/default/t", 1, 0, "/default/t", *each, True) for each in bounds)
    other = Range("/default/u", 2, 0, "/default/u", 0, 10, True)
    [found, beside] = with_stored([task, (other,)], sealed)
    keys = [[segment.key for segment in each.stored] for each in found]
    assert keys == [["0-9"], ["0-9", "10-19"], ["10-19", "30-39"], [], ["30-39"], []]
    assert beside == (other,)
