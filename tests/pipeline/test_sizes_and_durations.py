"""Every size and duration of a declaration is written as everywhere else; a wrong one gets an example. No Spark."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.spec import flow as module
from pydanube.pipeline.spec.fields import parse_duration, parse_size
from pydanube.pipeline.spec.flow import Flow

MARK = {"watermark": {"column": "event_time", "delay": "1 minute"}}
Declared = Callable[[Any], dict[str, Any]]


def flow(**others: Any) -> dict[str, Any]:
    return {"name": "p", "source": {"topic": "orders"}, "sink": {"delta": "out"}} | others


def windowed(**window: Any) -> dict[str, Any]:
    return flow(transforms=[MARK, {"aggregate": {"values": {"n": "count(*)"}, **window}}])


SIZES: dict[str, Declared] = {"max_bytes": lambda value: flow(source={"topic": "orders", "max_bytes": value})}
DURATIONS: dict[str, Declared] = {
    "trigger": lambda value: flow(trigger=value),
    "backoff": lambda value: flow(restart={"backoff": value}),
    "expire": lambda value: flow(sink={"delta": "out", "maintain": {"expire": value}}),
    "delay": lambda value: flow(transforms=[{"watermark": {"column": "event_time", "delay": value}}]),
    "window": lambda value: windowed(window=value),
    "slide": lambda value: windowed(window="10d", slide=value),
}
SHORT = {"backoff": ("30", "30s", "500ms", "1 minute")}  # where an hour is too long
FIT = ("3600", "1h", "1 hour 30 minutes", "90m", "2 days", 3600, 7200.0)


def read(source: Path) -> list[tuple[str, str]]:
    """The keys that a module reads, and how: `.duration("delay")`, `.whole("rows", …)`."""
    calls = [node for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return [
        (call.func.attr, str(call.args[0].value))
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.args and isinstance(call.args[0], ast.Constant)
    ]


def test_the_lists_above_are_complete() -> None:
    found = [each for source in Path(module.__file__).parent.parent.rglob("*.py") for each in read(source)]
    assert {name for how, name in found if how == "duration"} | {"trigger"} == set(DURATIONS)
    counted = {name for how, name in found if how == "whole"} - {"rows_per_second"}
    assert [name for name in counted if re.search("bytes|seconds|minutes|size", name)] == []


@pytest.mark.parametrize("key", DURATIONS)
def test_a_duration_is_seconds_or_has_a_unit(key: str) -> None:
    for text in SHORT.get(key, FIT):
        Flow.of(DURATIONS[key](text))
    assert [parse_duration(key, text).seconds for text in ("1.5", 30, "1 week", "1h30m")] == [1.5, 30, 604_800, 5_400]


@pytest.mark.parametrize("key", SIZES)
def test_a_size_is_bytes_or_has_a_unit(key: str) -> None:
    for text in (1000, "1000", "10MB", "64 MiB", "1.5gb"):
        Flow.of(SIZES[key](text))
    assert [parse_size(key, text, 1 << 40) for text in (5, "5", "10MB", "64MiB")] == [5, 5, 10_000_000, 64 << 20]


@pytest.mark.parametrize("value", ["soon", "-1s", -1, "", "1 month", [1], True, "5000d"])
@pytest.mark.parametrize("key", DURATIONS)
def test_a_wrong_duration_is_named_with_one_that_is_right(key: str, value: Any) -> None:
    with pytest.raises(FlowInvalid, match=rf"{key}: .*(such as 1|write it as 250ms, 10m|use (days|seconds)|1 hour to)"):
        Flow.of(DURATIONS[key](value))


@pytest.mark.parametrize("value", ["many", "-1", -1, 0, "10M", [1], True, "", 1.5])
@pytest.mark.parametrize("key", SIZES)
def test_a_wrong_size_is_named_with_one_that_is_right(key: str, value: Any) -> None:
    with pytest.raises(FlowInvalid, match=rf"{key}: .*(such as 64 MiB|write it as 1000, 10MB|write 10MB or)"):
        Flow.of(SIZES[key](value))
