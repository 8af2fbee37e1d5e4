"""What people write on a command line, as values: topics, places in them, durations, sizes, attributes, policies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import click
from click.shell_completion import CompletionItem

from pydanube.base.wording import many as many

_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}
_SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = re.compile(r"(?:\d{1,12}(?:\.\d{1,6})?(?:ms|[smhdw]))+")
_STEP = re.compile(r"([\d.]+)(ms|[smhdw])")
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?i?B?)", re.IGNORECASE)
_WHOLE = re.compile(r"-?\d{1,18}")


class Whole(click.IntRange):
    name = "n"


class Topic(click.ParamType):  # type: ignore[type-arg]  # which older releases of click do not know
    """`orders` is short for `/default/orders`."""

    name = "topic"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value if "/" in value else f"/default/{value}"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from pydanube.cli.offers import topics

        return [CompletionItem(name) for name in topics(ctx, incomplete)]


class Subscription(click.ParamType):  # type: ignore[type-arg]  # as above
    """Of the topic that stands before it."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from pydanube.cli.offers import subscriptions

        return [CompletionItem(name) for name in subscriptions(ctx, incomplete)]


topic = Topic()
subscription = Subscription()


def duration(text: str) -> int:
    """Microseconds: 250ms, 10m, 1h30m."""
    if not _DURATION.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no duration such as 250ms, 10m or 1h30m")
    return round(sum(float(number) * _UNITS[unit] for number, unit in _STEP.findall(text)))


def shown_duration(microseconds: int) -> str:
    """As `duration` reads it, in the largest unit that it is a whole number of."""
    for unit, size in reversed(_UNITS.items()):
        if microseconds >= size and microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds // 1000}.{microseconds % 1000:03}ms"


def place(text: str) -> Any:
    """A place in a topic, as the client takes it."""
    if text in ("earliest", "latest"):
        return text
    if text.startswith("-") and _WHOLE.fullmatch(text):
        raise click.BadParameter(f"an offset is 0 or more, not {text}")
    return int(text) if _WHOLE.fullmatch(text) else moment(text, "earliest, latest, an offset, ")


def moment(text: str, others: str = "") -> dict[str, int]:
    """A place by time only: `10m` ago, or a date; a time without a zone is local."""
    if _DURATION.fullmatch(text):
        return {"time": time.time_ns() // 1000 - duration(text)}
    try:
        return {"time": _microseconds(text)}
    except ValueError:
        known = f"{others}10m (ago) or a time such as 2026-01-31T10:00"
        raise click.BadParameter(f"{text!r} is none of {known}") from None


PLACES = "Earliest, latest, an offset, a duration ago (10m) or a time (2026-01-31T10:00)."


def _microseconds(text: str) -> int:
    """Exactly; raises `ValueError`, as for a time that is before the calendar."""
    found = datetime.fromisoformat(text)
    try:
        return (found.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        raise ValueError("out of the calendar") from None


@lru_cache(256)  # messages of one batch mostly have the same times
def shown_time(microseconds: int | None) -> str | None:
    """In UTC, as every other program reads it."""
    if microseconds is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")[:-6] + "Z"
    except OverflowError:  # no calendar reaches that far
        return str(microseconds)


def read_time(value: Any) -> int | None:
    """The other way round: what `shown_time` wrote, any ISO time, or microseconds."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        if _WHOLE.fullmatch(value):
            return int(value)
        try:
            return _microseconds(value)
        except ValueError:
            pass
    raise click.UsageError(f"{value!r} is no time")


def pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """`name=value`, each once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} is written name=value, not {text!r}")
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
    if name.endswith("_seconds") and _DURATION.fullmatch(value):
        return duration(value) // 1_000_000
    if "bytes" in name and (size := _SIZE.fullmatch(value)) and size[2].upper() in _SIZES:
        return int(size[1]) * _SIZES[size[2].upper()]
    return value


def options_of(texts: Sequence[str]) -> dict[str, Any] | None:
    """`failure.ack_timeout=30s` and the like, as the broker takes them: nested, times in microseconds."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in pairs(texts, "an option").items():
        section, dot, key = name.partition(".")
        if not dot:
            raise click.UsageError(f"an option is failure.… or dispatch.…, not {name!r}")
        found.setdefault(section, {})[key] = _option(value)
    return found or None


def _option(value: str) -> Any:
    if _DURATION.fullmatch(value):
        return duration(value)
    if value == "none":
        return None
    try:
        return json.loads(value)
    except ValueError:
        return value


def sized(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
