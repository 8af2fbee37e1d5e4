"""Every option on the page about subscriptions can be set with `--option`, as it is written there."""

from __future__ import annotations

from typing import Any

import pytest

from broker.test_options_page import ROWS
from cli.conftest import Danube

OF_UNIT = {  # what is written for an option of that unit, and what the broker then has
    "duration": ("2s", 2),
    "seconds": ("1 week", 604_800),
    "redeliveries": ("7", 7),
    "messages": ("7", 7),
    "flag": ("true", True),
    "topic": ("letters", "/default/letters"),
}
BESIDE = {  # what an option is refused without
    "failure.poison": ("failure.dead_letter_topic=letters",),
    "failure.dead_letter_topic": ("failure.poison=dead_letter",),
}


def sample(name: str) -> tuple[str, Any]:
    unit, _, bounds = ROWS[name]
    if unit == "choice":
        last = bounds.split(", ")[-1].strip("`")
        return last, last
    return OF_UNIT[unit]


def flags(name: str, text: str) -> list[str]:
    return [part for each in (f"{name}={text}", *BESIDE.get(name, ())) for part in ("--option", each)]


def held(danube: Danube, topic: str, name: str) -> Any:
    found = danube("subscription", "describe", topic, "s", "-o", "json").json["options"]
    for part in name.split("."):
        found = found.get(part)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_an_option_of_the_page_is_set_when_it_is_created_and_later(danube: Danube, topic: str, name: str) -> None:
    text, value = sample(name)
    danube("topic", "create", topic)
    created = danube("subscription", "create", topic, "s", *flags(name, text))
    assert (created.code, created.err) == (0, "")
    assert held(danube, topic, name) == value
    danube("subscription", "delete", topic, "s", "--yes")
    danube("subscription", "create", topic, "s")
    assert held(danube, topic, name) != value
    altered = danube("subscription", "alter", topic, "s", *flags(name, text))
    assert (altered.code, altered.err) == (0, "")
    assert held(danube, topic, name) == value
    again = danube("subscription", "create", topic, "s", *flags(name, text))
    assert (again.code, again.err) == (0, "")  # nothing stays other than it is asked for


@pytest.mark.parametrize("name", [name for name, cells in ROWS.items() if cells[2].endswith(", or none")])
def test_an_option_that_may_be_none_is_taken_back(danube: Danube, topic: str, name: str) -> None:
    danube("topic", "create", topic)
    danube("subscription", "create", topic, "s", *flags(name, sample(name)[0]))
    beside = ("--option", "failure.poison=block") if name in BESIDE else ()
    assert danube("subscription", "alter", topic, "s", "--option", f"{name}=none", *beside).code == 0
    assert held(danube, topic, name) is None


def test_an_option_that_already_holds_otherwise_is_reported(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic)
    danube("subscription", "create", topic, "s", "--option", "idle_seconds=1h")
    again = danube("subscription", "create", topic, "s", "--option", "idle_seconds=1d", "--option", "holds_only=false")
    assert again.code == 0
    assert "idle_seconds stays 3600, not 86400" in again.err
    assert "holds_only" not in again.err


def test_an_option_without_its_section_is_refused_with_its_whole_name(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic)
    ended = danube("subscription", "create", topic, "s", "--option", "ack_timeout=1s")
    assert ended.code != 0
    assert "did you mean failure.ack_timeout?" in ended.err
    ended = danube("subscription", "create", topic, "s", "--option", "timeout=1s")
    assert "unknown option 'timeout'; known options: failure, dispatch, idle_seconds" in ended.err
