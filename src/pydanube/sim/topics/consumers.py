"""Consumers that come and go, ack, nack, forget and stall, and a client that seeks on their subscriptions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydanube.base.errors import ConsumerBusy, DanubeError
from pydanube.base.ranges import Ranges
from pydanube.broker.subscription.delivery import Delivery, Timing
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.topic import Topic
from pydanube.sim.topics.history import ORDERED, Era, Holding, SubscriptionHistory
from pydanube.topic.records import SubscriptionKind

if TYPE_CHECKING:
    from pydanube.sim.topics.broker import TopicBroker, TopicMemory


class ConsumerClient:
    """A consumer of a subscription: connects, works for a while, leaves, connects again."""

    def __init__(
        self,
        broker: TopicBroker,
        topic: Topic,
        host: SubscriptionHost,
        subscription: SubscriptionHistory,
        memory: TopicMemory,
    ) -> None:
        self._broker = broker
        self._world = broker.world
        self._random = broker.random
        self._topic = topic
        self._host = host
        self._subscription = subscription
        self._memory = memory
        self._holding = Holding(-1)
        self._queue: deque[Delivery] = deque()
        self._timing = Timing.DELIVERED
        self._more = asyncio.Event()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        subscription = self._subscription
        for row, payload in enumerate(delivery.cut().payloads()):
            self._world.history.see(self._topic.name, delivery.first + row, payload or b"")
        era = self._era(delivery)
        if era is not None and subscription.current(self._holding):
            offsets = range(delivery.first, delivery.last + 1)
            subscription.delivered(self._holding, era, offsets, self._world.loop.time(), self._world.history.check)
        self._queue.append(delivery)
        self._more.set()

    def reset(self, generation: int) -> None:
        self._holding.unacked.clear()
        era = self._subscription.era_of(generation)
        if era is not None:  # the offset of the seek may have been deleted since
            era.floor = self._host.known.cursor.floor
        if self._random.random() < 0.7:  # otherwise it continues with what it has, which must do no harm
            self._queue.clear()

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Drops recalled messages from the queue. On Shared, a message in the queue must never time out."""
        if self._timing is not Timing.TAKEN:
            return
        gone = Ranges(sorted(ranges))
        stale = [each for each in self._queue if gone.within(each.first, each.last)]
        if self._subscription.kind is SubscriptionKind.SHARED:
            label = f"{self._topic.name}/{self._subscription.name}"
            self._world.history.check(not stale, "I4", f"{label}: {stale[:1]} failed in the queue of its consumer")
        whole = [each for each in self._queue if each not in stale]
        parts = [each._replace(first=first, last=last) for each in stale for first, last in _left(each, gone)]
        self._queue = deque(sorted([*whole, *parts], key=lambda each: each.first))

    def unreadable(self, error: DanubeError | None) -> None:
        """Ignored: a damaged object is restored in the end."""

    def closed(self, error: DanubeError) -> None:
        """Ignored: the broker that closed the topic ends this consumer too."""

    # -- working -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            try:
                self._timing = self._random.choice((Timing.DELIVERED, Timing.TAKEN))
                consumer = self._topic.connect(self._host, "c", self, timing=self._timing)
            except ConsumerBusy:
                await asyncio.sleep(self._random.uniform(0.05, 0.5))
                continue
            self._holding = self._subscription.join()
            self._queue.clear()
            stays = self._random.choice((0.2, 1.0, 100.0)) if "churn" in self._world.plan.traits else 100.0
            try:
                async with asyncio.timeout(None if self._world.healed else stays):
                    await self._work(consumer.id)
            except TimeoutError:
                self._subscription.leave(self._holding)
                self._host.leave(consumer.id, crashed=self._random.random() < 0.5)
                await asyncio.sleep(self._random.uniform(0.0, 0.5))

    async def _work(self, consumer: int) -> None:
        granted = 0
        while True:
            if granted < 20:
                permits = 1000 if self._world.healed else self._random.choice((0, 1, 3, 30))
                self._host.grant(consumer, permits)  # type: ignore[arg-type]
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
                self._host.taken(consumer, delivery.generation, [(delivery.first, delivery.last)])  # type: ignore[arg-type]
                if not self._world.healed:
                    pauses = (0.0, 0.1, 0.3, 0.6)  # the last of a queue of thirty waits longer than an ack timeout
            await asyncio.sleep(self._random.choice(pauses))
            self._answer(consumer, delivery)

    def _answer(self, consumer: int, delivery: Delivery) -> None:
        """Acks at once, one by one or cumulatively; nacks; or does not answer, so that the delivery times out."""
        draw = self._random.random()
        well = self._world.healed
        poison = "poison" in self._world.plan.traits
        if not well and draw < 0.03:
            return
        if draw < (0.5 if poison and not well else 0.1) and not well:
            offset = self._random.randint(delivery.first, delivery.last)
            if self._era(delivery) is self._subscription.era:
                self._holding.unacked.pop(offset, None)
            delay = self._random.choice((0, 200_000))
            self._host.nack(consumer, delivery.generation, [(offset, offset)], delay, "no")  # type: ignore[arg-type]
            return
        if self._subscription.kind in ORDERED and draw < 0.4:
            self._ack_through(delivery)
        elif draw < 0.7:
            self._ack(delivery, delivery.first, delivery.last)
        else:
            for offset in range(delivery.first, delivery.last + 1):
                self._ack(delivery, offset, offset)

    def _era(self, delivery: Delivery) -> Era | None:
        return self._subscription.era_of(delivery.generation)

    def _ack(self, delivery: Delivery, first: int, last: int) -> None:
        era = self._era(delivery)
        offsets = range(first, last + 1)
        if era is not None:
            self._subscription.submit(era, offsets)
        self._send(delivery, first, last, era)

    def _send(self, delivery: Delivery, first: int, last: int, era: Era | None) -> None:
        try:
            answer = self._host.ack(delivery.generation, [(first, last)])
        except DanubeError as error:
            self._world.loop.trace("ack.refused", self._subscription.name, error.code)
            return
        if era is not None:
            answer.add_done_callback(lambda done: None if done.exception() else era.confirm(first, last))

    def _ack_through(self, delivery: Delivery) -> None:
        """Acks cumulatively, if the delivery is of the present owner."""
        era = self._era(delivery)
        if era is None or not self._subscription.current(self._holding):
            return
        through = delivery.last
        self._subscription.submit_through(era, through)
        try:
            answer = self._host.ack_through(delivery.generation, through)
        except DanubeError as error:
            self._world.loop.trace("ack.refused", self._subscription.name, error.code)
            return
        answer.add_done_callback(lambda done: None if done.exception() else era.confirm_through(through))


