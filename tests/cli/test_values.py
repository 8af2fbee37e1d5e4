"""What people write on a command line, as values."""

from __future__ import annotations

import time

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.cli.values import (
    duration,
    many,
    options_of,
    place,
    policies_of,
    read_time,
    shown_duration,
    shown_time,
    sized,
    topic,
)

MINUTE = 60_000_000
CALENDAR = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999


@given(CALENDAR)
def test_a_time_is_read_back_as_it_was_shown(moment: int) -> None:
    assert read_time(shown_time(moment)) == moment


@given(st.integers())
def test_no_time_is_too_strange_to_be_shown(moment: int) -> None:
    assert shown_time(moment)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("250ms", 250_000), ("1s", 1_000_000), ("1.5m", 90_000_000), ("1h30m", 90 * MINUTE), ("2d", 2880 * MINUTE)],
)
def test_a_duration_is_a_number_with_a_unit(text: str, microseconds: int) -> None:
    assert duration(text) == microseconds


@given(st.integers(0, 10**15))
def test_a_duration_is_read_back_as_it_was_shown(microseconds: int) -> None:
    assert duration(shown_duration(microseconds)) == microseconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "1 s", "1y", "1h-3m", "s1"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        duration(text)


def test_a_place_is_a_word_an_offset_or_a_time() -> None:
    assert place("earliest") == "earliest"
    assert place("42") == 42
    assert place("2026-01-31T10:00Z") == {"time": 1_769_853_600_000_000}
    ago = place("10m")["time"]
    assert 0 <= time.time_ns() // 1000 - 10 * MINUTE - ago < MINUTE
    with pytest.raises(click.BadParameter):
        place("soon")
    with pytest.raises(click.BadParameter):
        place("-1")


def test_policies_are_numbers_in_their_units() -> None:
    texts = ["ttl_seconds=7d", "retention_bytes=2GiB", "topics_max=5", "backlog_policy=reject", "producers_max=none"]
    assert policies_of(texts) == {
        "ttl_seconds": 604_800,
        "retention_bytes": 2 << 30,
        "topics_max": 5,
        "backlog_policy": "reject",
        "producers_max": None,
    }


def test_options_are_nested_and_times_are_microseconds() -> None:
    assert options_of(["failure.ack_timeout=30s", "failure.poison=drop", "dispatch.unacked_max=5"]) == {
        "failure": {"ack_timeout": 30_000_000, "poison": "drop"},
        "dispatch": {"unacked_max": 5},
    }
    assert options_of(["failure.ack_timeout=none"]) == {"failure": {"ack_timeout": None}}
    assert options_of([]) is None
    with pytest.raises(click.UsageError):
        options_of(["ack_timeout=1s"])


def test_names_numbers_and_sizes_are_written_as_people_do() -> None:
    assert (topic("orders"), topic("/shop/orders")) == ("/default/orders", "/shop/orders")
    assert (many(1), many(1200, "letter")) == ("1 message", "1,200 letters")
    assert [sized(size) for size in (0, 1023, 1536, 5 << 30, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "3072.0 TiB",
    ]
