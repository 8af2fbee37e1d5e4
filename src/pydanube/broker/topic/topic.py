"""A reliable topic on its owner: publishes with dedup, subscriptions that deliver, state that survives, retention.

One loop owns it; a core call runs to its end between awaits. Everything it promises is durable before it says so.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydanube.adapters.threads import ThreadOffload
from pydanube.base.counting import Traffic
from pydanube.base.errors import (
    ArgumentInvalid,
    DanubeError,
    OffsetNotConfirmed,
    SinkBlocked,
    SubscriptionKindDiffers,
    SubscriptionNotFound,
    SubscriptionOptionInvalid,
    TopicBusy,
    TopicClosed,
    TopicRecovering,
)
from pydanube.base.ids import ConsumerId, Epoch
from pydanube.base.limits import DEDUP_WINDOW_BATCHES, HEADERS_UNREAD_BYTES
from pydanube.broker.limits.quotas import Extent, bytes_from
from pydanube.broker.state.log import StateLog, state_stream
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.delivery import Consumer, ConsumerSink, Timing
from pydanube.broker.subscription.engines import engine_for
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.subscription.read_ahead_budget import ReadAheadBudget
from pydanube.broker.topic.backlog import Backlog, extents_of
from pydanube.broker.topic.dead_letter import dead_letter_of
from pydanube.broker.topic.producer_sessions import Session, Sessions
from pydanube.broker.topic.repeats import Repeats
from pydanube.broker.topic.upkeep import Upkeep
from pydanube.broker.work.heavy import taken_apart
from pydanube.dispatch.events import Poisoned
from pydanube.ports.catalog import Catalog
from pydanube.ports.offload import Offload
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.stream.cold import ColdTier, tier_bounds
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream
from pydanube.storage.stream.tail import TailCache
from pydanube.topic.dedup import Duplicate, Renewal
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.topic.state import Subscription, TopicState
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
EARLIEST, LATEST = "earliest", "latest"
COMPACTION_SECONDS = 0.01  # between looks whether a snapshot is durable
PublishElsewhere = Callable[[str, Batch], Awaitable[None]]  # to another topic; done when it is durable


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a topic needs of its broker."""

    catalog: Catalog
    nodes: StorageNodes
    clock: CheckedClock  # one for all topics of the process
    randomness: Randomness
    cache: TailCache
    publish: PublishElsewhere  # where dead letters go
    tier: ColdTier | None = None  # where messages go that are sealed, if anywhere
    offload: Offload = field(default_factory=lambda: ThreadOffload(1))
    read_ahead: ReadAheadBudget = field(default_factory=ReadAheadBudget)


class Receipt(NamedTuple):
    """Where the batch is, and the confirmation: nothing is promised before it is done."""

    offset: int
    confirmed: Future[None]
    duplicate: bool = False
    written: Future[None] | None = None  # done before it, if the answer is held back longer than the batch takes


