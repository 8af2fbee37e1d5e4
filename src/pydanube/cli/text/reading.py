"""What is stored in a topic now, and whether a subscription has come to the end of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import click

from pydanube.base.errors import PartitionMissing
from pydanube.cli.shell.values import many
from pydanube.client import Client, Consumer, MessageBatch
from pydanube.client.client import TopicInfo
from pydanube.client.reader import Place, places_of


async def place_in(client: Client, topic: str, partition: int | None, *places: Any) -> TopicInfo:
    """The topic; raises if it has no such partition, or if an offset does not say of which one it is."""
    found = await client.topic(topic)
    if partition is not None and partition >= found.partitions:
        had = (
            f"it has {many(found.partitions, 'partition')}, from 0 on" if found.partitions else "it is not partitioned"
        )
        raise PartitionMissing(f"{topic} has no partition {partition}: {had}")
    if partition is None and found.partitions > 1 and any(type(place) is int for place in places):
        raise click.UsageError(f"an offset belongs to one partition; name it, as in {topic}-part-0")
    return found


async def stored(client: Client, places: list[tuple[Place, int]]) -> AsyncIterator[MessageBatch]:
    """Partition after partition, each up to its end; a gap before the end is no reason to wait."""
    for place, end in places:
        while place.offset < end and (batches := await place.read(client, end)):
            for batch in batches:
                yield batch


async def bounded_places(
    client: Client, topic: str, start: Any, partition: int | None, end: Any = "latest"
) -> list[tuple[Place, int]]:
    """Where to begin in each partition, and where it ends: now, or at `end` if that is before."""
    found: list[tuple[Place, int]] = []
    stops = {} if end == "latest" else {p.name: p.offset for p in await places_of(client, topic, end, partition)}
    for place in await places_of(client, topic, start, partition):
        first, now = await client.bounds(place.name)
        place.offset = max(place.offset, first)
        found.append((place, min(now, stops.get(place.name, now))))
    return found


def how_many(places: list[tuple[Place, int]]) -> int:
    """About: offsets may have gaps."""
    return sum(max(0, end - place.offset) for place, end in places)


def nothing_comes(consumer: Consumer, found: dict[str, Any], held: int = 0) -> bool:
    """Whether all that is not done is delayed, blocked, or given out: to others, or as the `held` messages that this
    consumer has received.

    What is in flight and was not received is on its way, unless there are others who may have it.
    """
    alone = found["consumers"] <= len(consumer.partitions)
    left = found["backlog"] - found["in_flight"] - found["delayed"] - found["stopped"]
    return left <= 0 and (not alone or found["in_flight"] <= held)
