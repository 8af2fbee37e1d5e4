"""The steps of a pipeline, as declared. Pure: SQL is checked by Spark later."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.spec.fields import Duration, Section, absolute, checked_text, shown, text_list

KINDS = ("watermark", "deduplicate", "sql", "aggregate", "python")
STEPS_MAX = 100
EVENT_TIME = "event_time"
WINDOW_COLUMNS = ("window_start", "window_end")
_FUNCTION = re.compile(r"(.+\.py):([A-Za-z_][A-Za-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: Duration

    @property
    def label(self) -> str:
        return f"rows may be late by {self.delay} after {self.column}"


@dataclass(frozen=True, slots=True)
class Deduplicate:
    columns: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"each {', '.join(self.columns)} once, within the watermark"


@dataclass(frozen=True, slots=True)
class Sql:
    text: str

    @property
    def label(self) -> str:
        return f"SQL: {' '.join(self.text.split())}"


@dataclass(frozen=True, slots=True)
class Aggregate:
    window: Duration | None
    slide: Duration | None
    on: str
    by: tuple[str, ...]
    values: Mapping[str, str]  # column -> SQL expression

    @property
    def label(self) -> str:
        window = f" per {self.window} of {self.on}" if self.window is not None else ""
        slide = f", every {self.slide}" if self.slide is not None else ""
        by = f" by {', '.join(self.by)}" if self.by else ""
        return ", ".join(f"{text} as {name}" for name, text in self.values.items()) + by + window + slide


@dataclass(frozen=True, slots=True)
class Python:
    """A function from DataFrame to DataFrame, given by file and name or as an object."""

    file: str | None
    name: str
    function: Callable[[Any], Any] | None = None

    @property
    def label(self) -> str:
        return f"Python: {self.name}" + (f" of {self.file}" if self.file else "")


Step = Watermark | Deduplicate | Sql | Aggregate | Python


def step_path(at: int, step: Step) -> str:
    """How errors and dead letters name a step."""
    return f"transforms[{at}].{type(step).__name__.lower()}"


def parse_steps(found: object, folder: str) -> tuple[Step, ...]:
    if found is None:
        return ()
    if isinstance(found, Mapping) or not isinstance(found, list | tuple):
        raise FlowInvalid(f"transforms: must be a list of steps, as in `- sql: SELECT …`, got {shown(found)}")
    if len(found) > STEPS_MAX:
        raise FlowInvalid(f"transforms: has {len(found)} steps; the maximum is {STEPS_MAX}")
    return tuple(_step(f"transforms[{at}]", each, folder) for at, each in enumerate(found))


def _step(path: str, found: object, folder: str) -> Step:
    section = Section(path, found, KINDS, folder)
    kinds = list(section)
    if len(kinds) != 1:
        raise FlowInvalid(
            f"{path}: must be one of {', '.join(KINDS)}; write several steps as several entries of the list"
        )
    kind = kinds[0]
    if kind == "watermark":
        inner = Section(section.key(kind), section.raw(kind), ("column", "delay"))
        return Watermark(inner.text("column", EVENT_TIME), inner.duration("delay"))
    if kind == "deduplicate":
        return Deduplicate(text_list(section.key(kind), section.raw(kind)))
    if kind == "sql":
        return Sql(section.text(kind).strip().removesuffix(";"))
    if kind == "aggregate":
        return _aggregate(section.key(kind), section.raw(kind))
    return _python(section)


def _aggregate(path: str, found: object) -> Aggregate:
    section = Section(path, found, ("window", "slide", "on", "by", "values"))
    window = section.duration("window", least=1) if "window" in section else None
    slide = section.duration("slide", least=1) if "slide" in section else None
    if window is None:
        for name in ("slide", "on"):
            if name in section:
                raise section.wrong(name, "needs an aggregate with a window")
    elif slide is not None and slide > window:
        raise section.wrong("slide", f"must not be longer than the window of {window}: rows would fall between windows")
    values = section.raw("values")
    if not isinstance(values, Mapping) or not values:
        raise section.wrong("values", f"must be a mapping such as orders: count(*), got {shown(values)}")
    expressions: dict[str, str] = {}
    for name, text in values.items():
        key = section.key(f"values.{name}") if isinstance(name, str) and name.isprintable() else section.key("values")
        expressions[checked_text(key, name)] = checked_text(key, text)
    by = section.names("by")
    columns = [*(WINDOW_COLUMNS if window is not None else ()), *by, *expressions]
    lower = [each.lower() for each in columns]
    twice = next((each for at, each in enumerate(columns) if each.lower() in lower[:at]), None)
    if twice is not None:
        raise FlowInvalid(f"{path}: the column {shown(twice)} is given twice")
    return Aggregate(window, slide, section.text("on", EVENT_TIME), by, expressions)


def _python(section: Section) -> Python:
    found = section.raw("python")
    if callable(found):
        return Python(None, str(getattr(found, "__name__", "function")), found)
    text = section.text("python")
    match = _FUNCTION.fullmatch(text.strip())
    if match is None:
        raise section.wrong("python", f"must be a file and a function in it, as in clean.py:clean, got {shown(text)}")
    file = absolute(match[1], section.folder)
    if not os.path.isfile(file):
        raise section.wrong("python", f"the file {file} does not exist")
    return Python(file, match[2])


def check_steps(steps: Sequence[Step], output_mode: str) -> None:
    """Checks that the steps fit together, as far as this is possible without understanding SQL."""
    watermark: Watermark | None = None
    opaque = False  # whether SQL or Python has followed, which may rename columns
    aggregated = False
    for at, step in enumerate(steps):
        path = f"transforms[{at}]"
        if isinstance(step, Watermark):
            if watermark is not None:
                raise FlowInvalid(f"{path}.watermark: a pipeline can have only one, and another one comes before it")
            if aggregated:
                raise FlowInvalid(f"{path}.watermark: must come before the aggregate, not after it")
            watermark, opaque = step, False
        elif isinstance(step, Deduplicate):
            if watermark is None:
                raise FlowInvalid(
                    f"{path}.deduplicate: needs a watermark before it, or it would remember everything forever"
                )
            if aggregated and output_mode != "append":
                raise FlowInvalid(f"{path}.deduplicate: cannot follow an aggregate in output_mode {output_mode}")
        elif isinstance(step, Aggregate):
            _check_aggregate(path, step, watermark, opaque, aggregated, output_mode)
            aggregated = True
        else:
            opaque = True
    may_aggregate = aggregated or any(isinstance(each, Sql | Python) for each in steps)
    if output_mode == "complete" and not may_aggregate:
        raise FlowInvalid("output_mode: complete needs an aggregate; append writes each row once")


def _check_aggregate(
    path: str, step: Aggregate, watermark: Watermark | None, opaque: bool, aggregated: bool, output_mode: str
) -> None:
    if aggregated and output_mode != "append":
        raise FlowInvalid(f"{path}.aggregate: another one comes before it; two work only in output_mode append")
    if output_mode != "append":
        return
    if watermark is None:
        raise FlowInvalid(
            f"{path}.aggregate: needs a watermark before it in output_mode append, or no row would ever be final"
        )
    if step.window is None and watermark.column not in step.by and not opaque:
        raise FlowInvalid(
            f"{path}.aggregate: needs a window, or output_mode update: without them no row of it is ever final"
        )
    if step.window is not None and step.on != watermark.column and not opaque and not aggregated:
        raise FlowInvalid(f"{path}.aggregate.on: is {step.on}, but the watermark is on {watermark.column}")
