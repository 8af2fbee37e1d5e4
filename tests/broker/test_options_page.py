"""docs/subscriptions.md has every option, with the unit, default and bounds that hold."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from pydanube.base.errors import SubscriptionOptionInvalid
from pydanube.broker.state.options import DURATIONS, SubscriptionOptions
from pydanube.client.consumer import Consumer
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.operations.options import OptionChanges

OPTIONS = OptionChanges.__struct_fields__
PAGE = Path(__file__).parents[2] / "docs/subscriptions.md"
UNITS = {"µs": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
SECTIONS = {"failure": FailurePolicy, "dispatch": DispatchSettings}


def rows() -> dict[str, list[str]]:
    """The rows of the tables of options: unit, default and bounds, by name."""
    found = re.findall(r"^\| `([a-z_.]+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    split = {name: rest.split(" | ") for name, rest in found}
    return {name: cells[:3] for name, cells in split.items() if len(cells) == 4 and name.split(".")[0] in OPTIONS}


ROWS = rows()


def value_of(text: str) -> Any:
    """What a cell says, as the broker holds it."""
    text = text.strip("`")
    if text in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text]
    if found := re.fullmatch(r"([\d,]+) ?(µs|ms|s|min|h)?", text):
        return int(found[1].replace(",", "")) * UNITS.get(found[2], 1)
    return text


def allowed(name: str, value: Any) -> bool:
    section, _, option = name.rpartition(".")
    if option in DURATIONS and value is not None:
        value = f"{value}us"
    chosen: dict[str, Any] = {option: value}
    if value == "dead_letter":
        chosen["dead_letter_topic"] = "/default/letters"
    if name == "failure.dead_letter_topic" and value is not None:
        chosen["poison"] = "dead_letter"
    if option == "base_delay" and value is not None:
        chosen["max_delay"] = value
    if option == "max_delay":
        chosen["base_delay"] = 0
    try:
        SubscriptionOptions.from_json({section: chosen} if section else chosen)
    except SubscriptionOptionInvalid:
        return False
    return True


def test_every_option_has_its_row() -> None:
    held = {f"{section}.{each.name}" for section, kind in SECTIONS.items() for each in fields(kind)}
    assert set(ROWS) == held | (set(OPTIONS) - set(SECTIONS))


@pytest.mark.parametrize("name", ROWS)
def test_a_default_is_what_the_page_says(name: str) -> None:
    holder: Any = SubscriptionOptions()
    for part in name.split("."):
        holder = getattr(holder, part)
    assert value_of(ROWS[name][1]) == (holder.value if isinstance(holder, Enum) else holder)


@pytest.mark.parametrize("name", ROWS)
def test_bounds_are_what_the_page_says(name: str) -> None:
    unit, _, bounds = ROWS[name]
    bounds, _, none = bounds.partition(", or none")
    assert none == ""
    assert allowed(name, None) is ROWS[name][2].endswith(", or none")
    if unit in ("choice", "flag"):
        choices = [value_of(each) for each in bounds.split(", ")]
        assert all(allowed(name, each) for each in choices)
        assert not allowed(name, "maybe")
        return
    if unit == "topic":
        assert allowed(name, "/default/letters")
        assert not allowed(name, 5)
        return
    low, _, high = bounds.partition(" or more")[0].partition(" to ")
    assert allowed(name, value_of(low))
    assert not allowed(name, value_of(low) - 1)
    if high and high != "`max_delay`":
        assert allowed(name, value_of(high))
        assert not allowed(name, value_of(high) + 1)


def test_every_argument_of_a_consumer_is_on_the_page() -> None:
    arguments = set(inspect.signature(Consumer).parameters) - {"client"}
    text = PAGE.read_text(encoding="utf-8").partition("## What you choose")[2]
    assert arguments == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