def _left(delivery: Delivery, gone: Ranges) -> list[tuple[int, int]]:
    left = Ranges([(delivery.first, delivery.last)])
    for first, last in gone.within(delivery.first, delivery.last):
        left.cut(first, last)
    return list(left)


async def seek_now_and_then(broker: TopicBroker, topic: Topic, memory: TopicMemory) -> None:
    """Seeks back or forward, to an offset or a time, on random subscriptions."""
    draw, history, instance = broker.random, broker.world.history, memory.history.instance
    while not broker.world.healed:
        await asyncio.sleep(draw.uniform(0.3, 1.5))
        name = draw.choice(list(topic.subscriptions) or [""])
        host = topic.subscriptions.get(name)
        if host is None or topic.ledger.confirmed_end <= topic.ledger.first:
            continue
        try:
            offset = draw.randint(topic.ledger.first, topic.ledger.confirmed_end)
            if draw.random() < 0.3:
                offset = await topic.find_time(broker.clock.wall() - draw.randrange(3_000_000))
            if memory.history.instance != instance:
                return  # the topic has a new owner
            if not await _seek(broker, topic, host, offset, memory.subscriptions[name]):
                continue
        except DanubeError as error:
            broker.world.loop.trace("seek.failed", topic.name, name, error.code)
            continue
        broker.world.loop.trace("sought", topic.name, name, offset)
        cursor = host.known.cursor
        below = [each for each in memory.history.offsets_from(cursor.floor)[:1] if each < topic.ledger.first]
        history.check(
            cursor.generation != memory.subscriptions[name].era.generation or not below,
            "I4",
            f"{topic.name}/{name}: a seek to {offset} left the cursor below the first message",
        )


async def _seek(
    broker: TopicBroker, topic: Topic, host: SubscriptionHost, offset: int, subscription: SubscriptionHistory
) -> bool:
    """Returns whether the seek was confirmed. The era is recorded first, because the topic acts before it answers."""
    if not subscription.eras or topic.lost or broker.world.healed:
        return False
    era = Era(host.known.cursor.generation + 1, max(offset, topic.ledger.first), decided=False)
    if era.generation != subscription.era.generation + 1:
        return False
    subscription.eras.append(era)
    before = host.known.cursor.generation
    try:
        await topic.seek(host, offset)
    except DanubeError:
        if host.known.cursor.generation == before and subscription.era is era:
            subscription.eras.pop()
        raise
    era.decided = True
    if not host.consumers:
        era.floor = max(era.floor, host.known.cursor.floor)
    return True
