"""Gives up messages that no consumer took within the topic's time to live (§19).

Owned by its topic's housekeeping. Nothing expires silently: each subscription records what it gives up, and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from pydanube.base.limits import EXAMINED_AT_ONCE, SECOND
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.core import CLOSED, TopicCore
from pydanube.stream.retention import BatchTimes, expired
from pydanube.topic.records import Cause
from pydanube.wire.batch import Batch

READS_MAX = 64  # for one subscription in one round; the next round continues


class Expiry:
    """Expires messages for all subscriptions of one topic."""

    def __init__(self, core: TopicCore, hosts: Mapping[str, SubscriptionHost]) -> None:
        self._core = core
        self._hosts = hosts

    async def expire(self, host: SubscriptionHost, ttl_seconds: int, now: int) -> None:
        """Gives up messages that are too old, within a limited number of reads."""
        ledger, cursor = self._core.ledger, host.known.cursor
        offset, host.expiry_from = max(host.expiry_from, ledger.first), 0
        for _ in range(READS_MAX):
            offset = cursor.above.next_missing(max(offset, cursor.floor))  # earlier offsets may still be delayed
            offset = ledger.past_lost(offset)
            if offset >= ledger.confirmed_end:
                return
            batches = await ledger.read(offset)
            if not self._serves(host):
                return
            if batches[0].base_offset > offset:
                host.pass_gap(offset, batches[0].base_offset - 1)
            for times in self._groups_of(batches, now):
                if old := expired(times, ttl_seconds, now):
                    host.ack(cursor.generation, old, Cause.EXPIRED)
                if times[-1].append_time >= now - ttl_seconds * SECOND:
                    return
                offset = times[-1].last + 1
                await asyncio.sleep(0)  # let the loop do other work in between
                if not self._serves(host):
                    return
        host.expiry_from = offset

    def _serves(self, host: SubscriptionHost) -> bool:
        """Whether this is still needed: during a read, the topic may have been closed, or the subscription deleted."""
        return self._core.phase is not CLOSED and self._hosts.get(host.known.name) is host

    def _groups_of(self, batches: list[Batch], now: int) -> Iterator[list[BatchTimes]]:
        """Groups of batches that each take a few milliseconds to examine and give up."""
        group: list[BatchTimes] = []
        looked_at = 0
        for batch in batches:
            for times in self._times_of(batch, now):
                group.append(times)
                looked_at += 1 if times.delivery_times is None else len(times.delivery_times)
                if looked_at >= EXAMINED_AT_ONCE:
                    yield group
                    group, looked_at = [], 0
        if group:
            yield group

    def _times_of(self, batch: Batch, now: int) -> Iterator[BatchTimes]:
        """The times of the whole batch; in parts if its messages have their own delivery times."""
        record, base = self._core.ledger.stream.record, batch.base_offset
        appended = record.aging_time(base, batch.append_time, now)
        if not batch.has_delivery_times:
            yield BatchTimes(base, batch.last_offset, appended)
            return
        for at in range(0, batch.count, EXAMINED_AT_ONCE):
            rows = range(at, min(batch.count, at + EXAMINED_AT_ONCE))
            yield BatchTimes(base + at, base + rows.stop - 1, appended, batch.delivery_times(rows))
