"""Durations, sizes and points in time, as people write them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.fields import shown
from pydanube.base.limits import SECOND
from pydanube.base.units import (
    bytes_of,
    is_duration,
    iso_time_of,
    microseconds_of,
    rough_duration,
    seconds_of,
    shown_bytes,
    shown_duration,
    shown_time,
    shown_when,
    time_of,
)

MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
CALENDAR = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999
NOON = int(datetime(2026, 1, 31, 12, 0).timestamp()) * SECOND  # local, as people's clocks are


# -- durations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        (30, 30 * SECOND),
        (0.5, SECOND // 2),
        (timedelta(minutes=2), 2 * MINUTE),
        ("30", 30 * SECOND),
        ("250ms", 250_000),
        ("1.5m", 90 * SECOND),
        ("1h30m", 90 * MINUTE),
        ("1 hour 30 minutes", 90 * MINUTE),
        ("2 Days", 2 * DAY),
        ("1 week", 7 * DAY),
        ("5 secs", 5 * SECOND),
        ("3 min", 3 * MINUTE),
        (" 10us ", 10),
    ],
)
def test_a_duration_is_seconds_or_a_timedelta_or_text_with_units(value: Any, microseconds: int) -> None:
    assert microseconds_of(value) == microseconds
    assert seconds_of(value) == microseconds / SECOND


@pytest.mark.parametrize(
    "value",
    [
        "",
        "m",
        "-1s",
        "1y",
        "1 year",
        "1 month",
        "1h-3m",
        "s1",
        "1.2.3s",
        "soon",
        -1,
        True,
        None,
        b"1s",
        timedelta(seconds=-1),
        float("nan"),
        float("inf"),
        1e308,
        "9" * 400,
        "1" * 19 + "s",
        "99999999w",
        10**30,
    ],
)
def test_what_is_not_a_duration_is_refused_with_its_value(value: Any) -> None:
    with pytest.raises(ValueError) as refused:
        microseconds_of(value)
    assert str(refused.value).startswith(shown(value))


def test_months_and_years_are_refused_because_their_length_varies() -> None:
    with pytest.raises(ValueError, match="a month has no fixed length; use days"):
        microseconds_of("2 months")


@given(st.integers(0, 10**15))
def test_a_duration_is_read_back_as_it_was_shown(microseconds: int) -> None:
    assert microseconds_of(shown_duration(microseconds)) == microseconds


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 s"),
        (250_000, "0.25 s"),
        (12 * SECOND, "12 s"),
        (59.7 * SECOND, "1 min"),
        (94 * MINUTE, "1 h 34 min"),
        (2 * HOUR, "2 h"),
        (51 * HOUR, "2 d 3 h"),
        (DAY - SECOND, "1 d"),
        (400 * DAY, "400 d"),
    ],
)
def test_people_read_durations_in_two_units_at_most(microseconds: int, text: str) -> None:
    assert rough_duration(microseconds) == text


def test_a_plain_number_or_a_date_is_not_text_of_a_duration() -> None:
    assert is_duration("10m")
    assert not any(map(is_duration, ["10", "earliest", "2026-01-31", "yesterday"]))


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "size"),
    [(0, 0), (1000, 1000), ("1000", 1000), ("10MB", 10**7), ("64 MiB", 64 << 20), ("1.5gib", 3 << 29), ("7 B", 7)],
)
def test_a_size_is_bytes_or_text_with_a_unit(value: Any, size: int) -> None:
    assert bytes_of(value) == size


@pytest.mark.parametrize("value", ["", "MB", "-1MB", "10XB", "1.5", "1.5B", True, 1.5, None, "10 minutes"])
def test_what_is_not_a_size_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        bytes_of(value)


def test_a_unit_that_could_mean_two_sizes_is_refused_with_both() -> None:
    with pytest.raises(ValueError, match="'10M' is ambiguous; write 10MB or 10MiB"):
        bytes_of("10M")


def test_sizes_are_shown_as_people_write_them() -> None:
    assert [shown_bytes(size) for size in (0, 1023, 1536, 5 << 30, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "3072.0 TiB",
    ]


# -- points in time ----------------------------------------------------------------------------------------------------


@given(CALENDAR)
def test_a_time_is_read_back_as_it_was_shown(moment: int) -> None:
    assert iso_time_of(str(shown_time(moment))) == moment


@given(st.integers())
def test_no_time_is_too_strange_to_be_shown(moment: int) -> None:
    assert shown_time(moment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOON),
        ("yesterday", NOON - 36 * HOUR),
        ("today", NOON - 12 * HOUR),
        ("Tomorrow 08:00", NOON + 20 * HOUR),
        ("14:30", NOON + 150 * MINUTE),
        ("14:30:05", NOON + 150 * MINUTE + 5 * SECOND),
        ("10m ago", NOON - 10 * MINUTE),
        ("in 1 week", NOON + 7 * DAY),
        ("2026-01-31", NOON - 12 * HOUR),
        ("2026-01-31T10:00Z", 1_769_853_600 * SECOND),
    ],
)
def test_a_time_is_iso_or_a_word(text: str, expected: int) -> None:
    assert time_of(text, NOON) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "yesterday morning", "2026-13-01", "10m", "in", "0001-01-01T00:00+14:00"]
)
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (time|duration)"):
        time_of(text, NOON)


def test_people_see_when_it_is_and_how_far_off_and_the_date_only_of_another_day() -> None:
    now = 1_769_853_600 * SECOND
    assert shown_when(now + 94 * MINUTE, now) == "11:34:00 UTC (in 1 h 34 min)"
    assert shown_when(now + 94 * MINUTE - 37, now) == "11:34:00 UTC (in 1 h 34 min)"
    assert shown_when(now - 12 * SECOND, now) == "09:59:48 UTC (12 s ago)"
    assert shown_when(now + DAY, now) == "2026-02-01 10:00:00 UTC (in 1 d)"
    assert shown_when(10**30, now).endswith("after 1970")
