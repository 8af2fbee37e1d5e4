"""Enforces the backlog quota of a topic: refuses publishes, or advances the slowest cursors.

Owned by its topic. Housekeeping measures the backlog, as does a publish when the room found then is used up; any other
publish costs one subtraction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pydanube.base.errors import BacklogFull, DanubeError
from pydanube.base.limits import SECOND
from pydanube.broker.limits.quotas import Extent, bytes_from, offset_leaving
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.storage.stream.stream import Stream
from pydanube.topic.policies import BacklogQuota
from pydanube.topic.records import Cause

log = logging.getLogger(__name__)
DROP_PART = 16  # a sixteenth of the quota is dropped in addition, so that not every publish has to drop some


class Backlog:
    """`quota` is the topic's policy; None without one."""

    def __init__(
        self,
        topic: str,
        ledger: ManagedLedger,
        subscriptions: Mapping[str, SubscriptionHost],
        quota: BacklogQuota | None,
    ) -> None:
        self.quota = quota
        self._topic = topic
        self._ledger = ledger
        self._subscriptions = subscriptions
        self._room = 0  # bytes that may be published before the backlog is measured again
        self._dropped: dict[str, int] = {}  # messages since the last tick, by subscription
        self._old: int | None = None  # where the slowest cursor is, if the message there is too old

    def change(self, quota: BacklogQuota | None) -> None:
        self.quota, self._room, self._old = quota, 0, None

    def admit(self, bytes: int) -> None:
        """Makes room for a publish, or refuses it. A publish may exceed the room by its own bytes."""
        quota = self.quota
        if quota is None:
            return
        if self._old is not None:
            if self._slowest() == self._old:
                raise BacklogFull(f"{self._topic}: unacknowledged messages are older than {quota.seconds} s")
            self._old = None
        if quota.bytes is None:
            return
        if self._room <= 0:
            self._measure(quota.bytes)
            if self._room <= 0:
                self._make_room(quota, quota.bytes)
        self._room -= bytes

    def _slowest(self) -> int | None:
        return min((host.known.cursor.floor for host in self._subscriptions.values()), default=None)

    def _measure(self, bytes_max: int) -> None:
        slowest = self._slowest()
        self._room = bytes_max
        if slowest is not None:
            self._room -= bytes_from(extents_of(self._ledger.stream, slowest), slowest)

    def _make_room(self, quota: BacklogQuota, bytes_max: int) -> None:
        if not quota.drop_oldest:
            raise BacklogFull(
                f"{self._topic}: {bytes_max - self._room} bytes are not acknowledged by all subscriptions"
            )
        keep = bytes_max - max(1, bytes_max // DROP_PART)
        self._drop_below(offset_leaving(extents_of(self._ledger.stream, self._slowest() or 0), keep))
        self._measure(bytes_max)

    def _drop_below(self, offset: int) -> None:
        """Advances subscriptions that are further behind to this offset. Each records and counts what it drops."""
        offset = min(offset, self._ledger.confirmed_end)
        for name, host in self._subscriptions.items():
            before = host.known.counts[Cause.DROPPED]
            try:
                host.skip_to(offset, Cause.DROPPED)
            except DanubeError as error:
                log.warning(
                    "%s: could not drop messages of subscription %s, which is too far behind; retrying later: %s",
                    self._topic,
                    name,
                    error,
                )
                continue
            dropped = host.known.counts[Cause.DROPPED] - before
            if dropped:
                self._dropped[name] = self._dropped.get(name, 0) + dropped

    def _log_dropped(self) -> None:
        """Logs at most once a second: a topic at its quota drops messages with many of its publishes."""
        for name, dropped in self._dropped.items():
            log.warning(
                "%s: subscription %s was too far behind; dropped %d of its messages", self._topic, name, dropped
            )
        self._dropped.clear()

    async def tick(self, wall: int, *, clock_trusted: bool) -> None:
        await self._hold_to_quota(wall, clock_trusted)
        self._log_dropped()

    async def _hold_to_quota(self, wall: int, clock_trusted: bool) -> None:
        quota = self.quota
        if quota is None:
            return
        if quota.bytes is not None:
            self._measure(quota.bytes)
            if self._room <= 0 and quota.drop_oldest:
                self._make_room(quota, quota.bytes)
        self._old = None
        slowest = self._slowest()
        slowest = None if slowest is None else self._ledger.past_lost(slowest)
        if quota.seconds is None or not clock_trusted or slowest is None or slowest >= self._ledger.confirmed_end:
            return
        oldest = wall - quota.seconds * SECOND
        batches = await self._ledger.read(max(slowest, self._ledger.first), 1)
        found = batches[0]
        appended = self._ledger.stream.record.aging_time(found.base_offset, found.append_time, wall)
        if appended >= oldest or self.quota is not quota:
            return
        if quota.drop_oldest:
            self._drop_below(await self._ledger.find_time(oldest))
        else:
            self._old = slowest


def extents_of(stream: Stream, start: int) -> list[Extent]:
    """The sealed ledgers that have offsets from `start` on; everything that is not sealed counts as one more."""
    record = stream.record
    found = [Extent(ledger.first, ledger.last, ledger.bytes) for ledger in record.sealed_parts(start)]
    first = found[-1].last + 1 if found else max(record.end + 1, record.first)
    if stream.next_offset > first:
        found.append(Extent(first, stream.next_offset - 1, stream.open_bytes))
    return found
