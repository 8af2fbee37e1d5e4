"""A reliable topic on its owner: publishes with dedup, subscriptions that deliver, state that survives, retention.

One loop owns it; a core call runs to its end between awaits. Everything it promises is durable before it says so. The
work is done by its parts, which share a `TopicCore`; here they are opened, kept together and closed.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Any

from pydanube.base.errors import DanubeError, ProducerUnknown, SinkBlocked, TopicClosed
from pydanube.base.ids import ConsumerId, Epoch
from pydanube.broker.state.log import state_stream
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.delivery import Consumer, ConsumerSink, Timing
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.backlog import Backlog
from pydanube.broker.topic.core import CLOSED, SERVING, TopicCore
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.broker.topic.hosted_subscriptions import HostedSubscriptions
from pydanube.broker.topic.housekeeping import TopicHousekeeping
from pydanube.broker.topic.producer_recovery import ProducerRecovery
from pydanube.broker.topic.producer_sessions import Session
from pydanube.broker.topic.publisher import Publisher
from pydanube.broker.topic.served import LATEST, STORES_NOTHING, Receipt, ServedSubscription
from pydanube.broker.topic.trimming import Trimming
from pydanube.storage.stream.cold import tier_bounds
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream
from pydanube.topic.dedup import Renewal
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch


class Topic:
    """Created by `Topic.open`, which takes it from its previous owner."""

    reliable = True
    drops: Mapping[str, int] = {}  # subscriptions drop messages, and count them; the topic drops none

    def __init__(
        self, name: str, options: TopicOptions, dependencies: TopicDependencies, messages: Stream, state: Stream
    ) -> None:
        core = self._core = TopicCore(name, options, dependencies, messages, state, self._changed)
        self.name, self.ledger, self.state, self.state_stream = name, core.ledger, core.state, state
        self.failed = 0  # batches that did not become durable as they were
        self.reserved = False  # a job writes rows that are to be seen at once, and no other job may
        self.blocked: SinkBlocked | None = None  # why that does not come to an end
        self._hosted = HostedSubscriptions(core, dependencies)
        self.subscriptions = self._hosted.hosts
        self._publisher = Publisher(core)
        self.sessions, self.inbound = self._publisher.sessions, self._publisher.inbound
        self._recovery = ProducerRecovery(core, self._show_more)
        self._backlog = Backlog(name, core.ledger, self.subscriptions, options.backlog)
        self._trimming = Trimming(core, self.subscriptions)
        tiered = dependencies.tier is not None
        self._housekeeping = TopicHousekeeping(
            core, self._hosted, self._publisher, self._backlog, self._trimming, tiered=tiered
        )
        self._change: Future[None] | None = None  # done with the next change of what is visible, if a caller waits
        self._consumers = 0  # ids given so far
        self._seen = (0, 0)  # the end of the messages and of the state log when `had_activity` was last called

    @classmethod
    async def open(
        cls, stream: str, dependencies: TopicDependencies, options: TopicOptions, name: str | None = None
    ) -> Topic:
        """Takes the stream of messages, then that of the state, and loads what both say.

        `name` is the topic's name for people; the streams have their own names.
        """
        name = name or stream
        messages = await _take_messages(stream, name, dependencies, options)
        try:
            state = await _take_state(stream, name, dependencies, options)
        except BaseException:
            await messages.close()
            raise
        topic = cls(name, options, dependencies, messages, state)
        try:
            await topic._core.log.load()
            await topic._recovery.load()
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
        return self.ledger.stream.epoch

    @property
    def lost(self) -> bool:
        return self._core.lost

    @property
    def closed(self) -> bool:
        return self._core.phase is CLOSED

    @property
    def pinned(self) -> bool:
        """Somebody needs what is here, however old it grows."""
        return self._core.pinned

    @pinned.setter
    def pinned(self, pinned: bool) -> None:
        self._core.pinned = pinned

    @property
    def certain(self) -> bool:
        """Whether the next offset is known, and what became of failed writes."""
        return self._core.phase is SERVING and self.ledger.stream.open

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
        """From now on; what its streams were opened with stays."""
        before, self._core.options = self.options, options
        if options.backlog != before.backlog:
            self._backlog.change(options.backlog)
        self._hosted.follow(options)

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def attach(
        self, producer: str, *, fresh: bool = False, temporary: bool = False, renewal: Renewal | None = None
    ) -> Session:
        """A session for this producer name; older ones of it are fenced. It and its sequences are durable on return.

        With `fresh` the caller vouches that it repeats nothing: needed where the name may have been forgotten. One that
        is `temporary` goes when it leaves: tell `sessions` who holds it. With `renewal` it continues a session that
        it had, and is the one that is fenced if there is a newer one.
        """
        return await self._publisher.attach(producer, fresh=fresh, temporary=temporary, renewal=renewal)

    def producer_name(self, producer: int) -> str:
        try:
            return self.state.producers.get(producer).name if producer else ""
        except ProducerUnknown:
            return ""

    def admit(self, bytes: int) -> None:
        """Raises if its subscriptions are too far behind for more."""
        self._backlog.admit(bytes)

    def publish(self, batch: Batch, producer_epoch: int = 0) -> Receipt:
        """Appends a batch, once: a batch that came before is answered with the offset it has (§13)."""
        if self.blocked is not None:
            self._core.check_certain()
            raise SinkBlocked(*self.blocked.args)
        return self._publisher.publish(batch, producer_epoch)

    def reserve(self, offset: int | None) -> None:
        """Hides everything from `offset` on, whoever publishes it; None ends this."""
        self.reserved, self.ledger.hidden_from = offset is not None, offset
        if offset is None:
            self.blocked = None
            self._show_more()

    def append_reserved(self, batch: Batch) -> Receipt:
        """For the job that has it reserved: with its marks, and without a producer."""
        return self._publisher.append_reserved(batch)

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
        """More is confirmed, or a write failed."""
        self._wake_waiting()
        self._publisher.repeated.answer(error)
        if error is not None:
            self.failed += 1
            self._recovery.begin()
            return
        for host in self.subscriptions.values():
            host.messages_arrived()

    def _show_more(self) -> None:
        """Called when what is visible has changed, although nothing more is confirmed."""
        self._changed(None)

    async def find_time(self, time: int) -> int:
        return await self.ledger.find_time(time)

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

    def subscription(self, name: str) -> SubscriptionHost:
        return self._hosted.get(name)

    def offset_of(self, start: str | int) -> int:
        """Where that is now: the earliest or latest message, or an offset."""
        return self._hosted.offset_of(start)

    async def unsubscribe(self, name: str) -> None:
        await self._hosted.unsubscribe(name)

    async def alter_subscription(self, name: str, changes: Mapping[str, Any]) -> None:
        """Changes the options of a subscription, which take effect at once and are durable on return."""
        await self._hosted.alter(name, changes)

    async def seek(self, host: SubscriptionHost, to: str | int) -> None:
        """Delivers everything from there on again, or skips to it; durable before it returns (§14)."""
        await self._hosted.seek(host, to)

    async def skip(self, name: str, *, count: int | None = None, to: int | None = None) -> int:
        """Gives up the next `count` messages of a subscription, or all below `to`; how many they were. Durable."""
        return await self._hosted.skip(name, count=count, to=to)

    def connect(
        self,
        host: ServedSubscription,
        name: str,
        sink: ConsumerSink,
        filters: Sequence[bytes] = (),
        timing: Timing = Timing.DELIVERED,
    ) -> Consumer:
        """A consumer of the subscription; it gets nothing before it grants permits."""
        self._core.check_open()
        self._consumers += 1
        consumer = Consumer(ConsumerId(self._consumers), name, sink, timing)
        host.join(consumer, filters)
        return consumer

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def had_activity(self) -> bool:
        """Whether anything was published or acknowledged since this was last asked."""
        before, self._seen = self._seen, (self.ledger.confirmed_end, self._core.log.bytes)
        return before != self._seen

    async def tick(self) -> None:
        """Expires messages, rolls ledgers by age, and deletes what is not needed. Called about once a second."""
        if not self.closed and not self.lost:
            await self._housekeeping.tick()

    def end_unused(self) -> None:
        """Nothing to do: ending a subscription takes a record here, so `tick` does it."""

    def roll_unneeded(self, bytes_min: int) -> None:
        """Seals an open ledger of at least `bytes_min` bytes if half of it is unneeded, so that it can be deleted."""
        self._trimming.roll_unneeded(bytes_min)

    async def truncate(self, before: int | None = None) -> None:
        """Deletes all messages there are, or those below `before`. Subscriptions skip them, visibly; durable."""
        await self._trimming.truncate(before)

    def beginning(self, before: int | None) -> int:
        """Where it would begin if all messages, or those below `before`, were deleted now."""
        return self._trimming.beginning(before)

    def restarts_without(self, last: int) -> bool:
        """Whether its producers are known after a restart without the messages up to `last`; if not, soon."""
        return self._trimming.restarts_without(last)

    def rewrite_state(self) -> None:
        """Soon, and from memory, so that nothing of what is on disk is needed."""
        self._core.log.compact_soon()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self, why: DanubeError | None = None, *, seal: bool = True) -> None:
        """Accepts no new work, makes everything accepted durable, seals and closes the streams, and tells users `why`.

        A stream that is not sealed is recovered when the topic is next opened: this is faster now, and slower then.
        """
        if self.closed:
            return
        why = why or TopicClosed(f"this broker no longer serves {self.name}")
        self._core.close(why)
        self._wake_waiting()
        for host in list(self.subscriptions.values()):  # one may be deleted meanwhile
            await host.close(why)
        await self._recovery.stop()
        await self._core.log.close()
        await self.state_stream.close(seal=seal)
        await self.ledger.stream.close(seal=seal)


async def _take_messages(stream: str, name: str, dependencies: TopicDependencies, options: TopicOptions) -> Stream:
    tier = dependencies.tier
    size, age = tier_bounds(tier, options.ledger_bytes, options.ledger_seconds)
    settings = StreamSettings(options.copies, options.durability, size, age, ledgers_listed=options.ledgers_listed)
    ports = (dependencies.catalog, dependencies.nodes, dependencies.clock, dependencies.randomness)
    return await Stream.take(stream, *ports, settings, None if tier is None else tier.reader, name)


async def _take_state(stream: str, name: str, dependencies: TopicDependencies, options: TopicOptions) -> Stream:
    """Takes the state stream, which is always synced, even if the messages are buffered."""
    settings = StreamSettings(options.copies, lazy=True, reserve=True, ledgers_listed=options.ledgers_listed)
    ports = (dependencies.catalog, dependencies.nodes, dependencies.clock, dependencies.randomness)
    return await Stream.take(state_stream(stream), *ports, settings, None, f"the state of {name}")
