"""One subscription on its broker: its consumers, their acks, moves of its cursor, and its end.

Owned by its topic's loop. It never delivers what is not confirmed, and changes its cursor only through the log. It
consists of parts, each described in its module: the dispatcher does the work, one turn at a time, with the reading
window, the sender and the ack queue; the explainer says why nothing is delivered; all share one lifetime.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from typing import Any

from pydanube.base.errors import AckInvalid, ConsumerNotFound, DanubeError, SubscriptionNotFound
from pydanube.base.ids import ConsumerId
from pydanube.broker.state.log import StateLog
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.ack_queue import AckQueue
from pydanube.broker.subscription.core import SubscriptionCore
from pydanube.broker.subscription.delivery import Consumer
from pydanube.broker.subscription.dispatcher import Dispatcher
from pydanube.broker.subscription.explainer import Explainer
from pydanube.broker.subscription.figures import SubscriptionFigures
from pydanube.broker.subscription.lifetime import CLOSED, SEEKING, Lifetime
from pydanube.broker.subscription.poison import DeadLetter, PoisonHandler
from pydanube.broker.subscription.read_failures import RETRY_SECONDS, ReadFailures
from pydanube.broker.subscription.reading_window import ReadAheadBudget, ReadingWindow
from pydanube.broker.subscription.sender import Sender
from pydanube.broker.work.failures import RareWarnings
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.explain import Cause as Why
from pydanube.ports.clock import Clock
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic.cursor import Range
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.topic.state import Subscription

ORDERED = (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
DROPS = (Cause.POISON, Cause.EXPIRED, Cause.DROPPED, Cause.SKIPPED)  # causes by which messages are given up


class SubscriptionHost:
    """A subscription of a reliable topic."""

    reliable = True

    def __init__(
        self,
        known: Subscription,
        engine: Engine[Any],
        ledger: ManagedLedger,
        state: StateLog,
        clock: Clock,
        dead_letter: DeadLetter,
        budget: ReadAheadBudget,
    ) -> None:
        self.known = known
        self.name, self.kind, self.id = known.name, known.kind, known.id
        self.engine = engine
        self.consumers: dict[ConsumerId, Consumer] = {}
        self.expiry_from = 0  # where the next search for expired messages begins
        self.oldest: tuple[int, int] | None = None  # a floor of the cursor, and the append time of its message
        self._ledger = ledger
        self._log = state
        self._pausing: dict[ConsumerId, bool] = {}  # the consumers that paused it
        lifetime = self._lifetime = Lifetime(known.name, clock)
        self.last_used = lifetime.now  # when the last consumer left, or the subscription was loaded
        self._acks = AckQueue(engine, ordered=known.kind in ORDERED)
        warnings = self._warnings = RareWarnings(known.name, clock)
        core = SubscriptionCore(known, engine, ledger, state, self.consumers, lifetime, warnings)
        failures = ReadFailures(core, self.is_active)
        window = self._window = ReadingWindow(core, budget, failures, self._discard)
        sender = self._sender = Sender(core, window, self.nack)
        poison = PoisonHandler(core, window, dead_letter, self.ack, self._discard)
        self._dispatcher = Dispatcher(core, window, sender, self._acks, poison, self._discard, clock)
        lifetime.on_turn = self._dispatcher.turn
        self.outbound = sender.sent
        explainer = Explainer(core, window, sender)
        self.explain = explainer.explain  # not wrapped: it is called for every ack without a generation
        self.explain_consumer = explainer.explain_consumer
        self.explain_reading = explainer.explain_reading

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The time of its engine: monotonic, in microseconds."""
        return self._lifetime.now

    @property
    def generation(self) -> int:
        return self.known.cursor.generation

    @property
    def floor(self) -> int:
        return self.known.cursor.floor

    @property
    def options(self) -> SubscriptionOptions:
        return SubscriptionOptions.decode(self.known.options)

    @property
    def ack_timeout(self) -> int | None:
        return self.engine.policy.ack_timeout

    @property
    def backlog(self) -> int:
        cursor = self.known.cursor
        return max(0, self._ledger.confirmed_end - cursor.floor - cursor.above.count)

    @property
    def redelivered(self) -> int:
        return self._sender.redelivered

    @property
    def drops(self) -> dict[str, int]:
        return {cause.name.lower(): self.known.counts[cause] for cause in DROPS}

    @property
    def unsettled(self) -> bool:
        return self._acks.waiting and self._lifetime.state is not SEEKING  # after a seek, none of them matters

    def describe(self) -> SubscriptionFigures:
        known, engine, backlog, held_up = self.known, self.engine, self.backlog, self.explain_reading()
        due, unread = engine.delayed_until, backlog - engine.waiting - engine.in_flight
        return SubscriptionFigures(
            known.cursor.floor,
            self._ledger.confirmed_end,
            known.cursor.generation,
            backlog,
            engine.in_flight,
            engine.paused,
            known.counts,
            engine.blocked_at,
            held_up.what if held_up is not None and held_up.cause is Why.UNREADABLE else None,
            engine.delayed,
            None if due is None else due - self.now,
            engine.stopped + (max(0, unread) if engine.is_stalled else 0),  # while it is stalled, it reads no more
        )

    def as_reliable(self) -> SubscriptionHost:
        return self

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer, filters: Sequence[bytes] = ()) -> None:
        self._check_open()
        timed = consumer.is_timed(self.options)
        self.engine.join(consumer.id, self._lifetime.now, filters=filters, timed=timed)
        self.consumers[consumer.id] = consumer
        self._lifetime.wake()

    def leave(self, consumer: ConsumerId, *, crashed: bool) -> None:
        if self.consumers.pop(consumer, None) is not None:
            self.last_used = self._lifetime.now
            self._acks.finish()
            self._sender.outbox.leave(consumer)
            if self._pausing.pop(consumer, False) and not self._pausing:
                self.engine.resume()
            self.engine.leave(consumer, self._lifetime.now, crashed=crashed)
            self._sender.drop_recalled()
            if not self.consumers:
                self._window.let_go()
            self._lifetime.wake()

    def is_active(self, consumer: ConsumerId) -> bool:
        return self.engine.explain_consumer(consumer, self._lifetime.now).cause is not Why.STANDBY

    def grant(self, consumer: ConsumerId, permits: int) -> None:
        if consumer not in self.consumers:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")
        self.engine.grant(consumer, permits, self._lifetime.now)
        self._lifetime.wake()

    def withdraw(self, consumer: ConsumerId) -> int:
        return self.engine.withdraw(consumer)

    def held(self, consumer: ConsumerId) -> list[Range]:
        return self.engine.held(consumer)

    def give_back(self, consumer: ConsumerId, first: int, last: int) -> None:
        self.engine.undelivered(consumer, first, last, self._lifetime.now)

    def pause(self, consumer: ConsumerId) -> None:
        """Pauses delivery until a consumer resumes it, or this consumer and all others that paused it have left."""
        self._pausing[consumer] = True
        self.engine.pause()

    def resume(self) -> None:
        self._pausing.clear()
        self.engine.resume()
        self._lifetime.wake()

    def alter(self, options: SubscriptionOptions) -> None:
        """Changes the rules for failures and dispatch."""
        self.engine.alter(options.failure, options.dispatch, self._lifetime.now)
        for consumer in self.consumers.values():
            if consumer.is_timed(options):
                self.engine.set_timed(consumer.id, self._lifetime.now)
            if consumer.tell_timeout is not None:
                consumer.tell_timeout(options.failure.ack_timeout)
        self._sender.drop_recalled()
        self._lifetime.wake()

    def set_rate(self, messages: int | None, bytes: int | None) -> None:
        """Maximum messages and bytes per second, redeliveries included; None is no limit."""
        if self._sender.set_rate(messages, bytes):
            self._lifetime.wake()

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self, generation: int, ranges: Sequence[Range], cause: Cause = Cause.ACKED) -> Future[None]:
        """Done when it is durable. An ack of a delivery from before a seek succeeds and changes nothing (§14)."""
        self._check_open()
        self._log.check()
        cursor = self.known.cursor
        if generation < cursor.generation:
            return self._log.barrier()  # the seek that made it void may not be durable yet
        if generation > cursor.generation:
            raise AckInvalid(f"{self.known.name!r} is at generation {cursor.generation}, not {generation}")
        record = cursor.decide_ack(ranges, self._ledger.confirmed_end, cause)
        if record is None:
            for first, last in ranges:
                self.engine.acked(first, last)
            return self._log.barrier()
        answer = self._log.apply(record)
        for first, last in record.ranges:
            self._acks.acked(first, last, self._window.next_offset)
        self._lifetime.wake()
        return answer

    def ack_through(self, generation: int, offset: int) -> Future[None]:
        """Cumulative: everything up to `offset`. Only the ordered types support it."""
        if self.known.kind not in ORDERED:
            raise AckInvalid(f"a {self.known.kind.name.lower()} subscription does not support cumulative acks")
        self._check_open()
        cursor = self.known.cursor
        if generation == cursor.generation and offset < cursor.floor:
            return self._log.barrier()
        return self.ack(generation, [(min(cursor.floor, offset), offset)])

    def nack(
        self, consumer: ConsumerId, generation: int, ranges: Sequence[Range], delay: int = 0, reason: str = ""
    ) -> None:
        """Marks messages as failed; `delay` is in microseconds."""
        if generation == self.known.cursor.generation:
            floor, end = self.known.cursor.floor, self._window.next_offset - 1
            known = [(max(first, floor), min(last, end)) for first, last in ranges if first <= end and floor <= last]
            self._acks.nacked(consumer, known, delay, reason, self._lifetime.now)
            self._lifetime.wake()

    def taken(self, consumer: ConsumerId, generation: int, ranges: Sequence[Range]) -> None:
        """The consumer's program has started on these messages, so their ack timeout begins."""
        if generation == self.known.cursor.generation:
            for first, last in ranges:
                self.engine.taken(consumer, first, last, self._lifetime.now)
            self._lifetime.wake()

    def _discard(self, generation: int, done: Range, cause: Cause) -> None:
        """Records that these messages need no ack: they were passed over, or published elsewhere.

        Retries while the log accepts no records: the messages must not be dealt with a second time.
        """
        try:
            self.ack(generation, [done], cause)
        except DanubeError as error:
            self._warnings.warn("could not yet record", done, error)
            self._lifetime.start(self._discard_later(generation, done, cause))

    async def _discard_later(self, generation: int, done: Range, cause: Cause) -> None:
        await asyncio.sleep(RETRY_SECONDS)
        if self._lifetime.state is not CLOSED:
            self._discard(generation, done, cause)

    # -- moving the cursor ---------------------------------------------------------------------------------------------

    def seek(self, offset: int) -> Future[None]:
        """Moves the cursor to `offset`, in either direction; done when that is durable (§14)."""
        self._check_open()
        self._log.check()
        record = self.known.cursor.decide_move(offset, self._ledger.confirmed_end, Cause.SEEK)
        assert record is not None
        answer = self._log.apply(record)
        self.engine.reset(self._lifetime.now)
        self.engine.take_recalled()  # their consumers are told about the seek instead
        self._window.start_again()
        self._acks.clear()
        self._sender.start_again()
        for consumer in self.consumers.values():
            consumer.sink.reset(record.generation)
        self._lifetime.begin_seek()
        answer.add_done_callback(self._sought)
        return answer

    def _sought(self, done: Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._lifetime.start(self._end_seek_when_durable())
        else:
            self._lifetime.end_seek()

    async def _end_seek_when_durable(self) -> None:
        """Waits even if the log fails: it will be rewritten from memory, and until then a crash would undo the seek."""
        while self._lifetime.state is not CLOSED:
            try:
                await self._log.barrier()
            except DanubeError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            return self._lifetime.end_seek()

    def skip_to(self, floor: int, cause: Cause) -> Future[None] | None:
        """Gives up all messages below `floor`; returns None if there are none."""
        self._check_open()
        self._log.check()
        record = self.known.cursor.decide_move(floor, self._ledger.confirmed_end, cause)
        if record is None:
            return None
        passed = (self.known.cursor.floor, floor - 1)
        answer = self._log.apply(record)
        self.engine.acked(*passed)
        self._window.skip_done()
        self._lifetime.wake()
        return answer

    def pass_gap(self, first: int, last: int) -> None:
        self._window.pass_gap(first, last)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._lifetime.wake()

    def tick(self) -> None:
        """Called about every second."""
        self._dispatcher.follow_clock()

    def messages_arrived(self) -> None:
        """More messages are visible. Without consumers there is nothing to do, even for thousands of subscriptions."""
        if self.consumers:
            self._lifetime.wake()

    def retry_reading(self) -> None:
        """Reads again, because damaged offsets were accepted as lost."""
        self._window.failures.clear()
        self._lifetime.wake()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._lifetime.state is CLOSED:
            raise SubscriptionNotFound(f"this broker no longer serves subscription {self.known.name!r}")

    def stop(self) -> None:
        """Stops delivering and accepting acks at once."""
        self._lifetime.close()
        self._sender.stop()
        self._window.let_go()
        self._acks.clear()

    async def close(self, why: DanubeError) -> None:
        """Stops, and tells the consumers why."""
        self.stop()
        for consumer in [self.consumers.pop(each) for each in list(self.consumers)]:
            consumer.sink.closed(why)
        await self._lifetime.ended()
