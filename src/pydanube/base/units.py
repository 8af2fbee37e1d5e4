"""Durations, sizes and points in time, as people write them: one parser for flags, files, policies and Python.

A plain number is seconds or bytes. Text has units: `90s`, `1h30m`, `1 week`, `10MB`, `64 MiB`. A point in time is ISO
8601, or a word such as `yesterday`. All functions raise `ValueError` with a sentence that starts with the value; the
caller knows the name of the setting and raises its own error.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from pydanube.base.fields import shown
from pydanube.base.limits import DAY, DURATION_MICROSECONDS_MAX, MILLISECOND, SECOND

Duration = float | timedelta | str  # a number is seconds
Size = int | str  # a number is bytes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"us": 1, "ms": MILLISECOND, "s": SECOND, "m": 60 * SECOND, "h": 3_600 * SECOND, "d": DAY, "w": 7 * DAY}
_SPELLED = {
    "microsecond": "us",
    "µs": "us",
    "millisecond": "ms",
    "msec": "ms",
    "second": "s",
    "sec": "s",
    "minute": "m",
    "min": "m",
    "hour": "h",
    "hr": "h",
    "day": "d",
    "week": "w",
}
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?")
_DURATION = re.compile(r"(?:[0-9]{1,18}(?:\.[0-9]{1,9})?\s*[a-zµ]{1,12}\s*)+")
_STEP = re.compile(r"(?<![0-9.])([0-9.]+)\s*([a-zµ]+)")
_WRITE_A_DURATION = "write it as 250ms, 10m, 1h30m or 1 week"
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,6})?)\s*([a-z]{0,5})")
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


# -- durations ---------------------------------------------------------------------------------------------------------


def microseconds_of(duration: Duration) -> int:
    """Parses `30`, `0.5`, a `timedelta`, `250ms`, `1h30m` or `1 week`; refuses negative durations."""
    try:
        found = _microseconds_of(duration)
    except OverflowError:  # too large for a number of microseconds
        found = DURATION_MICROSECONDS_MAX + 1
    if found < 0:
        raise ValueError(f"{shown(duration)} is negative; {_WRITE_A_DURATION}")
    if found > DURATION_MICROSECONDS_MAX:
        raise ValueError(f"{shown(duration)} is longer than {DURATION_MICROSECONDS_MAX // DAY:,} days")
    return found


def seconds_of(duration: Duration) -> float:
    return microseconds_of(duration) / SECOND


def _microseconds_of(duration: object) -> int:
    if isinstance(duration, timedelta):
        return duration // _MICROSECOND
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        if duration != duration or abs(duration) == float("inf"):
            raise ValueError(f"{duration} is not a duration")
        return round(duration * SECOND)
    if isinstance(duration, str):
        return _parsed(duration)
    raise ValueError(f"{shown(duration)} is not a duration; use seconds, a timedelta, or text such as 1h30m")


def _parsed(duration: str) -> int:
    text = duration.strip().lower()
    if _NUMBER.fullmatch(text):
        return round(float(text) * SECOND)
    wrong = ValueError(f"{shown(duration)} is not a duration; {_WRITE_A_DURATION}")
    if not _DURATION.fullmatch(text):
        raise wrong
    total = 0.0
    for number, word in _STEP.findall(text):
        name = word if word in _UNITS else _SPELLED.get(word) or _SPELLED.get(word.removesuffix("s"))
        if word.removesuffix("s") in ("month", "year"):
            raise ValueError(f"{shown(duration)}: a {word.removesuffix('s')} has no fixed length; use days")
        if name is None or number.count(".") > 1:
            raise wrong
        total += float(number) * _UNITS[name]
    return round(total)


def is_duration(text: str) -> bool:
    """Whether it is a number with a unit, and so neither an offset nor a date."""
    if _NUMBER.fullmatch(text.strip()):
        return False
    try:
        _parsed(text)
    except OverflowError:
        return True
    except ValueError:
        return False
    return True


def shown_duration(microseconds: int) -> str:
    """A duration that `microseconds_of` can parse, in the largest unit of which it is a whole number."""
    for unit, size in reversed(_UNITS.items()):
        if microseconds >= size and microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return "0s"


def rough_duration(microseconds: float) -> str:
    """For people, in two units at most: `1 h 34 min`, `2 d 3 h`, `12 s`, `0.25 s`."""
    seconds = microseconds / SECOND
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.01 else "0 s"
    for large, small, size, part in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        whole, rest = divmod(round(seconds / part) * part, size)
        if whole:
            return f"{whole:.0f} {large}" + (f" {rest / part:.0f} {small}" if rest else "")
    return f"{seconds:.0f} s"


# -- sizes -------------------------------------------------------------------------------------------------------------


def bytes_of(size: Size) -> int:
    """Parses `1000`, `10MB` (ten million) or `64 MiB`."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    if not isinstance(size, str) or (found := _SIZE.fullmatch(size.strip().lower())) is None:
        raise ValueError(f"{shown(size)} is not a size; write it as 1000, 10MB or 64MiB")
    number, unit = found.groups()
    if unit in ("k", "m", "g", "t"):
        raise ValueError(f"{shown(size)} is ambiguous; write {number}{unit.upper()}B or {number}{unit.upper()}iB")
    if unit not in _SIZES or ("." in number and _SIZES[unit] == 1):
        raise ValueError(f"{shown(size)} is not a size; write it as 1000, 10MB or 64MiB")
    return int(number) * _SIZES[unit] if "." not in number else round(float(number) * _SIZES[unit])


