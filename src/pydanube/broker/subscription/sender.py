"""Hands out decided deliveries, in order: at once if the batches are in memory, otherwise when they have been read.

Owned by its subscription. It never decides who gets a message, and never delivers what the engine has recalled, what
was done meanwhile, or what was decided before a seek.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from pydanube.base.counting import Traffic
from pydanube.base.errors import DanubeError
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DELIVERIES_AT_ONCE
from pydanube.broker.limits.rates import Throttle, rate_of
from pydanube.broker.subscription.core import SubscriptionCore
from pydanube.broker.subscription.delivery import Consumer, Delivery
from pydanube.broker.subscription.lifetime import CLOSED
from pydanube.broker.subscription.outbox import Outbox, Recalled, by_consumer
from pydanube.broker.subscription.read_failures import RETRY_SECONDS
from pydanube.broker.subscription.reading_window import ReadingWindow
from pydanube.dispatch.events import Deliver
from pydanube.topic.cursor import Range
from pydanube.wire.batch import Batch

FETCHES_AT_ONCE = 32  # before the loop does other work
Nack = Callable[[ConsumerId, int, Sequence[Range], int, str], None]  # consumer, generation, offsets, delay, why


class Sender:
    """`nack` is called for messages that could not be handed to a consumer."""

    __slots__ = (
        "_consumers",
        "_engine",
        "_handed_out",
        "_known",
        "_lifetime",
        "_nack",
        "_window",
        "fetching",
        "outbox",
        "redelivered",
        "sent",
        "throttle",
    )

    def __init__(self, core: SubscriptionCore, window: ReadingWindow, nack: Nack) -> None:
        self.outbox = Outbox()  # these wait for a read, or for the next turn of the loop
        self.throttle: Throttle | None = None
        self.fetching = False  # a read for the outbox is in progress
        self.sent = Traffic()  # handed to consumers, redeliveries included
        self.redelivered = 0  # of these, messages that had failed before
        self._known, self._engine = core.known, core.engine
        self._consumers, self._lifetime = core.consumers, core.lifetime
        self._window = window
        self._nack = nack
        self._handed_out = 0  # deliveries, in this turn

    # -- the rate ------------------------------------------------------------------------------------------------------

    def set_rate(self, messages: int | None, bytes: int | None) -> bool:
        """Limits messages and bytes per second, redeliveries included; None is no limit. Returns whether that is a
        change."""
        before = (None, None) if self.throttle is None else self.throttle.limits
        if before == (messages, bytes):
            return False
        rate = rate_of(messages, bytes)
        self.throttle = None if rate is None else Throttle(rate)
        return True

    def rests(self, now: int) -> bool:
        """Whether its rate is used up: until then nothing is decided."""
        return self.throttle is not None and self.throttle.rests(now)

    def due(self, otherwise: int | None) -> int | None:
        """When there is something to do: after a rest, or when there would be without one."""
        return otherwise if self.throttle is None else self.throttle.due(otherwise, self._lifetime.now)

    # -- handing out ---------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Begins a turn of the loop, which hands out a limited number of deliveries; the others wait for the next."""
        self._handed_out = 0

    def deliver(self, deliver: Deliver) -> None:
        """Hands it out at once, unless others are waiting, this turn has reached its limit, or a batch is not in
        memory."""
        self._handed_out += 1
        if self.outbox or self._handed_out > DELIVERIES_AT_ONCE or not self._hand_out(deliver):
            self.outbox.add(deliver, self._lifetime.now)

    def _hand_out(self, deliver: Deliver) -> bool:
        """Returns whether all its batches were in memory. Each goes out as published, with the range to process."""
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
            self._nack(consumer.id, delivery.generation, [(delivery.first, delivery.last)], 0, failure)

    # -- what waits ----------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Starts reading for the deliveries that wait, unless it is doing so already."""
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
        """Reads for the oldest waiting delivery and hands it out, batch by batch, until none waits."""
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
                self._hand_out_part(outbox.take(), batch)  # otherwise there was a seek, or the consumer left

    def _hand_out_part(self, deliver: Deliver, batch: Batch) -> None:
        """Hands out the part of a delivery that is in this batch, except what was done meanwhile. The rest waits."""
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
        """Removes what the engine has recalled from the outbox, and tells consumers that already have it."""
        if recalled := self._engine.take_recalled():
            for consumer, dropped in self.outbox.drop(recalled).items():
                self._give_permits_back(consumer, dropped)
            self._recall(recalled)

    def _recall(self, recalled: Recalled) -> None:
        """Tells clients not to hand these messages to their programs, because they will be delivered again."""
        there = [each for each in recalled if each[0] in self._consumers]
        for consumer, ranges in by_consumer(there).items():
            self._consumers[consumer].sink.recall(self._known.cursor.generation, list(ranges))

    def _give_back(self) -> None:
        """Returns all waiting deliveries to the engine, which decides again: their ack timeout begins only then."""
        self.drop_recalled()
        for deliver in self.outbox.take_all():
            self._engine.undelivered(deliver.consumer, deliver.first, deliver.last, self._lifetime.now)
        self._recall(self._engine.take_recalled())
        self._lifetime.wake()

    def _give_permits_back(self, consumer: ConsumerId, messages: int) -> None:
        """Returns the permits of messages that the consumer asked for and does not get."""
        self._engine.grant(consumer, messages, self._lifetime.now)

    def start_again(self) -> None:
        """Called after a seek: drops what was decided before it."""
        for deliver in self.outbox.take_all():
            self._give_permits_back(deliver.consumer, deliver.last - deliver.first + 1)

    def stop(self) -> None:
        """Drops everything that waits."""
        self.outbox.take_all()
