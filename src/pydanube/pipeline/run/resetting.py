"""Beginning a pipeline again, from another place, on purpose: its checkpoint, its subscription, what topics know of it.

First the checkpoint, durably; what follows can be repeated. Tables learn of it with the first batch of the new query.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydanube.base.errors import DanubeError, FlowInvalid, SubscriptionNotFound
from pydanube.client import Client
from pydanube.pipeline.query.build import topic_options
from pydanube.pipeline.query.progress import behind
from pydanube.pipeline.run.checkpoint import Checkpoint
from pydanube.pipeline.run.preflight import check_stopped
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.sinks import TopicSink
from pydanube.pipeline.spec.source import TopicSource
from pydanube.pipeline.targets.record import Mark, dead_letters
from pydanube.spark.committing import source_end
from pydanube.spark.link import link_to
from pydanube.spark.offsets import EARLIEST_MARK, OTHERS, Offsets, TopicOffsets, from_json, to_json
from pydanube.spark.options import EARLIEST, Options
from pydanube.spark.plan import States, TopicState
from pydanube.spark.topics import look, offsets_at


@dataclass(frozen=True, slots=True)
class Reset:
    """What it would do. Without a topic as source, or a batch in the checkpoint, how many rows is not known."""

    start: str  # for the checkpoint: where that is now, so that it stays what was said until it is run
    again: int | None  # rows that were written, and will be once more
    skipped: int | None  # rows that were not read, and will not be
    gone: int  # messages before the beginning that no topic has any more
    states: States
    offsets: Offsets


async def plan_reset(client: Client, flow: Flow, checkpoint: Checkpoint, url: str, start: str) -> Reset:
    """Raises `PipelineRunning`, and what is wrong with the place."""
    await check_stopped(client, flow.name)
    if not isinstance(flow.source, TopicSource):
        if start != EARLIEST:
            raise FlowInvalid(f"--to: {flow.source.label} can only be read again from its beginning: use earliest")
        return Reset(start, None, None, 0, {}, {})
    options = Options.of(topic_options(flow, url, start), streaming=True)
    states = await look(client, options)
    offsets = await offsets_at(client, states, options.starting, "--to")
    resolved = json.dumps({**to_json(offsets), OTHERS: EARLIEST_MARK})
    gone = sum(
        first
        for name, state in states.items()
        for first, offset in zip(state.firsts, offsets[name].next, strict=True)
        if offset <= first
    )
    stood = where_it_stood(checkpoint)
    if stood is None:
        return Reset(resolved, None, None, gone, states, offsets)
    unread = {name: _unread(state, stood.get(name)) for name, state in states.items()}
    return Reset(resolved, behind(offsets, stood), behind(unread, offsets), gone, states, offsets)


def _unread(state: TopicState, stood: TopicOffsets | None) -> TopicOffsets:
    """Where it would have gone on: what is new to it begins at its first offset."""
    known = () if stood is None or stood.id != state.id else stood.next
    return TopicOffsets(state.id, (*known, *state.firsts[len(known) :]))


def where_it_stood(checkpoint: Checkpoint) -> Offsets | None:
    """The end of the last batch that was committed; None if there is none, or it is no topic's."""
    try:
        batches = [
            int(each.name) for each in (Path(checkpoint.location) / "commits").iterdir() if each.name.isdecimal()
        ]
    except OSError:
        return None
    ends = source_end(checkpoint.location, max(batches)) if batches else ""
    try:
        return from_json(json.loads(ends)[0]) if ends else None
    except (DanubeError, ValueError, LookupError):
        return None


async def reset(
    client: Client, flow: Flow, checkpoint: Checkpoint, url: str, wanted: Reset, lost: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the queries that are replaced; `lost` are those whose checkpoint is gone."""
    replaced = checkpoint.reset(wanted.start, lost)
    source = flow.source
    if isinstance(source, TopicSource) and source.subscription is not None:
        for name, state in wanted.states.items():
            for number, offset in enumerate(wanted.offsets[name].next):
                with suppress(SubscriptionNotFound):
                    await client.admin.seek_subscription(state.place(number), source.subscription, offset)
    writer = Mark(flow.name, "", "", 0, "")
    for sink in flow.sinks:
        if isinstance(sink, TopicSink):
            _forget(sink, flow, url, replaced, writer)
    if isinstance(flow.dead_letters, TopicSink):
        _forget(flow.dead_letters, flow, url, replaced, dead_letters(writer))
    return replaced


def _forget(sink: TopicSink, flow: Flow, url: str, queries: tuple[str, ...], writer: Mark) -> None:
    link = link_to(sink.url or flow.url or url, sink.ca)
    for query in queries:
        fields: dict[str, Any] = {"query": query, "target": sink.topic, "name": f"pipeline {writer.key}"}
        link.wait(link.client.ask("sink.forget", fields))


def written_again(flow: Flow, wanted: Reset) -> str:
    """In words, for whoever is asked whether it is to be done."""
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
