"""A non-reliable topic (§5): what is published goes to whoever has asked for it now, at most once, or is dropped.

It has the shape of the reliable `Topic` and none of its promises: nothing is written, kept or sent again. What would
need a promise is refused with `NotReliable`.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from typing import NoReturn

from pydanube.base.counting import Traffic
from pydanube.base.errors import (
    ConsumerNotFound,
    DanubeError,
    NotReliable,
    SubscriptionKindDiffers,
    SubscriptionNotFound,
    TooManySubscriptions,
    TopicClosed,
)
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import EXAMINED_AT_ONCE, SECOND, SUBSCRIPTIONS_MAX, UNUSED_SUBSCRIPTION_SECONDS
from pydanube.broker.limits.rates import Rate, rate_of
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.delivery import Consumer, ConsumerSink, Delivery, Timing
from pydanube.broker.subscription.runs import keys_of
from pydanube.broker.topic.topic import LATEST, Receipt
from pydanube.dispatch.best_effort import BestEffort
from pydanube.dispatch.events import Run
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.ports.clock import Clock
from pydanube.topic.cursor import Range
from pydanube.topic.records import SubscriptionKind, name_bytes
from pydanube.wire.batch import Batch

GENERATION = 0  # of every delivery: there are no seeks
EPOCH = 1  # of every stamp: nobody else will ever read it


class BestEffortSubscription:
    """Its consumers and what they missed. Ends with its topic, or when nobody has used it for long."""

    def __init__(self, name: str, kind: SubscriptionKind, done: Future[None]) -> None:
        self.name = name
        self.kind = kind
        self.engine = BestEffort(kind)
        self.consumers: dict[ConsumerId, Consumer] = {}
        self.delivered = 0  # messages
        self.given = Traffic()
        self.dropped = 0  # messages that none of its consumers was given
        self.rate: Rate | None = None  # what goes beyond it is dropped
        self._done = done
        self._waiting: deque[tuple[Batch, Future[None]]] = deque()  # bounded by what may be on its way from producers
        self._routed = 0  # messages of the first of them
        self._closed = False
        self.unused_since: int | None = None  # when it was first seen without a consumer, monotonic; µs

    def join(self, consumer: Consumer, filters: Sequence[bytes] = ()) -> None:
        if self._closed:
            raise SubscriptionNotFound(f"this broker no longer serves subscription {self.name!r}")
        self.engine.join(consumer.id, filters=filters)
        self.consumers[consumer.id] = consumer

    def leave(self, consumer: ConsumerId, *, crashed: bool) -> None:
        """What it had and did not finish is gone, however it left."""
        if self.consumers.pop(consumer, None) is not None:
            self.engine.leave(consumer)

    def grant(self, consumer: ConsumerId, permits: int) -> None:
        self._check_known(consumer)
        self.engine.grant(consumer, permits)

    def lost(self, consumer: ConsumerId) -> int:
        """Messages this consumer missed because it had not asked for more."""
        self._check_known(consumer)
        return self.engine.lost(consumer)

    def ack(self, generation: int, ranges: Sequence[Range]) -> Future[None]:
        """Changes nothing."""
        return self._done

    def ack_through(self, generation: int, offset: int) -> Future[None]:
        """Changes nothing."""
        return self._done

    def nack(
        self, consumer: ConsumerId, generation: int, ranges: Sequence[Range], delay: int = 0, reason: str = ""
    ) -> None:
        """Changes nothing: there is no other copy to send."""

    def hand_out(self, batch: Batch, now: int) -> Future[None]:
        """Done when each message went to somebody or nobody. By key, many messages take several turns of the loop."""
        if self.rate is not None:
            if self.rate.wait(now):
                self.dropped += batch.count
                return self._done
            self.rate.take(batch.count, batch.size, now)
        if self.kind is not SubscriptionKind.KEY_SHARED:
            self._route(batch, range(batch.count), None)
            return self._done
        few = batch.count <= EXAMINED_AT_ONCE and batch.plain_bytes <= self.engine.key_bytes_at_once
        if not self._waiting and few:
            self._route(batch, range(batch.count), keys_of(batch))
            return self._done
        routed: Future[None] = self._done.get_loop().create_future()
        self._waiting.append((batch, routed))
        if len(self._waiting) == 1:
            self._go_on()
        return routed

    def _go_on(self) -> None:
        """With the next messages of what waits; the others of the loop have their turn between."""
        if not self._waiting:
            return  # it was closed
        batch, routed = self._waiting[0]
        rows = range(self._routed, min(batch.count, self._routed + EXAMINED_AT_ONCE))
        rows = rows[: batch.rows_by_key_bytes(rows, self.engine.key_bytes_at_once)[0]]
        self._routed = rows.stop
        self._route(batch, rows, keys_of(batch, rows))
        if self._routed == batch.count:
            self._waiting.popleft()
            self._routed = 0
            if not routed.done():  # else whoever published it does not wait any more
                routed.set_result(None)
        if self._waiting:
            self._done.get_loop().call_soon(self._go_on)

    def _route(self, batch: Batch, rows: range, keys: list[bytes] | None) -> None:
        routed = self.engine.route(Run(batch.base_offset + rows.start, batch.base_offset + rows.stop - 1, keys))
        taken = len(rows) - routed.dropped
        self.dropped += routed.dropped
        self.delivered += taken
        self.given.add(taken, batch.size * taken // batch.count)
        for consumer, first, last, attempt in routed.deliveries:
            self.consumers[consumer].take(Delivery(batch, first, last, attempt, GENERATION))

    def close(self, why: DanubeError) -> None:
        self._closed = True
        for batch, routed in self._waiting:
            self.dropped += batch.count - self._routed
            self._routed = 0
            if not routed.done():
                routed.set_result(None)
        self._waiting.clear()
        for consumer in list(self.consumers.values()):
            self.leave(consumer.id, crashed=False)
            consumer.sink.closed(why)

    def _check_known(self, consumer: ConsumerId) -> None:
        if consumer not in self.consumers:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")


async def _all_of(answers: list[Future[None]]) -> None:
    for answer in answers:
        await answer


class BestEffortTopic:
    """Owned by its broker's loop. Offsets count what was published since it was made, and mean nothing later."""

    receipt = "none"  # what is true of a publish: nothing that lasts

    def __init__(self, name: str, clock: Clock, options: TopicOptions | None = None) -> None:
        self.name = name
        self.options = options or TopicOptions()
        self.subscriptions: dict[str, BestEffortSubscription] = {}
        self.published = 0  # messages, also the next offset
        self.taken = Traffic()
        self.unheard = 0  # of those: there was no subscription at all
        self._clock = clock
        self._consumers = 0  # ids given so far
        self._append_time = 0
        self._done: Future[None] = asyncio.get_running_loop().create_future()  # the answer to whatever is not kept
        self._done.set_result(None)
        self._closed: DanubeError | None = None  # why it is

    # -- publishing ----------------------------------------------------------------------------------------------------

    def alter(self, options: TopicOptions) -> None:
        """From now on. Of the options only the dispatch rate means anything here."""
        self.options = options
        for host in self.subscriptions.values():
            host.rate = self._rate()

    def tick(self) -> None:
        """To be called every second or so: subscriptions that nobody has used for long end."""
        now = int(self._clock.monotonic() * SECOND)
        longest = (self.options.unused_subscription_seconds or UNUSED_SUBSCRIPTION_SECONDS) * SECOND
        for host in list(self.subscriptions.values()):
            if host.consumers:
                host.unused_since = None
            elif host.unused_since is None:
                host.unused_since = now
            elif now - host.unused_since >= longest:
                del self.subscriptions[host.name]
                host.close(SubscriptionNotFound(f"subscription {host.name!r} of {self.name} was unused and ended"))

    def _rate(self) -> Rate | None:
        return rate_of(self.options.dispatch_messages_per_second, self.options.dispatch_bytes_per_second)

    def admit(self, bytes: int) -> None:
        """Whatever is published has room: nothing is kept."""

    async def attach(self, producer: str) -> NoReturn:
        raise NotReliable(f"{self.name} is not reliable, so it cannot tell what {producer!r} has published before")

    def publish(self, batch: Batch, producer_epoch: int = 0) -> Receipt:
        """Hands it to whoever has asked. It always succeeds; what nobody takes is counted."""
        self._check_open()
        batch.check_published()
        if batch.producer_id:
            raise NotReliable(f"{self.name} is not reliable and does not track sequences; send without a producer id")
        if batch.has_delivery_times:
            raise NotReliable(f"{self.name} is not reliable and cannot delay messages until a delivery time")
        self._append_time = max(self._append_time, self._clock.wall())
        stamped = batch.stamped(self.published, EPOCH, self._append_time)
        self.published += batch.count
        self.taken.add(batch.count, stamped.size)
        if not self.subscriptions:
            self.unheard += batch.count
        now = int(self._clock.monotonic() * SECOND)
        answers = [host.hand_out(stamped, now) for host in self.subscriptions.values()]
        waiting = [answer for answer in answers if answer is not self._done]
        if not waiting:
            return Receipt(stamped.base_offset, self._done)
        return Receipt(
            stamped.base_offset, waiting[0] if len(waiting) == 1 else asyncio.ensure_future(_all_of(waiting))
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
    ) -> BestEffortSubscription:
        """The subscription of that name, made if it is new, whatever `create` says: none outlives its broker.

        It gets what is published from now on.
        """
        self._check_open()
        if start != LATEST:
            raise NotReliable(f"{self.name} is not reliable; its subscriptions start at {LATEST}, not {start!r}")
        if options is not None and options.failure.poison is PoisonPolicy.DEAD_LETTER:
            raise NotReliable(f"{self.name} is not reliable and never redelivers, so it has no dead letters")
        known = self.subscriptions.get(name)
        if known is None:
            name_bytes(name)
            if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
                raise TooManySubscriptions(f"{SUBSCRIPTIONS_MAX} subscriptions")
            known = self.subscriptions[name] = BestEffortSubscription(name, kind, self._done)
            known.rate = self._rate()
        if known.kind is not kind:
            raise SubscriptionKindDiffers(f"{name!r} is {known.kind.name.lower()}, not {kind.name.lower()}")
        return known

    async def unsubscribe(self, name: str) -> None:
        self._check_open()
        host = self.subscriptions.pop(name, None)
        if host is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist")
        host.close(SubscriptionNotFound(f"subscription {name!r} of {self.name} was deleted"))

    def connect(
        self,
        host: BestEffortSubscription,
        name: str,
        sink: ConsumerSink,
        filters: Sequence[bytes] = (),
        timing: Timing = Timing.DELIVERED,
    ) -> Consumer:
        """A consumer of the subscription; it misses everything before it grants permits. Nothing here times out."""
        self._check_open()
        self._consumers += 1
        consumer = Consumer(ConsumerId(self._consumers), name, sink, timing)
        host.join(consumer, filters)
        return consumer

    async def seek(self, host: BestEffortSubscription, offset: int) -> NoReturn:
        raise NotReliable(f"{self.name} is not reliable, so there is nothing that {host.name!r} could be moved to")

    async def find_time(self, time: int) -> NoReturn:
        raise NotReliable(f"{self.name} is not reliable, so it cannot be searched by time")

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self, why: DanubeError | None = None) -> None:
        """Whoever uses it is told `why`, also later."""
        self._closed = self._closed or why or TopicClosed(f"this broker no longer serves {self.name}")
        for host in self.subscriptions.values():
            host.close(self._closed)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise type(self._closed)(*self._closed.args)