def shown_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


# -- points in time ----------------------------------------------------------------------------------------------------


def time_of(text: str, now: int) -> int:
    """Parses an ISO time, `yesterday`, `tomorrow 08:00`, `14:30`, `10m ago` or `in 10m` to microseconds since 1970.

    A time without a zone is local; a clock time alone is today's.
    """
    word = " ".join(text.lower().split())
    if word == "now":
        return now
    if word.endswith(" ago"):
        return now - microseconds_of(word.removesuffix(" ago"))
    if word.startswith("in "):
        return now + microseconds_of(word.removeprefix("in "))
    try:
        return _of_days(word, now) if word.split(" ")[0] in _DAYS or _CLOCK.fullmatch(word) else iso_time_of(text)
    except ValueError:
        known = "2026-01-31T10:00, 14:30, yesterday, tomorrow 08:00 or 10m ago"
        raise ValueError(f"{shown(text)} is not a time; write it as {known}") from None


def moment_of(text: str, now: int) -> int:
    """Like `time_of`, for positions in the past: a duration alone is that long ago."""
    return now - microseconds_of(text) if is_duration(text) else time_of(text, now)


def _of_days(word: str, now: int) -> int:
    day, _, clock = word.partition(" ") if not word[0].isdigit() else ("today", " ", word)
    found = _CLOCK.fullmatch(clock or "0:00")
    if found is None:
        raise ValueError("not a time of day")
    hour, minute, second = (int(each or 0) for each in found.groups())
    local = (_EPOCH + timedelta(microseconds=now)).astimezone()
    wanted = local.replace(tzinfo=None, hour=hour, minute=minute, second=second, microsecond=0)
    return _since_epoch(wanted + timedelta(days=_DAYS[day]))


def iso_time_of(text: str) -> int:
    """Parses an ISO time. Raises `ValueError`, also for a time that the calendar does not cover."""
    return _since_epoch(datetime.fromisoformat(text.strip()))


def _since_epoch(time: datetime) -> int:
    try:
        return (time.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise ValueError("out of the calendar") from None


def shown_time(microseconds: int | None) -> str | None:
    """The time in UTC, in ISO format."""
    if microseconds is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")[:-6] + "Z"
    except OverflowError:  # beyond the calendar
        return str(microseconds)


def shown_when(microseconds: int, now: int) -> str:
    """For people: `14:02:10 UTC (in 1 h 34 min)`, with the date if it is another day."""
    try:
        second = (microseconds + 500_000) // SECOND  # rounded, because clocks are read at different moments
        then, today = _EPOCH + timedelta(seconds=second), _EPOCH + timedelta(microseconds=now)
    except OverflowError:  # beyond the calendar
        return f"{microseconds // SECOND} s after 1970"
    clock = then.strftime("%H:%M:%S UTC" if then.date() == today.date() else "%Y-%m-%d %H:%M:%S UTC")
    far = rough_duration(abs(microseconds - now))
    return f"{clock} (in {far})" if microseconds >= now else f"{clock} ({far} ago)"
