"""What is asked of the broker about the topics of a pipeline: before it starts, and when it is reset."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from pydanube.base.errors import SubscriptionInUse, SubscriptionNotFound, TopicNotFound
from pydanube.client import Client
from pydanube.pipeline.spec.context import Preflight
from pydanube.pipeline.spec.source import Reset
from pydanube.spark.offsets import EARLIEST_MARK, OTHERS, Offsets, TopicOffsets, rows_between, to_json
from pydanube.spark.options import Options
from pydanube.spark.plan import TopicState
from pydanube.spark.subscription import takeover_seconds
from pydanube.spark.topics import describe_topics, offsets_at

if TYPE_CHECKING:
    from pydanube.pipeline.sources.topic import TopicSource

PAUSE_SECONDS = 0.2
RETENTION = ("retention_seconds", "retention_bytes")  # policies that keep what all subscriptions have read


async def check(source: TopicSource, client: Client, asked: Preflight) -> None:
    """Whether the topics exist, the start lies in them, and the subscription is free."""
    options = Options.of(source.options(asked.flow, asked.url, asked.start), streaming=True)
    states = await describe_topics(client, options, absent_ok=asked.begun)
    if not asked.begun:
        option = "source.start" if asked.start is None else "the reset position"
        await offsets_at(client, states, options.starting, option)
    missing = [name for name in source.topics if name not in states]
    if missing:
        raise TopicNotFound(missing[0])
    rows = sum(end - first for each in states.values() for first, end in zip(each.firsts, each.ends, strict=True))
    asked.checked.append(f"source: {source.label}, {len(states)} topics with {rows:,} messages")
    if not asked.begun and source.release:
        asked.warnings += await _released(client, list(states))
    if asked.running and source.subscription is not None:
        await _check_free(client, list(states), source.subscription)
        asked.checked.append(f"source: the subscription {source.subscription} is free")


async def _released(client: Client, topics: list[str]) -> list[str]:
    """A warning about topics that keep messages only for subscriptions: this one may be their first."""
    going = []
    for name in topics:
        own = (await client.admin.describe_topic(name)).policies
        if not any(own.get(each) for each in RETENTION):
            below = await client.admin.policies(name.split("/")[1])
            if not any(below.get(each) for each in RETENTION):
                going.append(name)
    if not going:
        return []
    which = going[0] if len(going) == 1 else f"{going[0]} and {len(going) - 1} more topics"
    neither = " nor ".join(RETENTION)
    return [f"release: messages that this pipeline has read may be deleted from {which}, which has neither {neither}"]


async def _check_free(client: Client, topics: list[str], subscription: str) -> None:
    until = client.loop.time() + await takeover_seconds(client)
    for name in topics:
        while await _consumers(client, name, subscription):
            if client.loop.time() > until:
                raise SubscriptionInUse(f"{subscription!r} on {name} has a consumer now")
            await asyncio.sleep(PAUSE_SECONDS)


async def _consumers(client: Client, topic: str, subscription: str) -> int:
    try:
        return (await client.admin.describe_subscription(topic, subscription)).consumers
    except SubscriptionNotFound:
        return 0


async def plan_reset(client: Client, options: Options, reached: Offsets | None) -> Reset:
    """`options` begin where the pipeline is to start over."""
    states = await describe_topics(client, options)
    offsets = await offsets_at(client, states, options.starting, "--to")
    start = json.dumps({**to_json(offsets), OTHERS: EARLIEST_MARK})
    gone = sum(
        first
        for name, state in states.items()
        for first, offset in zip(state.firsts, offsets[name].next, strict=True)
        if offset <= first
    )
    seeks = [
        (state.partition_name(number), offset)
        for name, state in states.items()
        for number, offset in enumerate(offsets[name].next)
    ]
    if reached is None:
        return Reset(start, gone=gone, seeks=seeks)
    unread = {name: _unread(state, reached.get(name)) for name, state in states.items()}
    again, skipped = rows_between(offsets, reached), rows_between(unread, offsets)
    return Reset(start, again, skipped, gone, seeks)


def _unread(state: TopicState, reached: TopicOffsets | None) -> TopicOffsets:
    """Where the pipeline would have continued. Topics and partitions that are new to it begin at their first offset."""
    known = () if reached is None or reached.id != state.id else reached.next
    return TopicOffsets(state.id, (*known, *state.firsts[len(known) :]))


async def seek(client: Client, subscription: str, wanted: Reset) -> None:
    for partition, offset in wanted.seeks:
        with suppress(SubscriptionNotFound):
            await client.admin.seek_subscription(partition, subscription, offset)
