"""The one door: every face calls these methods and decides nothing itself. Each takes the caller's principal first.

It opens topics when they are first used, holds producers and consumers to the policies, and closes what nobody uses.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydanube.base.checksum import crc32c
from pydanube.base.durability import Durability
from pydanube.base.errors import (
    DanubeError,
    LimitReached,
    MessageTooLarge,
    NotReliable,
    PartitionMissing,
    PolicyInvalid,
    RequestInvalid,
    SubscriptionNotFound,
    TopicClosed,
    TopicExists,
    TopicKindDiffers,
    TopicNotFound,
)
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import READ_BYTES_MAX, TOPICS_OPENING_MAX
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.best_effort_topic import BestEffortTopic
from pydanube.broker.delivery import ConsumerSink
from pydanube.broker.directory import Directory, TopicRecord
from pydanube.broker.holds import ANONYMOUS, AnySubscription, AnyTopic, ConsumerHold, Opened, Principal, Producer
from pydanube.broker.options import SubscriptionOptions, TopicOptions
from pydanube.broker.policies import Policies
from pydanube.broker.subscription import SubscriptionHost
from pydanube.broker.topic import LATEST, Receipt, Surroundings, Topic
from pydanube.ledger.dedup import Renewal
from pydanube.ledger.retention import RetentionPolicy
from pydanube.ledger.state_records import SubscriptionKind
from pydanube.ports.catalog import Catalog
from pydanube.ports.clock import Clock
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.tail import TailCache
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0


class Service:
    """Owned by the broker's loop."""

    def __init__(
        self,
        directory: Directory,
        catalog: Catalog,
        nodes: StorageNodes,
        clock: Clock,
        randomness: Randomness,
        *,
        cache: TailCache | None = None,
        auto_create: bool = True,
    ) -> None:
        self._directory = directory
        self.auto_create = auto_create
        self._around = Surroundings(catalog, nodes, clock, randomness, cache or TailCache(), self._publish_dead_letter)
        self._loop = asyncio.get_running_loop()
        self._opened: dict[TopicName, Opened] = {}
        self._opening: dict[TopicName, Task[Opened]] = {}
        self._turns = asyncio.Semaphore(TOPICS_OPENING_MAX)
        self._numbers = 0  # of producers and consumers so far
        self._closed = False
        self._moved = asyncio.Event()  # the clock was, by hand
        self._housekeeping = self._loop.create_task(self._keep_house())

    # -- namespaces ----------------------------------------------------------------------------------------------------

    def namespaces(self, principal: Principal) -> list[str]:
        return self._directory.namespaces()

    async def create_namespace(self, principal: Principal, name: str, policies: Mapping[str, Any]) -> None:
        self._check_open()
        await self._directory.create_namespace(name, policies)

    async def delete_namespace(self, principal: Principal, name: str) -> None:
        self._check_open()
        await self._directory.delete_namespace(name)

    async def namespace_policies(
        self, principal: Principal, name: str, changes: Mapping[str, Any] | None = None
    ) -> Policies:
        """What holds in it, after these changes if there are any."""
        if changes is None:
            return self._directory.policies(name)
        self._check_open()
        return await self._directory.change_namespace(name, changes)

    # -- topics --------------------------------------------------------------------------------------------------------

    async def topic(
        self, principal: Principal, name: str, *, create: bool = False, reliable: bool | None = None
    ) -> TopicRecord:
        """The topic of that name, made if it may be."""
        parsed = parse_topic(name)
        record = self._directory.find(parsed)
        if record is None:
            if not create or not self.auto_create or parsed.partition is not None:
                raise TopicNotFound(f"topic {parsed}")
            try:
                record = await self._directory.create_topic(parsed, reliable=reliable is not False)
            except TopicExists:  # somebody else was quicker
                record = self._directory.get(parsed)
        if reliable is not None and record.reliable is not reliable:
            kinds = {True: "reliable", False: "not reliable"}
            raise TopicKindDiffers(f"{record.name} is {kinds[record.reliable]}")
        return record

    async def open(
        self, principal: Principal, name: str, *, create: bool = False, reliable: bool | None = None
    ) -> Opened:
        """The topic or partition, served here from now on."""
        self._check_open()
        parsed = parse_topic(name)
        found = self._opened.get(parsed)
        if found is not None and not self._gone(found):
            if reliable is not None and found.record.reliable is not reliable:
                await self.topic(principal, name, reliable=reliable)
            return found
        record = await self.topic(principal, name, create=create, reliable=reliable)
        inside = parsed.partition is not None and parsed.partition < record.partitions
        if inside == (not record.partitions):
            raise PartitionMissing(f"{parsed}: {record.name} has {record.partitions} partitions")
        opening = self._opening.get(parsed)
        if opening is None:
            opening = self._opening[parsed] = self._loop.create_task(self._open(parsed, record))
            opening.add_done_callback(lambda _: self._opening.pop(parsed, None))
        return await asyncio.shield(opening)

    async def _open(self, name: TopicName, record: TopicRecord) -> Opened:
        policies = record.policies.over(self._directory.policies(name.namespace))
        async with self._turns:
            if record.reliable:
                options = _topic_options(record, policies)
                topic: AnyTopic = await Topic.open(record.stream(name.partition), self._around, options, str(name))
            else:
                topic = BestEffortTopic(str(name), self._around.clock)
        opened = self._opened[name] = Opened(name, record, topic, policies)
        return opened

    def _gone(self, opened: Opened) -> bool:
        return isinstance(opened.topic, Topic) and opened.topic.lost

    async def create_topic(
        self,
        principal: Principal,
        name: str,
        *,
        reliable: bool = True,
        partitions: int = 0,
        durability: Durability = Durability.FSYNC,
        policies: Mapping[str, Any] | None = None,
    ) -> TopicRecord:
        self._check_open()
        return await self._directory.create_topic(
            parse_topic(name), reliable=reliable, partitions=partitions, durability=durability, policies=policies
        )

    def topics(self, principal: Principal, namespace: str) -> list[TopicRecord]:
        self._directory.policies(namespace)  # which must exist
        return self._directory.topics(namespace)

    async def alter_topic(
        self, principal: Principal, name: str, *, partitions: int | None, policies: Mapping[str, Any]
    ) -> TopicRecord:
        """More partitions, other policies; what is open follows at once."""
        record = await self._directory.alter_topic(parse_topic(name).whole, partitions=partitions, policies=policies)
        merged = record.policies.over(self._directory.policies(record.name.namespace))
        for opened in self._opened.values():
            if opened.name.whole == record.name:
                opened.record, opened.policies = record, merged
                if isinstance(opened.topic, Topic):
                    opened.topic.options = _topic_options(record, merged)
        return record

    async def delete_topic(self, principal: Principal, name: str) -> None:
        """Its record goes first, so that nobody opens it again; then what is stored."""
        self._check_open()
        parsed = parse_topic(name)
        record = await self._directory.delete_topic(parsed.whole)
        partitions = [None] if not record.partitions else list(range(record.partitions))
        for partition in partitions:
            place = TopicName(parsed.namespace, parsed.name, partition)
            opened = self._opened.pop(place, None)
            if opened is None and record.reliable:
                opened = await self._open(place, record)
                self._opened.pop(place, None)
            if opened is not None and isinstance(opened.topic, Topic):
                await opened.topic.delete()
            elif opened is not None:
                await opened.topic.close()

    # -- producers -----------------------------------------------------------------------------------------------------

    async def open_producer(
        self,
        principal: Principal,
        topic: str,
        *,
        name: str | None = None,
        fresh: bool = False,
        renewal: Renewal | None = None,
        reliable: bool = True,
        create: bool = True,
    ) -> Producer:
        """With a name, what it repeats is found; see `Topic.attach`."""
        opened = await self.open(principal, topic, create=create, reliable=reliable)
        limit = opened.policies.producers_max
        if limit is not None and len(opened.producers) >= limit:
            raise LimitReached(f"{opened.name} has {limit} producers")
        session = None
        if name is not None and isinstance(opened.topic, Topic):
            session = await opened.topic.attach(name, fresh=fresh, renewal=renewal)
        producer = Producer(opened, session, reliable)
        self._numbers += 1
        opened.producers[self._numbers] = producer
        return producer

    def publish(self, producer: Producer, batch: Batch) -> Receipt:
        """The receipt's future is done when the batch is as safe as the topic promises."""
        self._check_open()
        opened = producer.open
        limit = opened.policies.message_bytes_max
        if limit is not None and batch.raw_bytes > limit and _largest(batch) > limit:
            raise MessageTooLarge(f"{opened.name} takes messages of at most {limit} bytes")
        epoch = 0 if producer.session is None else producer.session.epoch
        return opened.topic.publish(batch, epoch)

    def close_producer(self, producer: Producer) -> None:
        _remove(producer.open.producers, producer)

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def open_consumer(
        self,
        principal: Principal,
        topic: str,
        subscription: str,
        kind: SubscriptionKind,
        sink: ConsumerSink,
        *,
        name: str = "",
        start: str | int | Mapping[str, int] = LATEST,
        filters: Sequence[bytes] = (),
        create: bool = True,
        reliable: bool | None = None,
        options: SubscriptionOptions | None = None,
    ) -> ConsumerHold:
        opened = await self.open(principal, topic, create=create, reliable=reliable)
        limit = opened.policies.consumers_max
        if limit is not None and len(opened.consumers) >= limit:
            raise LimitReached(f"{opened.name} has {limit} consumers")
        host = await self._subscribe(opened, subscription, kind, start, options)
        consumer = opened.topic.connect(host, name, sink, filters)  # type: ignore[arg-type]
        hold = ConsumerHold(opened, host, consumer)
        self._numbers += 1
        opened.consumers[self._numbers] = hold
        return hold

    async def _subscribe(
        self,
        opened: Opened,
        subscription: str,
        kind: SubscriptionKind,
        start: str | int | Mapping[str, int],
        options: SubscriptionOptions | None,
    ) -> AnySubscription:
        limit = opened.policies.subscriptions_max
        topic = opened.topic
        target = None if options is None else options.failure.dead_letter_topic
        if target is not None and parse_topic(target).whole == opened.name.whole:
            raise PolicyInvalid(f"dead letters of {opened.name} cannot go to itself")
        if limit is not None and subscription not in topic.subscriptions and len(topic.subscriptions) >= limit:
            raise LimitReached(f"{opened.name} has {limit} subscriptions")
        return await topic.subscribe(subscription, kind, start=await self._start(opened, start), options=options)

    async def _start(self, opened: Opened, start: str | int | Mapping[str, int]) -> str | int:
        if not isinstance(start, Mapping):
            return start
        time = start.get("time")
        if not isinstance(time, int):
            raise RequestInvalid("a start by time is {'time': microseconds}")
        return await self._reliable(opened).find_time(time)

    def close_consumer(self, hold: ConsumerHold, *, crashed: bool) -> None:
        _remove(hold.open.consumers, hold)
        hold.host.leave(hold.consumer.id, crashed=crashed)

    async def seek(self, hold: ConsumerHold, *, offset: int | None = None, time: int | None = None) -> int:
        """To an offset or a time; returns the new generation."""
        topic = self._reliable(hold.open)
        assert isinstance(hold.host, SubscriptionHost)
        if (offset is None) == (time is None):
            raise RequestInvalid("a seek goes to an offset or to a time")
        target = offset if offset is not None else await topic.find_time(time or 0)
        await topic.seek(hold.host, target)
        return hold.host.known.cursor.generation

    def pause(self, hold: ConsumerHold) -> None:
        self._pausable(hold).pause()

    def resume(self, hold: ConsumerHold) -> None:
        self._pausable(hold).resume()

    def _pausable(self, hold: ConsumerHold) -> SubscriptionHost:
        if not isinstance(hold.host, SubscriptionHost):
            raise NotReliable(f"{hold.open.name} keeps nothing")
        return hold.host

    async def subscribe(
        self,
        principal: Principal,
        topic: str,
        subscription: str,
        kind: SubscriptionKind,
        *,
        start: str | int | Mapping[str, int] = LATEST,
        options: SubscriptionOptions | None = None,
    ) -> None:
        """Makes it if it is new, without a consumer."""
        await self._subscribe(await self.open(principal, topic), subscription, kind, start, options)

    async def unsubscribe(self, principal: Principal, topic: str, subscription: str) -> None:
        opened = await self.open(principal, topic)
        await opened.topic.unsubscribe(subscription)

    async def explain(
        self, principal: Principal, topic: str, subscription: str, *, offset: int | None, consumer: int | None
    ) -> str:
        opened = await self.open(principal, topic)
        host = self._reliable(opened).subscriptions.get(subscription)
        if host is None:
            raise SubscriptionNotFound(f"subscription {subscription!r}")
        if offset is not None:
            return host.explain(offset).sentence
        if consumer is not None:
            return host.explain_consumer(ConsumerId(consumer)).sentence
        raise RequestInvalid("explain an offset or a consumer")

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, principal: Principal, topic: str, offset: int, bytes_max: int) -> list[Batch]:
        """Confirmed batches from the one that holds `offset` on; none if there is nothing there yet."""
        opened = await self.open(principal, topic)
        ledger = self._reliable(opened).ledger
        offset = max(offset, ledger.first)
        if offset >= ledger.confirmed_end:
            return []
        return await ledger.read(offset, max(1, min(bytes_max, READ_BYTES_MAX // 4)))

    async def bounds(self, principal: Principal, topic: str) -> tuple[int, int]:
        """The first offset there is, and the one after the last that may be seen."""
        opened = await self.open(principal, topic)
        ledger = self._reliable(opened).ledger
        return ledger.first, ledger.confirmed_end

    async def offset_of_time(self, principal: Principal, topic: str, time: int) -> int:
        return await self._reliable(await self.open(principal, topic)).find_time(time)

    def _reliable(self, opened: Opened) -> Topic:
        if not isinstance(opened.topic, Topic):
            raise NotReliable(f"{opened.name} keeps nothing")
        return opened.topic

    # -- house ---------------------------------------------------------------------------------------------------------

    async def _publish_dead_letter(self, topic: str, message: Batch) -> None:
        record = await self.topic(ANONYMOUS, topic, create=True, reliable=True)
        if record.partitions and record.name == parse_topic(topic):
            [key] = message.keys()
            topic = str(record.name._replace(partition=crc32c(key or b"") % record.partitions))
        opened = await self.open(ANONYMOUS, topic, reliable=True)
        await opened.topic.publish(message).confirmed

    def time_moved(self) -> None:
        """The clock was moved by hand: what is due by now happens now."""
        self._moved.set()
        for opened in self._opened.values():
            if isinstance(opened.topic, Topic):
                for host in opened.topic.subscriptions.values():
                    host.wake()

    async def _keep_house(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._moved.wait()
            self._moved.clear()
            for opened in list(self._opened.values()):
                if isinstance(opened.topic, Topic):
                    try:
                        await opened.topic.tick()
                    except Exception as error:  # one topic's trouble is not the others'
                        log.error("%s: %s", opened.name, error, exc_info=not isinstance(error, DanubeError))

    def metrics(self) -> list[str]:
        """Lines of the text format: what there is now."""
        opened = self._opened.values()
        return [
            f"danube_topics_open {len(opened)}",
            f"danube_producers {sum(len(each.producers) for each in opened)}",
            f"danube_consumers {sum(len(each.consumers) for each in opened)}",
            f"danube_tail_cache_bytes {self._around.cache.bytes}",
        ]

    def _check_open(self) -> None:
        if self._closed:
            raise TopicClosed("the broker is stopping")

    async def close(self) -> None:
        """No new work; every topic becomes durable and is let go."""
        self._closed = True
        self._housekeeping.cancel()
        await asyncio.gather(self._housekeeping, *self._opening.values(), return_exceptions=True)
        opened = list(self._opened.values())
        await asyncio.gather(*(each.topic.close() for each in opened))


def _largest(batch: Batch) -> int:
    """Bytes of its largest payload. Only asked of batches that may hold one beyond the limit."""
    return max(len(payload or b"") for payload in batch.payloads())


def _remove(holds: dict[int, Any], hold: object) -> None:
    for number, each in holds.items():
        if each is hold:
            del holds[number]
            return


def _topic_options(record: TopicRecord, policies: Policies) -> TopicOptions:
    retention = None
    if policies.retention_seconds is not None or policies.retention_bytes is not None:
        retention = RetentionPolicy(policies.retention_seconds, policies.retention_bytes)
    return TopicOptions(durability=record.durability, retention=retention, ttl_seconds=policies.ttl_seconds)
