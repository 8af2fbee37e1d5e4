"""What time brings about in a topic: messages expire, ledgers roll, old messages and unused subscriptions go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError
from pydanube.base.limits import EXAMINED_AT_ONCE, SECOND
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.idle import Idle
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.stream.writer import LedgerWriter
from pydanube.stream.retention import BatchTimes, expired, worth_sealing
from pydanube.topic.records import Cause
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.broker.topic.topic import Topic

log = logging.getLogger(__name__)
WAITING_BY_AGE = 64  # ledgers to upload that age alone makes: while object storage fails, time makes no more of them
EXPIRY_READS_MAX = 64  # of one subscription in one tick: the rest expires in the next


class Upkeep:
    """Of one topic, which asks for it every second or so."""

    def __init__(self, topic: Topic, clock: CheckedClock, *, tiered: bool) -> None:
        self._topic = topic
        self._tiered = tiered
        self._clock = clock
        self._began = False
        self._doubted: float | None = None  # since when, if the clock was behind when the topic was opened
        self._idle = Idle()

    async def tick(self) -> None:
        topic, clock = self._topic, self._clock
        wall = clock.wall()
        if not self._began and topic.ledger.stream.ahead(wall):
            log.warning("%s: the clock is behind the newest message; pausing deletion by time", topic.name)
            self._doubted = clock.monotonic()
        self._began = True
        trusted = clock.trusted(self._doubted)
        if trusted:
            topic.ledger.stream.correct_times(wall)
        for host in topic.subscriptions.values():
            host.tick()
        self._roll(wall, trusted)
        ttl = topic.options.ttl_seconds if trusted else None
        for host in list(topic.subscriptions.values()) if ttl is not None else ():
            try:
                await self._expire(host, ttl or 0, wall)
            except DanubeError as error:
                log.warning("%s: could not delete old messages in %s yet: %s", topic.name, host.known.name, error)
        for name in self._idle.due(topic.subscriptions.values(), int(clock.monotonic() * SECOND)):
            await self._drop_idle(name)
        try:
            await topic.backlog.tick(wall, clock_trusted=trusted)
        except DanubeError as error:
            log.warning("%s: could not drop what exceeds the backlog limits yet: %s", topic.name, error)
        try:  # on its own: it needs no state log, and on a full disk it is what makes room for one
            await topic.trim(wall, clock_trusted=trusted)
        except DanubeError as error:
            log.warning("%s: could not delete old messages, retrying at the next round: %s", topic.name, error)
        try:
            topic.release_producers(clock.monotonic())
        except DanubeError as error:
            log.warning("%s: could not forget producers that left yet: %s", topic.name, error)

    def _roll(self, wall: int, trusted: bool) -> None:
        topic, retention = self._topic, self._topic.options.retention
        topic.ledger.stream.roll_if_old(self._sealing_helps)
        if trusted and retention is not None and retention.seconds is not None:
            before = wall - retention.seconds * SECOND
            topic.ledger.stream.roll_if_outlived(before, topic.options.deletable_before(topic.state))

    def _sealing_helps(self, writer: LedgerWriter, seconds: float) -> bool:
        """An old ledger that is open: it can be uploaded or go only when it is sealed. Else it need not be."""
        topic, options = self._topic, self._topic.options
        if self._tiered and sum(1 for _ in islice(topic.ledger.stream.record.waiting, WAITING_BY_AGE)) < WAITING_BY_AGE:
            return True
        needed = options.deletable_before(topic.state)
        return worth_sealing(options.retention, needed, first=writer.first, bytes=writer.bytes, seconds=seconds)

    async def _drop_idle(self, name: str) -> None:
        topic, host = self._topic, self._topic.subscriptions.get(name)
        if host is None or host.consumers:
            return  # somebody came while others were deleted
        try:
            await topic.unsubscribe(name)
            log.info("%s: deleted subscription %r, which was unused for its idle_seconds", topic.name, name)
        except DanubeError as error:
            log.warning("%s: could not delete the idle subscription %r yet: %s", topic.name, name, error)

    async def _expire(self, host: SubscriptionHost, ttl_seconds: int, now: int) -> None:
        """What no consumer took in time is given up, visibly: a cursor record with its cause (§19)."""
        ledger, cursor = self._topic.ledger, host.known.cursor
        offset, host.expiry_from = max(host.expiry_from, ledger.first), 0
        for _ in range(EXPIRY_READS_MAX):
            offset = cursor.above.next_missing(max(offset, cursor.floor))  # delayed ones may lie before
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
                await asyncio.sleep(0)  # the others of the loop first
                if not self._serves(host):
                    return
        host.expiry_from = offset

    def _serves(self, host: SubscriptionHost) -> bool:
        """Much may happen while it waits."""
        return not self._topic.closed and self._topic.subscriptions.get(host.known.name) is host

    def _groups_of(self, batches: list[Batch], now: int) -> Iterator[list[BatchTimes]]:
        """As many as take a few milliseconds to look at and to give up."""
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
        """Of the whole batch; of one whose messages have times of their own in parts."""
        record, base = self._topic.ledger.stream.record, batch.base_offset
        appended = record.aging_time(base, batch.append_time, now)
        if not batch.has_delivery_times:
            yield BatchTimes(base, batch.last_offset, appended)
            return
        for at in range(0, batch.count, EXAMINED_AT_ONCE):
            rows = range(at, min(batch.count, at + EXAMINED_AT_ONCE))
            yield BatchTimes(base + at, base + rows.stop - 1, appended, batch.delivery_times(rows))
