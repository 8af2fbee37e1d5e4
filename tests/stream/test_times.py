"""Append times under clocks that jump, and what they mean once a wrong clock was put right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.limits import (
    CLOCK_DISTRUST_SECONDS,
    CLOCK_HELD_SECONDS,
    CLOCK_JUMP_SECONDS,
    SECOND,
    TIME_CORRECTIONS_MAX,
)
from pydanube.stream.times import (
    JUMP,
    AppendClock,
    ClockGuard,
    Correction,
    corrected,
    latest_time,
    time_for_deletion,
)

START = 1_800_000_000 * SECOND
steps = st.tuples(st.integers(0, 30 * SECOND), st.sampled_from([0, 0, 0, -7200, 7200, 86_400 * 365, -86_400 * 365]))


@given(st.lists(steps, max_size=40))
def test_append_times_follow_only_jumps_that_last(taken: list[tuple[int, int]]) -> None:
    times, wall, monotonic = AppendClock(START, 0), START, 0
    seen: list[tuple[int, int]] = []  # what the clocks showed
    last = 0
    for passed, jump in taken:
        monotonic += passed
        wall += passed + jump * SECOND
        seen.append((wall, monotonic))
        last = max(last, times.observe(wall, monotonic))
    for wall_then, monotonic_then in seen:
        ahead = last - (wall_then + monotonic - monotonic_then)
        lasted = [at for shown, at in seen if shown - at - (wall_then - monotonic_then) > JUMP]
        if ahead > JUMP + CLOCK_HELD_SECONDS * SECOND:
            assert lasted, "nobody showed such a time"
            assert lasted[-1] - lasted[0] >= 0


def test_a_slow_clock_is_followed_and_a_small_step_too() -> None:
    times = AppendClock(START, 0)
    assert times.observe(START + 5, 5) == START + 5
    assert times.observe(START + CLOCK_JUMP_SECONDS * SECOND, 6) == START + CLOCK_JUMP_SECONDS * SECOND
    assert times.observe(START, 7) == START


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 10**6), st.booleans()), min_size=1, max_size=60))
def test_corrected_times_never_fall(parts: list[tuple[int, int, bool]]) -> None:
    """Each part: so many offsets stamped as the clock shows, which runs on or is wrong by far and is put right."""
    stamps: list[int] = []
    known: tuple[Correction, ...] = ()
    true, last = START, START
    for count, passed, wrong in parts:
        true += passed
        if wrong:
            stamps += [last := max(last, true + 10**12)] * count
            true += passed
            known = corrected(known, Correction(len(stamps), true), 0)
            last = true
        else:
            stamps += [last := max(last, true)] * count
    assert len(known) <= TIME_CORRECTIONS_MAX
    times = [latest_time(known, offset, stamp) for offset, stamp in enumerate(stamps)]
    dropped = sum(wrong for *_, wrong in parts) > TIME_CORRECTIONS_MAX
    floor = known[0].offset if dropped else 0
    assert times[floor:] == sorted(times[floor:])
    assert all(time <= known[0].time for time in times[:floor])
    assert dropped or times[-1] <= true
    for offset, stamp in enumerate(stamps):
        assert time_for_deletion(known, offset, stamp, true) in (stamp, times[offset])
        assert time_for_deletion(known, offset, stamp, true + 10**13) == stamp, "it was right, for all we know"


# -- the clock ---------------------------------------------------------------------------------------------------------

HOUR = CLOCK_DISTRUST_SECONDS * SECOND


@pytest.mark.parametrize("jump", [JUMP + 1, -JUMP - 1])
def test_a_jump_of_the_clock_is_reported_once_and_suspends_trust(jump: int) -> None:
    guard = ClockGuard(0, 0)
    assert guard.observe(SECOND, SECOND) is None
    assert guard.trusted(SECOND)
    assert guard.observe(2 * SECOND + jump, 2 * SECOND) == jump
    assert not guard.trusted(2 * SECOND)
    assert guard.observe(3 * SECOND + jump, 3 * SECOND) is None
    assert not guard.trusted(2 * SECOND + HOUR - 1)
    assert guard.trusted(2 * SECOND + HOUR)


def test_a_second_jump_prolongs_the_distrust_and_is_not_reported() -> None:
    guard = ClockGuard(0, 0)
    assert guard.observe(2 * JUMP, 0) is not None
    assert guard.observe(HOUR // 2, HOUR // 2) is None  # back again
    assert not guard.trusted(HOUR)
    assert guard.trusted(HOUR + HOUR // 2)


def test_a_clock_that_drifts_slowly_is_trusted() -> None:
    guard = ClockGuard(0, 0)
    drift = 500  # microseconds a second: the most that slewing does
    for second in range(0, 10 * 24 * 3600, 60):
        assert guard.observe(second * (SECOND + drift), second * SECOND) is None
    assert guard.trusted(10 * 24 * HOUR)


def test_small_jumps_add_up() -> None:
    guard = ClockGuard(0, 9 * HOUR)
    reported = [guard.observe(at * (SECOND + JUMP // 4), 9 * HOUR + at * SECOND) for at in range(1, 8)]
    assert [jump is not None for jump in reported] == [False, False, False, False, True, False, False]


def test_a_pause_of_the_process_is_not_a_jump() -> None:
    guard = ClockGuard(5, 0)
    assert guard.observe(9 * HOUR, 9 * HOUR) is None
    assert guard.trusted(9 * HOUR)
