"""How far one trigger goes: within a number of records and of bytes, in the order in which messages were appended.

Partitions and topics whose histories lie apart are read as they came to be, the oldest first. Sharing a trigger out by
lag would mix their times, and a watermark would pass everything that the slower ones still have.
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from pydanube.base.limits import MIB, SECOND
from pydanube.client import Client
from pydanube.spark.broker_link import with_retries
from pydanube.spark.offsets import Offsets, TopicOffsets
from pydanube.spark.plan import States, shares
from pydanube.spark.topics import offset_at_time

SIZES_BYTES = 8 * MIB  # looked at in one request
FIRST_STEP = SECOND  # microseconds: how far the search for a trigger's last append time looks at first
Place = tuple[str, int]  # topic and partition
Ends = dict[Place, int]


class BatchSize(NamedTuple):
    """A stored batch, as far as its extent goes."""

    base: int
    messages: int
    bytes: int  # unpacked
    time: int  # when it was appended


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

    def _lags(self) -> Ends:
        return {place: max(0, end - self._begins[place]) for place, end in self._ends.items()}

    def _waiting(self) -> list[Place]:
        return [place for place, lag in self._lags().items() if lag]

    # -- by records ----------------------------------------------------------------------------------------------------

    async def _by_records(self, limit: int) -> None:
        if sum(self._lags().values()) <= limit:
            return
        waiting = self._waiting()
        heads = await asyncio.gather(*(self._sizes(place, self._begins[place], 1) for place in waiting))
        for place, found in zip(waiting, heads, strict=True):  # offsets that were never used count for nothing
            begin = max(self._begins[place], found[0].base) if found else self._ends[place]
            self._begins[place] = min(begin, self._ends[place])
        if len(waiting) == 1:
            self._ends[waiting[0]] = min(self._ends[waiting[0]], self._begins[waiting[0]] + limit)
        elif sum(self._lags().values()) > limit:
            self._ends |= await self._oldest(limit, min(found[0].time for found in heads if found))

    async def _oldest(self, limit: int, first: int) -> Ends:
        """Where the oldest messages end, at most `limit` of them and hardly fewer, the first of which was appended at
        `first`. Many appended in the same microsecond are shared out.
        """
        low, below, high, above = first, dict(self._begins), 0, self._ends
        step, enough = FIRST_STEP, max(1, limit - limit // 8)
        while self._taken(below) < enough and (not high or high - low > 1):
            middle = low + step if not high else (low + high) // 2
            found = await self._ends_at(middle)
            if self._taken(found) <= limit:
                low, below, step = middle, found, step * 2
            else:
                high, above = middle, found
        if self._taken(below) >= enough:
            return below
        rests = [above[place] - below[place] for place in below]
        granted = shares(rests, limit - self._taken(below), self._turn)
        return {place: below[place] + share for place, share in zip(below, granted, strict=True)}

    async def _ends_at(self, time: int) -> Ends:
        """One after the last message of each partition that was appended before `time`."""
        waiting = self._waiting()
        names = [self._states[name].place(number) for name, number in waiting]
        found = await asyncio.gather(*(offset_at_time(self._client, name, time) for name in names))
        within = {
            each: min(max(at, self._begins[each]), self._ends[each]) for each, at in zip(waiting, found, strict=True)
        }
        return self._begins | within

    def _taken(self, ends: Ends) -> int:
        return sum(end - self._begins[place] for place, end in ends.items())

    # -- by bytes ------------------------------------------------------------------------------------------------------

    async def _by_bytes(self, limit: int) -> None:
        """Batch by batch, the oldest of all partitions first. Messages of one batch count alike."""
        waiting = self._waiting()
        ask_bytes = min(SIZES_BYTES, max(1, limit // max(1, len(waiting))))
        ends = {place: self._begins[place] for place in waiting}
        queues: dict[Place, deque[BatchSize]] = {place: deque() for place in waiting}

        async def fill(place: Place) -> None:
            if ends[place] < self._ends[place]:
                found = await self._sizes(place, ends[place], ask_bytes)
                queues[place] += [each for each in found if each.base < self._ends[place]]
            if not queues[place]:  # nothing more below the end: what is left was never used
                ends[place] = self._ends[place]

        await asyncio.gather(*map(fill, waiting))
        heap = [(queue[0].time, place) for place, queue in queues.items() if queue]
        heapify(heap)
        used = 0
        while heap:
            _, place = heappop(heap)
            batch = queues[place].popleft()
            first, end = max(ends[place], batch.base), min(batch.base + batch.messages, self._ends[place])
            fitting = min(end - first, max(0, limit - used) * batch.messages // max(1, batch.bytes))
            if not fitting and not used:
                fitting = 1  # one message is larger than the limit: it goes alone
            if fitting:
                ends[place] = first + fitting
            used += -(-batch.bytes * fitting // batch.messages)
            if fitting < end - first:
                break
            if not queues[place]:
                await fill(place)
            if queues[place]:
                heappush(heap, (queues[place][0].time, place))
        self._ends |= ends

    async def _sizes(self, place: Place, offset: int, bytes_max: int) -> list[BatchSize]:
        name = self._states[place[0]].place(place[1])
        fields = {"topic": name, "offset": offset, "bytes_max": bytes_max}
        found = await with_retries(lambda: self._client.ask("sizes", fields))
        return [BatchSize(*map(int, each)) for each in found["batches"]]
