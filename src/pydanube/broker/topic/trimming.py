"""Decides which messages of a topic may be deleted, and deletes them.

Owned by its topic. It never deletes what a subscription needs, nor what the producers' state still depends on. When an
operator truncates the topic, its subscriptions record what they skip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydanube.base.errors import OffsetNotConfirmed
from pydanube.broker.limits.quotas import Extent, bytes_from
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.backlog import extents_of
from pydanube.broker.topic.core import TopicCore
from pydanube.topic.records import Cause

COMPACTION_SECONDS = 0.01  # between checks whether a snapshot is durable


class Trimming:
    def __init__(self, core: TopicCore, hosts: Mapping[str, SubscriptionHost]) -> None:
        self._core = core
        self._hosts = hosts

    async def trim(self, now: int, *, clock_trusted: bool) -> None:
        """Deletes whole ledgers according to the retention policy."""
        stream = self._core.ledger.stream
        async with self._core.starting:
            before = self._deletable_before(now, clock_trusted=clock_trusted)
            oldest = next(stream.record.sealed_parts(), None)
            if oldest is not None and oldest.last < before:
                await stream.trim(before)

    def _deletable_before(self, now: int, *, clock_trusted: bool) -> int:
        """The offset below which everything may be deleted, according to the policy and to what is still needed."""
        core, ledger = self._core, self._core.ledger
        if core.pinned:
            return ledger.first
        policy, unneeded = core.options.retention, core.options.deletable_before(core.state)
        before = ledger.trim_before(policy, unneeded, now, clock_trusted=clock_trusted, needed_from=None)
        needed_from = core.state.needed_from()
        if needed_from is not None and needed_from < before:
            core.log.compact_soon()  # the rest can be deleted once the producers' state no longer depends on it
            before = ledger.trim_before(policy, unneeded, now, clock_trusted=clock_trusted, needed_from=needed_from)
        return max(before, ledger.first)

    def roll_unneeded(self, bytes_min: int) -> None:
        """Called when space is short: seals an open ledger of at least `bytes_min` bytes if half of it is unneeded, so
        that it can be deleted."""
        stream, needed = self._core.ledger.stream, self._core.options.deletable_before(self._core.state)
        if needed is None or stream.open_bytes < bytes_min:
            return
        *_, open_ledger = [Extent(0, 0, 0), *extents_of(stream, stream.record.end + 1)]
        if bytes_from([open_ledger], needed) <= open_ledger.bytes // 2:
            stream.roll()

    def restarts_without(self, last: int) -> bool:
        """Whether a restart knows the producers without the messages up to `last`. If not, makes that so soon."""
        needed_from = self._core.state.needed_from()
        if needed_from is None or needed_from > last:
            return True
        self._core.log.compact_soon()
        return False

    async def truncate(self, before: int | None = None) -> None:
        """Deletes all messages, or those below `before`; durable on return. Subscriptions record what they skip."""
        core = self._core
        core.check_open()
        async with core.starting:
            before = self.beginning(before)
            skips = [host.skip_to(before, Cause.SKIPPED) for host in self._hosts.values()]
            await asyncio.gather(*filter(None, skips))
            while (needed := core.state.needed_from()) is not None and needed < before:
                core.check_open()
                core.log.compact_soon()  # first a snapshot takes over what the messages say about their producers
                await asyncio.sleep(COMPACTION_SECONDS)
            await core.ledger.stream.truncate(before)

    def beginning(self, before: int | None) -> int:
        """Where the topic would begin if all messages, or those below `before`, were deleted now."""
        end = self._core.ledger.confirmed_end
        before = end if before is None else before
        if not 0 <= before <= end:
            raise OffsetNotConfirmed(f"{self._core.name} ends at {end}; it cannot be truncated to {before}")
        return before
