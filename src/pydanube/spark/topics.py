"""What the driver asks the broker: which topics exist, where they begin and end, where a query starts and stops.

There is one request for each topic, whatever the number of its partitions. Ends are confirmed: nothing before them can
be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from fnmatch import fnmatchcase

from pydanube.base.errors import DataLost, NotReliable, OptionInvalid, TopicNotFound, TopicReplaced
from pydanube.client import Client
from pydanube.operations.topics import FindOffset
from pydanube.spark.broker_link import with_retries
from pydanube.spark.offsets import (
    EARLIEST_MARK,
    LATEST_MARK,
    OTHERS,
    GivenOffsets,
    GivenTopicOffsets,
    Offsets,
    TopicOffsets,
)
from pydanube.spark.options import EARLIEST, LATEST, At, Options, Position
from pydanube.spark.plan import States, TopicState

log = logging.getLogger(__name__)


# -- topics ------------------------------------------------------------------------------------------------------------


async def describe_topics(client: Client, options: Options, *, absent_ok: bool = False) -> States:
    """The topics of a query, by name. A named topic that does not exist is an error, unless it may be absent."""
    if options.pattern is not None:
        namespace = options.pattern.split("/")[1]
        records = await with_retries(lambda: client.admin.topic_records(namespace))
        kept = [each.topic for each in records if each.reliable and not each.dead_letters]
        wanted = [name for name in kept if fnmatchcase(name, options.pattern)]
        absent_ok = True
    else:
        wanted = list(options.topics)
    found = await asyncio.gather(*(_describe(client, name, absent_ok) for name in sorted(wanted)))
    return {state.name: state for state in found if state is not None}


async def _describe(client: Client, name: str, absent_ok: bool) -> TopicState | None:
    try:
        found = await with_retries(lambda: client.admin.describe_topic(name))
    except TopicNotFound:
        if absent_ok:
            return None
        raise
    if not found.reliable:
        raise NotReliable(f"{name} is not reliable, so it stores nothing to read")
    return TopicState(
        name,
        found.id,
        found.partitions,
        tuple(found.firsts),
        tuple(found.ends),
        found.bytes,
        0 if found.tiers is None else found.tiers.segments,
    )


def warn_if_none(options: Options, states: States) -> None:
    """Warns about a new query without topics, which would silently read nothing."""
    if options.pattern is not None and not states:
        log.warning("no topic matches %s yet", options.pattern)


def latest(states: States) -> Offsets:
    return {name: state.latest for name, state in states.items()}


# -- where to start and to stop ----------------------------------------------------------------------------------------


async def offsets_at(client: Client, states: States, position: Position, option: str) -> Offsets:
    """The offset of this position in each partition now."""
    if position == EARLIEST:
        return {name: state.earliest for name, state in states.items()}
    if position == LATEST:
        return latest(states)
    if isinstance(position, At):
        return {name: await _at_time(client, state, position.time) for name, state in states.items()}
    assert isinstance(position, dict)
    named = dict(position)
    others = named.pop(OTHERS, GivenTopicOffsets(None, {})).others
    if others is not None:
        named |= {name: GivenTopicOffsets(None, {}) for name in states if name not in named}
    _check_topics(states, named, option)
    return {name: _resolved(state, named[name], others, option) for name, state in states.items()}


async def snapshot(client: Client, options: Options) -> tuple[Offsets, Offsets, States]:
    """What a batch read covers: start, end and topics."""
    states = await describe_topics(client, options)
    warn_if_none(options, states)
    start = await offsets_at(client, states, options.starting, "startingOffsets")
    end = await offsets_at(client, states, options.ending, "endingOffsets")
    check_known(start, states, loss_handler(options.fail_on_data_loss))
    for name, ends in end.items():
        for number, (begin, stop) in enumerate(zip(start[name].next, ends.next, strict=True)):
            if begin > stop:
                partition = states[name].partition_name(number)
                raise OptionInvalid(f"{partition} cannot be read from {begin} to {stop}: the end is before the start")
    return start, end, states


async def offset_at_time(client: Client, partition: str, time: int) -> int:
    """The first offset of a partition with a message that was appended at that time or later."""
    return (await with_retries(lambda: client.ask(FindOffset(partition, time)))).offset


async def _at_time(client: Client, state: TopicState, time: int) -> TopicOffsets:
    partitions = map(state.partition_name, range(len(state.ends)))
    found = await asyncio.gather(*(offset_at_time(client, partition, time) for partition in partitions))
    return TopicOffsets(state.id, tuple(map(min, found, state.ends)))  # not beyond what was described


def _check_topics(states: States, given: GivenOffsets, option: str) -> None:
    for name in given:
        if name not in states:
            raise OptionInvalid(f"{option} names {name}, which this query does not read")
    for name in states:
        if name not in given:
            raise OptionInvalid(f"{option} says nothing about {name}")


def _resolved(state: TopicState, given: GivenTopicOffsets, others: int | None, option: str) -> TopicOffsets:
    if given.id not in (None, state.id):
        raise TopicReplaced(f"{option} was made for {state.name} with id {given.id}; its id is now {state.id}")
    known = range(len(state.ends))
    wanted = given.next if others is None else dict.fromkeys(known, others) | given.next
    if sorted(wanted) != list(known):
        raise OptionInvalid(f"{option} must name each partition of {state.name}, 0 to {known[-1]}, and no other")
    marks = {EARLIEST_MARK: state.firsts, LATEST_MARK: state.ends}
    found = tuple(marks[wanted[each]][each] if wanted[each] in marks else wanted[each] for each in known)
    for number, offset, end in zip(known, found, state.ends, strict=True):
        if offset > end:
            raise OptionInvalid(f"{option}: {state.partition_name(number)} ends at {end}, before {offset}")
    return TopicOffsets(state.id, found)


# -- lost messages -----------------------------------------------------------------------------------------------------


def loss_handler(fail: bool) -> Callable[[str], None]:
    """What to do about lost messages: raise an error, or log a warning and continue without them."""

    def lost(message: str) -> None:
        if fail:
            raise DataLost(message)
        log.warning("%s; the query continues without the lost messages", message)

    return lost


def check_known(known: Offsets, states: States, lost: Callable[[str], None]) -> None:
    """Checks that the topics are those the query read before, and have everything that it still has to read."""
    for name, before in known.items():
        state = states.get(name)
        if state is None:
            lost(f"{name} no longer exists, or is not among the topics of the query")
            continue
        check_id(name, before.id, state.id)
        for number, offset in enumerate(before.next):
            first, end, partition = state.firsts[number], state.ends[number], state.partition_name(number)
            if offset < first:
                lost(f"offsets {offset} to {first - 1} of {partition} were deleted before they were read")
            elif offset > end:
                lost(f"{partition} ends at {end}, but the query has read up to {offset}")


def check_id(name: str, before: int, now: int) -> None:
    if before != now:
        raise TopicReplaced(f"{name} had id {before} when the query read it, and has id {now} now")
