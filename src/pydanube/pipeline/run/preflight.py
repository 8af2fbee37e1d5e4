"""What is asked of the broker before Spark starts, so that a wrong name is told within a second and nothing is begun.

Changes nothing. A broker that is not needed may be away.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from pydanube.base.errors import (
    FlowInvalid,
    PipelineNotFound,
    PipelineRunning,
    SubscriptionInUse,
    SubscriptionNotFound,
    TopicNotFound,
    VerbUnknown,
)
from pydanube.client import Client
from pydanube.pipeline.query.build import topic_options
from pydanube.pipeline.spec.fields import local_path
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.sinks import TopicSink
from pydanube.pipeline.spec.source import FileSource, TopicSource
from pydanube.spark.link import Link
from pydanube.spark.options import Options
from pydanube.spark.subscription import takeover_seconds
from pydanube.spark.topics import look, offsets_at

OPEN_SECONDS = 0.5  # for a broker that is just there
PAUSE_SECONDS = 0.2
LIVE = ("starting", "running", "retrying", "stopping")
KEEPING = ("retention_seconds", "retention_bytes")  # policies that keep what all subscriptions have read


class Looked(NamedTuple):
    """A line each."""

    checked: list[str]
    notes: list[str]  # what may not be meant so


def check(
    flow: Flow, url: str, *, begun: bool, start: str | None, gone: str | None = None, running: bool = True
) -> Looked:
    """What was looked at. Raises what is wrong. `begun` says that there is a checkpoint to continue from,
    `gone` is a run that is known to have ended. Without `running`, it may run meanwhile.
    """
    found: list[str] = []
    notes: list[str] = []
    if isinstance(flow.source, FileSource):
        _check_files(flow.source)
        found.append(f"source: {flow.source.path} exists")
    places: dict[tuple[str, str | None], None] = {}
    if isinstance(flow.source, TopicSource):
        places[flow.url or url, flow.source.ca] = None
    for sink in _topic_sinks(flow):
        places[sink.url or flow.url or url, sink.ca] = None
    for place, ca in places:
        link = Link(place, ca)
        link.open(OPEN_SECONDS)
        try:
            if isinstance(flow.source, TopicSource) and (place, ca) == (flow.url or url, flow.source.ca):
                if running:
                    link.wait(check_stopped(link.client, flow.name, gone))
                found += link.wait(_check_source(link.client, flow, url, begun, start))
                if not begun and flow.source.release:
                    notes += link.wait(_told_what_goes(link.client, flow, url))
                if running and flow.source.subscription is not None:
                    found.append(link.wait(_check_free(link.client, flow, url)))
            for sink in _topic_sinks(flow):
                if (sink.url or flow.url or url, sink.ca) == (place, ca):
                    found.append(link.wait(_check_sink(link.client, sink)))
        finally:
            link.close()
    return Looked(found, notes)


def _topic_sinks(flow: Flow) -> list[TopicSink]:
    return [each for each in (*flow.sinks, flow.dead_letters) if isinstance(each, TopicSink)]


def _check_files(source: FileSource) -> None:
    path = local_path(source.path)
    if path is not None and not any(each in path for each in "*?[{") and not os.path.exists(path):
        raise FlowInvalid(f"source.files: {path} does not exist")


async def check_stopped(client: Client, name: str, gone: str | None = None) -> None:
    """Raises `PipelineRunning`."""
    try:
        found = await client.admin.pipeline(name)
    except (PipelineNotFound, VerbUnknown):
        return
    if found["state"] in LIVE and found["run"] != gone:
        raise PipelineRunning(f"{name} runs on {found['info'].get('host')}, as run {found['run']}")


async def _check_source(client: Client, flow: Flow, url: str, begun: bool, start: str | None) -> list[str]:
    source = flow.source
    assert isinstance(source, TopicSource)
    options = Options.of(topic_options(flow, url, start), streaming=True)
    states = await look(client, options, absent_ok=begun)
    if not begun:
        option = "source.start" if start is None else "the reset position"
        await offsets_at(client, states, options.starting, option)
    missing = [name for name in source.topics if name not in states]
    if missing:
        raise TopicNotFound(missing[0])
    rows = sum(end - first for each in states.values() for first, end in zip(each.firsts, each.ends, strict=True))
    return [f"source: {source.label}, {len(states)} topics with {rows:,} messages"]


async def _told_what_goes(client: Client, flow: Flow, url: str) -> list[str]:
    """Of topics that keep nothing for longer than somebody needs it: this subscription may be the first there."""
    going = []
    for name in await look(client, Options.of(topic_options(flow, url), streaming=True)):
        own = (await client.admin.describe_topic(name))["policies"]
        if not any(own.get(each) for each in KEEPING):
            below = await client.admin.policies(name.split("/")[1])
            if not any(below.get(each) for each in KEEPING):
                going.append(name)
    if not going:
        return []
    which = going[0] if len(going) == 1 else f"{going[0]} and {len(going) - 1} more topics"
    kept = " nor ".join(KEEPING)
    return [f"release: messages that this pipeline has read may be deleted from {which}, which has neither {kept}"]


async def _check_free(client: Client, flow: Flow, url: str) -> str:
    source = flow.source
    assert isinstance(source, TopicSource)
    assert source.subscription is not None
    until = client.loop.time() + await takeover_seconds(client)
    for name in await look(client, Options.of(topic_options(flow, url), streaming=True), absent_ok=True):
        while await _consumers(client, name, source.subscription):
            if client.loop.time() > until:
                raise SubscriptionInUse(f"{source.subscription!r} on {name} has a consumer now")
            await asyncio.sleep(PAUSE_SECONDS)
    return f"source: the subscription {source.subscription} is free"


async def _consumers(client: Client, topic: str, subscription: str) -> int:
    try:
        return int((await client.admin.describe_subscription(topic, subscription))["consumers"])
    except SubscriptionNotFound:
        return 0


async def _check_sink(client: Client, sink: TopicSink) -> str:
    try:
        await client.admin.describe_topic(sink.topic)
    except TopicNotFound:
        if sink.create_partitions is not None:
            return f"sink: {sink.topic} will be created, with {sink.create_partitions} partitions"
        raise
    return f"sink: {sink.topic} exists"


def needs_broker(flow: Flow) -> bool:
    return isinstance(flow.source, TopicSource) or bool(_topic_sinks(flow))
