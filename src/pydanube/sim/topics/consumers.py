"""Consumers that come and go, ack, nack, forget and stall, and a client that seeks on their subscriptions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydanube.base.errors import ConnectionLost, DanubeError
from pydanube.base.ranges import Ranges
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import Delivery, Timing
from pydanube.broker.topic.topic import Topic
from pydanube.sim.machine.sockets import NOTICE_SECONDS_MAX
from pydanube.sim.topics.history import ORDERED, Era, Holding, SubscriptionHistory
from pydanube.sim.topics.sessions import ClientConsumer
from pydanube.topic.cursor import Cursor
from pydanube.topic.records import SubscriptionKind

if TYPE_CHECKING:
    from pydanube.sim.topics.broker import TopicBroker
    from pydanube.sim.topics.memory import TopicMemory
    from pydanube.sim.topics.world import TopicWorld


class ConsumerClient:
    """A consumer of a subscription: connects, works for a while, leaves, connects again."""

    def __init__(
        self, broker: TopicBroker, topic: Topic, subscription: SubscriptionHistory, memory: TopicMemory
    ) -> None:
        self.subscription = subscription
        self.handle: ClientConsumer | None = None  # while it is connected
        self._broker = broker
        self._world = broker.world
        self._random = broker.random
        self._topic = topic
        self._memory = memory
        self._holding = Holding(-1)
        self._queue: deque[Delivery] = deque()
        self._timing = Timing.DELIVERED
        self._more = asyncio.Event()
        self._ended = False  # the broker has ended it

    @property
    def cursor(self) -> Cursor:
        topic = self._broker.served(self._memory.name) or self._topic
        return topic.subscription(self.subscription.name).known.cursor

    @property
    def floor_of_seek(self) -> int:
        """Where a seek has led at most, if its offset was deleted before it was decided. Acks may have followed."""
        topic = self._broker.served(self._memory.name) or self._topic
        return min(self.cursor.floor, topic.ledger.first)

    # -- receiving -----------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery, written_at: float) -> None:
        subscription = self.subscription
        for row, payload in enumerate(delivery.cut().payloads()):
            self._world.history.see(self._topic.name, delivery.first + row, payload or b"")
        era = self._era(delivery)
        if era is not None and subscription.current(self._holding):
            offsets = range(delivery.first, delivery.last + 1)
            now = self._world.loop.time()
            if self.handle is not None:
                subscription.settle_nacks(self._holding, self.handle.heard_at, written_at)
            subscription.delivered(self._holding, era, offsets, written_at, now, self._world.history.check)
        self._queue.append(delivery)
        self._more.set()

    def reset(self, generation: int) -> None:
        self._holding.unacked.clear()
        self._holding.nacked.clear()
        era = self.subscription.era_of(generation)
        if era is not None:
            era.floor = max(era.floor, self.floor_of_seek)
        if self._random.random() < 0.7:  # otherwise it continues with what it has, which must do no harm
            self._queue.clear()

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Drops recalled messages from the queue. On Shared, a message in the queue must never time out."""
        if self._timing is not Timing.TAKEN:
            return
        gone = Ranges(sorted(ranges))
        for offset in [each for each in self._holding.unacked if gone.within(each, each)]:
            del self._holding.unacked[offset]
        stale = [each for each in self._queue if gone.within(each.first, each.last)]
        if self.subscription.kind is SubscriptionKind.SHARED:
            label = f"{self._topic.name}/{self.subscription.name}"
            self._world.history.check(not stale, "I4", f"{label}: {stale[:1]} failed in the queue of its consumer")
        whole = [each for each in self._queue if each not in stale]
        parts = [each._replace(first=first, last=last) for each in stale for first, last in _left(each, gone)]
        self._queue = deque(sorted([*whole, *parts], key=lambda each: each.first))

    def closed(self, error: DanubeError) -> None:
        """The broker has ended it, or the connection is lost, which the broker learns later."""
        self.subscription.leave(self._holding)
        self._ended = True
        self._more.set()

    # -- working -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            self._timing = self._random.choice((Timing.DELIVERED, Timing.TAKEN))
            self._queue.clear()
            self._ended = False
            try:
                self.handle = handle = await self._connect()
            except DanubeError as error:
                self._world.loop.trace("not connected", self._topic.name, self.subscription.name, error.code)
                await asyncio.sleep(self._random.uniform(0.05, 0.5))
                continue
            self._holding = self.subscription.join(self._broker.life_now(self._memory))
            stays = self._random.choice((0.2, 1.0, 100.0)) if "churn" in self._world.plan.traits else 100.0
            try:
                async with asyncio.timeout(None if self._world.healed else stays):
                    await self._work(handle)
            except TimeoutError:
                pass
            finally:  # also if the topic is lost
                self.subscription.leave(self._holding)
                self.handle = None
                handle.close(crashed=self._random.random() < 0.5)
            await asyncio.sleep(self._random.uniform(0.0, 0.5))

    async def _connect(self) -> ClientConsumer:
        """Creates the subscription if it is new."""
        memory, subscription = self._memory, self.subscription
        handle = await self._broker.session.open_consumer(
            memory.name,
            subscription.name,
            subscription.kind,
            self,
            SubscriptionOptions(failure=memory.failure),
            says_taken=self._timing is Timing.TAKEN,
        )
        if not subscription.eras:
            subscription.opened(self.cursor, self._topic.ledger.first, self._world.history.check)
        return handle

    async def _work(self, handle: ClientConsumer) -> None:
        """Returns when the broker has ended the consumer."""
        granted = 0
        while not self._ended:
            if granted < 20:
                permits = 1000 if self._world.healed else self._random.choice((0, 1, 3, 30))
                if permits:
                    handle.grant(permits)
                granted += permits
            if not self._queue:
                self._more.clear()
                try:
                    await asyncio.wait_for(self._more.wait(), 0.3)
                except TimeoutError:
                    granted = 0 if self._random.random() < 0.3 else granted
                continue  # a seek may have emptied the queue again
            delivery = self._queue.popleft()
            granted -= delivery.last - delivery.first + 1
            pauses = (0.0, 0.0, 0.01, 0.1)
            if self._timing is Timing.TAKEN:
                handle.taken(delivery.generation, [(delivery.first, delivery.last)])
                if not self._world.healed:
                    pauses = (0.0, 0.1, 0.3, 0.6)  # the last of a queue of thirty waits longer than an ack timeout
            await asyncio.sleep(self._random.choice(pauses))
            if not self._ended:
                self._answer(handle, delivery)

    def _answer(self, handle: ClientConsumer, delivery: Delivery) -> None:
        """Acks at once, one by one or cumulatively; nacks; or does not answer, so that the delivery times out."""
        draw = self._random.random()
        well = self._world.healed
        poison = "poison" in self._world.plan.traits
        if not well and draw < 0.03:
            return
        if draw < (0.5 if poison and not well else 0.1) and not well:
            offset = self._random.randint(delivery.first, delivery.last)
            current = self._era(delivery) is self.subscription.era
            delay = self._random.choice((0, 200_000))
            end = handle.nack(delivery.generation, [(offset, offset)], delay, "no")
            if current:
                self.subscription.nack(self._holding, offset, end)
            return
        if self.subscription.kind in ORDERED and draw < 0.4:
            self._ack_through(handle, delivery)
        elif draw < 0.7:
            self._ack(handle, delivery, delivery.first, delivery.last)
        else:
            for offset in range(delivery.first, delivery.last + 1):
                self._ack(handle, delivery, offset, offset)

    def _era(self, delivery: Delivery) -> Era | None:
        return self.subscription.era_of(delivery.generation)

    def _ack(self, handle: ClientConsumer, delivery: Delivery, first: int, last: int) -> None:
        era = self._era(delivery)
        offsets = range(first, last + 1)
        if era is not None:
            self.subscription.submit(era, offsets)
        try:
            answer = handle.ack(delivery.generation, [(first, last)])
        except DanubeError as error:
            self._world.loop.trace("ack.refused", self.subscription.name, error.code)
            return
        if era is not None:
            now = self._world.loop.time
            answer.add_done_callback(lambda done: None if done.exception() else era.confirm(first, last, now()))

    def _ack_through(self, handle: ClientConsumer, delivery: Delivery) -> None:
        """Acks cumulatively, if the delivery is of the present owner."""
        era = self._era(delivery)
        if era is None or not self.subscription.current(self._holding):
            return
        through = delivery.last
        self.subscription.submit_through(era, through)
        try:
            answer = handle.ack(delivery.generation, [(0, through)], cumulative=True)
        except DanubeError as error:
            self._world.loop.trace("ack.refused", self.subscription.name, error.code)
            return
        now = self._world.loop.time
        answer.add_done_callback(lambda done: None if done.exception() else era.confirm_through(through, now()))


