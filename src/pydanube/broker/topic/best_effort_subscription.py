"""A subscription of a best-effort topic (§5): each message goes to a consumer with permits, or is dropped.

Owned by its topic. Nothing is kept or sent again.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Sequence
from typing import NoReturn

from pydanube.base.counting import Traffic
from pydanube.base.errors import ConsumerNotFound, DanubeError, NotReliable, SubscriptionNotFound
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import EXAMINED_AT_ONCE
from pydanube.broker.limits.rates import Rate
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import Consumer, Delivery
from pydanube.broker.subscription.figures import SubscriptionFigures
from pydanube.broker.subscription.runs import keys_of
from pydanube.broker.topic.served import STORES_NOTHING
from pydanube.dispatch.best_effort import BestEffort
from pydanube.dispatch.events import Run
from pydanube.topic.cursor import Range
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch


class BestEffortSubscription:
    """Counts what its consumers missed. It ends with its topic, or after it was unused for long."""

    reliable = False
    id = None
    generation = 0  # of every delivery: there are no seeks
    floor = 0
    ack_timeout = None
    backlog = 0
    redelivered = 0
    unsettled = False
    options = SubscriptionOptions()

    def __init__(self, topic: str, name: str, kind: SubscriptionKind, done: Future[None]) -> None:
        self.name = name
        self.kind = kind
        self.engine = BestEffort(kind)
        self.consumers: dict[ConsumerId, Consumer] = {}
        self.outbound = Traffic()
        self.dropped = 0  # messages that no consumer got
        self.rate: Rate | None = None  # what exceeds it is dropped
        self.unused_since: int | None = None  # when it was first seen without a consumer, monotonic; µs
        self._topic = topic
        self._done = done
        self._waiting: deque[tuple[Batch, Future[None]]] = deque()  # bounded by what producers may have in flight
        self._routed = 0  # messages of the first of these batches
        self._closed = False

    @property
    def drops(self) -> dict[str, int]:
        return {"missed": self.dropped}

    def describe(self) -> SubscriptionFigures:
        return SubscriptionFigures()

    def as_reliable(self) -> NoReturn:
        raise NotReliable(f"{self._topic} {STORES_NOTHING}")

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer, filters: Sequence[bytes] = ()) -> None:
        if self._closed:
            raise SubscriptionNotFound(f"this broker no longer serves subscription {self.name!r}")
        self.engine.join(consumer.id, filters=filters)
        self.consumers[consumer.id] = consumer

    def leave(self, consumer: ConsumerId, *, crashed: bool) -> None:
        """Removes a consumer. What it has not finished is lost, even if it crashed."""
        if self.consumers.pop(consumer, None) is not None:
            self.engine.leave(consumer)

    def is_active(self, consumer: ConsumerId) -> bool:
        return True

    def grant(self, consumer: ConsumerId, permits: int) -> None:
        self._check_known(consumer)
        self.engine.grant(consumer, permits)

    def withdraw(self, consumer: ConsumerId) -> int:
        """Changes nothing: what the consumer cannot take is dropped."""
        return 0

    def lost(self, consumer: ConsumerId) -> int:
        """Messages this consumer missed because it had not asked for more."""
        self._check_known(consumer)
        return self.engine.lost(consumer)

    def _check_known(self, consumer: ConsumerId) -> None:
        if consumer not in self.consumers:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")

    # -- acknowledging, which changes nothing: there is no other copy to send ------------------------------------------

    def held(self, consumer: ConsumerId) -> list[Range]:
        return []

    def give_back(self, consumer: ConsumerId, first: int, last: int) -> None:
        """Changes nothing."""

    def ack(self, generation: int, ranges: Sequence[Range]) -> Future[None]:
        return self._done

    def ack_through(self, generation: int, offset: int) -> Future[None]:
        return self._done

    def nack(
        self, consumer: ConsumerId, generation: int, ranges: Sequence[Range], delay: int = 0, reason: str = ""
    ) -> None:
        """Changes nothing."""

    def taken(self, consumer: ConsumerId, generation: int, ranges: Sequence[Range]) -> None:
        """Changes nothing."""

    # -- handing out ---------------------------------------------------------------------------------------------------

    def hand_out(self, batch: Batch, now: int) -> Future[None]:
        """Done when each message was handed out or dropped. In Key-Shared, many messages take several turns."""
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
        """Handles the next waiting messages; other tasks get their turns in between."""
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
            if not routed.done():  # otherwise the publisher no longer waits
                routed.set_result(None)
        if self._waiting:
            self._done.get_loop().call_soon(self._go_on)

    def _route(self, batch: Batch, rows: range, keys: list[bytes] | None) -> None:
        routed = self.engine.route(Run(batch.base_offset + rows.start, batch.base_offset + rows.stop - 1, keys))
        taken = len(rows) - routed.dropped
        self.dropped += routed.dropped
        self.outbound.add(taken, batch.size * taken // batch.count)
        for consumer, first, last, attempt in routed.deliveries:
            self.consumers[consumer].take(Delivery(batch, first, last, attempt, self.generation))

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
