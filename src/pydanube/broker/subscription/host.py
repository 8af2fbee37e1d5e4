"""One subscription at work: reads what its cursor has not done, feeds the engine, and hands out what that decides.

Owned by its topic's loop. It never delivers what is not confirmed, and never changes its cursor but through the log.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from pydanube.base.counting import Traffic
from pydanube.base.errors import AckInvalid, ConsumerNotFound, DanubeError, SubscriptionNotFound
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DELIVERIES_AT_ONCE, LOOKED_INTO_AT_ONCE
from pydanube.broker.limits.rates import Throttle, rate_of
from pydanube.broker.state.log import StateLog
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.ack_queue import AckQueue
from pydanube.broker.subscription.damage_notices import DamageNotices, in_words
from pydanube.broker.subscription.delivery import Consumer, Delivery
from pydanube.broker.subscription.outbox import Outbox, Recalled, by_consumer
from pydanube.broker.subscription.read_ahead import RETRY_SECONDS, ReadAhead, Shelf
from pydanube.broker.subscription.runs import inspectable, runs_of
from pydanube.broker.work.rare_warnings import RareWarnings
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver, Effect, Poisoned, Skipped
from pydanube.dispatch.explain import Cause as Why
from pydanube.dispatch.explain import Explanation
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.ports.clock import Clock
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.topic.cursor import Range
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch

ORDERED = (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
CLOCK_TOLERANCE = 100_000  # microseconds by which delivery times may be off
PUMP_BATCHES = 32  # in one turn of the loop
DeadLetter = Callable[[Batch, Poisoned, str], Awaitable[None]]  # batch, which and why, subscription; until durable


class SubscriptionHost:
    """Drives one engine. `pump` does all work; everything else only schedules it."""

    def __init__(
        self,
        known: Subscription,
        engine: Engine[Any],
        ledger: ManagedLedger,
        state: StateLog,
        clock: Clock,
        dead_letter: DeadLetter,
        shelf: Shelf,
    ) -> None:
        self.known = known
        self.engine = engine
        self.consumers: dict[ConsumerId, Consumer] = {}
        self.given = Traffic()  # handed to consumers, again included
        self.redelivered = 0  # messages of these that had failed before
        self.expiry_from = 0  # where the next look for expired messages goes on
        self.oldest: tuple[int, int] | None = None  # where the cursor stood at a look, and the append time there
        self._ledger = ledger
        self._log = state
        self._clock = clock
        self.left = self.now  # when a consumer was here last, or the subscription began to be served
        self._dead_letter = dead_letter
        self._warnings = RareWarnings(known.name, clock)
        self._loop = asyncio.get_running_loop()
        self._next = known.cursor.floor  # the next offset to read
        notices = DamageNotices(self.consumers.values, self._waits, lambda: self.now)
        self._ahead = ReadAhead(shelf, known, ledger, self._task, self.wake, notices)
        self._outbox = Outbox()  # waits for a read of its batch, or for the next turn of the loop
        self._handed = 0  # deliveries, in this turn
        self.verdicts = AckQueue(engine, ordered=known.kind in ORDERED)
        self._scheduled = False
        self._timer: TimerHandle | None = None
        self._due: int | None = None  # when it rings
        self._tasks: dict[Future[None], None] = {}
        self._fetching = False
        self._clock_ahead = clock.wall() - self.now  # of the monotonic clock, as far as the engine knows
        self.held = 0  # seeks that are not durable yet: nothing is read or handed out meanwhile
        self._throttle: Throttle | None = None
        self._pausing: dict[ConsumerId, bool] = {}  # those of its consumers that paused it
        self._closed = False

    @property
    def now(self) -> int:
        return int(self._clock.monotonic() * 1_000_000)

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer, filters: Sequence[bytes] = ()) -> None:
        self._check_there()
        timed = consumer.is_timed(SubscriptionOptions.decode(self.known.options))
        self.engine.join(consumer.id, self.now, filters=filters, timed=timed)
        self.consumers[consumer.id] = consumer
        self.wake()

    def _check_there(self) -> None:
        if self._closed:
            raise SubscriptionNotFound(f"this broker no longer serves subscription {self.known.name!r}")

    def alter(self, options: SubscriptionOptions) -> None:
        """Other rules for failures and dispatch, from now on."""
        self.engine.alter(options.failure, options.dispatch, self.now)
        for consumer in self.consumers.values():
            if consumer.is_timed(options):
                self.engine.set_timed(consumer.id, self.now)
            if consumer.tell_timeout is not None:
                consumer.tell_timeout(options.failure.ack_timeout)
        self._drop_recalled()
        self.wake()

    def leave(self, consumer: ConsumerId, *, crashed: bool) -> None:
        if self.consumers.pop(consumer, None) is not None:
            self.left = self.now
            self.verdicts.finish()
            self._outbox.leave(consumer)
            if self._pausing.pop(consumer, False) and not self._pausing:
                self.engine.resume()
            self.engine.leave(consumer, self.now, crashed=crashed)
            self._drop_recalled()
            if not self.consumers:
                self._ahead.let_go()
            self.wake()

    def grant(self, consumer: ConsumerId, permits: int) -> None:
        if consumer not in self.consumers:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")
        self.engine.grant(consumer, permits, self.now)
        self.wake()

    def withdraw(self, consumer: ConsumerId) -> int:
        """Its connection takes no more for now; the permits that it had left."""
        return self.engine.withdraw(consumer)

    def pause(self, consumer: ConsumerId) -> None:
        """Until somebody resumes, or until this consumer and all others that paused have left."""
        self._pausing[consumer] = True
        self.engine.pause()

    def resume(self) -> None:
        self._pausing.clear()
        self.engine.resume()
        self.wake()

    def set_rate(self, messages: int | None, bytes: int | None) -> None:
        """Maximum messages and bytes per second, redeliveries included; None is no limit."""
        before = (None, None) if self._throttle is None else self._throttle.limits
        if before != (messages, bytes):
            rate = rate_of(messages, bytes)
            self._throttle = None if rate is None else Throttle(rate)
            self.wake()

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self, generation: int, ranges: Sequence[Range], cause: Cause = Cause.ACKED) -> Future[None]:
        """Done when it is durable. What was delivered before a seek is answered so too, and ignored (§14)."""
        self._check_there()
        self._log.check()
        cursor = self.known.cursor
        if generation < cursor.generation:
            return self._log.barrier()  # the seek it was overtaken by may not be durable yet
        if generation > cursor.generation:
            raise AckInvalid(f"{self.known.name!r} is at generation {cursor.generation}, not {generation}")
        record = cursor.decide_ack(ranges, self._ledger.confirmed_end, cause)
        if record is None:
            for first, last in ranges:
                self.engine.acked(first, last)
            return self._log.barrier()
        answer = self._log.apply(record)
        for first, last in record.ranges:
            self.verdicts.acked(first, last, self._next)
        self.wake()
        return answer

    def ack_through(self, generation: int, offset: int) -> Future[None]:
        """Cumulative: everything up to `offset`. Only where order makes sense of it."""
        if self.known.kind not in ORDERED:
            raise AckInvalid(f"a {self.known.kind.name.lower()} subscription does not support cumulative acks")
        self._check_there()
        cursor = self.known.cursor
        if generation == cursor.generation and offset < cursor.floor:
            return self._log.barrier()
        return self.ack(generation, [(min(cursor.floor, offset), offset)])

    def nack(
        self, consumer: ConsumerId, generation: int, ranges: Sequence[Range], delay: int = 0, reason: str = ""
    ) -> None:
        """These failed; `delay` is in microseconds."""
        if generation == self.known.cursor.generation:
            floor, end = self.known.cursor.floor, self._next - 1
            known = [(max(first, floor), min(last, end)) for first, last in ranges if first <= end and floor <= last]
            self.verdicts.nacked(consumer, known, delay, reason, self.now)
            self.wake()

    def taken(self, consumer: ConsumerId, generation: int, ranges: Sequence[Range]) -> None:
        """The consumer's program works on these from now on, so that their ack timeout begins."""
        if generation == self.known.cursor.generation:
            for first, last in ranges:
                self.engine.taken(consumer, first, last, self.now)
            self.wake()

    def seek(self, offset: int) -> Future[None]:
        """Everything from `offset` on is delivered again; durable before the answer (§14)."""
        self._check_there()
        self._log.check()
        record = self.known.cursor.decide_move(offset, self._ledger.confirmed_end, Cause.SEEK)
        assert record is not None
        answer = self._log.apply(record)
        self._start_again()
        for consumer in self.consumers.values():
            consumer.sink.reset(record.generation)
        self.held += 1
        answer.add_done_callback(self._seeked)
        return answer

    def _seeked(self, done: Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._task(self._wait_until_whole())
            return
        self.held -= 1
        self.wake()

    async def _wait_until_whole(self) -> None:
        """The log failed and will be made whole with what memory has; until then a crash would undo the seek."""
        while not self._closed:
            try:
                await self._log.barrier()
            except DanubeError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.held -= 1
            self.wake()
            return

    def _start_again(self) -> None:
        self.engine.reset(self.now)
        self.engine.take_recalled()  # whoever had these hears of the seek
        self._next = self.known.cursor.floor
        self._ahead.clear()
        self.verdicts.clear()
        for deliver in self._outbox.take_all():  # nobody got these, so nobody would ask for others in their place
            self.engine.grant(deliver.consumer, deliver.last - deliver.first + 1, self.now)

    def skip_to(self, floor: int, cause: Cause) -> Future[None] | None:
        """Messages below `floor` are given up: too old, or in the way."""
        self._check_there()
        self._log.check()
        record = self.known.cursor.decide_move(floor, self._ledger.confirmed_end, cause)
        if record is None:
            return None
        passed = (self.known.cursor.floor, floor - 1)
        answer = self._log.apply(record)
        self.engine.acked(*passed)
        self._next = max(self._next, self.known.cursor.floor)
        self.wake()
        return answer

    def tick(self) -> None:
        """The engine's time is monotonic, delivery times are the wall clock's: that may have been set since."""
        ahead = self._clock.wall() - self.now
        if abs(ahead - self._clock_ahead) > CLOCK_TOLERANCE:
            self.engine.shift_delays(self._clock_ahead - ahead)
            self._clock_ahead = ahead
            self.wake()

    # -- the pump ------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """What could not be read was given up."""
        self._ahead.go_on()
        self.wake()

    def more(self) -> None:
        """There are new messages. Without a consumer nobody gets them, and thousands may be so."""
        if self.consumers:
            self.wake()

    def wake(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Hands out what is decided, feeds what is wanted, until the engine is full or there is no more to see."""
        self._scheduled = False
        if self._closed or self.held:
            return
        now = self.now
        self._handed = 0
        self.verdicts.turn(now)
        if self.verdicts.holds_back:
            self.wake()
            return
        if not self._rests(now):
            self._decide(now)
        room = LOOKED_INTO_AT_ONCE
        for _ in range(PUMP_BATCHES):
            batch = self._ahead.take(self._next) if room and not self._rests(now) and self._may_feed() else None
            if batch is None:
                break
            room -= self._offer(batch, now, room)
            self._decide(now)
        else:
            self.wake()  # the others of the loop first
        if self.verdicts.waiting or not room or (self.engine.unfinished and not self._outbox and not self._rests(now)):
            self.wake()
        self._set_timer()

    def _rests(self, now: int) -> bool:
        """Beyond its rate: nothing is decided meanwhile."""
        return self._throttle is not None and self._throttle.rests(now)

    def _may_feed(self) -> bool:
        if self._outbox or not self.engine.wants():
            return False
        if self._next < self._ledger.first:  # nothing is deleted that the cursor needs: no message has these
            self.pass_gap(self._next, self._ledger.first - 1)
            self._next = self._ledger.first
        self._next = self._pass_lost(self._next)
        return self._next < min(self._ledger.confirmed_end, self.known.cursor.ceiling)

    def _offer(self, batch: Batch, now: int, most: int) -> int:
        """Feeds it to the engine; how much was looked at one by one, at most `most`."""
        first = max(self._next, batch.base_offset)
        if batch.base_offset > self._next:
            self.pass_gap(self._pass_lost(self._next), batch.base_offset - 1)
        last = min(batch.last_offset, self.known.cursor.ceiling - 1)  # what is handed out can be acknowledged
        if self._throttle is not None:
            last = min(last, first + self._throttle.room(last - first + 1, batch.size // batch.count, now) - 1)
        last, looked_at = inspectable(batch, self.known.kind, first, last, most, self.engine.key_bytes_at_once)
        if last < batch.last_offset:  # what was read ahead would come next, and the rest be taken for a gap
            self._ahead.put_back(batch)
        self._next = last + 1
        self._ahead.keep([batch])
        for run in runs_of(batch, self.known, first, last, self._clock_ahead):
            self.engine.offer(run, now)
        return looked_at

    def pass_gap(self, first: int, last: int) -> None:
        """Offsets that no message has: a ledger that was recovered may leave some. The cursor steps over them."""
        if first <= last:
            self._settle(self.known.cursor.generation, (first, last), Cause.UNUSED)

    def _pass_lost(self, offset: int) -> int:
        """The offset, or the next one that was not given up as damaged; the cursor steps over those."""
        behind = self._ledger.past_lost(offset)
        if behind > offset:
            self._settle(self.known.cursor.generation, (offset, behind - 1), Cause.LOST)
        return behind

    # -- effects -------------------------------------------------------------------------------------------------------

    def _decide(self, now: int) -> None:
        """Asks the engine. What it took back and nobody was handed yet is no longer handed out."""
        effects = self.engine.poll(now)
        self._drop_recalled()
        self._carry_out(effects)

    def _drop_recalled(self) -> None:
        if recalled := self.engine.take_recalled():
            for consumer, dropped in self._outbox.drop(recalled).items():
                self.engine.grant(consumer, dropped, self.now)  # nobody got these
            self._tell_recalled(recalled)

    def _tell_recalled(self, recalled: Recalled) -> None:
        """What waits in a client's queue and is to be delivered again must not be taken from there any more."""
        there = [each for each in recalled if each[0] in self.consumers]
        for consumer, ranges in by_consumer(there).items():
            self.consumers[consumer].sink.recall(self.known.cursor.generation, list(ranges))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Deliver:
                self._handed += 1
                if self._outbox or self._handed > DELIVERIES_AT_ONCE or not self._hand_out(effect):
                    self._outbox.add(effect, self.now)
            elif isinstance(effect, Poisoned):
                self._task(self._give_up(effect, self.known.cursor.generation))
            elif isinstance(effect, Skipped):
                self._settle(self.known.cursor.generation, (effect.first, effect.last), Cause.FILTERED)
        if self._outbox and not self._fetching:
            self._fetching = True
            self._task(self._fetch())

    def _hand_out(self, deliver: Deliver) -> bool:
        """Whether all its batches were in memory. They go out as the bytes they came in, with the range meant."""
        consumer = self.consumers.get(deliver.consumer)
        if consumer is None:
            return True
        parts: list[Batch] = []
        offset = deliver.first
        while offset <= deliver.last:
            batch = self._ahead.find(offset)
            if batch is None:
                return False
            parts.append(batch)
            offset = batch.last_offset + 1
        for batch in parts:
            first, last = max(batch.base_offset, deliver.first), min(batch.last_offset, deliver.last)
            self._send(consumer, Delivery(batch, first, last, deliver.attempt, self.known.cursor.generation))
        return True

    def _send(self, consumer: Consumer, delivery: Delivery) -> None:
        count = delivery.last - delivery.first + 1
        size = delivery.batch.size * count // delivery.batch.count
        self.given.add(count, size)
        if delivery.attempt:
            self.redelivered += count
        if self._throttle is not None:
            self._throttle.take(count, size, self.now)
        if failure := consumer.take(delivery):
            self.nack(consumer.id, delivery.generation, [(delivery.first, delivery.last)], reason=failure)

    async def _fetch(self) -> None:
        """Reads for the oldest delivery that waits, and hands it out in its turn, batch by batch."""
        try:
            await self._hand_out_waiting()
        except Exception:  # a mistake here must not end all deliveries, nor be made without a pause
            await asyncio.sleep(RETRY_SECONDS)
            raise
        finally:
            self._fetching = False
            self.wake()

    async def _hand_out_waiting(self) -> None:
        for turn in count(1):
            if not self._outbox or self._closed:
                break
            if not turn % PUMP_BATCHES:
                await asyncio.sleep(0)  # the others of the loop first
                continue
            self._drop_recalled()
            deliver, generation = self._outbox.head, self.known.cursor.generation
            if deliver is None:
                break
            if (behind := self._pass_lost(deliver.first)) > deliver.first:
                self.engine.grant(deliver.consumer, self._outbox.skip(behind), self.now)  # nobody gets these
                continue
            try:
                batch = await self._ahead.at(deliver.first)
            except DanubeError as error:
                self._give_back()
                await self._ahead.fail(deliver.first, error)
                continue
            self._ahead.could_read(deliver.first, batch.last_offset)
            if self._outbox.waited_long(self.engine.policy.ack_timeout, self.now):
                self._give_back()
            elif self._outbox.head is deliver and generation == self.known.cursor.generation:
                self._hand_over(self._outbox.take(), batch)  # else there was a seek, or the consumer left

    def _give_back(self) -> None:
        """Nobody was handed these: the engine decides again, and the time to acknowledge them starts then."""
        self._drop_recalled()
        for deliver in self._outbox.take_all():
            self.engine.undelivered(deliver.consumer, deliver.first, deliver.last, self.now)
        self._tell_recalled(self.engine.take_recalled())
        self.wake()

    def _hand_over(self, deliver: Deliver, batch: Batch) -> None:
        """The part of a delivery that this batch has, without what was done meanwhile. The rest waits on."""
        cursor, consumer = self.known.cursor, self.consumers[deliver.consumer]
        end = min(deliver.last, batch.last_offset)
        if end < deliver.last:
            self._outbox.put_back(deliver._replace(first=end + 1))
        left = end - deliver.first + 1
        if batch.base_offset > deliver.first:
            gap = (deliver.first, min(end, batch.base_offset - 1))
            self._settle(cursor.generation, gap, Cause.UNUSED)
        for first, last in cursor.pending(max(batch.base_offset, deliver.first), end):
            self._send(consumer, Delivery(batch, first, last, deliver.attempt, cursor.generation))
            left -= last - first + 1
        if left:
            self.engine.grant(consumer.id, left, self.now)  # nobody got these

    async def _give_up(self, poisoned: Poisoned, generation: int) -> None:
        try:
            if poisoned.policy is PoisonPolicy.DEAD_LETTER:
                self._log.check()  # a letter is published only where it can be recorded that it was
                if self._pass_lost(poisoned.offset) > poisoned.offset:
                    return
                batch = await self._ahead.at(poisoned.offset)
                if generation != self.known.cursor.generation:
                    return  # a seek was quicker
                if batch.base_offset > poisoned.offset:
                    self._settle(generation, (poisoned.offset, poisoned.offset), Cause.UNUSED)
                    return  # it was only buffered, and is lost
                await self._dead_letter(batch, poisoned, self.known.name)
                if not self._closed:  # once it is published only the record of it is tried again
                    self._settle(generation, (poisoned.offset, poisoned.offset), Cause.DEAD_LETTERED)
            elif not self._closed and generation == self.known.cursor.generation:
                await self.ack(generation, [(poisoned.offset, poisoned.offset)], Cause.POISON)
        except Exception as error:  # whatever it is, the message stays and is tried again
            self._warnings.warn("could not set aside offset", poisoned.offset, error)
            if not self._closed and generation == self.known.cursor.generation:
                self.engine.poison_failed(poisoned.offset, self.now, in_words(error))
                self.wake()

    def _settle(self, generation: int, done: Range, cause: Cause) -> None:
        try:
            self.ack(generation, [done], cause)
        except DanubeError as error:
            self._warnings.warn("could not yet record", done, error)
            self._task(self._settle_later(generation, done, cause))

    async def _settle_later(self, generation: int, done: Range, cause: Cause) -> None:
        await asyncio.sleep(RETRY_SECONDS)
        if not self._closed:
            self._settle(generation, done, cause)

    # -- timers, tasks, the end ----------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        due = self.engine.due() if self._throttle is None else self._throttle.due(self.engine.due(), self.now)
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, (due - self.now) / 1_000_000), self._ring)

    def _ring(self) -> None:
        self._due = self._timer = None
        self.wake()

    def _task(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: Future[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": f"subscription {self.known.name} failed", "exception": error})

    def stop(self) -> None:
        """Nothing more is handed out or taken, from this call on."""
        self._closed = True
        self._ahead.let_go()
        self.verdicts.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()

    async def close(self, why: DanubeError) -> None:
        """Stops, and tells its consumers why."""
        self.stop()
        for consumer in [self.consumers.pop(each) for each in list(self.consumers)]:
            consumer.sink.closed(why)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- explaining ----------------------------------------------------------------------------------------------------

    def explain(self, offset: int) -> Explanation:
        """Why this message is not being delivered, in one sentence."""
        cursor = self.known.cursor
        if offset < self.known.start and cursor.generation == 0:
            return Explanation(Why.BELOW_START, offset=self.known.start)
        if offset >= self._ledger.confirmed_end:
            return Explanation(Why.NOT_PUBLISHED)
        if not cursor.pending(offset, offset):
            return Explanation(Why.ACKED)
        if self._next <= offset and cursor.ceiling <= offset:
            return Explanation(Why.CURSOR_FULL, offset=cursor.floor)
        waits = any(deliver.first <= offset <= deliver.last for deliver in self._outbox)
        held_up = self.explain_reading()
        if held_up is not None and (waits or offset >= self._next):
            return held_up
        if waits:
            return Explanation(Why.READY)
        return self.engine.explain(offset, self.now)

    def explain_consumer(self, consumer: ConsumerId) -> Explanation:
        if consumer not in self.consumers:
            raise ConsumerNotFound(f"consumer {consumer} does not exist")
        cursor = self.known.cursor
        if self._next >= cursor.ceiling and self._next < self._ledger.confirmed_end:
            return Explanation(Why.CURSOR_FULL, offset=cursor.floor)
        return self.explain_reading() or self.engine.explain_consumer(consumer, self.now)

    def explain_reading(self) -> Explanation | None:
        """What keeps everything that comes next from being read or handed out, if anything does."""
        if self.held:
            return Explanation(Why.SEEK_PENDING)
        if self._ahead.error is not None and (self._ahead.reading or self._fetching):
            return Explanation(Why.UNREADABLE, what=in_words(self._ahead.error))
        if (damage := self._ledger.stream.damage_at(self.known.cursor.floor)) is not None:
            return Explanation(Why.UNREADABLE, what=in_words(damage))
        if self._throttle is not None and self.now < self._throttle.until:
            return Explanation(Why.RATE_LIMITED, until=self._throttle.until)
        return None

    def _waits(self, consumer: ConsumerId) -> bool:
        return self.engine.explain_consumer(consumer, self.now).cause is not Why.STANDBY
