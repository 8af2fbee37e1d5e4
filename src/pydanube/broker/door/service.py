"""The one door: every face calls these methods and decides nothing itself. Each takes the caller's principal first.

It opens topics when they are first used, holds producers and consumers to the policies, and closes what nobody uses.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydanube.adapters.threads import ThreadOffload
from pydanube.base.durability import Durability
from pydanube.base.errors import (
    DanubeError,
    NotReliable,
    RequestInvalid,
    SubscriptionNotFound,
    TopicClosed,
    TopicExists,
    TopicKindDiffers,
    TopicNotFound,
)
from pydanube.base.limits import READ_BYTES_MAX, TOPICS_OPENING_MAX
from pydanube.base.names import TopicName, parse_topic, parse_whole
from pydanube.broker.cold.tiering import Space, Tiering
from pydanube.broker.cold.tiers import Tiers
from pydanube.broker.commit.sinks import Sinks
from pydanube.broker.directory.directory import Directory, TopicRecord
from pydanube.broker.directory.pending import PendingOptions
from pydanube.broker.directory.topic_changes import TopicChanges
from pydanube.broker.door.admin import Admin
from pydanube.broker.door.presence import Presence
from pydanube.broker.limits.disk_room import Room
from pydanube.broker.limits.intake import Intake
from pydanube.broker.limits.policies import Policies
from pydanube.broker.limits.quotas import Usage
from pydanube.broker.serving.house import Housekeeping
from pydanube.broker.serving.leftovers import Leftovers, cut_off
from pydanube.broker.serving.open_topic import (
    ANONYMOUS,
    AnySubscription,
    AnyTopic,
    ConsumerHold,
    Ended,
    Opened,
    Principal,
    Producer,
    topic_options,
)
from pydanube.broker.serving.redrive import publish_dead_letter
from pydanube.broker.serving.reopening import reopen
from pydanube.broker.serving.salvage import Salvage
from pydanube.broker.serving.spreading import Spreading, change_of, growth_of
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import ConsumerSink, Timing
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.best_effort import BestEffortTopic
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.broker.topic.served import LATEST, Receipt
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.errands import Errands
from pydanube.ports.catalog import Catalog
from pydanube.ports.clock import Clock
from pydanube.ports.offload import Offload
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.stream.cold import ColdReader, ColdTier
from pydanube.storage.stream.tail import TailCache
from pydanube.storage.watched_clock import watched
from pydanube.topic.dedup import Renewal
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
TOPICS_CLOSING = 250  # at once, when the broker stops: their records become durable together
SEALING_SECONDS = 1.0  # of a stop; a topic that is not sealed by then is recovered when it is next opened


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
        room: Room | None = None,
        tier: ColdTier | None = None,
        space: Callable[[], Awaitable[Space]] | None = None,
        claim: Callable[[], Awaitable[None]] | None = None,
        offload: Offload | None = None,
    ) -> None:
        self._directory = directory
        self.clock = watched(clock)
        self.auto_create = auto_create
        self.intake = Intake()
        self.room = room or Room()
        self.rejected: dict[str, int] = {}  # publishes that were refused, by the code of the error
        self.offload = offload or ThreadOffload(1)
        publish = partial(publish_dead_letter, self, directory)
        self._around = TopicDependencies(
            catalog, nodes, self.clock, randomness, cache or TailCache(), publish, tier, self.offload
        )
        self._loop = asyncio.get_running_loop()
        self._opened: dict[TopicName, Opened] = {}
        self._opening: dict[TopicName, Task[Opened]] = {}
        self._usages: dict[str, Usage] = {}  # of namespaces that have a limit
        self._counting: dict[str, Task[None]] = {}  # namespaces whose bytes are not all known yet
        self.tiering = None if tier is None else Tiering(tier, self.clock, self._kept, space=space, claim=claim)
        self.leftovers = Leftovers(self._around, self.tiering)
        self.salvage = Salvage(self)
        self.tiers = Tiers(self.tiering, ColdReader(None) if tier is None else tier.reader, directory.notes)
        self.sinks = Sinks(self, directory.store)
        self.errands = Errands()
        self.spreading = Spreading(self, directory)
        self.admin = Admin(self)
        self.presence = Presence(clock.wall())
        self.topic_changes = TopicChanges(directory.store)
        self.notes = directory.notes
        self.pending = PendingOptions(directory.notes)
        self._turns = asyncio.Semaphore(TOPICS_OPENING_MAX)
        self._numbers = 0  # of producers and consumers so far
        self._closed = False
        self.housekeeping = Housekeeping(self, lambda: self.leftovers.find(directory))
        loops = (self.housekeeping, self.sinks, self.room, self.topic_changes, self.tiering)
        self.presence.guards += [each.guard for each in loops if each is not None]
        self._reopening: Task[None] | None = None
        self._moving = None if self.tiering is None else self._loop.create_task(self.tiering.run())

    # -- namespaces ----------------------------------------------------------------------------------------------------

    def namespaces(self, principal: Principal) -> list[str]:
        return self._directory.namespaces()

    async def create_namespace(self, principal: Principal, name: str, policies: Mapping[str, Any]) -> None:
        self._check_open()
        await self._directory.create_namespace(name, policies)

    async def delete_namespace(self, principal: Principal, name: str, *, dry_run: bool = False) -> None:
        self._check_open()
        if dry_run:
            return self._directory.check_deletable(name)
        await self.errands.run(self._delete_namespace(name))

    async def _delete_namespace(self, name: str) -> None:
        await self._directory.delete_namespace(name)
        self._usages.pop(name, None)

    async def namespace_policies(
        self, principal: Principal, name: str, changes: Mapping[str, Any] | None = None
    ) -> Policies:
        """What holds in it, after these changes if there are any."""
        if changes is None:
            return self._directory.policies(name)
        self._check_open()
        policies = await self.errands.run(self._change_namespace(name, changes))
        await self.counted(name)
        return policies

    async def _change_namespace(self, name: str, changes: Mapping[str, Any]) -> Policies:
        policies = await self._directory.change_namespace(name, changes)
        self._count(name, policies)
        for opened in self._opened.values():
            if opened.name.namespace == name:
                self._follow(opened, opened.record, policies)
                opened.settle_usage()
        return policies

    def _follow(self, opened: Opened, record: TopicRecord, namespace: Policies) -> None:
        usage = self._usages.get(opened.name.namespace)
        opened.follow(record, record.policies.over(namespace), usage, self._around.clock)

    def _count(self, namespace: str, policies: Policies) -> None:
        """What its topics store, where there is a limit on it: what is open at once, the others soon."""
        if policies.namespace_bytes_max is None:
            self._usages.pop(namespace, None)
        elif namespace not in self._usages:
            self._usages[namespace] = Usage()
            counting = self._counting[namespace] = self._loop.create_task(self._count_closed(namespace))
            counting.add_done_callback(lambda _: self._counting.pop(namespace, None))

    async def _count_closed(self, namespace: str) -> None:
        """After an unclean stop nobody knows how long the last ledgers are: these topics are opened."""
        usage = self._usages[namespace]
        for record in self._directory.topics(namespace):
            for place in record.places() if record.reliable else ():
                if place in self._opened or place in self._opening:
                    continue
                stream, _ = await self._around.catalog.load(record.stream(place.partition))
                if stream.unsealed is None:
                    usage.set(str(place), stream.bytes)
                    continue
                try:
                    await self.open(ANONYMOUS, str(place))
                except DanubeError as error:
                    log.warning("could not count the bytes stored in %s yet: %s", place, error)
            await asyncio.sleep(0)  # there may be many

    async def counted(self, namespace: str) -> None:
        """Until it is known what its topics store, where there is a limit on it."""
        if namespace in self._counting:
            await asyncio.wait([self._counting[namespace]])

    # -- topics --------------------------------------------------------------------------------------------------------

    async def topic(
        self, principal: Principal, name: str, *, create: bool = False, reliable: bool | None = None
    ) -> TopicRecord:
        """The topic of that name, made if it may be."""
        parsed = parse_topic(name)
        record = self._directory.find(parsed)
        if record is None:
            if not create or not self.auto_create or parsed.partition is not None:
                raise TopicNotFound(f"topic {parsed} does not exist")
            try:
                record = await self._directory.create_topic(parsed, reliable=reliable is not False)
            except TopicExists:  # somebody else was quicker
                record = self._directory.get(parsed)
        if reliable is not None and record.reliable is not reliable:
            kinds = {True: "reliable", False: "not reliable"}
            raise TopicKindDiffers(f"{record.name} is {kinds[record.reliable]}")
        return record

    async def open(
        self,
        principal: Principal,
        name: str,
        *,
        create: bool = False,
        reliable: bool | None = None,
        changing: bool = False,
    ) -> Opened:
        """The topic or partition, served here from now on; whole, unless it is `changing` that asks for it."""
        parsed = parse_topic(name)
        while True:  # in each wait others may have opened, changed or deleted it, or made it again
            self._check_open()
            record = await self.topic(principal, name, create=create, reliable=reliable)
            record.check_place(parsed)
            found = self._opened.get(parsed)
            if found is not None and (found.lost or found.record.id != record.id):
                await self.let_go(found)
            elif not changing and (found is None or found.changing) and self.spreading.unfinished(record.id):
                await self.spreading.finish(record)
            elif found is not None:
                return found
            else:
                break
        opening = self._opening.get(parsed)
        if opening is None:
            opening = self._opening[parsed] = self._loop.create_task(self._open(parsed, record, changing))
            opening.add_done_callback(lambda done: self._done_opening(parsed, done))
        return await asyncio.shield(opening)

    def _done_opening(self, name: TopicName, opening: Task[Opened]) -> None:
        if self._opening.get(name) is opening:  # else the topic was deleted meanwhile, and perhaps made again
            del self._opening[name]
        if not opening.cancelled():
            opening.exception()  # whoever asked has it

    async def _open(self, name: TopicName, record: TopicRecord, changing: bool) -> Opened:
        namespace = self._directory.policies(name.namespace)
        self._count(name.namespace, namespace)
        policies = record.policies.over(namespace)
        async with self._turns:
            options = topic_options(record, policies)
            if record.reliable:
                try:
                    kept = await Topic.open(record.stream(name.partition), self._around, options, str(name))
                except asyncio.CancelledError:
                    self._directory.get(name)  # whoever waits hears that it was deleted
                    raise
                self.sinks.opened(name, record.id, kept)
                topic: AnyTopic = kept
            else:
                topic = BestEffortTopic(str(name), self._around.clock, options)
        current = self._directory.find(name)  # it may have changed meanwhile
        if current is None or current.id != record.id:
            deleted = TopicNotFound(f"topic {name} was deleted")
            await topic.close(deleted)
            raise deleted
        opened = self._opened[name] = Opened(name, record, topic, policies, self.room, changing=changing)
        self._follow(opened, current, self._directory.policies(name.namespace))
        opened.settle_usage()
        return opened

    async def let_go(self, lost: Opened) -> None:
        """Another broker owns it now, or it was deleted; those who use it here look for it again."""
        if self._opened.get(lost.name) is lost:
            del self._opened[lost.name]
            await lost.end(TopicClosed(f"this broker no longer serves {lost.name}"))

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

    def topics(
        self, principal: Principal, namespace: str | None, after: str = "", limit: int | None = None
    ) -> list[TopicRecord]:
        """Of a namespace, or of all, in the order of their names; behind the topic `after`, at most `limit`."""
        if namespace is not None:
            self._directory.policies(namespace)  # which must exist
        return self._directory.topics(namespace, after, limit)

    async def alter_topic(
        self, principal: Principal, name: str, *, partitions: int | None, policies: Mapping[str, Any]
    ) -> TopicRecord:
        """More partitions, other policies; what is open follows at once."""
        whole = parse_whole(name)
        before, work = self._directory.get(whole), partial(self._alter, whole, partitions=partitions, policies=policies)
        if partitions is None:
            return await self.errands.run(work())
        return await self.spreading.grow(before, partial(work, with_more=growth_of) if before.reliable else work)

    async def _alter(self, whole: TopicName, **changes: Any) -> TopicRecord:
        try:
            return await self._directory.alter_topic(whole, **changes)
        finally:  # an error does not mean that nothing was changed, and somebody else may have been quicker
            for opened in [each for each in self._opened.values() if each.name.whole == whole]:
                if (record := self._directory.find(whole)) is not None and record.id == opened.record.id:
                    self._follow(opened, record, self._directory.policies(whole.namespace))

    async def delete_topic(self, principal: Principal, name: str, *, dry_run: bool = False) -> None:
        self._check_open()
        record = self._directory.get(parse_whole(name))
        self.sinks.check_deletable(record.name)
        if not dry_run:
            await self.errands.run(self._delete(record))

    async def _delete(self, record: TopicRecord) -> None:
        """The record goes first, so that nobody opens it again; then whoever uses it is told; then what is stored."""
        gone = await self.pending.dropped_with(record.name)
        record = await self._directory.delete_topic(record.name, [*gone, (change_of(record.id, "", {})[0], None)])
        deleted, places = TopicNotFound(f"topic {record.name} was deleted"), record.places()
        opened = [self._opened.pop(place) for place in places if place in self._opened]
        opening = [self._opening.pop(place) for place in places if place in self._opening]
        await asyncio.gather(*(each.end(deleted) for each in opened))
        if opening:
            await cut_off(opening)
            await self._directory.settled()  # what they had decided is to be seen before it is looked for
        self.leftovers.add(record)
        await self.leftovers.sweep()
        for place in places if record.name.namespace in self._usages else ():
            self._usages[record.name.namespace].forget(str(place))

    # -- producers -----------------------------------------------------------------------------------------------------

    async def open_producer(
        self,
        principal: Principal,
        topic: str,
        ended: Ended,
        *,
        name: str | None = None,
        resume: str | None = None,
        fresh: bool = False,
        temporary: bool = False,
        renewal: Renewal | None = None,
        reliable: bool = True,
        create: bool = True,
        exclusive: bool = False,
    ) -> Producer:
        """With a name, what it repeats is found; see `Topic.attach`. `ended` is called if the topic goes.

        With `resume`, the mark of a hold that it had, only the very same topic will do. An exclusive one is alone.
        """
        opened = await self.open(principal, topic, create=create and resume is None, reliable=reliable)
        opened.check_mark(resume)
        await self.counted(opened.name.namespace)
        opened.check_producers(exclusive=exclusive)
        session = None
        if name is not None and isinstance(opened.topic, Topic):
            session = await opened.topic.attach(name, fresh=fresh, temporary=temporary, renewal=renewal)
            opened.check_producers(exclusive=exclusive)  # others may have been quicker
            opened.topic.sessions.hold(session)
            temporary = opened.topic.state.producers.get(session.producer).temporary  # whatever the caller says
        self._numbers += 1
        producer = Producer(self._numbers, opened, session, reliable, ended, temporary)
        opened.producers[self._numbers] = producer
        opened.exclusive = self._numbers if exclusive else None
        return producer

    def publish(self, producer: Producer, batch: Batch) -> Receipt:
        """The receipt's future is done when the batch is as safe as the topic promises."""
        self._check_open()
        epoch = 0 if producer.session is None else producer.session.epoch
        try:
            return producer.open.publish(batch, epoch)
        except DanubeError as error:
            self.rejected[error.code] = self.rejected.get(error.code, 0) + 1
            raise

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
        resume: str | None = None,
        options: SubscriptionOptions | None = None,
        timing: Timing = Timing.DELIVERED,
    ) -> ConsumerHold:
        """With `resume`, the mark of a hold that it had, only the very same subscription will do."""
        opened = await self.open(principal, topic, create=create and resume is None, reliable=reliable)
        opened.check_mark(resume)
        opened.check_consumers()
        host = await self.enter(opened, subscription, kind, start, options, create=resume is None)
        if resume not in (None, opened.mark(host)):
            raise SubscriptionNotFound(f"{subscription!r} was deleted, and another subscription now has its name")
        opened.check_consumers()  # others may have been quicker
        opened.check_subscription(host)
        consumer = opened.topic.connect(host, name, sink, filters, timing)
        self._numbers += 1
        hold = opened.consumers[self._numbers] = ConsumerHold(self._numbers, opened, host, consumer, principal.address)
        return hold

    async def enter(
        self,
        opened: Opened,
        subscription: str,
        kind: SubscriptionKind,
        start: str | int | Mapping[str, int],
        options: SubscriptionOptions | None,
        *,
        create: bool = True,
    ) -> AnySubscription:
        """The subscription of that name; where it is new, and may be made, with these options."""
        topic, options = opened.topic, opened.options_for(subscription, kind, options)
        offset = await self.place(opened, start)
        async with opened.subscribing:
            opened.check_subscriptions(subscription)
            return await topic.subscribe(subscription, kind, start=offset, options=options, create=create)

    def subscription(self, principal: Principal, topic: str, subscription: str) -> AnySubscription | None:
        """As it is served here now; None if the topic is not open, or has none of that name."""
        opened = self._opened.get(parse_topic(topic))
        return None if opened is None else opened.topic.subscriptions.get(subscription)

    async def place(self, opened: Opened, start: str | int | Mapping[str, int]) -> str | int:
        """Where that is, unless the topic itself says it: earliest, latest, an offset, or {"time": microseconds}."""
        if not isinstance(start, Mapping):
            return start
        time = start.get("time")
        if not isinstance(time, int):
            raise RequestInvalid("a start by time must be {'time': microseconds}")
        return await self.reliable(opened).find_time(time)

    def close_consumer(self, hold: ConsumerHold, *, crashed: bool) -> None:
        hold.open.consumers.pop(hold.number, None)
        hold.host.leave(hold.consumer.id, crashed=crashed)

    async def seek(self, hold: ConsumerHold, *, offset: int | None = None, time: int | None = None) -> int:
        """To an offset or a time; returns the new generation."""
        topic = self.reliable(hold.open)
        assert isinstance(hold.host, SubscriptionHost)
        if (offset is None) == (time is None):
            raise RequestInvalid("a seek needs an offset or a time")
        target = offset if offset is not None else await topic.find_time(time or 0)
        await topic.seek(hold.host, target)
        return hold.host.known.cursor.generation

    def pause(self, hold: ConsumerHold) -> None:
        self._pausable(hold).pause(hold.consumer.id)

    def resume(self, hold: ConsumerHold) -> None:
        self._pausable(hold).resume()

    def _pausable(self, hold: ConsumerHold) -> SubscriptionHost:
        if not isinstance(hold.host, SubscriptionHost):
            raise NotReliable(f"{hold.open.name} is not reliable and stores nothing")
        return hold.host

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, principal: Principal, topic: str, offset: int, bytes_max: int) -> list[Batch]:
        """Confirmed batches from the one that holds `offset` on; none if there is nothing there yet."""
        opened = await self.open(principal, topic)
        ledger = self.reliable(opened).ledger
        offset = ledger.past_lost(max(offset, ledger.first))
        if offset >= ledger.confirmed_end:
            return []
        bytes_max = max(1, min(bytes_max, READ_BYTES_MAX // 4))
        batches = await ledger.read(offset, bytes_max)
        left = bytes_max - sum(batch.size for batch in batches)
        while batches and (following := ledger.find(batches[-1].last_offset + 1)) and following.size <= left:
            batches.append(following)  # the cache gives one at a time
            left -= following.size
        return batches

    async def wait_beyond(self, principal: Principal, topic: str, offset: int, seconds: float) -> None:
        """Until there is a message at `offset`, or so long."""
        await self.reliable(await self.open(principal, topic)).wait_beyond(offset, seconds)

    async def bounds(self, principal: Principal, topic: str) -> tuple[int, int]:
        """The first offset there is, and the one after the last that may be seen."""
        opened = await self.open(principal, topic)
        ledger = self.reliable(opened).ledger
        return ledger.first, ledger.confirmed_end

    async def offset_of_time(self, principal: Principal, topic: str, time: int) -> int:
        return await self.reliable(await self.open(principal, topic)).find_time(time)

    def reliable(self, opened: Opened) -> Topic:
        if not isinstance(opened.topic, Topic):
            raise NotReliable(f"{opened.name} is not reliable and stores nothing")
        return opened.topic

    # -- house ---------------------------------------------------------------------------------------------------------

    def time_moved(self) -> None:
        """The clock was moved by hand: what is due by now happens now."""
        self.housekeeping.time_moved()
        for opened in self._opened.values():
            if isinstance(opened.topic, Topic):
                for host in opened.topic.subscriptions.values():
                    host.wake()

    def reopen(self) -> None:
        """Opens all that keep messages, in the background: what is due in them is due though nobody asks for them."""
        assert self._reopening is None
        self._reopening = self._loop.create_task(reopen(self, self._directory))
        self.sinks.resume()

    def opened(self) -> list[Opened]:
        """All that is served here now, in the order of opening."""
        return list(self._opened.values())

    def _kept(self) -> list[Topic]:
        return [opened.topic for opened in self._opened.values() if isinstance(opened.topic, Topic)]

    @property
    def surroundings(self) -> TopicDependencies:
        return self._around

    @property
    def stopping(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise TopicClosed("the broker is stopping")

    async def close(self) -> None:
        """No new work; every topic becomes durable and is let go. Of very many, not all are sealed."""
        self._closed = True
        await self.housekeeping.close()
        counting = list(self._counting.values())
        counting += [task for task in (self._reopening, self._moving) if task is not None]
        for task in counting:
            task.cancel()
        opening = list(self._opening.values())
        if opening:
            await asyncio.wait(opening, timeout=SEALING_SECONDS)
        for each in opening:
            each.cancel()  # it waits for a disk, or for object storage
        await asyncio.gather(*counting, *opening, return_exceptions=True)
        await self.sinks.close()
        await self.errands.close()
        await self.topic_changes.close()
        await self.leftovers.close()
        await self.salvage.close()
        await self.tiers.close()
        if self.tiering is not None:
            await self.tiering.close()
        opened = list(self._opened.values())
        for served in opened:
            served.let_go()
        why, sealed_until = TopicClosed("the broker is stopping"), self._loop.time() + SEALING_SECONDS
        for at in range(0, len(opened), TOPICS_CLOSING):
            seal = self._loop.time() < sealed_until
            await asyncio.gather(*(each.end(why, seal=seal) for each in opened[at : at + TOPICS_CLOSING]))
