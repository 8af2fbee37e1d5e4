"""Hands out what the engine has decided, in order: at once if the batches are in memory, else when they were read.

Owned by its subscription. It never decides who gets a message, and it never delivers what the engine took back, what
was done meanwhile, or what was decided before a seek.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from pydanube.base.counting import Traffic
from pydanube.base.errors import DanubeError
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DELIVERIES_AT_ONCE
from pydanube.broker.limits.rates import Throttle, rate_of
from pydanube.broker.subscription.delivery import Consumer, Delivery
from pydanube.broker.subscription.lifetime import CLOSED, Lifetime
from pydanube.broker.subscription.outbox import Outbox, Recalled, by_consumer
from pydanube.broker.subscription.read_failures import RETRY_SECONDS
from pydanube.broker.subscription.reading_window import ReadingWindow
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch

FETCHES_AT_ONCE = 32  # in one turn of the loop
Failed = Callable[[ConsumerId, int, tuple[int, int], str], None]  # consumer, generation, offsets, why


class Sender:
    """`consumers` are those of the subscription; `failed` is called if one of them could not be handed a delivery."""

    __slots__ = (
        "_consumers",
        "_engine",
        "_failed",
        "_handed_out",
        "_known",
        "_lifetime",
        "_window",
        "fetching",
        "outbox",
        "redelivered",
        "sent",
        "throttle",
    )

    def __init__(
        self,
        known: Subscription,
        engine: Engine[Any],
        window: ReadingWindow,
        consumers: Mapping[ConsumerId, Consumer],
        lifetime: Lifetime,
        failed: Failed,
    ) -> None:
        self.outbox = Outbox()  # waits for a read of its batch, or for the next turn of the loop
        self.throttle: Throttle | None = None
        self.fetching = False  # what the outbox waits for is being read
        self.sent = Traffic()  # handed to consumers, redeliveries included
        self.redelivered = 0  # messages of these that had failed before
        self._known = known
        self._engine = engine
        self._window = window
        self._consumers = consumers
        self._lifetime = lifetime
        self._failed = failed
        self._handed_out = 0  # deliveries, in this turn

    # -- the rate ------------------------------------------------------------------------------------------------------

    def set_rate(self, messages: int | None, bytes: int | None) -> bool:
        """Maximum messages and bytes per second, redeliveries included; None is no limit. Whether that is new."""
        before = (None, None) if self.throttle is None else self.throttle.limits
        if before == (messages, bytes):
            return False
        rate = rate_of(messages, bytes)
        self.throttle = None if rate is None else Throttle(rate)
        return True

    def rests(self, now: int) -> bool:
        """Whether its rate is used up: nothing is decided meanwhile."""
        return self.throttle is not None and self.throttle.rests(now)

    def due(self, otherwise: int | None) -> int | None:
        """When there is something to do: at the end of a rest, or when there would be without one."""
        return otherwise if self.throttle is None else self.throttle.due(otherwise, self._lifetime.now)

    # -- handing out ---------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """A turn of the loop hands out a limited number of deliveries; the others wait for the next."""
        self._handed_out = 0

    def deliver(self, deliver: Deliver) -> None:
        """At once, unless others wait before it, this turn has handed out enough, or a batch is not in memory."""
        self._handed_out += 1
        if self.outbox or self._handed_out > DELIVERIES_AT_ONCE or not self._hand_out(deliver):
            self.outbox.add(deliver, self._lifetime.now)

    def _hand_out(self, deliver: Deliver) -> bool:
        """Whether all its batches were in memory. They go out as they were published, with the range that is meant."""
        consumer = self._consumers.get(deliver.consumer)
        if consumer is None:
            return True
        parts: list[Batch] = []
        offset = deliver.first
        while offset <= deliver.last:
            batch = self._window.find(offset)
            if batch is None:
                return False
            parts.append(batch)
            offset = batch.last_offset + 1
        for batch in parts:
            first, last = max(batch.base_offset, deliver.first), min(batch.last_offset, deliver.last)
            self._send(consumer, Delivery(batch, first, last, deliver.attempt, self._known.cursor.generation))
        return True

    def _send(self, consumer: Consumer, delivery: Delivery) -> None:
        count = delivery.last - delivery.first + 1
        size = delivery.batch.size * count // delivery.batch.count
        self.sent.add(count, size)
        if delivery.attempt:
            self.redelivered += count
        if self.throttle is not None:
            self.throttle.take(count, size, self._lifetime.now)
        if failure := consumer.take(delivery):
            self._failed(consumer.id, delivery.generation, (delivery.first, delivery.last), failure)

    # -- what waits ----------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Begins to read for what waits, unless it does already."""
        if not self.fetching:
            self.fetching = True
            self._lifetime.start(self._fetch())

    async def _fetch(self) -> None:
        try:
            await self._hand_out_waiting()
        except Exception:  # a bug here must not end all deliveries, nor repeat without a pause
            await asyncio.sleep(RETRY_SECONDS)
            raise
        finally:
            self.fetching = False
            self._lifetime.wake()

    async def _hand_out_waiting(self) -> None:
        """Reads for the oldest delivery that waits and hands it out, batch by batch, until none waits."""
        window, outbox, cursor = self._window, self.outbox, self._known.cursor
        for turn in count(1):
            if not outbox or self._lifetime.state is CLOSED:
                break
            if not turn % FETCHES_AT_ONCE:
                await asyncio.sleep(0)  # let the loop do other work in between
                continue
            self.drop_recalled()
            deliver, generation = outbox.head, cursor.generation
            if deliver is None:
                break
            if (behind := window.pass_lost(deliver.first)) > deliver.first:
                self._give_permits_back(deliver.consumer, outbox.skip(behind))
                continue
            try:
                batch = await window.read_at(deliver.first)
            except DanubeError as error:
                self._give_back()
                await window.failures.add(deliver.first, error)
                continue
            window.failures.were_read(deliver.first, batch.last_offset)
            if outbox.waited_long(self._engine.policy.ack_timeout, self._lifetime.now):
                self._give_back()
            elif outbox.head is deliver and generation == cursor.generation:
                self._hand_out_part(outbox.take(), batch)  # else there was a seek, or the consumer left

    def _hand_out_part(self, deliver: Deliver, batch: Batch) -> None:
        """Hands out what this batch has of a delivery, except what was done meanwhile. The rest keeps waiting."""
        cursor, consumer = self._known.cursor, self._consumers[deliver.consumer]
        end = min(deliver.last, batch.last_offset)
        if end < deliver.last:
            self.outbox.put_back(deliver._replace(first=end + 1))
        left = end - deliver.first + 1
        self._window.pass_gap(deliver.first, min(end, batch.base_offset - 1))
        for first, last in cursor.pending(max(batch.base_offset, deliver.first), end):
            self._send(consumer, Delivery(batch, first, last, deliver.attempt, cursor.generation))
            left -= last - first + 1
        if left:
            self._give_permits_back(consumer.id, left)

    # -- taking back ---------------------------------------------------------------------------------------------------

    def drop_recalled(self) -> None:
        """Removes what the engine took back from the outbox, and notifies consumers that already have it."""
        if recalled := self._engine.take_recalled():
            for consumer, dropped in self.outbox.drop(recalled).items():
                self._give_permits_back(consumer, dropped)
            self._recall(recalled)

    def _recall(self, recalled: Recalled) -> None:
        """What will be delivered again must not be taken from a client's queue any more."""
        there = [each for each in recalled if each[0] in self._consumers]
        for consumer, ranges in by_consumer(there).items():
            self._consumers[consumer].sink.recall(self._known.cursor.generation, list(ranges))

    def _give_back(self) -> None:
        """Nobody was handed what waits: the engine decides again, and only then does the ack timeout begin."""
        self.drop_recalled()
        for deliver in self.outbox.take_all():
            self._engine.undelivered(deliver.consumer, deliver.first, deliver.last, self._lifetime.now)
        self._recall(self._engine.take_recalled())
        self._lifetime.wake()

    def _give_permits_back(self, consumer: ConsumerId, messages: int) -> None:
        """The consumer asked for these messages and does not get them."""
        self._engine.grant(consumer, messages, self._lifetime.now)

    def start_again(self) -> None:
        """After a seek: nothing that was decided before it is handed out."""
        for deliver in self.outbox.take_all():
            self._give_permits_back(deliver.consumer, deliver.last - deliver.first + 1)

    def stop(self) -> None:
        """Nothing that waits is handed out any more."""
        self.outbox.take_all()
