"""Append times under clocks that jump, and what they mean once a wrong clock was put right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.limits import CLOCK_HELD_SECONDS, CLOCK_JUMP_SECONDS, SECOND, TIME_CORRECTIONS_MAX
from pydanube.stream.times import (
    JUMP,
    AppendClock,
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
