"""A topic on a simulated disk, killed and restarted at will, with consumers that remember what they were handed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from pydanube.base.errors import DanubeError, TopicClosed
from pydanube.base.ids import ConsumerId, NodeIdentity
from pydanube.base.limits import KIB
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.delivery import Delivery, Timing
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.subscription.reading_window import ReadAheadBudget
from pydanube.broker.topic.dependencies import LetterSource, TopicDependencies
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.ports.catalog import Catalog
from pydanube.ports.storage import StorageNode
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.world.catalog import SimCatalog
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.tail import TailCache
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment, Held
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch, build

Answer = TypeVar("Answer")


class OneNode:
    def __init__(self, node: DiskNode) -> None:
        self.node = node

    def get(self, identity: NodeIdentity) -> StorageNode:
        assert identity == self.node.identity
        return self.node

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        return [self.node.identity]


class Inbox:
    """A consumer's side: what came, in order; acknowledges on request."""

    def __init__(self, host: SubscriptionHost) -> None:
        self.host = host
        self.id = ConsumerId(0)
        self.deliveries: list[Delivery] = []
        self.generation = host.known.cursor.generation
        self.resets = 0
        self.recalled: list[int] = []
        self.notices: list[DanubeError | None] = []
        self.ended: DanubeError | None = None
        self._more = asyncio.Event()

    def deliver(self, delivery: Delivery) -> None:
        assert delivery.last < self.host._ledger.confirmed_end
        self.deliveries.append(delivery)
        self._more.set()

    def reset(self, generation: int) -> None:
        self.generation = generation
        self.resets += 1

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        assert generation == self.generation
        self.recalled += [offset for first, last in ranges for offset in range(first, last + 1)]

    def unreadable(self, error: DanubeError | None) -> None:
        self.notices.append(error)
        self._more.set()

    def closed(self, error: DanubeError) -> None:
        self.ended = error

    @property
    def offsets(self) -> list[int]:
        return [offset for delivery in self.deliveries for offset in range(delivery.first, delivery.last + 1)]

    @property
    def payloads(self) -> list[bytes | None]:
        return [payload for delivery in self.deliveries for payload in delivery.cut().payloads()]

    async def until(self, count: int) -> list[int]:
        """The offsets, once there are so many."""
        while len(self.offsets) < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 100)
        return self.offsets

    async def ack(self, *offsets: int) -> None:
        await self.host.ack(self.generation, [(offset, offset) for offset in offsets])

    async def ack_all(self) -> None:
        ranges = [(delivery.first, delivery.last) for delivery in self.deliveries]
        await self.host.ack(self.generation, ranges)

    def forget(self) -> None:
        """So that `offsets` tells what comes from now on."""
        self.deliveries.clear()

    def nack(self, *offsets: int, delay: int = 0, reason: str = "") -> None:
        self.host.nack(self.id, self.generation, [(offset, offset) for offset in offsets], delay, reason)


