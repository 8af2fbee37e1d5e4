"""The report of a running pipeline to the broker: one request, shortened to the size limits of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from pydanube.base.limits import (
    PIPELINE_CAUSE_CHARACTERS_MAX,
    PIPELINE_LINE_CHARACTERS_MAX,
    PIPELINE_LINES_REPORTED_BYTES,
    PIPELINE_LINES_REPORTED_MAX,
)
from pydanube.base.wording import encodable
from pydanube.operations.pipelines import Reported, ReportPipeline

if TYPE_CHECKING:
    from pydanube.client.client import Client


async def report_pipeline(client: Client, report: ReportPipeline) -> Reported:
    """Sends the report, with as many of its lines as fit."""
    report.cause = None if report.cause is None else _cut(report.cause, PIPELINE_CAUSE_CHARACTERS_MAX)
    report.info, progress = dict(report.info), report.progress or {}  # programs may pass any mapping, or nothing
    report.progress = {each: _finite(value) for each, value in progress.items()}
    report.lines = list(_fitting(report.lines))
    found = await client.ask(report)
    return Reported(found.order, found.number, len(report.lines))


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
    text = encodable(text)
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"
