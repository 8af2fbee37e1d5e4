"""Delivery of one subscription in offset order to one active consumer: what Exclusive and Failover have in common.

Works on ranges only. A failure at X rewinds: everything in flight from X on is sent again in order after the delay, and
nothing overtakes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pydanube.base.ids import ConsumerId
from pydanube.base.limits import OFFSET_MAX
from pydanube.base.ranges import Ranges
from pydanube.dispatch.engine import NOTHING_OFFERED, Engine, no_filters
from pydanube.dispatch.events import Deliver, Effect, Run
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.dispatch.redelivery import CRASHED, LEASE_STEPS, TIMED_OUT, earliest
from pydanube.dispatch.roster import Member

NONE_FAILED = -1


class _Term:
    """What was delivered within one step of the ack timeout, up to `last`, runs out together."""

    __slots__ = ("deadline", "last", "until")

    def __init__(self, until: int, deadline: int, last: int) -> None:
        self.until = until
        self.deadline = deadline
        self.last = last


class Ordered(Engine[Member]):
    """The first of the roster is active; the others stand by."""

    def __init__(self, policy: FailurePolicy, settings: DispatchSettings) -> None:
        super().__init__(policy, settings)
        self._queue = Ranges()  # not in flight: new, or rewound
        self._flight = Ranges()  # all with the active consumer
        self._terms: deque[_Term] = deque()  # ascending by offset and by deadline
        self._failures: dict[int, int] = {}  # by offset, of those that failed
        self._failed_last = NONE_FAILED  # no offset above it has failed
        self._gate = 0  # until then nothing from the first gated offset on is delivered; 0 if nothing waits
        self._gated = (0, 0)  # the lowest and the highest offset whose failure has to be waited out

    def _admit(self, consumer: ConsumerId, filters: Sequence[bytes]) -> None:
        no_filters(filters)
        self._roster.check_room()
        self._roster.add(Member(consumer))

    def leave(self, consumer: ConsumerId, now: int, *, crashed: bool) -> None:
        active = self._roster.first()
        if self._roster.remove(consumer) is None or active is None or active.id != consumer or not self._flight:
            return
        first = self._flight.first
        if crashed:
            self._count(first, first, CRASHED, now)
        self._requeue(first)

    # -- messages

    def wants(self) -> int:
        active = self._roster.first()
        if self.paused or active is None or self._gate or self._blocked():
            return 0
        return max(0, min(active.permits, self.settings.unacked_max - self._flight.count) - self._queue.count)

    def offer(self, run: Run, now: int) -> None:
        self._accept(run, self._queue.count + self._flight.count, self.settings.unacked_max)
        self._queue.add(run.first, run.last)

    def poll(self, now: int) -> list[Effect]:
        term = self._oldest_term()
        if term is not None and term.deadline <= now:
            self._fail(self._flight.first, self._flight.first, TIMED_OUT, now, 0)
        if self._gate and now >= self._gate:
            self._gate = 0
        effects: list[Effect] = [*self._poison.emit(now)] if self._poison else []
        active = self._roster.first()
        if active is None or self.paused:
            return effects
        queue, flight = self._queue, self._flight
        limit = self._gated[0] - 1 if self._gate else OFFSET_MAX
        budget = min(active.permits, self.settings.unacked_max - flight.count)
        while budget > 0 and queue and queue.first <= limit and not self._blocked():
            first, last = queue.head
            last = self._equal(first, min(last, first + budget - 1, limit))
            queue.cut(first, last)
            flight.add(first, last)
            self._lease(last, now)
            budget -= last - first + 1
            self._roster.spend(active, last - first + 1)
            effects.append(Deliver(active.id, first, last, self._failures.get(first, 0)))
        return effects

    def due(self) -> int | None:
        term = self._oldest_term()
        timeout = None if term is None else term.deadline
        return earliest(self._gate or None, timeout, self._poison.due())

    def acked(self, first: int, last: int) -> None:
        self._flight.cut(first, last)
        if self._queue:
            self._queue.cut(first, last)
        if first <= self._failed_last:
            self._forget(first, last)
        if self._gate and not (self._queue and self._queue.first <= self._gated[1]):
            self._gate = 0

    def nack(self, consumer: ConsumerId, first: int, last: int, now: int, delay: int = 0, reason: str = "") -> None:
        active = self._roster.first()
        if active is not None and active.id == consumer:
            self._fail(first, last, reason, now, delay)

    def reset(self, now: int) -> None:
        self._queue.clear()
        self._flight.clear()
        self._terms.clear()
        self._failures.clear()
        self._poison.clear()
        self._failed_last = NONE_FAILED
        self._offered = NOTHING_OFFERED
        self._gate = 0

    # -- failures

    def _oldest_term(self) -> _Term | None:
        terms = self._terms
        while terms and not (self._flight and self._flight.first <= terms[0].last):
            terms.popleft()
        return terms[0] if terms else None

    def _fail(self, first: int, last: int, reason: str, now: int, asked: int) -> None:
        failed = self._flight.within(first, last)
        if not failed:
            return
        first = failed[0][0]
        for start, end in failed:
            self._count(start, end, reason, now)
        self._requeue(first)
        highest = max(failed[-1][1], self._gated[1]) if self._gate else failed[-1][1]
        self._gate = max(self._gate, now + self.policy.delay(self._failures[first], asked))
        self._gated = (first, highest)  # whatever waits already is above `first`: it was rewound

    def _count(self, first: int, last: int, reason: str, now: int) -> None:
        failures = self._failures
        for offset in range(first, last + 1):
            count = failures[offset] = failures.get(offset, 0) + 1
            if self._poison.exhausted(count):
                self._poison.add(offset, count, reason, now)
        self._failed_last = max(self._failed_last, last)

    def _requeue(self, first: int) -> None:
        """Everything in flight from `first` on waits for its turn again."""
        for start, end in self._flight.cut(first, self._offered):
            self._queue.add(start, end)
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
        """Whether the next message is poison: order is kept, so nothing passes it."""
        return bool(self._poison) and bool(self._queue) and self._queue.first in self._poison

    def _equal(self, first: int, last: int) -> int:
        """How far from `first` on, at most to `last`, messages have failed equally often."""
        if first > self._failed_last:
            return last
        failures, end = self._failures, first
        count = failures.get(first)
        while end < last and failures.get(end + 1) == count:
            end += 1
        return end

    def _lease(self, last: int, now: int) -> None:
        timeout = self.policy.ack_timeout
        if timeout is None:
            return
        if self._terms and now <= self._terms[-1].until:
            self._terms[-1].last = last
        else:
            until = now + timeout // LEASE_STEPS
            self._terms.append(_Term(until, until + timeout, last))

    # -- what is known

    def held(self, consumer: ConsumerId) -> list[tuple[int, int]]:
        active = self._roster.first()
        return list(self._flight) if active is not None and active.id == consumer else []

    @property
    def in_flight(self) -> int:
        return self._flight.count

    @property
    def waiting(self) -> int:
        return self._queue.count

    def explain(self, offset: int, now: int) -> Explanation:
        active = self._roster.first()
        if active is not None and offset in self._flight:
            return Explanation(Cause.IN_FLIGHT, consumer=active.id)
        if self._queue and offset == self._queue.first and offset in self._poison:
            return self._explain_poison(offset)
        if offset not in self._queue and offset <= self._offered:
            return Explanation(Cause.ACKED)
        fallback = Cause.READY if offset <= self._offered else Cause.NOT_READ
        return self._explain_queue() or Explanation(fallback)

    def explain_consumer(self, consumer: ConsumerId, now: int) -> Explanation:
        if self._roster.get(consumer) is not self._roster.first():
            return Explanation(Cause.STANDBY, consumer=consumer)
        return self._explain_queue() or Explanation(Cause.IDLE, consumer=consumer)

    def _explain_queue(self) -> Explanation | None:
        """What keeps the next message back, if anything does."""
        active = self._roster.first()
        if active is None:
            return Explanation(Cause.NO_CONSUMER)
        if self.paused:
            return Explanation(Cause.PAUSED)
        if self._blocked():
            return Explanation(Cause.POISON_BLOCKS, offset=self._queue.first)
        if self._gate:
            return Explanation(Cause.REDELIVERY, until=self._gate)
        if not active.permits:
            return Explanation(Cause.NO_PERMITS, consumer=active.id)
        if self._flight.count >= self.settings.unacked_max:
            return Explanation(Cause.UNACKED_LIMIT, count=self.settings.unacked_max)
        return None
