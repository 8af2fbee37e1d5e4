"""What becomes due in a topic: messages expire, ledgers roll, old messages and unused subscriptions are deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice

from pydanube.base.errors import DanubeError
from pydanube.base.limits import SECOND
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.backlog import Backlog
from pydanube.broker.topic.core import TopicCore
from pydanube.broker.topic.expiry import Expiry
from pydanube.broker.topic.hosted_subscriptions import HostedSubscriptions
from pydanube.broker.topic.publisher import Publisher
from pydanube.broker.topic.trimming import Trimming
from pydanube.storage.stream.writer import LedgerWriter
from pydanube.stream.retention import worth_sealing

log = logging.getLogger(__name__)
_IDLE_OPTION = b"idle_seconds"  # found without decoding the options: thousands of subscriptions may lack it
WAITING_BY_AGE = 64  # limit on ledgers sealed by age while uploads fail


class TopicHousekeeping:
    """Runs about every second. A step that fails is left to the next round."""

    def __init__(
        self,
        core: TopicCore,
        hosted: HostedSubscriptions,
        publisher: Publisher,
        backlog: Backlog,
        trimming: Trimming,
        *,
        tiered: bool,
    ) -> None:
        self._core = core
        self._hosted = hosted
        self._publisher = publisher
        self._backlog = backlog
        self._trimming = trimming
        self._tiered = tiered
        self._expiry = Expiry(core, hosted.hosts)
        self._idle_since: dict[str, int] = {}  # by subscription: when it was first seen without a consumer
        self._began = False
        self._doubted: float | None = None  # since when the clock is doubted, if it was behind when the topic opened

    async def tick(self) -> None:
        core, hosts = self._core, self._hosted.hosts
        wall, monotonic = core.clock.wall(), core.clock.monotonic
        trusted = self._trusts(wall)
        for host in hosts.values():
            host.tick()
        self._roll(wall, trusted)
        ttl = core.options.ttl_seconds if trusted else None
        for host in list(hosts.values()) if ttl is not None else ():
            try:
                await self._expiry.expire(host, ttl or 0, wall)
            except DanubeError as error:
                log.warning("%s: could not delete old messages in %s yet: %s", core.name, host.known.name, error)
        for name in self._idle(hosts.values(), int(monotonic() * SECOND)):
            await self._drop_idle(name)
        try:
            await self._backlog.tick(wall, clock_trusted=trusted)
        except DanubeError as error:
            log.warning("%s: could not drop what exceeds the backlog limits yet: %s", core.name, error)
        try:  # independent of the steps before: it needs no state log, and frees space for it on a full disk
            await self._trimming.trim(wall, clock_trusted=trusted)
        except DanubeError as error:
            log.warning("%s: could not delete old messages, retrying at the next round: %s", core.name, error)
        try:
            self._publisher.forget_gone(monotonic())
        except DanubeError as error:
            log.warning("%s: could not forget producers that left yet: %s", core.name, error)

    def _trusts(self, wall: int) -> bool:
        """Whether the clock is reliable enough to delete by time."""
        core = self._core
        if not self._began and core.ledger.stream.ahead(wall):
            log.warning("%s: the clock is behind the newest message; pausing deletion by time", core.name)
            self._doubted = core.clock.monotonic()
        self._began = True
        trusted = core.clock.trusted(self._doubted)
        if trusted:
            core.ledger.stream.correct_times(wall)
        return trusted

    def _roll(self, wall: int, trusted: bool) -> None:
        core, retention = self._core, self._core.options.retention
        core.ledger.stream.roll_if_old(self._sealing_helps)
        if trusted and retention is not None and retention.seconds is not None:
            before = wall - retention.seconds * SECOND
            core.ledger.stream.roll_if_outlived(before, core.options.deletable_before(core.state))

    def _sealing_helps(self, writer: LedgerWriter, seconds: float) -> bool:
        """Whether an open ledger that is old could be uploaded or deleted if it were sealed."""
        core, options = self._core, self._core.options
        if self._tiered and sum(1 for _ in islice(core.ledger.stream.record.waiting, WAITING_BY_AGE)) < WAITING_BY_AGE:
            return True
        needed = options.deletable_before(core.state)
        return worth_sealing(options.retention, needed, first=writer.first, bytes=writer.bytes, seconds=seconds)

    def _idle(self, hosts: Iterable[SubscriptionHost], now: int) -> list[str]:
        """The subscriptions without a consumer for as long as their options allow. Only time during which the topic is
        served counts, so it starts over when the broker does. `now` is in microseconds of the monotonic clock."""
        before, self._idle_since = self._idle_since, {}
        found: list[str] = []
        for host in hosts:
            if host.consumers or _IDLE_OPTION not in host.known.options:
                continue
            seconds = host.options.idle_seconds
            if seconds is not None:
                since = max(before.get(host.name, now), host.last_used)  # a consumer may have come and left
                self._idle_since[host.name] = since
                if now - since >= seconds * SECOND:
                    found.append(host.name)
        return found

    async def _drop_idle(self, name: str) -> None:
        topic, host = self._core.name, self._hosted.hosts.get(name)
        if host is None or host.consumers:
            return  # a consumer came while another subscription was deleted
        try:
            await self._hosted.unsubscribe(name)
            log.info("%s: deleted subscription %r, which was unused for its idle_seconds", topic, name)
        except DanubeError as error:
            log.warning("%s: could not delete the idle subscription %r yet: %s", topic, name, error)
