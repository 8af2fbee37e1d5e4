"""A topic or partition that is served here, with its producers and consumers.

Its limits are enforced here, so that no face and no verb can forget them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from pydanube.base.errors import (
    ConsumerLimitReached,
    DanubeError,
    MessageTooLarge,
    ProducerLimitReached,
    QuotaReached,
    RequestInvalid,
    SubscriptionConsumerLimitReached,
    SubscriptionLimitReached,
    SubscriptionOptionInvalid,
    TopicExclusive,
    TopicNotFound,
)
from pydanube.base.names import TopicName, parse_topic
from pydanube.base.wording import many
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.limits.pacing import Pace
from pydanube.broker.limits.quotas import Usage
from pydanube.broker.limits.rates import rate_of
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.topic.served import Receipt, ServedSubscription, ServedTopic
from pydanube.broker.topic.topic import Topic
from pydanube.ports.clock import Clock
from pydanube.stream.retention import RetentionPolicy
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.broker.serving.handles import ConsumerHandle, ProducerHandle

Start: TypeAlias = str | int | Mapping[str, int]  # earliest, latest, an offset, or {"time": microseconds}


@dataclass(eq=False, slots=True)
class OpenTopic:
    """Created by `OpenTopics`, which checks whether the caller may open it."""

    name: TopicName
    record: TopicRecord
    topic: ServedTopic
    policies: Policies
    room: DiskRoom = field(default_factory=DiskRoom)  # of the broker
    usage: Usage | None = None  # of its namespace, if that has a limit
    pace: Pace | None = None  # of its publishers, if they have a limit
    subscribing: asyncio.Lock = field(default_factory=asyncio.Lock)  # one at a time, so that none exceeds the limit
    redriving: asyncio.Lock = field(default_factory=asyncio.Lock)  # one at a time, so no letter is published twice
    producers: dict[ProducerHandle, None] = field(default_factory=dict)
    consumers: dict[ConsumerHandle, None] = field(default_factory=dict)
    exclusive: ProducerHandle | None = None  # the producer that has exclusive access
    ended: DanubeError | None = None  # why it is no longer served
    changing: bool = False  # opened for a change of all partitions, which must be finished before clients use it

    def follow(self, record: TopicRecord, policies: Policies, usage: Usage | None, clock: Clock) -> None:
        """Applies a new record and new policies; existing producers, consumers and subscriptions stay."""
        before, self.record, self.policies, self.usage = self.policies, record, policies, usage
        if before.message_bytes_max != policies.message_bytes_max:
            for producer in self.producers:
                producer.limited(policies.message_bytes_max)
        self.topic.alter(topic_options(record, policies))
        rate = rate_of(policies.publish_messages_per_second, policies.publish_bytes_per_second)
        kept = None if self.pace is None else (self.pace.rate.messages, self.pace.rate.bytes)
        if kept != (None if rate is None else (rate.messages, rate.bytes)):
            self.let_go()
            self.pace = None if rate is None else Pace(rate, clock)

    @property
    def reliable(self) -> Topic:
        """The topic, if it stores messages; raises `NotReliable` if not."""
        return self.topic.as_reliable()

    async def offset_at(self, start: Start) -> str | int:
        """Turns a time into an offset. The topic itself resolves `earliest` and `latest`."""
        if not isinstance(start, Mapping):
            return start
        time = start.get("time")
        if not isinstance(time, int):
            raise RequestInvalid("a start by time must be {'time': microseconds}")
        return await self.reliable.find_time(time)

    async def enter(
        self,
        subscription: str,
        kind: SubscriptionKind,
        start: Start,
        options: SubscriptionOptions | None,
        *,
        create: bool = True,
    ) -> ServedSubscription:
        """The subscription of that name. With `create`, a new one is created with these options."""
        options = self.options_for(subscription, kind, options)
        offset = await self.offset_at(start)
        async with self.subscribing:
            self.check_subscriptions(subscription)
            return await self.topic.subscribe(subscription, kind, start=offset, options=options, create=create)

    def settle_usage(self) -> None:
        """Updates the bytes that it stores. If half of the namespace's limit is used, unneeded data is sealed so that
        it can be deleted."""
        usage, limit, topic = self.usage, self.policies.namespace_bytes_max, self.topic
        if usage is None or limit is None or not topic.reliable:
            return
        usage.set(topic.name, topic.stored_bytes)
        if usage.bytes * 2 > limit:
            topic.as_reliable().roll_unneeded(limit // 16)

    def let_go(self) -> None:
        """Releases answers that were held back because of the publish rate."""
        if self.pace is not None:
            self.pace.release()

    def mark(self, host: ServedSubscription | None = None) -> str:
        """Identifies the topic or a subscription, so that a client that comes back gets the same one or an error."""
        return str(self.record.id) if host is None or host.id is None else f"{self.record.id}.{host.id}"

    def check_mark(self, mark: str | None) -> None:
        """Raises if a client came back with the mark of an earlier topic of this name."""
        if mark is not None and mark.partition(".")[0] != str(self.record.id):
            raise TopicNotFound(f"{self.name} was deleted, and another topic now has its name")

    async def end(self, why: DanubeError, *, seal: bool = True) -> None:
        """Stops serving it: tells its producers and consumers, then closes it."""
        self.ended = why
        self.let_go()
        producers, self.producers, self.exclusive = self.producers, {}, None
        self.consumers = {}  # their subscriptions tell them
        for producer in producers:
            producer.ended(why)
        await self.topic.close(why, seal=seal)

    def consumers_of(self, subscription: str) -> list[ConsumerHandle]:
        """The connected consumers of one subscription."""
        host = self.topic.subscriptions.get(subscription)
        return [each for each in self.consumers if each.subscription is host]

    def forget(self, host: ServedSubscription) -> None:
        """Removes the consumers of a subscription that has ended."""
        self.consumers = {each: None for each in self.consumers if each.subscription is not host}

    def _check_served(self) -> None:
        if self.ended is not None:
            raise type(self.ended)(*self.ended.args)

    def check_producers(self, *, exclusive: bool = False) -> None:
        self._check_served()
        if self.exclusive is not None or (exclusive and self.producers):
            raise TopicExclusive(f"{self.name} already has {many(len(self.producers), 'producer')}")
        limit = self.policies.producers_max
        if limit is not None and len(self.producers) >= limit:
            raise ProducerLimitReached(f"{self.name} has reached its limit of {many(limit, 'producer')}")

    def check_consumers(self) -> None:
        self._check_served()
        limit = self.policies.consumers_max
        if limit is not None and len(self.consumers) >= limit:
            raise ConsumerLimitReached(f"{self.name} has reached its limit of {many(limit, 'consumer')}")

    def check_subscription(self, host: ServedSubscription) -> None:
        limit = self.policies.consumers_per_subscription_max
        if limit is not None and len(host.consumers) >= limit:
            raise SubscriptionConsumerLimitReached(
                f"subscription {host.name!r} of {self.name} has reached its limit of {many(limit, 'consumer')}"
            )

    def check_subscriptions(self, name: str) -> None:
        limit, known = self.policies.subscriptions_max, self.topic.subscriptions
        if limit is not None and name not in known and len(known) >= limit:
            raise SubscriptionLimitReached(f"{self.name} has reached its limit of {many(limit, 'subscription')}")

    def options_for(
        self, subscription: str, kind: SubscriptionKind, options: SubscriptionOptions | None
    ) -> SubscriptionOptions | None:
        """The options of a new subscription that was requested with these options."""
        if self.topic.reliable and not self.record.dead_letters:
            options = (options or SubscriptionOptions()).resolved(kind, self.name, subscription)
        if options is not None:
            self.check_dead_letters(options)
        return options

    def check_dead_letters(self, options: SubscriptionOptions) -> None:
        target = options.failure.dead_letter_topic
        if target is not None and parse_topic(target).whole == self.name.whole:
            raise SubscriptionOptionInvalid(f"{self.name} cannot be its own dead-letter topic")

    def publish(self, batch: Batch, producer_epoch: int) -> Receipt:
        """Publishes to the topic if the policies allow it; the answer waits until the publish rate allows it."""
        self.check_messages(batch)
        self.admit(batch.size)
        receipt = self.topic.publish(batch, producer_epoch)
        if receipt.duplicate:
            return receipt
        self._count(batch)
        if self.pace is not None:
            answer = self.pace.hold(receipt.confirmed, batch.count, batch.size)
            return Receipt(receipt.offset, answer, written=receipt.confirmed)
        return receipt

    def check_messages(self, batch: Batch) -> None:
        """Raises if a message is larger than the topic accepts."""
        limit = self.policies.message_bytes_max
        if limit is not None and not batch.payloads_within(limit):
            raise MessageTooLarge(f"{self.name} accepts messages of at most {limit} bytes")

    def admit(self, bytes: int) -> None:
        """Raises if the policies or the room on the disk do not allow this many bytes to be published now."""
        limit, usage, reliable = self.policies.namespace_bytes_max, self.usage, self.topic.reliable
        if limit is not None and usage is not None and usage.bytes >= limit and reliable:
            raise QuotaReached(f"namespace {self.name.namespace} stores {usage.bytes} bytes; its limit is {limit}")
        if self.pace is not None:
            self.pace.check(self.name)
        self.topic.admit(bytes)
        if reliable:
            self.room.admit(bytes)

    def charge(self, batch: Batch) -> None:
        """Counts a batch that was appended without being held to the publish rate; later publishes pay for it."""
        self._count(batch)
        if self.pace is not None:
            self.pace.charge(batch.count, batch.size)

    def _count(self, batch: Batch) -> None:
        if self.usage is not None and self.topic.reliable:
            self.usage.add(self.topic.name, batch.size)


def topic_options(record: TopicRecord, policies: Policies, defaults: TopicOptions | None = None) -> TopicOptions:
    """The options that the record and the policies set. The others are the defaults of the broker."""
    retention = None
    if policies.retention_seconds is not None or policies.retention_bytes is not None:
        retention = RetentionPolicy(policies.retention_seconds, policies.retention_bytes)
    return replace(
        defaults or TopicOptions(),
        durability=record.durability,
        retention=retention,
        ttl_seconds=policies.ttl_seconds,
        backlog=policies.backlog,
        dispatch_messages_per_second=policies.dispatch_messages_per_second,
        dispatch_bytes_per_second=policies.dispatch_bytes_per_second,
        unused_subscription_seconds=policies.unused_subscription_seconds,
        table=None if policies.table == "none" else policies.table,
    )
