"""What people write on a command line, as values."""

from __future__ import annotations

import time

import click
import pytest

from pydanube.cli.shell.values import (
    delivery_time,
    duration,
    many,
    options_of,
    policies_of,
    position,
    read_time,
    shown_time,
    size,
    topic,
)

MINUTE = 60_000_000


@pytest.mark.parametrize("text", ["", "m", "-1s", "1y", "1h-3m", "s1"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration"):
        duration(text)


def test_a_size_is_bytes_or_has_a_unit() -> None:
    assert [size(text) for text in ("100", "10MB", "64 KiB")] == [100, 10_000_000, 65_536]
    with pytest.raises(click.BadParameter, match="'-1' is not a size; write it as 1000, 10MB or 64MiB"):
        size("-1")


def test_a_place_is_a_word_an_offset_or_a_time() -> None:
    assert position("earliest") == "earliest"
    assert position("42") == 42
    assert position("2026-01-31T10:00Z") == {"time": 1_769_853_600_000_000}
    ago = position("10m")["time"]
    assert 0 <= time.time_ns() // 1000 - 10 * MINUTE - ago < MINUTE
    assert position("yesterday")["time"] < time.time_ns() // 1000
    with pytest.raises(click.BadParameter, match=r"'soon' is not a position in a topic; use earliest"):
        position("soon")
    with pytest.raises(click.BadParameter):
        position("-1")


def test_a_due_time_is_not_a_duration() -> None:
    assert delivery_time("2026-01-31T10:00Z") == 1_769_853_600_000_000
    with pytest.raises(click.BadParameter, match="'3s' is a duration, not a time; use --delay '3s'"):
        delivery_time("3s")


def test_policies_are_numbers_in_their_units() -> None:
    texts = ["ttl_seconds=7d", "retention_bytes=2GiB", "topics_max=5", "backlog_policy=reject", "producers_max=none"]
    assert policies_of(texts) == {
        "ttl_seconds": 604_800,
        "retention_bytes": 2 << 30,
        "topics_max": 5,
        "backlog_policy": "reject",
        "producers_max": None,
    }


def test_options_are_nested_and_times_are_seconds() -> None:
    assert options_of(["failure.ack_timeout=30s", "failure.poison=drop", "dispatch.unacked_max=5"]) == {
        "failure": {"ack_timeout": 30, "poison": "drop"},
        "dispatch": {"unacked_max": 5},
    }
    assert options_of(["failure.ack_timeout=none"]) == {"failure": {"ack_timeout": None}}
    assert options_of(["failure.dead_letter_topic=5d"]) == {"failure": {"dead_letter_topic": "/default/5d"}}
    assert options_of([]) is None
    assert options_of(["idle_seconds=1 week", "holds_only=true"]) == {"idle_seconds": 604_800, "holds_only": True}
    with pytest.raises(click.UsageError, match="failure cannot have both a value and options"):
        options_of(["failure=1s", "failure.poison=drop"])


def test_names_and_numbers_are_written_as_people_do() -> None:
    assert (topic("orders"), topic("/shop/orders")) == ("/default/orders", "/shop/orders")
    assert (many(1), many(1200, "letter")) == ("1 message", "1,200 letters")


@pytest.mark.parametrize("time", [-(1 << 63), -1, 0, (1 << 62) - 1, (1 << 63) - 1])
def test_every_time_that_is_shown_can_be_read(time: int) -> None:
    assert read_time(shown_time(time)) == read_time(time) == time


@pytest.mark.parametrize("given", [str(1 << 63), str(-(1 << 63) - 1), 1 << 63, "1" * 40])
def test_a_time_that_no_message_can_have_is_refused(given: str | int) -> None:
    with pytest.raises(click.UsageError, match="is not a time"):
        read_time(given)
