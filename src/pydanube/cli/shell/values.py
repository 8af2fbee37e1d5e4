"""What people write on a command line, as values: topics, places in them, durations, sizes, attributes, policies."""

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
from pydanube.base.limits import SECOND
from pydanube.base.names import full_name
from pydanube.base.units import bytes_of, is_duration, iso_time_of, microseconds_of, moment_of, seconds_of, time_of
from pydanube.base.wording import many as many

_WHOLE = re.compile(r"-?\d{1,18}")
_DIGITS = re.compile(r"-?\d+")


class Whole(click.IntRange):
    name = "n"


class Topic(click.ParamType):  # type: ignore[type-arg]  # which older releases of click do not know
    """`orders` is short for `/default/orders`."""

    name = "topic"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return full_name(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from pydanube.cli.shell.completions import topics

        return [CompletionItem(name) for name in topics(ctx, incomplete)]


class Subscription(click.ParamType):  # type: ignore[type-arg]  # as above
    """Of the topic that stands before it."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from pydanube.cli.shell.completions import subscriptions

        return [CompletionItem(name) for name in subscriptions(ctx, incomplete)]


topic = Topic()
subscription = Subscription()


def duration(text: str) -> int:
    """Microseconds: 250ms, 10m, 1h30m."""
    try:
        return microseconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def size(text: str) -> int:
    """Bytes: 1000, 10MB, 64MiB."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def place(text: str) -> Any:
    """A place in a topic, as the client takes it."""
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
    """A place by time only: `10m` ago, `yesterday`, or a date; a time without a zone is local."""
    now = time.time_ns() // 1000
    try:
        return {"time": moment_of(text, now)}
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def due(text: str) -> int:
    """A point in time that is named, in microseconds since 1970."""
    if is_duration(text):
        raise click.BadParameter(f"{text!r} is a duration, not a time; use --delay {text!r}")
    try:
        return time_of(text, time.time_ns() // 1000)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


PLACES = "Earliest, latest, an offset, a duration ago (10m) or a time (yesterday, 2026-01-31T10:00)."
shown_time = lru_cache(256)(units.shown_time)  # messages of one batch mostly have the same times


def read_time(value: Any) -> int | None:
    """The other way round: what `shown_time` wrote, any ISO time, or microseconds."""
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
    """`name=value`, each once."""
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
    """Bytes of a command line that are no UTF-8 come as surrogates, which cannot be sent."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def policies_of(texts: Sequence[str]) -> dict[str, Any]:
    """Numbers may be 7d for seconds and 10GiB for bytes; `none` takes a policy back."""
    return {name: _policy(name, value) for name, value in pairs(texts, "a policy").items()}


def _policy(name: str, value: str) -> Any:
    if name == "table" and value.lower() == "none":
        return "none"  # a value of its own: not for this topic, whatever its namespace says
    if value.lower() in ("none", "null", ""):
        return None
    if _WHOLE.fullmatch(value):
        return int(value)
    try:
        if "seconds" in name:
            return microseconds_of(value) // SECOND
        return bytes_of(value) if "bytes" in name else value
    except ValueError as error:
        raise click.UsageError(f"{name}: {error}") from None


def options_of(texts: Sequence[str]) -> dict[str, Any] | None:
    """`failure.ack_timeout=30s` and `idle_seconds=7d`, as the broker takes them: nested, times in seconds."""
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
    if name.endswith("_topic"):  # whatever it looks like
        return full_name(value)
    if is_duration(value):
        return _whole(seconds_of(value))
    try:
        return json.loads(value)
    except ValueError:
        return value