class Topic:
    """Made by `Topic.open`, which takes it from whoever owned it before."""

    def __init__(self, name: str, surroundings: Surroundings, options: TopicOptions) -> None:
        self.name = name
        self.options = options
        self.state = TopicState()
        self.sessions = Sessions()
        self.subscriptions: dict[str, SubscriptionHost] = {}
        self.taken = Traffic()  # published here
        self.reserved = False  # a job writes rows that are to be seen at once, and no other job may
        self.blocked: SinkBlocked | None = None  # why that does not come to an end
        self.pinned = False  # somebody needs what is here, however old it grows
        self.failed = 0  # batches of them that did not become durable as they were
        self.ledger: ManagedLedger
        self.backlog: Backlog
        self._around = surroundings
        self._log: StateLog
        self.state_stream: Stream
        self._loop = asyncio.get_running_loop()
        self._repeats = Repeats(lambda: self.ledger.written_end)
        self._change: Future[None] | None = None  # done with the next change of what may be seen, if somebody waits
        self._rebuilding: Task[None] | None = None
        self._certain_end = 0  # while rebuilding: producers are known as of the batches below
        self._starting = asyncio.Lock()  # where somebody starts to read and what is deleted are decided one by one
        self._consumers = 0  # ids given so far
        self._upkeep = Upkeep(self, surroundings.clock, tiered=surroundings.tier is not None)
        self._seen = (0, 0)  # when housekeeping looked last
        self._closed: DanubeError | None = None  # why it is

    @classmethod
    async def open(
        cls, stream: str, surroundings: Surroundings, options: TopicOptions, name: str | None = None
    ) -> Topic:
        """Takes the data stream, then the state stream, and remembers everything both say.

        `name` is what people call it; the streams go by their own.
        """
        topic = cls(name or stream, surroundings, options)
        data = await topic._take(stream, lazy=False)
        try:
            state = await topic._take(state_stream(stream), lazy=True)
        except BaseException:
            await data.close()
            raise
        topic.ledger = ManagedLedger(data, surroundings.cache, topic._changed)
        topic.backlog = Backlog(topic.name, topic.ledger, topic.subscriptions, options.backlog)
        sizes = (options.state_compact_bytes, options.state_part_bytes)
        topic._log = StateLog(state, topic.state, topic._producers_end, *sizes)
        topic.state_stream = state
        try:
            await topic._log.load()
            await topic._remember_producers(topic.state.needed_from())
        except BaseException:
            await data.close()
            await state.close()
            raise
        for known in topic.state:
            topic._host(known)
        return topic

    async def _take(self, name: str, *, lazy: bool) -> Stream:
        around, options, tier = self._around, self.options, None if lazy else self._around.tier
        size, age = tier_bounds(tier, options.ledger_bytes, options.ledger_seconds)
        listed = options.ledgers_listed
        settings = StreamSettings(options.copies, options.durability, size, age, ledgers_listed=listed)
        if lazy:  # the state: whatever the messages are worth, what consumers were promised is kept
            settings = StreamSettings(options.copies, lazy=True, reserve=True, ledgers_listed=listed)
        cold = None if tier is None else tier.reader
        ports = (around.catalog, around.nodes, around.clock, around.randomness)
        return await Stream.take(name, *ports, settings, cold, f"the state of {self.name}" if lazy else self.name)

    @property
    def epoch(self) -> Epoch:
        return self.ledger.stream.epoch

    @property
    def lost(self) -> bool:
        """Another broker owns it now."""
        return self.ledger.stream.lost or self.state_stream.lost

    @property
    def receipt(self) -> str:
        """What is true of a confirmed publish."""
        return self.ledger.stream.receipt

    def alter(self, options: TopicOptions) -> None:
        """From now on; what its streams were opened with stays."""
        before, self.options = self.options, options
        if options.backlog != before.backlog:
            self.backlog.change(options.backlog)
        for host in self.subscriptions.values():
            host.set_rate(options.dispatch_messages_per_second, options.dispatch_bytes_per_second)

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def attach(
        self, producer: str, *, fresh: bool = False, temporary: bool = False, renewal: Renewal | None = None
    ) -> Session:
        """A session for this producer name; older ones of it are fenced. It and its sequences are durable on return.

        With `fresh` the caller vouches that it repeats nothing: needed where the name may have been forgotten. One that
        is `temporary` goes when it leaves: tell `sessions` who holds it. With `renewal` it continues a session that
        it had, and is the one that is fenced if there is a newer one.
        """
        self._check_certain()
        self._log.check()
        new_to_all = not len(self.state.producers)
        clock, table, held = self._around.clock, self.state.producers, self.sessions
        ways = {"fresh": fresh, "temporary": temporary, "forgets": clock.trusted()}
        records = table.decide_attach(producer, clock.append_time(), renewal=renewal, held=held, **ways)
        durable = self._log.apply(*records) if records else self._log.barrier()
        session = self.session(producer)  # this one, whoever attaches while it becomes durable
        await durable
        last = self.state.producers.get(session.producer).last_offset
        if last is not None:
            await self._repeats.confirmation(last)  # nobody continues after a message that a crash may still take back
        needed = self.state.needed_from() if new_to_all else None
        if needed is not None and bytes_from(extents_of(self.ledger.stream, needed), needed) > HEADERS_UNREAD_BYTES:
            self._log.compact_soon()  # what was published before producers had names need not be read again
        self._check_certain()  # a number that is too low would make the producer's next messages look like old ones
        return self.session(producer)._replace(epoch=session.epoch)

    def session(self, producer: str) -> Session:
        known = self.state.producers.find(producer)
        assert known is not None
        return Session(known.id, known.epoch, known.next_sequence)

    def admit(self, bytes: int) -> None:
        """Raises if its subscriptions are too far behind for more."""
        self.backlog.admit(bytes)

    def publish(self, batch: Batch, producer_epoch: int = 0) -> Receipt:
        """Appends a batch, once: a batch that came before is answered with the offset it has (§13)."""
        self._check_certain()
        if self.blocked is not None:
            raise SinkBlocked(*self.blocked.args)
        batch.check_published()
        producer = batch.producer_id
        if not producer:
            return self._append(batch.anonymous() if batch.first_sequence else batch)  # which would mark a job's
        verdict = self.state.producers.decide(producer, producer_epoch, batch.first_sequence, batch.count)
        if isinstance(verdict, Duplicate):
            confirmed = self._repeats.confirmation(verdict.base_offset + batch.count - 1)
            return Receipt(verdict.base_offset, confirmed, duplicate=True)
        producers, end = self.state.producers, self.ledger.written_end
        if producers.unconfirmed(producer, end) >= DEDUP_WINDOW_BATCHES:
            raise TopicBusy(f"{DEDUP_WINDOW_BATCHES} batches of the producer are not confirmed yet")
        receipt = self._append(batch)
        append_time = self._around.clock.append_time()
        producers.appended(producer, batch.first_sequence, batch.count, receipt.offset, append_time)
        return receipt

    def reserve(self, offset: int | None) -> None:
        """From now on nothing from `offset` on is seen, whoever publishes it; None ends it."""
        self.reserved, self.ledger.hidden_from = offset is not None, offset
        if offset is None:
            self.blocked = None
            self._changed(None)

    @property
    def certain(self) -> bool:
        """Whether the next offset is known, and of what failed to be written what became of it."""
        return self._rebuilding is None and self.ledger.stream.open

    def append_reserved(self, batch: Batch) -> Receipt:
        """For the job that has it reserved: with its marks, and without a producer."""
        self._check_certain()
        return self._append(batch)

    def _append(self, batch: Batch) -> Receipt:
        stamped, confirmed = self.ledger.append(batch)
        self._log.note_data(stamped.size)
        self.taken.add(batch.count, stamped.size)
        return Receipt(stamped.base_offset, confirmed)

    async def wait_beyond(self, offset: int, seconds: float) -> None:
        """Until the message at `offset` may be seen, or so long."""
        deadline = self._loop.time() + seconds
        while self.ledger.past_lost(offset) >= self.ledger.confirmed_end and self._closed is None:
            left = deadline - self._loop.time()
            if left <= 0:
                return
            self._change = self._change or self._loop.create_future()
            await asyncio.wait([self._change], timeout=left)

    def _tell_waiting(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    def _changed(self, error: BaseException | None) -> None:
        self._tell_waiting()
        self._repeats.answer(error)
        if error is not None:
            self.failed += 1
            self._doubt()
            return
        for host in self.subscriptions.values():
            host.more()

    def _doubt(self) -> None:
        """A write failed: which of the batches on their way are there is known only after the stream's recovery."""
        if self._rebuilding is None and not self._closed:
            self._certain_end = self.ledger.written_end
            self._rebuilding = self._task(self._rebuild())

    async def _rebuild(self) -> None:
        """Producers as of what is confirmed for certain, then what recovery kept."""
        end = self._certain_end
        self.state.producers.rewind(end)
        while not self._closed:
            try:
                await self.ledger.stream.ready()
                await self._remember_producers(end)
                break
            except DanubeError as error:
                if self.lost:
                    log.warning("%s: %s", self.name, error)
                    return
                await asyncio.sleep(0.1)
        self._rebuilding = None
        self._changed(None)

    def _producers_end(self) -> int:
        """Every confirmed batch below it is known to the producers: a snapshot says so for good."""
        return self.ledger.written_end if self._rebuilding is None else self._certain_end

    async def _remember_producers(self, offset: int | None) -> None:
        """Feeds the headers of confirmed batches from `offset` on to the producers. They may repeat what is damaged."""
        if offset is None:
            return
        offset = max(offset, self.ledger.first)
        while (offset := self.ledger.past_lost(offset)) < self.ledger.written_end:
            batches, offset = await self.ledger.read_around(offset)
            for batch in batches:
                self.state.producers.appended(
                    batch.producer_id, batch.first_sequence, batch.count, batch.base_offset, batch.append_time
                )

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
        """The subscription of that name, made with `options` if it is new and may be; durable before it returns."""
        self._check_open()
        async with self._starting:
            self._check_open()  # it may have been closed meanwhile
            known = self.state.find(name)
            if known is None and not create:
                raise SubscriptionNotFound(f"{self.name} has no subscription {name!r}")
            if known is None:
                self._log.check()
                first = self.offset_of(start)
                encoded = (options or SubscriptionOptions()).encode()
                record = self.state.decide_create(name, kind, first, self.ledger.confirmed_end, encoded)
                made = self._log.apply(record)
                host = self._host(self.state.get(record.subscription))
                await made
                return host
        if known.kind is not kind:
            raise SubscriptionKindDiffers(f"{name!r} is {known.kind.name.lower()}, not {kind.name.lower()}")
        await self._log.barrier()
        if name not in self.subscriptions:
            raise SubscriptionNotFound(f"subscription {name!r} was just deleted")
        return self.subscriptions[name]

    def offset_of(self, start: str | int) -> int:
        """Where that is now."""
        if start == EARLIEST:
            return self.ledger.first
        if start == LATEST:
            return self.ledger.confirmed_end
        if isinstance(start, int):
            return max(start, self.ledger.first)
        raise ArgumentInvalid(f"start must be an offset, {EARLIEST} or {LATEST}, got {start!r}")

    async def find_time(self, time: int) -> int:
        """The first offset appended at or after `time` (µs), for a subscription, a reader or a seek."""
        return await self.ledger.find_time(time)

    async def seek(self, host: SubscriptionHost, to: str | int) -> None:
        """Delivers everything from there on again, or skips to it; durable before it returns (§14)."""
        self._check_open()
        async with self._starting:
            sought = host.seek(self.offset_of(to))
        await sought

    async def unsubscribe(self, name: str) -> None:
        self._check_open()
        self._log.check()
        known = self.state.find(name)
        if known is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist")
        gone = self._log.apply(self.state.decide_delete(known.id))
        host = self.subscriptions.pop(name)
        host.stop()
        try:
            await gone
        finally:  # memory has it, and mends the log with it
            await host.close(SubscriptionNotFound(f"subscription {name!r} of {self.name} was deleted"))

    async def alter_subscription(self, name: str, changes: Mapping[str, Any]) -> None:
        """Other options for a subscription that is there; it goes by them at once, and they are durable on return."""
        self._check_open()
        self._log.check()
        host = self.subscription(name)
        options = SubscriptionOptions.decode(host.known.options).changed(changes)
        record = self.state.decide_change(host.known.id, options.encode())
        if record is None:
            return await self._log.barrier()
        altered = self._log.apply(record)
        host.alter(options)
        await altered

    async def skip(self, name: str, *, count: int | None = None, to: int | None = None) -> int:
        """Gives up the next `count` messages of a subscription, or all below `to`; how many they were. Durable."""
        self._check_open()
        host = self.subscription(name)
        end, skipped = self.ledger.confirmed_end, host.known.counts[Cause.SKIPPED]
        floor = to if to is not None else host.known.cursor.behind(count or 0, end)
        done = host.skip_to(floor, Cause.SKIPPED)
        skipped = host.known.counts[Cause.SKIPPED] - skipped
        await (done or self._log.barrier())
        return skipped

    async def truncate(self, before: int | None = None) -> None:
        """Deletes all messages there are, or those below `before`. Subscriptions skip them, visibly; durable."""
        self._check_open()
        async with self._starting:
            before = self.beginning(before)
            skips = [host.skip_to(before, Cause.SKIPPED) for host in self.subscriptions.values()]
            await asyncio.gather(*filter(None, skips))
            while (needed := self.state.needed_from()) is not None and needed < before:
                self._check_open()
                self._log.compact_soon()  # what the messages say about their producers is kept elsewhere first
                await asyncio.sleep(COMPACTION_SECONDS)
            await self.ledger.stream.truncate(before)

    def beginning(self, before: int | None) -> int:
        """Where it would begin if all messages, or those below `before`, were deleted now."""
        end = self.ledger.confirmed_end
        before = end if before is None else before
        if not 0 <= before <= end:
            raise OffsetNotConfirmed(f"{self.name} ends at {end}; it cannot be truncated to {before}")
        return before

    def subscription(self, name: str) -> SubscriptionHost:
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"{self.name} has no subscription {name!r}")
        return found

    def connect(
        self,
        host: SubscriptionHost,
        name: str,
        sink: ConsumerSink,
        filters: Sequence[bytes] = (),
        timing: Timing = Timing.DELIVERED,
    ) -> Consumer:
        """A consumer of the subscription; it gets nothing before it grants permits."""
        self._check_open()
        self._consumers += 1
        consumer = Consumer(ConsumerId(self._consumers), name, sink, timing)
        host.join(consumer, filters)
        return consumer

    def _host(self, known: Subscription) -> SubscriptionHost:
        engine = engine_for(known.kind, SubscriptionOptions.decode(known.options))

        async def dead_letter(batch: Batch, poisoned: Poisoned, subscription: str) -> None:
            target = engine.policy.dead_letter_topic
            if target is None:
                raise SubscriptionOptionInvalid(f"{subscription!r} no longer has a dead-letter topic")
            letter = await taken_apart(self._around.offload, dead_letter_of, batch, poisoned, self.name, subscription)
            await self._around.publish(target, letter)

        around = self._around
        host = SubscriptionHost(known, engine, self.ledger, self._log, around.clock, dead_letter, around.read_ahead)
        host.set_rate(self.options.dispatch_messages_per_second, self.options.dispatch_bytes_per_second)
        self.subscriptions[known.name] = host
        return host

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def release_producers(self, now: float) -> None:
        """Of those who have left for good nothing is kept."""
        self._log.check()
        records = self.state.producers.decide_release([*self.sessions.take_gone(self.state.producers, now)])
        if records:
            self._log.apply(*records)

    def stirred(self) -> bool:
        """Whether anything was published or acknowledged since this was asked last."""
        before, self._seen = self._seen, (self.ledger.confirmed_end, self._log.bytes)
        return before != self._seen

    async def tick(self) -> None:
        """To be called every second or so: messages expire, ledgers roll by age, and what nobody needs goes."""
        if not self._closed and not self.lost:
            await self._upkeep.tick()

    def roll_unneeded(self, bytes_min: int) -> None:
        """Where space is short: most of the open ledger may be done with, and only sealed ones can go."""
        needed, stream = self.options.deletable_before(self.state), self.ledger.stream
        if needed is None or stream.open_bytes < bytes_min:
            return
        *_, open_ledger = [Extent(0, 0, 0), *extents_of(stream, stream.record.end + 1)]
        if bytes_from([open_ledger], needed) <= open_ledger.bytes // 2:
            stream.roll()

    def trim_end(self, now: int, *, clock_trusted: bool) -> int:
        """What lies below may go, by the policy and by what subscriptions and producers still need."""
        if self.pinned:
            return self.ledger.first
        policy, unneeded = self.options.retention, self.options.deletable_before(self.state)
        before = self.ledger.trim_before(policy, unneeded, now, clock_trusted=clock_trusted, needed_from=None)
        needed_from = self.state.needed_from()
        if needed_from is not None and needed_from < before:
            self._log.compact_soon()  # the rest may go when the producers' state does not rest on it any more
            before = self.ledger.trim_before(
                policy, unneeded, now, clock_trusted=clock_trusted, needed_from=needed_from
            )
        return max(before, self.ledger.first)

    async def trim(self, now: int, *, clock_trusted: bool) -> None:
        async with self._starting:
            before = self.trim_end(now, clock_trusted=clock_trusted)
            oldest = next(self.ledger.stream.record.sealed_parts(), None)
            if oldest is not None and oldest.last < before:
                await self.ledger.stream.trim(before)

    def restarts_without(self, last: int) -> bool:
        """Whether its producers are known after a restart without the messages up to `last`; if not, soon."""
        needed_from = self.state.needed_from()
        if needed_from is None or needed_from > last:
            return True
        self._log.compact_soon()
        return False

    def write_state_again(self) -> None:
        """Soon: from memory, so that nothing of what is on disk is needed."""
        self._log.compact_soon()

    @property
    def closed(self) -> bool:
        return self._closed is not None

    # -- the end -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed is not None:
            raise type(self._closed)(*self._closed.args)
        if self.lost:
            raise TopicClosed(f"this broker no longer serves {self.name}")

    def _check_certain(self) -> None:
        self._check_open()
        if self._rebuilding is not None:
            raise TopicRecovering(f"{self.name} is recovering from a failed write")

    def _task(self, work: Coroutine[object, object, None]) -> Task[None]:
        return self._loop.create_task(work)

    async def close(self, why: DanubeError | None = None, *, seal: bool = True) -> None:
        """No new work; what was taken becomes durable; the streams are sealed and let go. Users are told `why`.

        A stream that is not sealed is recovered when the topic is next opened: slower there, quicker here.
        """
        if self._closed is not None:
            return
        self._closed = why or TopicClosed(f"this broker no longer serves {self.name}")
        self._tell_waiting()
        for host in list(self.subscriptions.values()):  # one may be deleted meanwhile
            await host.close(self._closed)
        if self._rebuilding is not None:
            self._rebuilding.cancel()
            await asyncio.gather(self._rebuilding, return_exceptions=True)
        await self._log.close()
        await self.state_stream.close(seal=seal)
        await self.ledger.stream.close(seal=seal)
