"""What the driver asks the broker about object storage: which segments have the offsets of a plan, and where they are.

The answer is a hint. If it is out of date, tasks read through the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from pydanube.base.errors import DanubeError, NotAllowed, VerbUnknown
from pydanube.base.limits import MIB
from pydanube.client import Client
from pydanube.operations.storage import ListSealed, LocateObjects, SealedSegment
from pydanube.spark.broker_link import with_retries
from pydanube.spark.options import OFF, Options
from pydanube.spark.plan import ObjectLocation, Range, TopicState

RANGE_BYTES_MIN = 1 * MIB  # reading less from the broker is faster than opening an object
SEGMENTS_MAX = 100_000  # in one plan; the rest is read through the broker
ASKED_AT_ONCE = 16  # partitions
SegmentsByPartition = Mapping[str, Sequence[SealedSegment]]


async def find_segments(
    client: Client, options: Options, ranges: Sequence[Range], states: Mapping[str, TopicState]
) -> tuple[SegmentsByPartition, ObjectLocation | None]:
    """Segments by the name of their partition, in offset order; none if executors cannot read them."""
    worth = [each for each in ranges if _is_worth(each, states[each.topic])]
    if not worth or options.objects_url == OFF:
        return {}, None
    try:
        location = await _object_location(client, options)
        if location is None:
            return {}, None
        turns, room = asyncio.Semaphore(ASKED_AT_ONCE), [SEGMENTS_MAX]
        found = await asyncio.gather(*(_segments_of(client, each, turns, room) for each in worth))
    except (VerbUnknown, NotAllowed):  # an older broker, or a caller who may not read the location directly
        return {}, None
    return {each.name: segments for each, segments in zip(worth, found, strict=True) if segments}, location


def _is_worth(wanted: Range, state: TopicState) -> bool:
    return bool(state.segments) and wanted.messages * state.message_bytes >= RANGE_BYTES_MIN


async def _object_location(client: Client, options: Options) -> ObjectLocation | None:
    if options.objects_url is not None:
        return ObjectLocation(options.objects_url)
    found = await with_retries(lambda: client.ask(LocateObjects()))
    return None if found.url is None else ObjectLocation(found.url, tuple(sorted(found.options.items())))


async def _segments_of(client: Client, wanted: Range, turns: asyncio.Semaphore, room: list[int]) -> list[SealedSegment]:
    found: list[SealedSegment] = []
    start, more = wanted.begin, True
    async with turns:
        while more and room[0] > 0:
            request = ListSealed(wanted.name, start=start, end=wanted.end)
            try:
                answer = await with_retries(partial(client.ask, request))
            except VerbUnknown:
                raise
            except DanubeError:
                break  # the task that reads it gets the error
            listed = answer.segments
            found += [each for each in listed if each.first >= start or not found]
            room[0] -= len(listed)
            more = answer.more and bool(listed)
            start = max(start, listed[-1].last + 1) if listed else start
    return found
