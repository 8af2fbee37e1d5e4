"""Finds, creates, changes, moves and deletes the subscriptions of a reliable topic.

Owned by its topic. Every change is durable before it is answered; a subscription's host does the delivering.
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
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.core import TopicCore
from pydanube.broker.topic.dead_letter import dead_letter_of
from pydanube.broker.topic.dependencies import LetterSource, TopicDependencies
from pydanube.broker.topic.served import EARLIEST, LATEST
from pydanube.broker.work.decoding import run_decoding
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Poisoned
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.shared import Shared
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch

_ENGINES: dict[SubscriptionKind, type[Engine[Any]]] = {
    SubscriptionKind.EXCLUSIVE: Exclusive,
    SubscriptionKind.SHARED: Shared,
    SubscriptionKind.FAILOVER: Failover,
    SubscriptionKind.KEY_SHARED: KeyShared,
}


class HostedSubscriptions:
    """One host for each subscription that the topic's state knows."""

    def __init__(self, core: TopicCore, dependencies: TopicDependencies) -> None:
        self.hosts: dict[str, SubscriptionHost] = {}  # by name
        self._core = core
        self._dependencies = dependencies

    def load(self) -> None:
        """Called when the topic is opened, after its state was loaded."""
        for known in self._core.state:
            self._host(known)

    def _host(self, known: Subscription) -> SubscriptionHost:
        core, dependencies = self._core, self._dependencies
        options = SubscriptionOptions.decode(known.options)
        engine = _ENGINES[known.kind](options.failure, options.dispatch)
        dead_letter, budget = partial(self._dead_letter, known), dependencies.read_ahead
        host = SubscriptionHost(known, engine, core.ledger, core.log, core.clock, dead_letter, budget)
        host.set_rate(core.options.dispatch_messages_per_second, core.options.dispatch_bytes_per_second)
        self.hosts[known.name] = host
        return host

    async def _dead_letter(self, known: Subscription, batch: Batch, poisoned: Poisoned, subscription: str) -> None:
        options = SubscriptionOptions.decode(known.options)
        target = options.failure.dead_letter_topic
        if target is None:
            raise SubscriptionOptionInvalid(f"{subscription!r} no longer has a dead-letter topic")
        offload, name = self._dependencies.offload, self._core.name
        letter = await run_decoding(offload, dead_letter_of, batch, poisoned, name, subscription)
        source = LetterSource(name, subscription, chosen=not options.default_letters)
        await self._dependencies.publish(target, letter, source)

    def get(self, name: str) -> SubscriptionHost:
        found = self.hosts.get(name)
        if found is None:
            raise SubscriptionNotFound(f"{self._core.name} has no subscription {name!r}")
        return found

    def follow(self, options: TopicOptions) -> None:
        """Applies changed options of the topic."""
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
        """The current offset of `earliest` or `latest`, or the given one if it still exists."""
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
        finally:  # even if the log failed: memory has the deletion, and the log will be rewritten from memory
            await host.close(SubscriptionNotFound(f"subscription {name!r} of {core.name} was deleted"))

    # -- changing and moving -------------------------------------------------------------------------------------------

    async def alter(self, name: str, changes: Mapping[str, Any]) -> None:
        """Changes the options of a subscription, which take effect at once and are durable on return."""
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
        """Moves the subscription to an offset, backwards or forwards; durable on return (§14)."""
        self._core.check_open()
        async with self._core.starting:
            sought = host.seek(self.offset_of(to))
        await sought

    async def skip(self, name: str, *, count: int | None = None, to: int | None = None) -> int:
        """Gives up the next `count` messages, or all below `to`. Returns how many; durable on return."""
        core = self._core
        core.check_open()
        host = self.get(name)
        before = host.known.counts[Cause.SKIPPED]
        floor = to if to is not None else host.known.cursor.behind(count or 0, core.ledger.confirmed_end)
        done = host.skip_to(floor, Cause.SKIPPED)
        skipped = host.known.counts[Cause.SKIPPED] - before
        await (done or core.log.barrier())
        return skipped
