"""A reliable topic on its owner: publishes with dedup, subscriptions that deliver, durable state, retention.

One loop owns it; a call into a core is never interrupted. Everything it promises is durable before it says so. The work
is done by its parts, which share a `TopicCore`; this module opens, connects and closes them.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Mapping
from typing import Any

from pydanube.base.errors import DanubeError, OwnershipLost, ProducerUnknown, SinkBlocked, TopicClosed
from pydanube.base.ids import Epoch
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.backlog import Backlog
from pydanube.broker.topic.core import CLOSED, TopicCore
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.broker.topic.filler import Filler
from pydanube.broker.topic.hosted_subscriptions import HostedSubscriptions
from pydanube.broker.topic.housekeeping import TopicHousekeeping
from pydanube.broker.topic.producer_recovery import ProducerRecovery
from pydanube.broker.topic.producer_sessions import Session
from pydanube.broker.topic.publisher import Publisher
from pydanube.broker.topic.served import LATEST, STORES_NOTHING, ConnectsConsumers, Receipt
from pydanube.broker.topic.trimming import Trimming
from pydanube.storage.stream.cold import tier_bounds
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream, StreamToOpen
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import state_stream
from pydanube.topic.dedup import Renewal
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch


class Topic(ConnectsConsumers):
    """Created by `Topic.open`."""

    reliable = True
    drops: Mapping[str, int] = {}  # its subscriptions drop messages and count them; it drops none itself

    def __init__(
        self, name: str, options: TopicOptions, dependencies: TopicDependencies, messages: Stream, state: Stream
    ) -> None:
        core = self._core = TopicCore(name, options, dependencies, messages, state, self._changed)
        self.name, self.ledger, self.state, self.state_stream = name, core.ledger, core.state, state
        self.failed = 0  # batches that did not become durable as they were
        self._hosted = HostedSubscriptions(core, dependencies)
        self.subscriptions = self._hosted.hosts
        self._publisher = Publisher(core)
        self.sessions, self.inbound = self._publisher.sessions, self._publisher.inbound
        self._recovery = ProducerRecovery(core, self._show_more)
        self.filler = Filler(core, self._show_more)
        self._backlog = Backlog(name, core.ledger, self.subscriptions, options.backlog)
        self._trimming = Trimming(core, self.subscriptions)
        tiered = dependencies.tier is not None
        self._housekeeping = TopicHousekeeping(
            core, self._hosted, self._publisher, self._backlog, self._trimming, tiered=tiered
        )
        self._change: Future[None] | None = None  # done when what is visible changes, if a caller waits
        self._seen = (0, 0)  # the end of the messages and of the state log when `had_activity` was last called

    @classmethod
    async def open(
        cls, tenure: Tenure, dependencies: TopicDependencies, options: TopicOptions, name: str | None = None
    ) -> Topic:
        """Opens the streams of messages and of state together, for the owner of the topic, and loads both.

        `name` is the topic's name for people; the streams have their own names.
        """
        name = name or tenure.topic
        wanted = [_messages(tenure.topic, name, dependencies, options), _state(tenure.topic, name, options)]
        messages, state = await Stream.open_all(tenure, dependencies.nodes, dependencies.clock, wanted)
        topic = cls(name, options, dependencies, messages, state)
        try:
            await topic._core.log.load()
            await topic._recovery.load()
            await topic.filler.load()
        except BaseException:
            await messages.close()
            await state.close()
            raise
        topic._hosted.load()
        return topic

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def options(self) -> TopicOptions:
        return self._core.options

    @property
    def epoch(self) -> Epoch:
        return self.ledger.stream.tenure.epoch

    @property
    def lost(self) -> bool:
        return self._core.lost

    def lose(self, why: OwnershipLost) -> None:
        """Called when another broker owns the topic: nothing more is accepted or confirmed here."""
        self.ledger.stream.lose(why)
        self.state_stream.lose(why)

    @property
    def closed(self) -> bool:
        return self._core.phase is CLOSED

    @property
    def pinned(self) -> bool:
        """Whether messages must be kept regardless of age."""
        return self._core.pinned

    @pinned.setter
    def pinned(self, pinned: bool) -> None:
        self._core.pinned = pinned

    @property
    def receipt(self) -> str:
        return self.ledger.stream.receipt

    @property
    def bounds(self) -> tuple[int, int]:
        return self.ledger.first, self.ledger.confirmed_end

    @property
    def stored_bytes(self) -> int:
        return self.ledger.stream.bytes

    def as_reliable(self, refusal: str = STORES_NOTHING) -> Topic:
        return self

    def alter(self, options: TopicOptions) -> None:
        """Applies new options; settings with which its streams were opened stay."""
        before, self._core.options = self.options, options
        if options.backlog != before.backlog:
            self._backlog.change(options.backlog)
        self._hosted.follow(options)

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def attach(
        self, producer: str, *, fresh: bool = False, temporary: bool = False, renewal: Renewal | None = None
    ) -> Session:
        """A session for this producer name, which fences older ones. It and its sequences are durable on return.

        `fresh` promises that nothing is repeated: needed where the name may have been forgotten. A `temporary` session
        is forgotten when its producer closes; register its holder with `sessions`. With `renewal`, the session
        continues an earlier one, and is itself fenced if a newer one exists.
        """
        return await self._publisher.attach(producer, fresh=fresh, temporary=temporary, renewal=renewal)

    def producer_name(self, producer: int) -> str:
        try:
            return self.state.producers.get(producer).name if producer else ""
        except ProducerUnknown:
            return ""

    def publish(self, batch: Batch, producer_epoch: int = 0) -> Receipt:
        """Appends a batch once: one that was sent before is answered with the offset it has (§13)."""
        if self.filler.blocked is not None:
            self._core.check_certain()
            raise SinkBlocked(*self.filler.blocked.args)
        return self._publisher.publish(batch, producer_epoch)

    def append_rows(self, batch: Batch) -> Receipt:
        """Appends rows of a job, whose turn it is with `filler`: with the numbers of the rows, and no producer."""
        return self._publisher.append_rows(batch)

    # -- what may be seen ----------------------------------------------------------------------------------------------

    async def wait_beyond(self, offset: int, seconds: float) -> None:
        """Waits until the message at `offset` is visible, for at most `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.ledger.past_lost(offset) >= self.ledger.confirmed_end and not self.closed:
            left = deadline - loop.time()
            if left <= 0:
                return
            self._change = self._change or loop.create_future()
            await asyncio.wait([self._change], timeout=left)

    def _wake_waiting(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    def _changed(self, error: BaseException | None) -> None:
        """Called when more is confirmed, or a write failed."""
        self._wake_waiting()
        self._publisher.repeated.answer(error)
        if error is not None:
            self.failed += 1
            self._recovery.begin()
            return
        for host in self.subscriptions.values():
            host.messages_arrived()

    def _show_more(self) -> None:
        """Called when more becomes visible although nothing more was confirmed."""
        self._changed(None)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str,
        kind: SubscriptionKind,
        *,
        start: str | int = LATEST,
        options: SubscriptionOptions | None = None,
        create: bool = True,
    ) -> SubscriptionHost:
        """The subscription of that name; with `create`, a new one is created with `options`, durably."""
        return await self._hosted.subscribe(name, kind, start, options, create=create)

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def had_activity(self) -> bool:
        """Whether anything was published or acknowledged since the last call."""
        before, self._seen = self._seen, (self.ledger.confirmed_end, self._core.log.bytes)
        return before != self._seen

    async def tick(self) -> None:
        """Expires messages, rolls ledgers by age, and deletes what is not needed. Called about once a second."""
        if not self.closed and not self.lost:
            await self._housekeeping.tick()

    def end_unused(self) -> None:
        """Nothing to do: ending a subscription takes a record here, so `tick` does it."""

    # -- what its parts do for its users: they say what that means -----------------------------------------------------

    def admit(self, bytes: int) -> None:
        self._backlog.admit(bytes)

    async def find_time(self, time: int) -> int:
        return await self.ledger.find_time(time)

    def subscription(self, name: str) -> SubscriptionHost:
        return self._hosted.get(name)

    def offset_of(self, start: str | int) -> int:
        return self._hosted.offset_of(start)

    async def unsubscribe(self, name: str) -> None:
        await self._hosted.unsubscribe(name)

    async def alter_subscription(self, name: str, changes: Mapping[str, Any]) -> None:
        await self._hosted.alter(name, changes)

    async def seek(self, host: SubscriptionHost, to: str | int) -> None:
        await self._hosted.seek(host, to)

    async def skip(self, name: str, *, count: int | None = None, to: int | None = None) -> int:
        return await self._hosted.skip(name, count=count, to=to)

    async def truncate(self, before: int | None = None) -> None:
        await self._trimming.truncate(before)

    def beginning(self, before: int | None) -> int:
        return self._trimming.beginning(before)

    def roll_unneeded(self, bytes_min: int) -> None:
        self._trimming.roll_unneeded(bytes_min)

    def restarts_without(self, last: int) -> bool:
        return self._trimming.restarts_without(last)

    def rewrite_state(self) -> None:
        """Schedules a snapshot written from memory, without reading the log."""
        self._core.log.compact_soon()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        self._core.check_open()

    async def close(self, why: DanubeError | None = None, *, seal: bool = True) -> None:
        """Accepts no new work, makes everything accepted durable, seals and closes the streams, and tells users `why`.

        A stream that is not sealed is recovered when the topic is next opened: this is faster now, and slower then.
        """
        if self.closed:
            return
        why = why or TopicClosed(f"this broker no longer serves {self.name}")
        self._core.close(why)
        self._wake_waiting()
        self.filler.close()
        for host in list(self.subscriptions.values()):  # one may be deleted during this
            await host.close(why)
        await self._recovery.stop()
        await self._core.log.close()
        await self.state_stream.close(seal=seal)
        await self.ledger.stream.close(seal=seal)


def _messages(stream: str, name: str, dependencies: TopicDependencies, options: TopicOptions) -> StreamToOpen:
    size, age = tier_bounds(dependencies.tier, options.ledger_bytes, options.ledger_seconds)
    settings = StreamSettings(options.copies, options.durability, size, age, ledgers_listed=options.ledgers_listed)
    return StreamToOpen(stream, settings, dependencies.cold, name)


def _state(stream: str, name: str, options: TopicOptions) -> StreamToOpen:
    """The state is always synced, even if the messages are only buffered."""
    settings = StreamSettings(options.copies, lazy=True, reserve=True, ledgers_listed=options.ledgers_listed)
    return StreamToOpen(state_stream(stream), settings, None, f"the state of {name}")
