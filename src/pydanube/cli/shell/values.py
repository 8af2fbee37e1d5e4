"""Parses command-line values: topics, positions in them, durations, sizes, attributes, policies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import click
from click.shell_completion import CompletionItem

from pydanube.base import units
from pydanube.base.names import full_name
from pydanube.base.units import bytes_of, is_duration, iso_time_of, microseconds_of, moment_of, seconds_of, time_of
from pydanube.base.wording import many as many
from pydanube.operations.policies import number_of

_WHOLE = re.compile(r"-?\d{1,18}")
_DIGITS = re.compile(r"-?\d+")


class Integer(click.IntRange):
    name = "n"


class Topic(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases of click
    """`orders` is short for `/default/orders`."""

    name = "topic"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return full_name(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from pydanube.cli.shell.completions import topics

        return [CompletionItem(name) for name in topics(ctx, incomplete)]


class Subscription(click.ParamType):  # type: ignore[type-arg]  # as above
    """The name of a subscription of the topic that precedes it."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from pydanube.cli.shell.completions import subscriptions

        return [CompletionItem(name) for name in subscriptions(ctx, incomplete)]


topic = Topic()
subscription = Subscription()


def duration(text: str) -> int:
    """Parses 250ms, 10m or 1h30m to microseconds."""
    try:
        return microseconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def size(text: str) -> int:
    """Parses 1000, 10MB or 64MiB to bytes."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def position(text: str) -> Any:
    """Parses a position in a topic to what the client accepts."""
    if text in ("earliest", "latest"):
        return text
    if text.startswith("-") and _WHOLE.fullmatch(text):
        raise click.BadParameter(f"an offset must be 0 or greater, got {text}")
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return moment(text)
    except click.BadParameter:
        known = "earliest, latest, an offset, 10m (ago), yesterday or a time such as 2026-01-31T10:00"
        raise click.BadParameter(f"{text!r} is not a position in a topic; use {known}") from None


def moment(text: str) -> dict[str, int]:
    """Parses a position by time: `10m` (ago), `yesterday`, or a date. A time without a zone is local."""
    now = time.time_ns() // 1000
    try:
        return {"time": moment_of(text, now)}
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def delivery_time(text: str) -> int:
    """Parses a point in time to microseconds since 1970; refuses durations."""
    if is_duration(text):
        raise click.BadParameter(f"{text!r} is a duration, not a time; use --delay {text!r}")
    try:
        return time_of(text, time.time_ns() // 1000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


POSITION_HELP = "Earliest, latest, an offset, a duration ago (10m) or a time (yesterday, 2026-01-31T10:00)."
shown_time = lru_cache(256)(units.shown_time)  # the messages of a batch usually share their times


def read_time(value: Any) -> int | None:
    """Parses what `shown_time` returns, any ISO time, or microseconds."""
    if value is None or value == "":
        return None
    found = value
    if isinstance(value, str):
        with suppress(ValueError):
            found = int(value) if _DIGITS.fullmatch(value) else iso_time_of(value)
    if isinstance(found, int) and not isinstance(found, bool) and -(1 << 63) <= found < 1 << 63:
        return found
    raise click.UsageError(f"{value!r} is not a time")


def pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """Parses texts such as `name=value`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} must look like name=value, got {text!r}")
        if not is_text(text):
            raise click.UsageError(f"{what} must be UTF-8, not {text!r}")
        found[name] = value
    return found


def is_text(text: str) -> bool:
    """Whether the text is valid UTF-8. Other bytes of a command line appear as surrogates, which cannot be sent."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def policies_of(texts: Sequence[str]) -> dict[str, Any]:
    """Parses policies. Numbers may have units, 7d for seconds and 10GiB for bytes; `none` removes a policy."""
    return {name: _policy(name, value) for name, value in pairs(texts, "a policy").items()}


def _policy(name: str, value: str) -> Any:
    if name == "table" and value.lower() == "none":
        return "none"  # a real value: no table for this topic, whatever its namespace has
    if value.lower() in ("none", "null", ""):
        return None
    if _WHOLE.fullmatch(value):
        return int(value)
    try:
        return number_of(name, value)
    except ValueError as error:
        raise click.UsageError(f"{name}: {error}") from None


def options_of(texts: Sequence[str]) -> dict[str, Any] | None:
    """Parses `failure.ack_timeout=30s` and `idle_seconds=7d` to what the broker accepts: nested, times in seconds."""
    found: dict[str, Any] = {}
    for name, value in pairs(texts, "an option").items():
        section, dot, key = name.partition(".")
        holder = found.setdefault(section, {}) if dot else found
        if not isinstance(holder, dict):
            raise click.UsageError(f"{section} cannot have both a value and options of its own; leave out one of them")
        holder[key if dot else name] = _option(name, value)
    return found or None


def _whole(seconds: float) -> float:
    return int(seconds) if seconds.is_integer() else seconds


def _option(name: str, value: str) -> Any:
    if value == "none":
        return None
    if name.endswith("_topic"):  # even if it looks like a number
        return full_name(value)
    if is_duration(value):
        return _whole(seconds_of(value))
    try:
        return json.loads(value)
    except ValueError:
        return value
