"""The report of a running pipeline to the broker: one request, shortened to the size limits of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.base.limits import (
    PIPELINE_CAUSE_CHARACTERS_MAX,
    PIPELINE_LINE_CHARACTERS_MAX,
    PIPELINE_LINES_REPORTED_BYTES,
    PIPELINE_LINES_REPORTED_MAX,
)

if TYPE_CHECKING:
    from pydanube.client.client import Client


class Reported(NamedTuple):
    """The broker's answer to a report."""

    order: str  # none, stop or restart; repeated until its number is reported as `taken`
    number: int
    lines: int  # how many lines were sent; the others belong in the next report


async def report_pipeline(
    client: Client,
    name: str,
    run: str,
    *,
    info: Mapping[str, Any],
    state: str,
    cause: str | None = None,
    progress: Mapping[str, float | None] | None = None,
    lines: Sequence[str] = (),
    first_line: int | None = None,
    taken: int = 0,
    replaces: str | None = None,
) -> Reported:
    sent = list(_fitting(lines))
    fields = {
        "pipeline": name,
        "run": run,
        "info": dict(info),
        "state": state,
        "cause": None if cause is None else _cut(cause, PIPELINE_CAUSE_CHARACTERS_MAX),
        "progress": {each: _finite(value) for each, value in (progress or {}).items()},
        "lines": sent,
        "first_line": first_line,
        "taken": taken,
        "replaces": replaces,
    }
    reply = await client.ask("pipeline.report", {each: value for each, value in fields.items() if value is not None})
    return Reported(str(reply["order"]), int(reply["number"]), len(sent))


def _fitting(lines: Sequence[str]) -> Iterator[str]:
    """Yields as many lines as fit one report, each cut to the maximum length."""
    size = 0
    for line in lines[:PIPELINE_LINES_REPORTED_MAX]:
        line = _cut(line, PIPELINE_LINE_CHARACTERS_MAX)
        size += len(json.dumps(line)) + 1
        if size > PIPELINE_LINES_REPORTED_BYTES:
            return
        yield line


def _finite(value: float | None) -> float | None:
    """None for infinity and NaN, such as a rate over no time."""
    return value if value is not None and isfinite(value) else None


def _cut(text: str, characters_max: int) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be sent
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
