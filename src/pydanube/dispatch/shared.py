"""Shared: messages are split evenly among the consumers that asked for some; order is not kept.

Each message fails, waits and is sent again on its own, to any consumer. A message in flight is one entry of a dict that
points to its lease: a delivery costs little per range, and an acknowledgement is one removal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pydanube.base.ids import ConsumerId
from pydanube.base.ranges import Ranges, ranges_of
from pydanube.dispatch.agenda import Agenda, numbers_within
from pydanube.dispatch.engine import NOTHING_OFFERED, Engine, refuse_filters
from pydanube.dispatch.events import Deliver, Effect, Run
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy
from pydanube.dispatch.redelivery import CRASHED, EndedLeases, Lease, Leases, earliest
from pydanube.dispatch.roster import Member

Slice = tuple[int, int, int]  # first, last, attempt


class _Retry:
    """Messages that failed together and are sent again together, except for those acknowledged in the meantime."""

    __slots__ = ("attempt", "due", "left", "number", "offsets", "ready")

    def __init__(self, number: int, offsets: list[int], attempt: int, due: int) -> None:
        self.number = number
        self.offsets = offsets
        self.attempt = attempt
        self.due = due
        self.left = len(offsets)
        self.ready = False  # it is due


class Shared(Engine[Member]):
    """The engine of a Shared subscription."""

    def __init__(self, policy: FailurePolicy, settings: DispatchSettings) -> None:
        super().__init__(policy, settings)
        self._fresh = Ranges()  # due, and never delivered
        self._delayed = Agenda()  # by delivery time
        self._flight: dict[int, Lease] = {}
        self._leases = Leases(policy.ack_timeout)
        self._ended: deque[EndedLeases] = deque()  # their messages are still to be taken back
        self._failed: dict[int, _Retry] = {}  # by offset
        self._retries: dict[int, _Retry] = {}  # by number, those that are not due yet
        self._retry_number = 0
        self._retry_times = Agenda()
        self._due_retries: deque[_Retry] = deque()
        self._due_count = 0  # messages in the due retries

    def _admit(self, consumer: ConsumerId, filters: Sequence[bytes]) -> None:
        refuse_filters(filters)
        self._roster.check_room()
        self._roster.add(Member(consumer))

    def leave(self, consumer: ConsumerId, now: int, *, crashed: bool) -> None:
        if self._roster.remove(consumer) is None:
            return
        self._ended.append(EndedLeases(self._leases.of(consumer), CRASHED if crashed else None, now))
        self._take_back()

    def alter(self, policy: FailurePolicy, settings: DispatchSettings, now: int) -> None:
        super().alter(policy, settings, now)
        self._leases.alter(policy.ack_timeout, now)

    # -- messages

    def wants(self) -> int:
        if self.paused or self._blocked() or len(self._delayed) >= self.settings.delayed_max:
            return 0
        return max(0, min(self._roster.permits - self._due_count, self._room()) - self._fresh.count)

    def offer(self, run: Run, now: int) -> None:
        kept_max = self.settings.unacked_max + self.settings.delayed_max
        self._accept(run, self._fresh.count + len(self._delayed), kept_max)
        if run.due is None:
            self._fresh.add(run.first, run.last)
            return
        for offset, time in enumerate(run.due, run.first):
            if time is None or time <= now:
                self._fresh.add(offset, offset)
            else:
                self._delayed.set(offset, time)

    def poll(self, now: int) -> list[Effect]:
        self._advance_to(now)
        effects: list[Effect] = [*self._poison.emit(now, self.at_once)] if self._poison else []
        self.unfinished = bool(
            self._ended or self._retry_times.is_due(now) or self._delayed.is_due(now) or self._poison.is_due(now)
        )
        if self.paused or not self._roster.permits:
            return effects
        fresh = 0 if self._blocked() else max(0, min(self._fresh.count, self._room()))
        slices = self._take(min(self._due_count + fresh, self._roster.permits))
        shares = self._roster.shares(sum([last - first + 1 for first, last, _ in slices]))
        slices.reverse()
        for member, share in shares:
            self._roster.spend(member, share)
            while share:
                first, last, attempt = slices.pop()
                if last - first >= share:
                    slices.append((first + share, last, attempt))
                    last = first + share - 1
                share -= last - first + 1
                offsets = range(first, last + 1)
                lease = self._leases.open(now, member.id, offsets, attempt, timed=member.timed)
                self._flight.update(dict.fromkeys(offsets, lease))
                effects.append(Deliver(member.id, first, last, attempt))
        return effects

    def due(self) -> int | None:
        return earliest(
            self._retry_times.next_time(), self._leases.due(), self._delayed.next_time(), self._poison.due()
        )

    def acked(self, first: int, last: int) -> None:
        if first == last:
            lease = self._flight.pop(first, None)
            if lease is not None:
                lease.left -= 1
                if not lease.left:
                    self._leases.close(lease)
                return
        for offset in numbers_within(self._flight, first, last):
            lease = self._flight.pop(offset)
            lease.left -= 1
            if not lease.left:
                self._leases.close(lease)
        for offset in numbers_within(self._failed, first, last):
            retry = self._failed.pop(offset)
            retry.left -= 1
            if retry.ready:
                self._due_count -= 1
            elif not retry.left:
                del self._retries[retry.number]
                self._retry_times.discard(retry.number)
        self._fresh.cut(first, last)
        self._delayed.discard_all(self._delayed.numbers_within(first, last))
        self._poison.acked(first, last)

    def nack(self, consumer: ConsumerId, first: int, last: int, now: int, delay: int = 0, reason: str = "") -> None:
        for lease, offsets in self._leased(consumer, first, last):
            attempt = lease.attempt + 1
            self._fail(self._unlease(lease, offsets), attempt, reason, now, now + self.policy.delay(attempt, delay))

    def taken(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        for lease, offsets in self._leased(consumer, first, last):
            timed = self._leases.open(now, consumer, offsets, lease.attempt)
            self._flight.update(dict.fromkeys(offsets, timed))
            lease.left -= len(offsets)
            if not lease.left:
                self._leases.close(lease)

    def _leased(self, consumer: ConsumerId, first: int, last: int) -> list[tuple[Lease, list[int]]]:
        """The offsets from `first` to `last` that are in flight with the consumer, by lease."""
        flight = self._flight
        found: dict[int, tuple[Lease, list[int]]] = {}
        for offset in numbers_within(flight, first, last):
            lease = flight[offset]
            if lease.consumer == consumer:
                found.setdefault(lease.number, (lease, []))[1].append(offset)
        return list(found.values())

    def undelivered(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        if self._roster.find(consumer) is None:
            return
        leases = {offset: self._flight[offset] for offset in numbers_within(self._flight, first, last)}
        for offset, lease in leases.items():
            if lease.consumer == consumer:
                self._retry(self._unlease(lease, [offset]), lease.attempt, now)
        self._roster.grant(consumer, last - first + 1)

    def reset(self, now: int) -> None:
        self._fresh.clear()
        self._delayed.clear()
        self._flight.clear()
        self._leases.clear()
        self._ended.clear()
        self._failed.clear()
        self._retries.clear()
        self._retry_times.clear()
        self._due_retries.clear()
        self._due_count = 0
        self._poison.clear()
        self._offered = NOTHING_OFFERED

    def shift_delays(self, by: int) -> None:
        """Delivery times refer to the wall clock: when it is set, messages wait longer or shorter."""
        self._delayed.shift(by)

    # -- failures

    def _advance_to(self, now: int) -> None:
        self._ended += self._leases.take_expired(now)
        self._take_back()
        for number in self._retry_times.take_due(now, self.at_once):
            retry = self._retries.pop(number)
            retry.ready = True
            retry.offsets.sort()  # they may have failed one by one, in any order
            self._due_retries.append(retry)
            self._due_count += retry.left
        for offset in self._delayed.take_due(now, self.at_once):
            self._fresh.add(offset, offset)

    def _take_back(self) -> None:
        """Schedules messages of ended leases for redelivery, at most `at_once` of them now."""
        room = self.at_once
        while self._ended and room > 0:
            ended = self._ended[0]
            parts = ended.take(room)
            if not parts:
                self._ended.popleft()
            for lease, part in parts:
                room -= len(part)
                attempt, offsets = lease.attempt, self._unlease(lease, part)
                if ended.reason is None:
                    self._retry(offsets, attempt, ended.time)
                else:
                    delay = 0 if ended.reason is CRASHED else self.policy.delay(attempt + 1)
                    self._fail(offsets, attempt + 1, ended.reason, ended.time, ended.time + delay)

    def _unlease(self, lease: Lease, offsets: Sequence[int]) -> list[int]:
        """Takes those of `offsets` that are in flight under this lease out of flight, and returns them."""
        flight = self._flight
        taken = [offset for offset in offsets if flight.get(offset) is lease]
        for offset in taken:
            del flight[offset]
        lease.left -= len(taken)
        if not lease.left:
            self._leases.close(lease)
        self._recalled += [(lease.consumer, first, last) for first, last in ranges_of(taken)]
        return taken

    def _fail(self, offsets: list[int], attempt: int, reason: str, now: int, due: int) -> None:
        if self._poison.exhausted(attempt):
            for offset in offsets:
                self._poison.add(offset, attempt, reason, now)
        else:
            self._retry(offsets, attempt, due)

    def _retry(self, offsets: list[int], attempt: int, due: int) -> None:
        if not offsets:
            return
        retry = self._retries.get(self._retry_number)
        if retry is not None and (retry.attempt, retry.due) == (attempt, due):
            retry.offsets += offsets
            retry.left += len(offsets)
        else:
            self._retry_number += 1
            retry = self._retries[self._retry_number] = _Retry(self._retry_number, offsets, attempt, due)
            self._retry_times.set(retry.number, due)
        self._failed.update(dict.fromkeys(offsets, retry))

    def _take(self, count: int) -> list[Slice]:
        """The next `count` messages: first those that failed, then new ones. Fewer if they are in too many ranges."""
        slices: list[Slice] = []
        while count and self._due_retries:
            if len(slices) >= self.at_once:
                self.unfinished = True
                return slices
            retry = self._due_retries[0]
            offsets = retry.offsets
            if retry.left < len(offsets):
                offsets = [offset for offset in offsets if offset in self._failed]
            most = min(count, self.at_once)
            taken, retry.offsets = offsets[:most], offsets[most:]
            retry.left -= len(taken)
            for offset in taken:
                del self._failed[offset]
            slices += [(first, last, retry.attempt) for first, last in ranges_of(taken)]
            count -= len(taken)
            self._due_count -= len(taken)
            if not retry.offsets:
                self._due_retries.popleft()
        slices += [(first, last, 0) for first, last in self._fresh.take(count)]
        return slices

    def _blocked(self) -> bool:
        return self.policy.poison is PoisonPolicy.BLOCK and bool(self._poison)

    def _room(self) -> int:
        """How many new messages may be delivered. Failed ones still count as unacknowledged."""
        return self.settings.unacked_max - len(self._flight) - len(self._failed) - len(self._poison)

    # -- status

    def held(self, consumer: ConsumerId) -> list[tuple[int, int]]:
        return ranges_of(sorted(offset for offset, lease in self._flight.items() if lease.consumer == consumer))

    @property
    def in_flight(self) -> int:
        return len(self._flight)

    @property
    def waiting(self) -> int:
        return self._fresh.count + len(self._failed) + len(self._delayed) + len(self._poison)

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    @property
    def delayed_until(self) -> int | None:
        return self._delayed.next_time()

    @property
    def stopped(self) -> int:
        return len(self._poison) + (self._fresh.count if self._blocked() else 0)

    @property
    def is_stalled(self) -> bool:
        return self._blocked() or len(self._delayed) >= self.settings.delayed_max

    def explain(self, offset: int, now: int) -> Explanation:
        lease = self._flight.get(offset)
        if lease is not None:
            return Explanation(Cause.IN_FLIGHT, consumer=lease.consumer)
        if offset in self._poison:
            return self._explain_poison(offset)
        time = self._delayed.time_of(offset)
        if time is not None:
            return Explanation(Cause.DELAYED, until=time)
        retry = self._failed.get(offset)
        if retry is not None:
            if not retry.ready:
                return Explanation(Cause.REDELIVERY, until=retry.due)
            return self._explain_standstill(room=1) or Explanation(Cause.READY)
        if offset in self._fresh:
            return self._explain_new() or Explanation(Cause.READY)
        if offset <= self._offered:
            return Explanation(Cause.ACKED)
        if len(self._delayed) >= self.settings.delayed_max:
            return Explanation(Cause.DELAYS_FULL, count=len(self._delayed))
        return self._explain_new() or Explanation(Cause.NOT_READ)

    def explain_consumer(self, consumer: ConsumerId, now: int) -> Explanation:
        member = self._roster.get(consumer)
        if not self.paused and not member.permits:
            return self._explain_no_permits(consumer)
        if len(self._delayed) >= self.settings.delayed_max:
            return Explanation(Cause.DELAYS_FULL, count=len(self._delayed))
        held_up = self._explain_new()
        later = earliest(self._delayed.next_time(), self._retry_times.next_time())
        if held_up is None and later is not None:
            return Explanation(Cause.NOT_DUE, consumer=consumer, until=later)
        return held_up or Explanation(Cause.IDLE, consumer=consumer)

    def _explain_new(self) -> Explanation | None:
        """The reason why new messages cannot be delivered, or None."""
        if self._blocked():
            return Explanation(Cause.POISON_BLOCKS, offset=self._poison.first())
        return self._explain_standstill(self._room())
