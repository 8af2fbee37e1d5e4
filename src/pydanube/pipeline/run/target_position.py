"""The position of a pipeline according to its targets, for a pipeline whose checkpoint is lost or damaged.

Every target has the mark of the last batch that it took, which says where the batch's input ended. Changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import NamedTuple

from pydanube.base.errors import DanubeError, FlowInvalid
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.late import may_drop
from pydanube.pipeline.spec.plan import target_of
from pydanube.pipeline.spec.sinks import Sink
from pydanube.pipeline.targets.mark import Mark, dead_letters
from pydanube.spark.offsets import from_json, to_json

TABLES = "tables"  # the position to reset to


class TargetPosition(NamedTuple):
    start: str  # offsets, in the format of a reset
    queries: tuple[str, ...]  # the queries that wrote to the targets
    differences: tuple[str, ...]  # what differs from a pipeline with its checkpoint, in words


async def position_of_targets(flow: Flow, url: str) -> TargetPosition:
    """Raises `FlowInvalid` if targets are at different positions, or do not know theirs."""
    if not flow.source.from_topics:
        raise FlowInvalid(f"--to {TABLES}: {flow.source.label} has no offsets for targets to remember")
    marks = {each.label: await _mark(flow, each, url) for each in flow.targets}
    found = [each for each in marks.values() if each is not None]
    letters = None if flow.dead_letters is None else await _mark(flow, flow.dead_letters, url, dead=True)
    if not found:
        raise FlowInvalid(f"--to {TABLES}: no target remembers a batch of {flow.name}; use earliest")
    if len(found) < len(marks) or len({(each.query, each.batch) for each in found}) > 1:
        positions = "; ".join(
            f"{label} has {'none' if each is None else f'batch {each.batch}'}" for label, each in marks.items()
        )
        raise FlowInvalid(
            f"--to {TABLES}: targets are not at the same batch: {positions}; start at offsets of your choice, and "
            "delete from the others what they would get twice"
        )
    differences = []
    if letters is not None and letters.batch > found[0].batch:
        differences.append("dead letters of batches in which nothing else was written are repeated")
    if may_drop(flow.transforms, "append"):
        differences.append("the state of windows and duplicates is lost")
    queries = tuple(dict.fromkeys(each.query for each in (*found, *([letters] if letters is not None else []))))
    return TargetPosition(_offsets(flow, found), queries, tuple(differences))


def _offsets(flow: Flow, marks: Sequence[Mark]) -> str:
    source = marks[0].source
    try:
        offsets = from_json(json.loads(source)[0])
    except (DanubeError, ValueError, LookupError, TypeError):
        raise FlowInvalid(
            f"--to {TABLES}: batch {marks[0].batch} of {flow.name} does not say where its input ended: {source[:100]!r}"
        ) from None
    return json.dumps(to_json({name: each._replace(began=None) for name, each in offsets.items()}))


async def _mark(flow: Flow, sink: Sink, url: str, *, dead: bool = False) -> Mark | None:
    """What a target remembers of the pipeline. Runs in a thread, with a mark that no batch has."""
    now = Mark(flow.name, "", "", 0, "?")
    target = target_of(sink.spec(flow.url or url))
    return await asyncio.to_thread(target.remembered, dead_letters(now) if dead else now)
