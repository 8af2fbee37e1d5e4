"""The messages that a topic stores now, and whether a subscription has reached its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import click

from pydanube.base.errors import PartitionMissing
from pydanube.cli.shell.values import many
from pydanube.client import Client, Consumer, MessageBatch
from pydanube.client.client import TopicInfo
from pydanube.client.reader import PartitionPosition, partition_positions
from pydanube.operations.subscriptions import SubscriptionDescription


async def find_topic(client: Client, topic: str, partition: int | None, *positions: Any) -> TopicInfo:
    """The topic. Raises if it has no such partition, or if a position is an offset but the partition is not known."""
    found = await client.topic(topic)
    if partition is not None and partition >= found.partitions:
        had = (
            f"it has {many(found.partitions, 'partition')}, from 0 on" if found.partitions else "it is not partitioned"
        )
        raise PartitionMissing(f"{topic} has no partition {partition}: {had}")
    if partition is None and found.partitions > 1 and any(type(each) is int for each in positions):
        raise click.UsageError(f"an offset belongs to one partition; name it, as in {topic}-part-0")
    return found


async def stored_batches(client: Client, ranges: list[tuple[PartitionPosition, int]]) -> AsyncIterator[MessageBatch]:
    """Yields the batches of each partition, one partition after the other, up to its end. Never waits for messages."""
    for start, end in ranges:
        while start.offset < end and (batches := await start.read(client, end)):
            for batch in batches:
                yield batch


async def stored_ranges(
    client: Client, topic: str, start: Any, partition: int | None, end: Any = "latest"
) -> list[tuple[PartitionPosition, int]]:
    """The start of each partition, and its end: the current end of the partition, or `end` if that is lower."""
    found: list[tuple[PartitionPosition, int]] = []
    stops = (
        {}
        if end == "latest"
        else {each.name: each.offset for each in await partition_positions(client, topic, end, partition)}
    )
    for position in await partition_positions(client, topic, start, partition):
        first, now = await client.bounds(position.name)
        position.offset = max(position.offset, first)
        found.append((position, min(now, stops.get(position.name, now))))
    return found


def count_messages(ranges: list[tuple[PartitionPosition, int]]) -> int:
    """The approximate number of messages: offsets may have gaps."""
    return sum(max(0, end - start.offset) for start, end in ranges)


def nothing_will_arrive(consumer: Consumer, found: SubscriptionDescription, held: int = 0) -> bool:
    """Whether every unfinished message is delayed, blocked, with other consumers, or one of the `held` messages that
    this consumer has received.

    If this is the only consumer, messages that are in flight but not received yet are still on their way to it.
    """
    alone = found.consumers <= len(consumer.partitions)
    left = found.backlog - found.in_flight - found.delayed - found.stopped
    return left <= 0 and (not alone or found.in_flight <= held)
