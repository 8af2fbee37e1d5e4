"""What the driver asks the broker: which topics there are, where they begin and end, where a query starts and stops.

One request a topic, whatever the number of its partitions. Ends are confirmed: nothing below them can be taken back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from fnmatch import fnmatchcase

from pydanube.base.errors import DataLost, NotReliable, OptionInvalid, TopicNotFound, TopicReplaced
from pydanube.client import Client
from pydanube.spark.link import patiently
from pydanube.spark.offsets import EARLIEST_MARK, LATEST_MARK, OTHERS, Offsets, TopicOffsets, Wish, Wishes
from pydanube.spark.options import EARLIEST, LATEST, At, Options, Position
from pydanube.spark.plan import States, TopicState, shares

log = logging.getLogger(__name__)
SIZES_BYTES = 8 * 1024 * 1024  # looked at in one request
Place = tuple[str, int]  # topic and partition


# -- what there is -----------------------------------------------------------------------------------------------------


async def look(client: Client, options: Options, *, absent_ok: bool = False) -> States:
    """The topics that are asked for, by name. One that is named and not there is an error, unless it may be absent."""
    if options.pattern is not None:
        namespace = options.pattern.split("/")[1]
        records = await patiently(lambda: client.admin.topic_records(namespace))
        names = [str(each["topic"]) for each in records if each["reliable"]]
        wanted, absent_ok = [name for name in names if fnmatchcase(name, options.pattern)], True
    else:
        wanted = list(options.topics)
    found = await asyncio.gather(*(_describe(client, name, absent_ok) for name in sorted(wanted)))
    return {state.name: state for state in found if state is not None}


async def _describe(client: Client, name: str, absent_ok: bool) -> TopicState | None:
    try:
        found = await patiently(lambda: client.admin.describe_topic(name))
    except TopicNotFound:
        if absent_ok:
            return None
        raise
    if not found["reliable"]:
        raise NotReliable(f"{name} keeps nothing that could be read")
    return TopicState(
        name,
        int(found["id"]),
        int(found["partitions"]),
        tuple(map(int, found["firsts"])),
        tuple(map(int, found["ends"])),
        int(found["bytes"]),
        int((found.get("tiers") or {}).get("segments", 0)),
    )


def warn_if_none(options: Options, states: States) -> None:
    """For a query that begins: it would read nothing, without a word."""
    if options.pattern is not None and not states:
        log.warning("no topic matches %s yet", options.pattern)


def latest(states: States) -> Offsets:
    return {name: state.latest for name, state in states.items()}


# -- where to start and to stop ----------------------------------------------------------------------------------------


async def offsets_at(client: Client, states: States, position: Position, option: str) -> Offsets:
    """Where that is in each partition now."""
    if position == EARLIEST:
        return {name: state.earliest for name, state in states.items()}
    if position == LATEST:
        return latest(states)
    if isinstance(position, At):
        return {name: await _at_time(client, state, position.time) for name, state in states.items()}
    assert isinstance(position, dict)
    named = dict(position)
    others = named.pop(OTHERS, Wish(None, {})).others
    if others is not None:
        named |= {name: Wish(None, {}) for name in states if name not in named}
    _check_topics(states, named, option)
    return {name: _wished(state, named[name], others, option) for name, state in states.items()}


async def snapshot(client: Client, options: Options) -> tuple[Offsets, Offsets, States]:
    """What a batch read is of: from where to where, of which topics."""
    states = await look(client, options)
    warn_if_none(options, states)
    start = await offsets_at(client, states, options.starting, "startingOffsets")
    end = await offsets_at(client, states, options.ending, "endingOffsets")
    check_known(start, states, losses(options.fail_on_data_loss))
    for name, ends in end.items():
        for number, (begin, stop) in enumerate(zip(start[name].next, ends.next, strict=True)):
            if begin > stop:
                place = states[name].place(number)
                raise OptionInvalid(f"{place} would be read from {begin} to {stop}: the end lies before the start")
    return start, end, states


async def _at_time(client: Client, state: TopicState, time: int) -> TopicOffsets:
    async def ask(number: int) -> int:
        fields = {"topic": state.place(number), "time": time}
        return int((await patiently(lambda: client.ask("offset_of_time", fields)))["offset"])

    found = await asyncio.gather(*(ask(number) for number in range(len(state.ends))))
    return TopicOffsets(state.id, tuple(map(min, found, state.ends)))  # what came since was not there yet


def _check_topics(states: States, wishes: Wishes, option: str) -> None:
    for name in wishes:
        if name not in states:
            raise OptionInvalid(f"{option} names {name}, which is not read here")
    for name in states:
        if name not in wishes:
            raise OptionInvalid(f"{option} says nothing about {name}")


def _wished(state: TopicState, wish: Wish, others: int | None, option: str) -> TopicOffsets:
    if wish.id not in (None, state.id):
        raise TopicReplaced(f"{option} is about {state.name} with id {wish.id}; it has id {state.id} now")
    known = range(len(state.ends))
    wanted = wish.next if others is None else dict.fromkeys(known, others) | wish.next
    if sorted(wanted) != list(known):
        raise OptionInvalid(f"{option} must name each partition of {state.name}, 0 to {known[-1]}, and no other")
    marks = {EARLIEST_MARK: state.firsts, LATEST_MARK: state.ends}
    found = tuple(marks[wanted[each]][each] if wanted[each] in marks else wanted[each] for each in known)
    for number, offset, end in zip(known, found, state.ends, strict=True):
        if offset > end:
            raise OptionInvalid(f"{option}: {state.place(number)} ends at {end}, before {offset}")
    return TopicOffsets(state.id, found)


# -- what was lost -----------------------------------------------------------------------------------------------------


def losses(fail: bool) -> Callable[[str], None]:
    """What to do about messages that are gone: an error, or a warning if the query goes on without them."""

    def lost(message: str) -> None:
        if fail:
            raise DataLost(message)
        log.warning("%s; the query goes on without what is gone", message)

    return lost


def check_known(known: Offsets, states: States, lost: Callable[[str], None]) -> None:
    """That the topics are those the query read before, with all that it has still to read."""
    for name, before in known.items():
        state = states.get(name)
        if state is None:
            lost(f"{name} is not there any more, or not among the topics of the query")
            continue
        check_id(name, before.id, state.id)
        for number, offset in enumerate(before.next):
            first, end = state.firsts[number], state.ends[number]
            if offset < first:
                lost(f"offsets {offset} to {first - 1} of {state.place(number)} were deleted before they were read")
            elif offset > end:
                lost(f"{state.place(number)} ends at {end}, and the query has read to {offset}")


def check_id(name: str, before: int, now: int) -> None:
    if before != now:
        raise TopicReplaced(f"{name} had id {before} when the query read it, and has id {now} now")


# -- how far one trigger goes ------------------------------------------------------------------------------------------


class Limits:
    """The next offsets after `start`, within a number of records and of bytes. None is no limit."""

    def __init__(self, client: Client, states: States, start: Offsets, end: Offsets) -> None:
        self._client = client
        self._states = states
        self._ends = {(name, number): stop for name, each in end.items() for number, stop in enumerate(each.next)}
        self._begins = {place: self._begin(start, place) for place in self._ends}
        self._turn = sum(self._begins.values())  # grows with what was read, so that all have their turn

    def _begin(self, start: Offsets, place: Place) -> int:
        name, number = place
        known = start.get(name)
        if known is not None and number < len(known.next):
            first = self._states[name].firsts[number]
            return max(known.next[number], min(first, self._ends[place]))
        return self._states[name].firsts[number]

    async def within(self, records: int | None, bytes: int | None) -> Offsets:
        if records is not None:
            await self._by_records(records)
        if bytes is not None:
            await self._by_bytes(bytes)
        found: dict[str, dict[int, int]] = {}
        for (name, number), stop in self._ends.items():
            found.setdefault(name, {})[number] = stop
        return {name: TopicOffsets(self._states[name].id, tuple(each.values())) for name, each in found.items()}

    async def _by_records(self, limit: int) -> None:
        lags = self._lags()
        if sum(lags.values()) <= limit:
            return
        waiting = [place for place, lag in lags.items() if lag]
        firsts = await asyncio.gather(*map(self._first_from, waiting))  # offsets that were never used count for nothing
        self._begins |= dict(zip(waiting, firsts, strict=True))
        lags = self._lags()
        granted = shares(list(lags.values()), limit, self._turn)
        self._ends = {place: self._begins[place] + share for place, share in zip(lags, granted, strict=True)}

    def _lags(self) -> dict[Place, int]:
        return {place: max(0, end - self._begins[place]) for place, end in self._ends.items()}

    async def _first_from(self, place: Place) -> int:
        found = await self._sizes(place, self._begins[place], 1)
        return min(max(self._begins[place], found[0][0]), self._ends[place]) if found else self._ends[place]

    async def _by_bytes(self, limit: int) -> None:
        lags = self._lags()
        waiting = [place for place, lag in lags.items() if lag]
        first = self._turn % len(waiting) if waiting else 0
        ends = {place: self._begins[place] for place in self._ends if lags[place]}
        left, lag_left = limit, sum(lags.values())
        for place in waiting[first:] + waiting[:first]:
            share = left * lags[place] // lag_left
            ends[place], used = await self._end_by_bytes(place, share)
            left, lag_left = left - used, lag_left - lags[place]
        if waiting and all(ends[place] == self._begins[place] for place in waiting):
            ends[waiting[first]] += 1  # one message is larger than the limit: it goes alone
        self._ends |= ends

    async def _end_by_bytes(self, place: Place, budget: int) -> tuple[int, int]:
        """How far so many bytes go, and how many of them it takes. Messages of one batch count alike."""
        offset, stop, used = self._begins[place], self._ends[place], 0
        while offset < stop:
            batches = await self._sizes(place, offset, min(SIZES_BYTES, max(1, budget - used)))
            if not batches:
                return stop, used
            for base, count, size in batches:
                first, end = max(offset, base), min(base + count, stop)
                if end <= first:
                    offset = max(offset, end)
                    continue
                if used + -(-size * (end - first) // count) > budget:
                    fitting = min(end - first, max(0, budget - used) * count // size)
                    return (first + fitting if fitting else offset), used + -(-size * fitting // count)
                used += -(-size * (end - first) // count)
                offset = end
            if batches[-1][0] >= stop:
                return stop, used
        return stop, used

    async def _sizes(self, place: Place, offset: int, bytes_max: int) -> list[list[int]]:
        name = self._states[place[0]].place(place[1])
        fields = {"topic": name, "offset": offset, "bytes_max": bytes_max}
        found = await patiently(lambda: self._client.ask("sizes", fields))
        return [list(map(int, each)) for each in found["batches"]]
