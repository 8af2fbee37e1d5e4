"""Resets a pipeline to another position: its checkpoint, its subscription, and what topics remember of it.

The checkpoint is changed first, durably; the rest can be repeated. Tables learn of it with the first batch of the new
query.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydanube.base.errors import DanubeError
from pydanube.client import Client
from pydanube.pipeline.run.checkpoint import Checkpoint
from pydanube.pipeline.run.preflight import check_stopped
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.source import Reset
from pydanube.pipeline.targets.mark import Mark, dead_letters
from pydanube.spark.committing import source_end
from pydanube.spark.durable import batch_numbers
from pydanube.spark.offsets import Offsets, from_json


async def plan_reset(client: Client, flow: Flow, checkpoint: Checkpoint, url: str, start: str) -> Reset:
    """Raises `PipelineRunning`, and what is wrong with the position."""
    await check_stopped(client, flow.name)
    return await flow.source.plan_reset(client, flow, url, start, reached_offsets(checkpoint))


def reached_offsets(checkpoint: Checkpoint) -> Offsets | None:
    """Where the last committed batch ends; None if there is none, or if the source is not a topic."""
    batches = batch_numbers(Path(checkpoint.location) / "commits", absent=(OSError,))
    ends = source_end(checkpoint.location, max(batches)) if batches else ""
    try:
        return from_json(json.loads(ends)[0]) if ends else None
    except (DanubeError, ValueError, LookupError):
        return None


async def reset(
    client: Client, flow: Flow, checkpoint: Checkpoint, url: str, wanted: Reset, lost: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the queries that are replaced. `lost` are those whose checkpoint no longer exists."""
    replaced = checkpoint.reset(wanted.start, lost)
    await flow.source.seek(client, wanted)
    for sink in flow.sinks:
        sink.forget(flow.url or url, replaced, flow.name)
    if flow.dead_letters is not None:
        flow.dead_letters.forget(flow.url or url, replaced, dead_letters(Mark(flow.name, "", "", 0)).key)
    return replaced


def written_again(flow: Flow, wanted: Reset) -> str:
    """What a reset does, in words, for the person who has to confirm it."""
    where = ", ".join(each.label for each in flow.targets) or "nothing that is stored"
    if wanted.again is None:
        return "; ".join([f"rows that are read again are written again to {where}", *_gone(wanted)])
    parts = []
    if wanted.again:
        parts.append(f"{wanted.again:,} rows that were already written will be written again to {where}")
    if wanted.skipped:
        parts.append(f"{wanted.skipped:,} unread rows will be skipped")
    parts = parts or ["nothing will be written again or skipped"]
    return "; ".join([*parts, *_gone(wanted)])


def _gone(wanted: Reset) -> list[str]:
    return [f"the topic no longer holds {wanted.gone:,} earlier messages"] if wanted.gone else []
