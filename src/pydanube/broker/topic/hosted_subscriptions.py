"""Finds, creates, changes, moves and deletes the subscriptions of a reliable topic.

Owned by its topic. Every change is durable before it is answered; delivering is the business of a subscription's host.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydanube.base.errors import (
    ArgumentInvalid,
    SubscriptionKindDiffers,
    SubscriptionNotFound,
    SubscriptionOptionInvalid,
)
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.engines import engine_for
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.core import TopicCore
from pydanube.broker.topic.dead_letter import dead_letter_of
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.broker.topic.served import EARLIEST, LATEST
from pydanube.broker.work.decoding import run_decoding
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Poisoned
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch


class HostedSubscriptions:
    """One host for each subscription that the topic's state knows."""

    def __init__(self, core: TopicCore, dependencies: TopicDependencies) -> None:
        self.hosts: dict[str, SubscriptionHost] = {}  # by name
        self._core = core
        self._dependencies = dependencies

    def load(self) -> None:
        """When the topic is opened, and its state is."""
        for known in self._core.state:
            self._host(known)

    def _host(self, known: Subscription) -> SubscriptionHost:
        core, dependencies = self._core, self._dependencies
        engine = engine_for(known.kind, SubscriptionOptions.decode(known.options))
        dead_letter, budget = partial(self._dead_letter, engine), dependencies.read_ahead
        host = SubscriptionHost(known, engine, core.ledger, core.log, core.clock, dead_letter, budget)
        host.set_rate(core.options.dispatch_messages_per_second, core.options.dispatch_bytes_per_second)
        self.hosts[known.name] = host
        return host

    async def _dead_letter(self, engine: Engine[Any], batch: Batch, poisoned: Poisoned, subscription: str) -> None:
        target = engine.policy.dead_letter_topic
        if target is None:
            raise SubscriptionOptionInvalid(f"{subscription!r} no longer has a dead-letter topic")
        offload, name = self._dependencies.offload, self._core.name
        letter = await run_decoding(offload, dead_letter_of, batch, poisoned, name, subscription)
        await self._dependencies.publish(target, letter)

    def get(self, name: str) -> SubscriptionHost:
        found = self.hosts.get(name)
        if found is None:
            raise SubscriptionNotFound(f"{self._core.name} has no subscription {name!r}")
        return found

    def follow(self, options: TopicOptions) -> None:
        """The topic's options have changed."""
        for host in self.hosts.values():
            host.set_rate(options.dispatch_messages_per_second, options.dispatch_bytes_per_second)

    # -- making and deleting -------------------------------------------------------------------------------------------

    async def subscribe(
        self, name: str, kind: SubscriptionKind, start: str | int, options: SubscriptionOptions | None, *, create: bool
    ) -> SubscriptionHost:
        """The subscription of that name. With `create`, a new one is created with `options`."""
        core = self._core
        core.check_open()
        async with core.starting:
            core.check_open()  # it may have been closed meanwhile
            known = core.state.find(name)
            if known is None and not create:
                raise SubscriptionNotFound(f"{core.name} has no subscription {name!r}")
            if known is None:
                core.log.check()
                first = self.offset_of(start)
                encoded = (options or SubscriptionOptions()).encode()
                record = core.state.decide_create(name, kind, first, core.ledger.confirmed_end, encoded)
                made = core.log.apply(record)
                host = self._host(core.state.get(record.subscription))
                await made
                return host
        if known.kind is not kind:
            raise SubscriptionKindDiffers(f"{name!r} is {known.kind.name.lower()}, not {kind.name.lower()}")
        await core.log.barrier()
        if name not in self.hosts:
            raise SubscriptionNotFound(f"subscription {name!r} was just deleted")
        return self.hosts[name]

    def offset_of(self, start: str | int) -> int:
        """Where that is now: the earliest or latest message, or an offset."""
        ledger = self._core.ledger
        if start == EARLIEST:
            return ledger.first
        if start == LATEST:
            return ledger.confirmed_end
        if isinstance(start, int):
            return max(start, ledger.first)
        raise ArgumentInvalid(f"start must be an offset, {EARLIEST} or {LATEST}, got {start!r}")

    async def unsubscribe(self, name: str) -> None:
        core = self._core
        core.check_open()
        core.log.check()
        known = core.state.find(name)
        if known is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist")
        gone = core.log.apply(core.state.decide_delete(known.id))
        host = self.hosts.pop(name)
        host.stop()
        try:
            await gone
        finally:  # even if that failed: memory has it, and the log will be rewritten from memory
            await host.close(SubscriptionNotFound(f"subscription {name!r} of {core.name} was deleted"))

    # -- changing and moving -------------------------------------------------------------------------------------------

    async def alter(self, name: str, changes: Mapping[str, Any]) -> None:
        """Changes its options, which it follows at once."""
        core = self._core
        core.check_open()
        core.log.check()
        host = self.get(name)
        options = host.options.changed(changes)
        record = core.state.decide_change(host.known.id, options.encode())
        if record is None:
            return await core.log.barrier()
        altered = core.log.apply(record)
        host.alter(options)
        await altered

    async def seek(self, host: SubscriptionHost, to: str | int) -> None:
        """Delivers everything from there on again, or skips to it (§14)."""
        self._core.check_open()
        async with self._core.starting:
            sought = host.seek(self.offset_of(to))
        await sought

    async def skip(self, name: str, *, count: int | None, to: int | None) -> int:
        """Gives up the next `count` messages, or all below `to`; how many they were."""
        core = self._core
        core.check_open()
        host = self.get(name)
        before = host.known.counts[Cause.SKIPPED]
        floor = to if to is not None else host.known.cursor.behind(count or 0, core.ledger.confirmed_end)
        done = host.skip_to(floor, Cause.SKIPPED)
        skipped = host.known.counts[Cause.SKIPPED] - before
        await (done or core.log.barrier())
        return skipped
