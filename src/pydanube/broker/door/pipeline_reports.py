"""Reads what the runner of a pipeline reports, within bounds.

Control sequences are removed from all texts, because they are shown on other people's terminals.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pydanube.base.errors import RequestInvalid
from pydanube.base.fields import Fields
from pydanube.base.limits import (
    PIPELINE_CAUSE_CHARACTERS_MAX,
    PIPELINE_INFO_BYTES_MAX,
    PIPELINE_LINE_CHARACTERS_MAX,
    PIPELINE_LINES_REPORTED_MAX,
    PIPELINE_NUMBERS_MAX,
    PIPELINE_RUN_CHARACTERS_MAX,
)
from pydanube.broker.door.pipelines import Report, State
from pydanube.operations.pipelines import ReportPipeline

_RUN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_CONTROLS = dict.fromkeys([*range(0x09), *range(0x0A, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029], " ")
_KNOWN_INFO: dict[str, type] = {
    "host": str,
    "pid": int,
    "master": str,
    "source": str,
    "sinks": list,
    "digest": str,
    "started": int,
    "version": str,
    "file": str,
}


def read_report(request: ReportPipeline) -> Report:
    cause = request.cause
    return Report(
        _run("run", request.run),
        _info(request.info),
        State(request.state),
        None if cause is None else _clean("cause", cause, PIPELINE_CAUSE_CHARACTERS_MAX),
        _progress(request.progress),
        _lines(request.lines),
        request.first_line,
        request.taken,
        None if request.replaces is None else _run("replaces", request.replaces),
    )


def _run(name: str, found: str) -> str:
    if len(found) > PIPELINE_RUN_CHARACTERS_MAX or _RUN.fullmatch(found) is None:
        raise RequestInvalid(f"{name} must be up to {PIPELINE_RUN_CHARACTERS_MAX} letters, digits, - and _")
    return found


def _clean(what: str, found: str, characters_max: int) -> str:
    if len(found) > characters_max:
        raise RequestInvalid(f"{what} has {len(found)} characters, more than {characters_max}")
    return found.translate(_CONTROLS)


def _lines(found: list[str]) -> tuple[str, ...]:
    if len(found) > PIPELINE_LINES_REPORTED_MAX:
        raise RequestInvalid(f"a report can have at most {PIPELINE_LINES_REPORTED_MAX} lines, got {len(found)}")
    return tuple(_clean("a line", each, PIPELINE_LINE_CHARACTERS_MAX) for each in found)


def _info(found: dict[str, Any]) -> dict[str, Any]:
    """A flat object of strings, numbers and lists of strings. It may have fields that this broker does not know."""
    size = len(msgspec.json.encode(found))
    if size > PIPELINE_INFO_BYTES_MAX:
        raise RequestInvalid(f"info has {size} bytes as JSON, more than {PIPELINE_INFO_BYTES_MAX}")
    fields = Fields(RequestInvalid, found, lambda name: f"info.{name}")
    fields.text("host")
    for name, kind in _KNOWN_INFO.items():
        fields.field(name, kind, None)
    return {_named("info", name): _fact(name, value) for name, value in found.items()}


def _fact(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _clean(name, value, PIPELINE_INFO_BYTES_MAX)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return [_clean(name, each, PIPELINE_INFO_BYTES_MAX) for each in value]
    raise RequestInvalid(f"info.{name} must be a string, a number or a list of strings")


def _progress(found: dict[str, float | None]) -> dict[str, float | None]:
    if len(found) > PIPELINE_NUMBERS_MAX:
        raise RequestInvalid(f"progress can have at most {PIPELINE_NUMBERS_MAX} numbers, got {len(found)}")
    return {_named("progress", name): value for name, value in found.items()}


def _named(where: str, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise RequestInvalid(f"{name[:50]!r} of {where} is not a name of lowercase letters, digits and _")
    return name
