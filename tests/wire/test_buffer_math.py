"""The big-integer arithmetic agrees with plain arithmetic, also across the borders of its pieces."""

from __future__ import annotations

from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.wire import buffer_math

int32s = st.integers(-(1 << 31), (1 << 31) - 1)
sorted_int32s = st.lists(st.integers(0, (1 << 31) - 1), min_size=1).map(sorted)


def packed(values: list[int]) -> bytes:
    return pack(f"<{len(values)}i", *values)


@given(st.lists(int32s, min_size=1) | sorted_int32s)
def test_ascending_means_sorted_and_never_negative(values: list[int]) -> None:
    assert buffer_math.is_ascending(b"xx" + packed(values) + b"yy", 2, len(values)) == (
        values[0] >= 0 and values == sorted(values)
    )


@pytest.mark.parametrize("at", [1, 8190, 8191, 8192, 8193, 16383, 16384, 16385, 19_999])
def test_one_step_back_is_found_wherever_it_is(at: int) -> None:
    values = list(range(20_000))
    assert buffer_math.is_ascending(packed(values), 0, len(values))
    values[at] = values[at - 1] - 1
    assert not buffer_math.is_ascending(packed(values), 0, len(values))


@given(sorted_int32s, st.data())
def test_rebasing_takes_the_base_from_every_value(values: list[int], data: st.DataObject) -> None:
    base = data.draw(st.integers(0, values[0]))
    assert buffer_math.rebased(packed(values), base) == packed([value - base for value in values])


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_flags_and_bitmaps_are_inverse(flags: list[bool]) -> None:
    text = "".join("01"[flag] for flag in flags)
    bits = buffer_math.bits_of(text)
    assert [bits >> row & 1 == 1 for row in range(len(flags))] == flags
    assert buffer_math.flags_of(bits, len(flags)) == text


@given(st.lists(st.integers(0, 1 << 30), min_size=1).map(sorted), st.integers(0, 1 << 24))
def test_steps_are_within_what_the_largest_of_them_is(values: list[int], most: int) -> None:
    largest = max((after - before for before, after in pairwise(values)), default=0)
    assert buffer_math.steps_within(b"xx" + packed(values) + b"yy", 2, len(values), most) == (largest <= most)


@pytest.mark.parametrize("at", [1, 8191, 8192, 8193, 16384, 19_999])
def test_one_large_step_is_found_wherever_it_is(at: int) -> None:
    values = [value + 100 * (value >= at) for value in range(20_000)]
    assert buffer_math.steps_within(packed(values), 0, len(values), 101)
    assert not buffer_math.steps_within(packed(values), 0, len(values), 100)
