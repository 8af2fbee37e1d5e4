"""How far one trigger reads: up to a number of records and of bytes, in the order in which messages were appended.

If partitions and topics have messages of different times, the oldest are read first. Dividing a trigger by lag would
mix their times, and the watermark would pass messages that are still unread in slower partitions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from pydanube.base.limits import MIB, SECOND
from pydanube.client import Client
from pydanube.operations.channels import GetSizes
from pydanube.spark.broker_link import with_retries
from pydanube.spark.offsets import Offsets, TopicOffsets
from pydanube.spark.plan import States, shares
from pydanube.spark.topics import offset_at_time

SIZES_BYTES = 8 * MIB  # that one request covers
FIRST_STEP = SECOND  # microseconds: the first step of the search for a trigger's last append time
Partition = tuple[str, int]  # topic and partition
Ends = dict[Partition, int]


class BatchSize(NamedTuple):
    """The extent of a stored batch."""

    base: int
    messages: int
    bytes: int  # unpacked
    time: int  # when it was appended


class Limits:
    """The next offsets after `start`, within a number of records and of bytes. None means no limit."""

    def __init__(self, client: Client, states: States, start: Offsets, end: Offsets) -> None:
        self._client = client
        self._states = states
        self._ends = {(name, number): stop for name, each in end.items() for number, stop in enumerate(each.next)}
        self._begins = {partition: self._begin(start, partition) for partition in self._ends}
        self._turn = sum(self._begins.values())  # grows with what was read, so that partitions take turns

    def _begin(self, start: Offsets, partition: Partition) -> int:
        name, number = partition
        known = start.get(name)
        if known is not None and number < len(known.next):
            first = self._states[name].firsts[number]
            return max(known.next[number], min(first, self._ends[partition]))
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
        return {partition: max(0, end - self._begins[partition]) for partition, end in self._ends.items()}

    def _waiting(self) -> list[Partition]:
        return [partition for partition, lag in self._lags().items() if lag]

    # -- by records ----------------------------------------------------------------------------------------------------

    async def _by_records(self, limit: int) -> None:
        if sum(self._lags().values()) <= limit:
            return
        waiting = self._waiting()
        heads = await asyncio.gather(*(self._sizes(partition, self._begins[partition], 1) for partition in waiting))
        for partition, found in zip(waiting, heads, strict=True):  # offsets that were never used do not count
            begin = max(self._begins[partition], found[0].base) if found else self._ends[partition]
            self._begins[partition] = min(begin, self._ends[partition])
        if len(waiting) == 1:
            self._ends[waiting[0]] = min(self._ends[waiting[0]], self._begins[waiting[0]] + limit)
        elif sum(self._lags().values()) > limit:
            self._ends |= await self._oldest(limit, min(found[0].time for found in heads if found))

    async def _oldest(self, limit: int, first: int) -> Ends:
        """The ends of the oldest messages, at most `limit` of them and hardly fewer. The first was appended at `first`.
        If many were appended in the same microsecond, partitions get shares of them.
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
        rests = [above[partition] - below[partition] for partition in below]
        granted = shares(rests, limit - self._taken(below), self._turn)
        return {partition: below[partition] + share for partition, share in zip(below, granted, strict=True)}

    async def _ends_at(self, time: int) -> Ends:
        """The offset after the last message of each partition that was appended before `time`."""
        waiting = self._waiting()
        names = [self._states[name].partition_name(number) for name, number in waiting]
        found = await asyncio.gather(*(offset_at_time(self._client, name, time) for name in names))
        within = {
            each: min(max(at, self._begins[each]), self._ends[each]) for each, at in zip(waiting, found, strict=True)
        }
        return self._begins | within

    def _taken(self, ends: Ends) -> int:
        return sum(end - self._begins[partition] for partition, end in ends.items())

    # -- by bytes ------------------------------------------------------------------------------------------------------

    async def _by_bytes(self, limit: int) -> None:
        """Takes batch by batch, the oldest of all partitions first. All messages of a batch count as equally large."""
        waiting = self._waiting()
        ask_bytes = min(SIZES_BYTES, max(1, limit // max(1, len(waiting))))
        ends = {partition: self._begins[partition] for partition in waiting}
        queues: dict[Partition, deque[BatchSize]] = {partition: deque() for partition in waiting}

        async def fill(partition: Partition) -> None:
            if ends[partition] < self._ends[partition]:
                found = await self._sizes(partition, ends[partition], ask_bytes)
                queues[partition] += [each for each in found if each.base < self._ends[partition]]
            if not queues[partition]:  # no more batches: the remaining offsets were never used
                ends[partition] = self._ends[partition]

        await asyncio.gather(*map(fill, waiting))
        heap = [(queue[0].time, partition) for partition, queue in queues.items() if queue]
        heapify(heap)
        used = 0
        while heap:
            _, partition = heappop(heap)
            batch = queues[partition].popleft()
            first, end = max(ends[partition], batch.base), min(batch.base + batch.messages, self._ends[partition])
            fitting = min(end - first, max(0, limit - used) * batch.messages // max(1, batch.bytes))
            if not fitting and not used:
                fitting = 1  # one message is larger than the limit and is read alone
            if fitting:
                ends[partition] = first + fitting
            used += -(-batch.bytes * fitting // batch.messages)
            if fitting < end - first:
                break
            if not queues[partition]:
                await fill(partition)
            if queues[partition]:
                heappush(heap, (queues[partition][0].time, partition))
        self._ends |= ends

    async def _sizes(self, partition: Partition, offset: int, bytes_max: int) -> list[BatchSize]:
        name = self._states[partition[0]].partition_name(partition[1])
        found = await with_retries(lambda: self._client.ask(GetSizes(name, offset, bytes_max)))
        return [BatchSize(*each) for each in found.batches]