def _left(delivery: Delivery, gone: Ranges) -> list[tuple[int, int]]:
    left = Ranges([(delivery.first, delivery.last)])
    for first, last in gone.within(delivery.first, delivery.last):
        left.cut(first, last)
    return list(left)


async def seek_now_and_then(
    broker: TopicBroker, topic: Topic, memory: TopicMemory, consumers: Sequence[ConsumerClient]
) -> None:
    """Seeks back or forward, to an offset or a time, through any consumer that is connected."""
    draw, world, instance = broker.random, broker.world, memory.history.instance
    while not world.healed:
        await asyncio.sleep(draw.uniform(0.3, 1.5))
        client = draw.choice(consumers)
        if client.handle is None or topic.ledger.confirmed_end <= topic.ledger.first:
            continue
        name = client.subscription.name
        try:
            offset = draw.randint(topic.ledger.first, topic.ledger.confirmed_end)
            if draw.random() < 0.3:
                time = broker.door.clock.wall() - draw.randrange(3_000_000)
                offset = await broker.session.offset_of_time(memory.name, time)
            if memory.history.instance != instance:
                return  # the topic has a new owner
            if not await _seek(world, topic, client, offset):
                continue
        except DanubeError as error:
            world.loop.trace("seek.failed", memory.name, name, error.code)
            continue
        world.loop.trace("sought", memory.name, name, offset)
        cursor = client.cursor
        below = [each for each in memory.history.offsets_from(cursor.floor)[:1] if each < topic.ledger.first]
        world.history.check(
            cursor.generation != client.subscription.era.generation or not below,
            "I4",
            f"{memory.name}/{name}: a seek to {offset} left the cursor below the first message",
        )


async def _seek(world: TopicWorld, topic: Topic, client: ConsumerClient, offset: int) -> bool:
    """Returns whether the seek was confirmed. The era is recorded first, because the topic acts before it answers."""
    subscription, handle = client.subscription, client.handle
    if handle is None or not subscription.eras or topic.lost or topic.closed or world.healed:
        return False
    era = Era(client.cursor.generation + 1, max(offset, topic.ledger.first), decided=False)
    if era.generation != subscription.era.generation + 1:
        return False
    subscription.eras.append(era)
    before = client.cursor.generation
    try:
        await handle.seek(offset)
    except DanubeError as error:
        if isinstance(error, ConnectionLost):  # the broker may still do it, until it learns that
            await asyncio.sleep(2 * NOTICE_SECONDS_MAX)
        if client.cursor.generation == before and subscription.era is era:
            subscription.eras.pop()
        raise
    era.decided = True
    era.floor = max(era.floor, client.floor_of_seek)
    return True
