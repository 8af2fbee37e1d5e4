"""Delivery of one subscription in offset order to one active consumer: what Exclusive and Failover have in common.

It keeps ranges, not messages. A failure of a message rewinds: after the delay, everything in flight from there on is
sent again in order, and nothing overtakes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pydanube.base.ids import ConsumerId
from pydanube.base.ranges import Ranges
from pydanube.dispatch.engine import NOTHING_OFFERED, Engine, refuse_filters
from pydanube.dispatch.events import Deliver, Effect, Run
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.dispatch.redelivery import CRASHED, LEASE_STEPS, TIMED_OUT, Failure, earliest
from pydanube.dispatch.roster import Member

NONE_FAILED = NONE_TIMED = -1


class _Term:
    """A common deadline for everything delivered within one step of the ack timeout, up to offset `last`."""

    __slots__ = ("deadline", "last", "until")

    def __init__(self, until: int, deadline: int, last: int) -> None:
        self.until = until
        self.deadline = deadline
        self.last = last


class Ordered(Engine[Member]):
    """The first consumer of the roster is active; the others stand by."""

    def __init__(self, policy: FailurePolicy, settings: DispatchSettings) -> None:
        super().__init__(policy, settings)
        self._queue = Ranges()  # new or rewound
        self._flight = Ranges()  # all with the active consumer
        self._terms: deque[_Term] = deque()  # ascending by offset and by deadline
        self._timed_last = NONE_TIMED  # offsets in flight up to here have an ack timeout
        self._failures: dict[int, Failure] = {}  # by offset
        self._failed_last = NONE_FAILED  # no offset above it has failed

    def _admit(self, consumer: ConsumerId, filters: Sequence[bytes]) -> None:
        refuse_filters(filters)
        self._roster.check_room()
        self._roster.add(Member(consumer))

    def leave(self, consumer: ConsumerId, now: int, *, crashed: bool) -> None:
        active = self._roster.first()
        if self._roster.remove(consumer) is None or active is None or active.id != consumer or not self._flight:
            return
        first = self._flight.first
        if crashed:
            self._count(first, CRASHED, now)
        self._requeue(first, None)

    def alter(self, policy: FailurePolicy, settings: DispatchSettings, now: int) -> None:
        super().alter(policy, settings, now)
        self._terms.clear()
        if self._flight and self._flight.first <= self._timed_last:
            self._lease(self._timed_last, now)

    # -- messages

    def wants(self) -> int:
        active = self._roster.first()
        if self.paused or active is None or self._blocked() or self._redelivery_time():
            return 0
        return max(0, min(active.permits, self.settings.unacked_max - self._flight.count) - self._queue.count)

    def offer(self, run: Run, now: int) -> None:
        self._accept(run, self._queue.count + self._flight.count, self.settings.unacked_max)
        self._queue.add(run.first, run.last)

    def poll(self, now: int) -> list[Effect]:
        term = self._oldest_term()
        if term is not None and term.deadline <= now:
            self._fail(self._flight.first, self._flight.first, TIMED_OUT, now, 0)
        self._polled = now
        effects: list[Effect] = [*self._poison.emit(now, self.at_once)] if self._poison else []
        self.unfinished = self._poison.is_due(now)
        active = self._roster.first()
        if active is None or self.paused:
            return effects
        queue, flight = self._queue, self._flight
        budget = min(active.permits, self.settings.unacked_max - flight.count)
        while budget > 0 and queue and not self._blocked() and not self._redelivery_time():
            if len(effects) >= self.at_once:
                self.unfinished = True
                break
            attempt, taken = self._take(budget, self.at_once - len(effects))
            for first, last in taken:
                flight.add(first, last)
                budget -= last - first + 1
                self._roster.spend(active, last - first + 1)
                effects.append(Deliver(active.id, first, last, attempt))
            if active.timed:
                self._lease(taken[-1][1], now)
        return effects

    def _take(self, count: int, ranges_max: int) -> tuple[int, list[tuple[int, int]]]:
        """The next messages that have failed the same number of times, preceded by that number."""
        first, last = self._queue.head
        if first > self._failed_last:
            return 0, self._queue.take(count, ranges_max)
        attempt, last = self._alike(first, min(last, first + count - 1))
        return attempt, self._queue.cut(first, last)

    def due(self) -> int | None:
        term = self._oldest_term()
        timeout = None if term is None else term.deadline
        return earliest(self._redelivery_time(), timeout, self._poison.due())

    def acked(self, first: int, last: int) -> None:
        self._flight.cut(first, last)
        if self._queue:
            self._queue.cut(first, last)
        if first <= self._failed_last:
            self._forget(first, last)

    def nack(self, consumer: ConsumerId, first: int, last: int, now: int, delay: int = 0, reason: str = "") -> None:
        active = self._roster.first()
        if active is not None and active.id == consumer:
            self._fail(first, last, reason, now, delay)

    def taken(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        active = self._roster.first()
        if active is not None and active.id == consumer and (found := self._flight.within(first, last)):
            timed = self._timed_last
            self._untime(found[0][0])  # its timeout restarts when it is reported again, as do those after it
            self._lease(max(found[-1][1], timed), now)

    def undelivered(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        active = self._roster.first()
        if active is not None and active.id == consumer:
            found = self._flight.within(first, last)
            if found:
                self._requeue(found[0][0], consumer)
            self._roster.grant(consumer, last - first + 1)

    def reset(self, now: int) -> None:
        self._queue.clear()
        self._flight.clear()
        self._terms.clear()
        self._timed_last = NONE_TIMED
        self._failures.clear()
        self._poison.clear()
        self._failed_last = NONE_FAILED
        self._offered = NOTHING_OFFERED

    # -- failures

    def _oldest_term(self) -> _Term | None:
        terms = self._terms
        while terms and not (self._flight and self._flight.first <= terms[0].last):
            terms.popleft()
        return terms[0] if terms else None

    def _fail(self, first: int, last: int, reason: str, now: int, asked: int) -> None:
        active, failed = self._roster.first(), self._flight.within(first, last)
        if active is None or not failed:
            return
        for start, end in failed:
            for offset in range(start, end + 1):
                count = self._count(offset, reason, now)
                self._failures[offset] = Failure(count, now + self.policy.delay(count, asked))
        self._requeue(failed[0][0], active.id)

    def _count(self, offset: int, reason: str, now: int) -> int:
        before = self._failures.get(offset)
        count = 1 if before is None else before.number + 1
        self._failures[offset] = Failure(count, now)
        self._failed_last = max(self._failed_last, offset)
        if self._poison.exhausted(count):
            self._poison.add(offset, count, reason, now)
        return count

    def _requeue(self, first: int, recalled_from: ConsumerId | None) -> None:
        """Queues everything in flight from `first` on again, and recalls it from the consumer if that is connected."""
        if recalled_from is not None:
            self._recalled.append((recalled_from, first, self._flight.last))
        self._flight.move_from(first, self._queue)
        self._untime(first)

    def _untime(self, first: int) -> None:
        """Removes the ack timeout of everything in flight from `first` on."""
        self._timed_last = min(self._timed_last, first - 1)
        while len(self._terms) > 1 and self._terms[-2].last >= first - 1:
            self._terms.pop()
        if self._terms:
            self._terms[-1].last = min(self._terms[-1].last, first - 1)

    def _forget(self, first: int, last: int) -> None:
        if last - first < len(self._failures):
            done = [offset for offset in range(first, last + 1) if offset in self._failures]
        else:
            done = [offset for offset in self._failures if first <= offset <= last]
        for offset in done:
            del self._failures[offset]
        if not self._failures:
            self._failed_last = NONE_FAILED
        self._poison.acked(first, last)

    def _blocked(self) -> bool:
        """Whether the next message is poison. Order is kept, so nothing overtakes it."""
        return bool(self._poison) and bool(self._queue) and self._queue.first in self._poison

    def _redelivery_time(self) -> int | None:
        """The time until which the next message waits after a failure. Nothing overtakes it."""
        if not self._failures or not self._queue:
            return None
        failure = self._failures.get(self._queue.first)
        return failure.time if failure is not None and failure.time > self._polled else None

    def _alike(self, first: int, last: int) -> tuple[int, int]:
        """How often `first` has failed, and the end of the following messages, up to `last`, that failed as often."""
        if first > self._failed_last:
            return 0, last
        failures, end = self._failures, first
        failure = failures.get(first)
        while end < last and failures.get(end + 1) == failure:
            end += 1
        return (0 if failure is None else failure.number), end

    def _lease(self, last: int, now: int) -> None:
        timeout = self.policy.ack_timeout
        last = self._timed_last = max(last, self._timed_last)  # taken in order: all below were taken too
        if timeout is None:
            return
        if self._terms and now <= self._terms[-1].until:
            self._terms[-1].last = last
        else:
            until = now + timeout // LEASE_STEPS
            self._terms.append(_Term(until, until + timeout, last))

    # -- status

    def held(self, consumer: ConsumerId) -> list[tuple[int, int]]:
        active = self._roster.first()
        return list(self._flight) if active is not None and active.id == consumer else []

    @property
    def in_flight(self) -> int:
        return self._flight.count

    @property
    def waiting(self) -> int:
        return self._queue.count

    @property
    def stopped(self) -> int:
        return self._queue.count if self.is_stalled else 0

    @property
    def is_stalled(self) -> bool:
        return self._blocked() and self.blocked_at is not None

    def explain(self, offset: int, now: int) -> Explanation:
        active = self._roster.first()
        if active is not None and offset in self._flight:
            return Explanation(Cause.IN_FLIGHT, consumer=active.id)
        if self._queue and offset == self._queue.first and offset in self._poison:
            return self._explain_poison(offset)
        if offset not in self._queue and offset <= self._offered:
            return Explanation(Cause.ACKED)
        held_up = self._explain_queue()
        if held_up is not None and held_up.cause is Cause.REDELIVERY and offset != self._queue.first:
            return Explanation(Cause.BEHIND, offset=self._queue.first, until=held_up.until)
        return held_up or Explanation(Cause.READY if offset <= self._offered else Cause.NOT_READ)

    def explain_consumer(self, consumer: ConsumerId, now: int) -> Explanation:
        if self._roster.get(consumer) is not self._roster.first():
            return Explanation(Cause.STANDBY, consumer=consumer)
        held_up = self._explain_queue()
        if held_up is not None and held_up.cause is Cause.REDELIVERY:
            return Explanation(Cause.NOT_DUE, consumer=consumer, until=held_up.until)
        return held_up or Explanation(Cause.IDLE, consumer=consumer)

    def _explain_queue(self) -> Explanation | None:
        """The reason why the next message cannot be delivered, or None."""
        active = self._roster.first()
        if active is None:
            return Explanation(Cause.NO_CONSUMER)
        if self.paused:
            return Explanation(Cause.PAUSED)
        if self._blocked():
            stuck = self._poison.why_stuck(self._queue.first)
            cause = Cause.POISON_BLOCKS if stuck is None else Cause.POISON_STUCK
            return Explanation(cause, offset=self._queue.first, what=stuck)
        time = self._redelivery_time()
        if time is not None:
            return Explanation(Cause.REDELIVERY, until=time)
        if not active.permits:
            return self._explain_no_permits(active.id)
        if self._flight.count >= self.settings.unacked_max:
            return Explanation(Cause.UNACKED_LIMIT, count=self.settings.unacked_max)
        return None
