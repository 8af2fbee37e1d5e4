"""How far a pipeline has come by what its targets remember: for one whose checkpoint is lost, or not to be used.

Every target has the mark of the last batch that it took, with where the batch's input ended. Nothing is changed here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydanube.base.errors import DanubeError, FlowInvalid, TargetRefused
from pydanube.client import Client
from pydanube.pipeline.flow import Flow
from pydanube.pipeline.late import may_drop
from pydanube.pipeline.spec_sinks import IcebergSink, Target, TopicSink
from pydanube.pipeline.spec_source import TopicSource
from pydanube.pipeline.targets.record import Mark, dead_letters
from pydanube.spark.offsets import from_json, to_json
from pydanube.spark.options import whole_name

TABLES = "tables"  # the place of a reset


class Remembered(NamedTuple):
    start: str  # offsets, as a reset takes them
    queries: tuple[str, ...]  # that wrote to the targets
    notes: tuple[str, ...]  # what is not as if the checkpoint were there, in words


async def where_targets_stand(client: Client, flow: Flow, url: str) -> Remembered:
    """Raises `FlowInvalid` where they do not agree, or do not know."""
    if not isinstance(flow.source, TopicSource):
        raise FlowInvalid(f"--to {TABLES}: {flow.source.label} has no offsets that targets could remember")
    marks = {each.label: await _mark(client, flow, each, url) for each in flow.targets}
    found = [each for each in marks.values() if each is not None]
    letters = None if flow.dead_letters is None else await _mark(client, flow, flow.dead_letters, url, dead=True)
    if not found:
        raise FlowInvalid(f"--to {TABLES}: no target remembers a batch of {flow.name}; say earliest")
    if len({(each.query, each.batch) for each in found}) > 1:
        told = "; ".join(f"{label} has batch {each.batch}" for label, each in marks.items() if each is not None)
        raise FlowInvalid(
            f"--to {TABLES}: targets do not stand at the same batch: {told}; begin at offsets of your choice, and take "
            "away from the others what they would get twice"
        )
    notes = []
    if letters is not None and letters.batch > found[0].batch:
        notes.append("dead letters of batches in which nothing else was written come again")
    if may_drop(flow.transforms, "append"):
        notes.append("what it remembered for windows and duplicates is gone")
    queries = tuple(dict.fromkeys(each.query for each in (*found, *([letters] if letters is not None else []))))
    return Remembered(_offsets(flow, found), queries, tuple(notes))


def _offsets(flow: Flow, marks: Sequence[Mark]) -> str:
    source = marks[0].source
    try:
        offsets = from_json(json.loads(source)[0])
    except (DanubeError, ValueError, LookupError, TypeError):
        raise FlowInvalid(
            f"--to {TABLES}: batch {marks[0].batch} of {flow.name} does not say where its input ended: {source[:100]!r}"
        ) from None
    return json.dumps(to_json({name: each._replace(began=None) for name, each in offsets.items()}))


async def _mark(client: Client, flow: Flow, sink: Target, url: str, *, dead: bool = False) -> Mark | None:
    """What a target remembers of the pipeline; asked with a mark that nobody has."""
    now = Mark(flow.name, "", "", 0, "?")
    now = dead_letters(now) if dead else now
    if isinstance(sink, TopicSink):
        return await _of_topic(client, sink, now)
    spec = sink.spec(url)
    if isinstance(sink, IcebergSink):
        from pydanube.pipeline.targets.iceberg import IcebergTarget, remembered

        place = IcebergTarget.of(spec).place
        with place.told():
            try:
                return remembered(place.load(), now)
            except TargetRefused:  # there is no such table
                return None
    return _of_delta(spec, now) if sink.kind == "delta" else _of_parquet(spec, now)


def _of_delta(spec: dict[str, Any], now: Mark) -> Mark | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    from pydanube.pipeline.targets.delta import _last
    from pydanube.pipeline.targets.folder import delta_place

    uri, options = delta_place(spec["uri"])
    try:
        return _last(DeltaTable(uri, storage_options=dict(options)), now, ())
    except TableNotFoundError:
        return None


def _of_parquet(spec: dict[str, Any], now: Mark) -> Mark | None:
    from pydanube.pipeline.targets.folder import folder_at
    from pydanube.pipeline.targets.parquet import _Decisions, _own

    last = _Decisions(folder_at(spec["uri"]), _own(now), f"parquet:{spec['uri']}").last()
    return None if last is None else last.mark


async def _of_topic(client: Client, sink: TopicSink, now: Mark) -> Mark | None:
    """The newest of those that have written there under the pipeline's name."""
    wanted = (whole_name(sink.topic), f"pipeline {now.key}")
    found = (await client.ask("sink.list", {}))["sinks"]
    own = [each for each in found if (each["target"], each["name"]) == wanted]
    last = max(own, key=lambda each: int(each["committed"]), default=None)
    if last is None:
        return None
    return Mark(now.pipeline, str(last["query"]), str(last["run"]), int(last["batch"]), str(last["source"]), now.dead)