class TopicWorld:
    """One broker with its embedded node; the catalogue and the disk outlive it."""

    def __init__(self, seed: int = 0, *, options: TopicOptions | None = None, cache_bytes: int = 1 << 20) -> None:
        self.loop = SimLoop(seed)
        self.disk = SimDisk(self.loop, self.loop.fork_random("disk"), "disk")
        self.catalog = SimCatalog(Random(seed))
        self.clock = SimClock(self.loop)
        self.randomness = SimRandomness(Random(seed))
        self.options = options or TopicOptions()
        self.cache_bytes = cache_bytes
        self.cache = TailCache(cache_bytes)
        self.read_ahead = ReadAheadBudget()
        self.process = self.loop.process("broker")
        self.dead_letters: list[tuple[str, Batch]] = []
        self.dead_letters_fail = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(self.loop.spawn(self.process, coroutine))

    async def open(self, name: str = "/default/t", *, node: NodeSettings | None = None) -> Topic:
        settings = node or NodeSettings(file_bytes=256 * KIB, retry_seconds=0.05)
        self.cache = TailCache(self.cache_bytes)
        self.watch = CheckedClock(self.clock)
        self.node = await DiskNode.open([self.disk], settings, self.randomness)
        await self.node.reconcile_with_catalog(self.catalog.known(), self.catalog.next_ledger)
        return await self.open_topic(name)

    async def open_topic(self, name: str = "/default/t") -> Topic:
        """Takes the topic from whoever has it: a second call for the same name is another broker's."""
        nodes = OneNode(self.node)
        dependencies = TopicDependencies(
            self.catalog, nodes, self.watch, self.randomness, self.cache, self._dead, read_ahead=self.read_ahead
        )
        tenure = await Tenure.take(name, Assignment("b", self.randomness.bytes(8).hex()), self.catalog)
        return await Topic.open(tenure, dependencies, self.options)

    async def _dead(self, topic: str, message: Batch, source: LetterSource) -> None:
        await asyncio.sleep(0.001)
        if self.dead_letters_fail:
            raise TopicClosed("the dead-letter topic is down")
        self.dead_letters.append((topic, message))

    def run_until_cut(self, coroutine: Coroutine[Any, Any, Any], changes: int) -> None:
        """The power goes after so many changes of the disk, or when the coroutine is done."""
        cut = self.loop.create_future()
        self.disk.cut_at, self.disk.on_cut = self.disk.boundaries + changes, lambda: cut.set_result(None)

        async def race() -> None:
            await asyncio.wait([asyncio.ensure_future(coroutine), cut], return_when=asyncio.FIRST_COMPLETED)

        self.run(race())
        self.disk.cut_at = None
        self.cut()

    def restart(self) -> None:
        self.loop.kill(self.process)
        self.process = self.loop.process("broker")

    def cut(self) -> None:
        self.loop.kill(self.process)
        self.disk.power_cut()
        self.process = self.loop.process("broker")

    def end(self) -> None:
        failures = self.loop.failures
        self.loop.shutdown()
        assert failures == [], [repr(each) for each in failures]


async def reassign(catalog: Catalog, topic: str, to: str = "another") -> None:
    """Assigns the topic to another broker, which does not open it yet."""
    _, epoch = await catalog.assignment(topic)
    await catalog.assign(Held(topic, epoch), Assignment(to, "1"))


def batch_of(*payloads: str, keys: Sequence[str | None] | None = None, **columns: Any) -> Batch:
    return build([payload.encode() for payload in payloads], publish_time=1, keys=keys, **columns)


async def insist(work: Callable[[], Awaitable[Answer]]) -> Answer:
    """As a client does it: repeatedly while the error says that it helps."""
    while True:
        try:
            return await work()
        except DanubeError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.05)


async def publish(topic: Topic, *payloads: str, **columns: Any) -> int:
    """One batch; its base offset, once it is confirmed."""
    receipt = topic.publish(batch_of(*payloads, **columns))
    await receipt.confirmed
    return receipt.offset


def numbers(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last + 1)]


async def subscribed(
    topic: Topic,
    kind: SubscriptionKind,
    *,
    name: str = "s",
    start: str | int = "earliest",
    policy: FailurePolicy | None = None,
    settings: DispatchSettings | None = None,
) -> SubscriptionHost:
    options = SubscriptionOptions(policy or FailurePolicy(), settings or DispatchSettings())
    return await topic.subscribe(name, kind, start=start, options=options)


def connected(
    topic: Topic,
    host: SubscriptionHost,
    name: str = "c",
    *,
    permits: int = 1000,
    filters: Sequence[bytes] = (),
    timing: Timing = Timing.DELIVERED,
) -> Inbox:
    inbox = Inbox(host)
    consumer = topic.connect(host, name, inbox, filters, timing)
    inbox.id = consumer.id
    host.grant(consumer.id, permits)
    return inbox
