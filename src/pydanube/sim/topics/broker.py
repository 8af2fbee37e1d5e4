"""A broker of topics with its clients: producers, consumers of all four types, seeks, and what they remember.

Clients live in their broker's process and die with it. What a real client would remember (its sequence, its unanswered
batch) outlives it in `TopicMemory`, so that the next life continues where this one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, OffsetUnknown, SequenceGap, SequenceOverlap, SequenceUnknown, TopicClosed
from pydanube.base.limits import SECOND
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.reading_window import ReadAheadBudget
from pydanube.broker.topic.dependencies import LetterSource, TopicDependencies
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import FailurePolicy, PoisonPolicy
from pydanube.ports.storage import StorageNodes
from pydanube.sim.machine.clock import EPOCH_SECONDS, SimClock
from pydanube.sim.machine.offload import SimOffload
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.plan import Plan
from pydanube.sim.streams.broker import LEDGERS_LISTED
from pydanube.sim.topics.consumers import ConsumerClient, seek_now_and_then
from pydanube.sim.topics.history import SubscriptionHistory, TopicHistory
from pydanube.sim.topics.tiering import RETENTIONS, cold_tier, read_through, tiering_of, truncate_now_and_then
from pydanube.sim.topics.visitors import visit_now_and_then
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.stream.tail import TailCache
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment
from pydanube.stream.retention import RetentionPolicy
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.wire.batch import Batch, Codec, build

if TYPE_CHECKING:
    from pydanube.sim.topics.world import TopicWorld

KEYS = 5
CLOCK_DISTRUST_SECONDS = 2.0  # a run is too short to wait an hour until a clock is trusted again
UNEXPECTED = (SequenceGap, SequenceOverlap, SequenceUnknown, OffsetUnknown)  # never correct


@dataclass(slots=True)
class ProducerMemory:
    """What an idempotent producer remembers: its sequence, and the unanswered batch."""

    name: str
    next_sequence: int = 0
    pending: Batch | None = None  # without a producer id, which the topic assigns

    def answered(self, batch: Batch) -> None:
        self.next_sequence = max(self.next_sequence, batch.first_sequence + batch.count)
        if self.pending is not None and self.pending.first_sequence == batch.first_sequence:
            self.pending = None


@dataclass(slots=True)
class TopicMemory:
    """One topic of the world across all its owners, and what its clients remember."""

    history: TopicHistory
    options: TopicOptions
    policy: FailurePolicy
    producers: list[ProducerMemory]
    consumers: int  # per subscription
    sent: int = 0
    dead_letters_down: bool = False
    letters: set[tuple[int, str, int, int]] = field(default_factory=set)  # instance, subscription, generation, offset
    departed: list[str] = field(default_factory=list)  # short-lived producers that left the present owner
    subscriptions: dict[str, SubscriptionHistory] = field(default_factory=dict)


def memory_for(plan: Plan, name: str, durability: Durability) -> TopicMemory:
    draw = Random(f"{plan.profile}/{plan.seed}/{name}")
    history = TopicHistory(name)
    poison = "poison" in plan.traits
    policy = FailurePolicy(
        max_redelivery_count=2 if poison else 1000,
        ack_timeout=draw.choice((1 * SECOND, 3 * SECOND)),
        base_delay=50_000,
        max_delay=500_000,
        poison=PoisonPolicy.DEAD_LETTER if poison else PoisonPolicy.BLOCK,
        dead_letter_topic=f"{name}-dead" if poison else None,
    )
    retention = RetentionPolicy(seconds=1) if "retention" in plan.traits and draw.random() < 0.5 else None
    if "tier" in plan.traits:
        retention = Random(f"{plan.profile}/{plan.seed}/{name}/keep").choice(RETENTIONS)
    ttl = 3 if "ttl" in plan.traits and draw.random() < 0.5 else None
    history.expires = ttl is not None
    options = TopicOptions(
        durability=durability,
        copies=plan.copies,
        retention=retention,
        ttl_seconds=ttl,
        ledger_bytes=plan.ledger_bytes,
        ledger_seconds=draw.choice((0.5, 60.0)),
        ledgers_listed=LEDGERS_LISTED,
        state_compact_bytes=4_000 if "small_parts" in plan.traits else None,
        state_part_bytes=100 if "small_parts" in plan.traits else None,
    )
    producers = [ProducerMemory(f"p{number}") for number in range(draw.choice((1, 2)))]
    memory = TopicMemory(history, options, policy, producers, consumers=draw.choice((1, 2, 3)))
    timeout = 0.65 * (policy.ack_timeout or 0) / SECOND  # less, for a fast clock and a delivery that waited for a read
    for kind in SubscriptionKind:
        label = kind.name.lower()
        memory.subscriptions[label] = SubscriptionHistory(history, label, kind, timeout)
    return memory


class TopicBroker:
    """One life of a broker process that owns topics."""

    def __init__(
        self, world: TopicWorld, name: str, clock: SimClock, randomness: SimRandomness, nodes: StorageNodes
    ) -> None:
        self.world = world
        self.clock = CheckedClock(clock, CLOCK_DISTRUST_SECONDS)
        self._machine_clock, self._started_at = clock, clock.monotonic()
        self.random = world.loop.fork_random(f"clients/{name}/{world.loop.events}")
        self.topics: dict[str, Topic] = {}
        self._name = name
        self.randomness = randomness
        self.nodes = nodes
        self._cache = TailCache(self.random.choice((2_000, 20_000, 1_000_000)))
        self._read_ahead = ReadAheadBudget(self._cache.bytes_max)
        self._tier = None
        if world.tiered:
            self._tier = cold_tier(world, world.loop.fork_random(f"tier/{name}/{world.loop.events}"))
        self.tiering = None if self._tier is None else tiering_of(self, self._tier)

    async def run(self) -> None:
        """Opens the topics that it should own, forever."""
        tasks: dict[str, asyncio.Task[None]] = {}
        if self.tiering is not None:
            tasks["tiering"] = asyncio.get_running_loop().create_task(self.tiering.run())
        while True:
            for name, owner in self.world.owners.items():
                running = tasks.get(name)
                if owner == self._name and (running is None or running.done()):
                    tasks[name] = asyncio.get_running_loop().create_task(self._own(name))
            await asyncio.sleep(0.1)

    async def _own(self, name: str) -> None:
        memory = self.world.topics[name]
        dependencies = TopicDependencies(
            self.world.catalog,
            self.nodes,
            self.clock,
            self.randomness,
            self._cache,
            self._dead_letter,
            self._tier,
            SimOffload(self.world.loop, self.world.loop.fork_random(f"offload/{self._name}/{name}")),
            self._read_ahead,
        )
        try:
            owner = Assignment(self._name, self.randomness.bytes(8).hex())
            tenure = await Tenure.take(name, owner, self.world.catalog)
            topic = await Topic.open(tenure, dependencies, memory.options)
        except DanubeError as error:
            self.world.loop.trace("open.failed", self._name, name, error.code)
            return
        self.world.loop.trace("opened", self._name, name, topic.epoch)
        if topic.epoch != self.world.catalog.owner(name):  # opening took so long that another owner serves it now
            await topic.close()
            return
        memory.history.instance += 1
        memory.history.lossy |= memory.options.durability is Durability.BUFFERED
        for known in topic.state:
            subscription = memory.subscriptions[known.name]
            subscription.opened(known.cursor, topic.ledger.first, self.world.history.check)
        self.world.history.trim(name, topic.ledger.first)
        self.topics[name] = topic
        clients = [asyncio.get_running_loop().create_task(work) for work in self._clients(topic, memory)]
        while not topic.lost:  # noqa: ASYNC110 - a topic does not report it
            await asyncio.sleep(0.1)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await topic.close()

    def _clients(self, topic: Topic, memory: TopicMemory) -> list[Coroutine[Any, Any, None]]:
        clients = [self._tick(topic), self._publish(topic, memory)]
        clients += [self._produce(topic, memory, producer) for producer in memory.producers]
        clients += [self._consume(topic, memory, subscription) for subscription in memory.subscriptions.values()]
        if "seek" in self.world.plan.traits:
            clients.append(seek_now_and_then(self, topic, memory))
        if self.tiering is not None:
            clients.append(read_through(self, topic, memory))
        if "visitors" in self.world.plan.traits:
            clients.append(visit_now_and_then(self, topic, memory))
        if "truncate" in self.world.plan.traits:
            clients.append(truncate_now_and_then(self, topic, memory))
        return clients

    # -- producers -----------------------------------------------------------------------------------------------------

    async def _publish(self, topic: Topic, memory: TopicMemory) -> None:
        """An unnamed producer: unanswered batches may be stored or not."""
        while self.has_more(memory):
            memory.sent += 1
            batch = self.batch(memory, f"-/{self._name}/{self.world.loop.events}", 0, self.random.choice((1, 2, 4)))
            await self.publish(topic, memory, batch)
            await asyncio.sleep(self.random.uniform(0.0, 2 * self._pause(memory)))

    async def publish(self, topic: Topic, memory: TopicMemory, batch: Batch, epoch: int = 0) -> bool:
        """Publishes a batch, and records it if it is confirmed. Returns whether it is."""
        try:
            receipt = topic.publish(batch, epoch)
            await receipt.confirmed
        except DanubeError as error:
            self.world.loop.trace("refused", memory.history.name, error.code)
            if isinstance(error, UNEXPECTED):
                self.world.history.check(False, "I11", f"{memory.history.name}: {error.code}: {error}")
            return False
        self.confirm(memory, batch, receipt.offset)
        return True

    def confirm(self, memory: TopicMemory, batch: Batch, offset: int) -> None:
        self.world.loop.trace("published", memory.history.name, offset, batch.count)
        if self.tiering is not None:
            self.world.tier.published(memory.history.name, offset, batch)
        for row, (payload, key) in enumerate(zip(batch.payloads(), batch.keys(), strict=True)):
            self.world.history.ack(memory.history.name, offset + row, payload or b"")
            memory.history.publish(offset + row, payload or b"", key)

    async def _produce(self, topic: Topic, memory: TopicMemory, producer: ProducerMemory) -> None:
        """A named producer: resends an unanswered batch until it is answered. Sometimes it loses the answer."""
        session, instance = None, memory.history.instance
        while self.has_more(memory) or producer.pending is not None:
            if memory.history.instance != instance:
                return  # the topic has a new owner
            try:
                session = session or await topic.attach(producer.name)
                if producer.pending is None:
                    memory.sent += 1
                    count = self.random.choice((1, 1, 3))
                    producer.pending = self.batch(memory, producer.name, producer.next_sequence, count)
                pending = producer.pending
                batch = build(
                    pending.payloads(),
                    publish_time=pending.publish_time,
                    keys=pending.keys(),
                    producer_id=session.producer,
                    first_sequence=pending.first_sequence,
                )
                receipt = topic.publish(batch, session.epoch)
                if self.random.random() < 0.2:
                    await asyncio.sleep(self.random.uniform(0.0, 0.02))
                    receipt = topic.publish(batch, session.epoch)  # as if the answer had been lost
                await receipt.confirmed
            except UNEXPECTED as error:
                excused = memory.history.instance != instance or memory.history.lossy  # or the state was lost
                self.world.history.check(excused, "I11", f"{producer.name}: {error.code}: {error}")
                producer.pending = None
                return
            except DanubeError as error:
                self.world.loop.trace("refused", producer.name, error.code)
                session = None
                await asyncio.sleep(self.random.uniform(0.02, 0.2))
                continue
            self.confirm(memory, batch, receipt.offset)
            if self.random.random() < 0.8:  # otherwise the client dies before it remembers the answer
                producer.answered(batch)
            await asyncio.sleep(self.random.uniform(0.0, 2 * self._pause(memory)))

    def has_more(self, memory: TopicMemory) -> bool:
        return memory.sent < self.world.plan.messages and not self.world.healed

    def _pause(self, memory: TopicMemory) -> float:
        plan = self.world.plan
        return (1 + len(memory.producers)) * plan.seconds / plan.messages

    @property
    def _true_time(self) -> int:
        """The time of a client, whose clock is right even if the broker's is wrong."""
        return round((EPOCH_SECONDS + self.world.loop.time()) * SECOND)

    def batch(self, memory: TopicMemory, origin: str, first_sequence: int, count: int) -> Batch:
        draw = self.random
        pad = b"." * draw.choice((0, 10, 200))
        payloads = [f"{memory.history.name}/{origin}/{first_sequence + part}".encode() + pad for part in range(count)]
        delayed = draw.random() < 0.1
        return build(
            payloads,
            publish_time=self.clock.wall(),
            keys=[f"k{draw.randrange(KEYS)}" for _ in payloads],
            delivery_times=[self._true_time + draw.randrange(SECOND) for _ in payloads] if delayed else None,
            first_sequence=first_sequence,
            codec=draw.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
        )

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def _consume(self, topic: Topic, memory: TopicMemory, subscription: SubscriptionHistory) -> None:
        """Creates the subscription if it is new, then runs its consumers."""
        while True:
            try:
                options = SubscriptionOptions(failure=memory.policy)
                host = await topic.subscribe(subscription.name, subscription.kind, start="earliest", options=options)
                break
            except DanubeError as error:
                self.world.loop.trace("unsubscribed", subscription.name, error.code)
                await asyncio.sleep(0.1)
        if not subscription.eras:
            subscription.opened(host.known.cursor, topic.ledger.first, self.world.history.check)
        clients = [ConsumerClient(self, topic, host, subscription, memory) for _ in range(memory.consumers)]
        await asyncio.gather(*(client.run() for client in clients))

    async def _dead_letter(self, target: str, message: Batch, source: LetterSource) -> None:
        """Stands in for the dead-letter topic: it takes a while, and is down at times."""
        memory = self.world.topics[target.removeprefix("/default/").removesuffix("-dead")]
        [letter] = message.messages()
        assert letter.attributes is not None
        label = letter.attributes["x-original-subscription"]
        generation = self.topics[memory.history.name].subscriptions[label].known.cursor.generation  # a seek may follow
        await asyncio.sleep(self.random.uniform(0.001, 0.02))
        if memory.dead_letters_down and not self.world.healed:
            raise TopicClosed("the dead-letter topic is down")
        offset = int(letter.attributes["x-original-topic-offset"])
        self.world.history.see(memory.history.name, offset, letter.payload or b"")
        memory.subscriptions[label].given_up.add(offset)
        origin = (memory.history.instance, label, generation, offset)
        self.world.history.check(origin not in memory.letters, "I4", f"{origin} is published twice as a dead letter")
        memory.letters.add(origin)

    async def _tick(self, topic: Topic) -> None:
        memory = self.world.topics[topic.name]
        while True:
            await asyncio.sleep(self.random.uniform(0.02, 0.4))
            memory.dead_letters_down = self.random.random() < 0.5
            if topic.name in self.world.reading_out:
                continue
            doubted, before = self._clock_jumped(), _expired(topic)
            try:
                await topic.tick()
            except DanubeError as error:
                self.world.loop.trace("tick.failed", topic.name, error.code)
            if doubted and _expired(topic) > before:
                self.world.history.check(False, "I4", f"{topic.name}: messages expired although the clock had jumped")
            self.world.history.trim(topic.name, topic.ledger.first)

    def _clock_jumped(self) -> bool:
        """Whether the clock has jumped since the process started, too recently to be trusted (§20)."""
        jumped = self._machine_clock.jumped
        return jumped is not None and self._started_at <= jumped > self.clock.monotonic() - CLOCK_DISTRUST_SECONDS / 2


def _expired(topic: Topic) -> int:
    return sum(host.known.counts[Cause.EXPIRED] for host in topic.subscriptions.values())
