"""Key-Shared: each key has one consumer at a time, which gets its messages in offset order. No key waits for another.

A key stays with its holder while messages of it are in flight, even if another consumer owns the key by then. A failure
rewinds only its own key. Every key that can be delivered stands in the line of its consumer, so polling never searches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, islice

from pydanube.base.ids import ConsumerId
from pydanube.base.limits import IDLE_KEY_BYTES_MAX
from pydanube.base.ranges import ranges_of
from pydanube.dispatch.agenda import Agenda, numbers_within
from pydanube.dispatch.engine import NOTHING_OFFERED, Engine
from pydanube.dispatch.events import Deliver, Effect, Run, Skipped
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.keys import KeyMember, KeyState
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, Unmatched
from pydanube.dispatch.redelivery import CRASHED, TIMED_OUT, EndedLeases, Failure, Leases, earliest
from pydanube.dispatch.ring import Filters, Ring

IDLE_KEYS_MAX = 4096  # empty keys that are kept: creating a key costs as much as a message


class KeyShared(Engine[KeyMember]):
    """The engine of a Key-Shared subscription."""

    def __init__(self, policy: FailurePolicy, settings: DispatchSettings) -> None:
        super().__init__(policy, settings)
        self._ring = Ring()
        self._keys: dict[bytes, KeyState] = {}
        self._number = 0  # of the newest key
        self._states: dict[int, KeyState] = {}  # by offset, of every message that is queued or in flight
        self._in_flight = 0
        self._leases = Leases(policy.ack_timeout)
        self._ended: deque[EndedLeases] = deque()  # their messages are overdue, but not marked as such yet
        self._unsettled: dict[bytes, None] = {}  # keys whose owner may have changed since a consumer joined or left
        self._backing_off: dict[int, KeyState] = {}  # by number, keys whose next message waits after a failure
        self._backoff_times = Agenda()
        self._skipped: list[int] = []
        self._owed: dict[int, KeyState] = {}  # by number, keys that are kept for their previous holder
        self._owed_times = Agenda()  # until when: a holder that asks for no more must not keep them forever
        self._overdue: dict[int, KeyState] = {}  # by number, keys that may have to be taken from their holders

    def _admit(self, consumer: ConsumerId, filters: Sequence[bytes]) -> None:
        accepted = Filters(filters)
        self._roster.check_room()
        self._ring.join(consumer, accepted)
        self._roster.add(KeyMember(consumer))
        self._unsettle(self._polled)

    def leave(self, consumer: ConsumerId, now: int, *, crashed: bool) -> None:
        member = self._roster.remove(consumer)
        if member is None:
            return
        self._ring.leave(consumer)
        member.gone, member.crashed = True, crashed
        self._unsettle(now)

    def alter(self, policy: FailurePolicy, settings: DispatchSettings, now: int) -> None:
        super().alter(policy, settings, now)
        self._leases.alter(policy.ack_timeout, now)
        self._unsettle(now)  # unmatched keys may be skipped from now on

    # -- messages

    def wants(self) -> int:
        if self.paused:
            return 0
        lookahead = self.settings.lookahead_max - self.waiting
        return max(0, min(lookahead, self._roster.permits, self.settings.unacked_max - self._in_flight))

    def offer(self, run: Run, now: int) -> None:
        self._accept(run, self.waiting, self.settings.lookahead_max + self.settings.unacked_max)
        assert run.keys is not None
        keys, states = self._keys, self._states
        for offset, key in zip(range(run.first, run.last + 1), run.keys, strict=True):
            state = keys.get(key)
            if state is None:
                self._number += 1
                state = keys[key] = KeyState(key, self._number)
            states[offset] = state
            state.queue.append(offset)
            if not state.in_line:
                self._line_up(state)

    def poll(self, now: int) -> list[Effect]:
        self._polled = now
        self._advance_to(now)
        effects: list[Effect] = [*self._poison.emit(now, self.at_once)] if self._poison else []
        self.unfinished = self._has_more_to_do(now)
        if self._skipped:
            effects += [Skipped(first, last) for first, last in ranges_of(sorted(self._skipped))]
            self._skipped = []
        if self.paused or not self._roster.permits or self._ended or self._overdue or self._unsettled:
            return effects  # owners must be settled before any key is delivered
        limit = min(self.settings.unacked_max, self._in_flight + self.at_once)
        for member in list(self._roster):
            budget = min(member.permits, limit - self._in_flight)
            if member.line and budget > 0:
                self._deliver(member, budget, now, effects)
                self._roster.rotate(member)
        if self._in_flight == limit < self.settings.unacked_max:
            self.unfinished = any(member.line and member.permits for member in self._roster) or self.unfinished
        return effects

    def _has_more_to_do(self, now: int) -> bool:
        """Whether this poll left work behind."""
        waits = self._ended or self._overdue or self._unsettled or self._poison.is_due(now)
        return bool(waits or self._owed_times.is_due(now) or self._backoff_times.is_due(now))

    def due(self) -> int | None:
        times = (self._backoff_times.next_time(), self._owed_times.next_time())
        return earliest(*times, self._leases.due(), self._poison.due())

    def acked(self, first: int, last: int) -> None:
        if first != last:
            self._acked_range(first, last)
            return
        state = self._states.pop(first, None)
        if state is None:
            return
        lease = state.flight.pop(first, None)
        if lease is None:
            self._leave_line(state)  # its next message may belong to another consumer
            state.queue.remove(first)
            self._poison.acked(first, first)
        else:
            self._in_flight -= 1
            lease.left -= 1
            if not lease.left:
                self._leases.close(lease)
            state.overdue.discard(first)
            self._recheck_overdue(state)
        if state.failures:
            state.failures.pop(first, None)
        if not state.queue:
            if not state.flight:
                self._retire(state)
        elif not state.in_line:
            self._line_up(state)

    def _acked_range(self, first: int, last: int) -> None:
        """Removes messages in flight one by one, and queued ones from each queue all at once."""
        queued: dict[int, tuple[KeyState, list[int]]] = {}
        for offset in numbers_within(self._states, first, last):
            state = self._states[offset]
            if offset in state.flight:
                self.acked(offset, offset)
            else:
                queued.setdefault(state.number, (state, []))[1].append(offset)
        for state, offsets in queued.values():
            gone = set(offsets[1:])
            state.queue = deque(offset for offset in state.queue if offset not in gone)
            for offset in gone:
                del self._states[offset]
                self._poison.acked(offset, offset)
                state.failures.pop(offset, None)
            self.acked(offsets[0], offsets[0])

    def nack(self, consumer: ConsumerId, first: int, last: int, now: int, delay: int = 0, reason: str = "") -> None:
        member = self._roster.find(consumer)
        failed: dict[bytes, list[int]] = {}
        for offset in numbers_within(self._states, first, last):
            state = self._states[offset]
            if state.holder is member and offset in state.flight:
                failed.setdefault(state.key, []).append(offset)
        for key, offsets in failed.items():
            state = self._keys[key]
            self._fail(state, offsets, reason, now, delay)
            self._keep_for_holder(state, now)
            self._line_up(state)

    def taken(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        member = self._roster.find(consumer)
        offsets = [
            offset
            for offset in numbers_within(self._states, first, last)
            if (state := self._states[offset]).holder is member and offset in state.flight
        ]
        if member is not None and offsets:
            self._start_timeout(member, offsets, now)

    def _start_timeout(self, holder: KeyMember, offsets: list[int], now: int) -> None:
        """Starts or restarts the ack timeout of messages in flight with a consumer."""
        timed = self._leases.open(now, holder.id, offsets)
        for offset in offsets:
            state = self._states[offset]
            lease, state.flight[offset] = state.flight[offset], timed
            state.overdue.discard(offset)
            lease.left -= 1
            if not lease.left:
                self._leases.close(lease)

    def undelivered(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        member = self._roster.find(consumer)
        if member is None:
            return
        for offset in numbers_within(self._states, first, last):
            state = self._states[offset]
            if state.holder is member and offset in state.flight:
                self._rewind(state, offset)
                self._keep_for_holder(state, now)
                self._line_up(state)
        self._roster.grant(consumer, last - first + 1)

    def reset(self, now: int) -> None:
        self._keys.clear()
        self._states.clear()
        self._in_flight = 0
        self._leases.clear()
        self._ended.clear()
        self._unsettled.clear()
        self._backing_off.clear()
        self._backoff_times.clear()
        self._skipped.clear()
        self._overdue.clear()
        self._owed.clear()
        self._owed_times.clear()
        self._poison.clear()
        self._offered = NOTHING_OFFERED
        for member in self._roster:
            member.line.clear()

    # -- lines of keys

    def _line_up(self, state: KeyState) -> None:
        """Puts a key into the line of the consumer that may receive its next message, if there is one."""
        if not state.queue or state.overdue:
            return
        member, head = state.holder, state.queue[0]
        if state.failures and (head in self._poison or self._is_backing_off(state, head)):
            return
        if head > state.owed:
            owner = self._owner(state.key)
            if self._is_free(state):
                state.release()
                member = state.holder = owner
            elif member is not owner:
                return  # the holder must finish first
        if member is not None:
            state.in_line = True
            member.line[state.number] = state
        elif self._roster and self.settings.unmatched is Unmatched.SKIP:
            self._skip(state)

    def _is_free(self, state: KeyState) -> bool:
        """Whether no consumer has messages of the key, so that it may go to another one (I3)."""
        return not state.flight

    def _leave_line(self, state: KeyState) -> None:
        if state.in_line and state.holder is not None:
            state.in_line = False
            del state.holder.line[state.number]

    def _unsettle(self, now: int) -> None:
        """After a consumer joined or left, any key may have a new owner. Nothing is delivered until all are settled."""
        again = chain(self._unsettled, self._keys) if self._unsettled else self._keys
        self._unsettled = dict.fromkeys(again)
        self._settle(now)

    def _settle(self, now: int) -> None:
        """Takes some of the keys from consumers that left, and lines them up with their present owners."""
        keys, room = [], self.key_bytes_at_once
        for key in islice(self._unsettled, self.at_once):
            keys.append(key)
            room -= len(key)
            if room <= 0:
                break
        waiting: list[KeyState] = []
        for key in keys:
            del self._unsettled[key]
            state = self._keys.get(key)
            if state is None:
                continue
            if state.holder is not None and state.holder.gone:
                self._free_from(state, state.holder, now)
            if state.queue:
                waiting.append(state)
        waiting.sort(key=lambda state: state.queue[0])
        for state in waiting:
            self._leave_line(state)
            self._line_up(state)

    def _free_from(self, state: KeyState, holder: KeyMember, now: int) -> None:
        self._leave_line(state)
        if state.flight:
            first = next(iter(state.flight))
            if holder.crashed:
                self._count(state, first, CRASHED, now)
            self._rewind(state, first)
        state.release()

    @property
    def key_bytes_at_once(self) -> int:
        return self._ring.key_bytes_at_once

    def _owner(self, key: bytes) -> KeyMember | None:
        consumer = self._ring.owner(key)
        return None if consumer is None else self._roster.find(consumer)

    def _skip(self, state: KeyState) -> None:
        self._skipped += state.queue
        for offset in state.queue:
            del self._states[offset]
            self._poison.acked(offset, offset)
        self._forget(state)

    def _retire(self, state: KeyState) -> None:
        """Keeps an empty key for its next message, unless there are many of them or it is long."""
        large = len(state.key) > IDLE_KEY_BYTES_MAX
        if large or len(self._keys) > IDLE_KEYS_MAX or self._backing_off or self._overdue or self._owed:
            self._forget(state)
        else:
            state.release()

    def _forget(self, state: KeyState) -> None:
        del self._keys[state.key]
        self._overdue.pop(state.number, None)
        if self._owed.pop(state.number, None) is not None:
            self._owed_times.discard(state.number)
        if self._backing_off.pop(state.number, None) is not None:
            self._backoff_times.discard(state.number)

    def _deliver(self, member: KeyMember, budget: int, now: int, effects: list[Effect]) -> None:
        """Delivers up to `budget` messages of the keys in the member's line. A key with more goes to the end of it."""
        given: list[int] = []
        failures: dict[int, Failure] = {}
        lease = self._leases.open(now, member.id, given, timed=member.timed)
        line = member.line
        while line and len(given) < budget:
            state = line.popitem(last=False)[1]
            state.in_line = False
            queue, flight = state.queue, state.flight
            count = len(queue)
            if count > budget - len(given):
                count = budget - len(given)
            if state.failures or queue[0] <= state.owed:
                count = self._sendable(state, member, count)
                failures |= state.failures
            for _ in range(count):
                offset = queue.popleft()
                flight[offset] = lease
                given.append(offset)
            if queue:
                self._line_up(state)
        lease.left = len(given)
        if not given:
            self._leases.close(lease)
            return
        self._in_flight += len(given)
        self._roster.spend(member, len(given))
        given.sort()
        effects += _deliveries(member.id, given, failures)

    def _sendable(self, state: KeyState, member: KeyMember, count: int) -> int:
        """How many of the next `count` messages of a key with failures may be delivered now."""
        moved = self._owner(state.key) is not member
        for at, offset in enumerate(state.queue):
            failure = state.failures.get(offset)
            waits = failure is not None and failure.time > self._polled
            if at == count or waits or offset in self._poison or (moved and offset > state.owed):
                return at
        return count

    # -- failures

    def _advance_to(self, now: int) -> None:
        if self._unsettled:
            self._settle(now)
        self._ended += self._leases.take_expired(now)
        if self._ended:
            self._mark_overdue(now)
        if self._overdue:
            self._take_back(now)
        for number in self._owed_times.take_due(now, self.at_once):
            state = self._owed.pop(number)
            if not state.flight and state.queue and self._keys.get(state.key) is state:
                self._leave_line(state)
                state.release()
                self._line_up(state)
        for number in self._backoff_times.take_due(now, self.at_once):
            state = self._backing_off.pop(number)
            if not state.in_line:
                self._line_up(state)

    def _mark_overdue(self, now: int) -> None:
        room = self.at_once
        while self._ended and room > 0:
            parts = self._ended[0].take(room)
            if not parts:
                self._ended.popleft()
            for lease, part in parts:
                room -= len(part)
                for offset in part:
                    state = self._states.get(offset)
                    if state is not None and state.flight.get(offset) is lease:
                        state.overdue.add(offset)
                        self._recheck_overdue(state)
                        self._leave_line(state)
                        self._time_others(state, now)

    def _recheck_overdue(self, state: KeyState) -> None:
        """Schedules another check of the key, because everything that its holder has of it may now be overdue."""
        if state.overdue:
            self._overdue[state.number] = state

    def _keep_for_holder(self, state: KeyState, now: int) -> None:
        """Keeps a rewound key for its holder for one ack timeout: it may still work on later messages of the key."""
        timeout = self.policy.ack_timeout
        if timeout is not None:
            self._owed[state.number] = state
            self._owed_times.set(state.number, now + timeout)

    def _time_others(self, state: KeyState, now: int) -> None:
        """Once a message of a key is overdue, times the rest of it too, so that a client's queue cannot keep the key
        forever."""
        rest = [offset for offset, lease in state.flight.items() if not self._leases.is_timed(lease)]
        if rest and state.holder is not None:
            self._start_timeout(state.holder, rest, now)

    def _take_back(self, now: int) -> None:
        """Takes keys from consumers that do not acknowledge, once everything they have of the key is overdue."""
        for number, state in list(islice(self._overdue.items(), self.at_once)):
            del self._overdue[number]
            if len(state.overdue) < len(state.flight):
                continue
            if state.flight:
                self._fail(state, [next(iter(state.flight))], TIMED_OUT, now, 0)
                state.release()
            if not state.in_line:
                self._line_up(state)

    def _is_backing_off(self, state: KeyState, head: int) -> bool:
        """Whether the next message of a key waits after a failure. If so, the key is lined up when the wait is over."""
        failure = state.failures.get(head)
        if failure is None or failure.time <= self._polled:
            return False
        self._backing_off[state.number] = state
        self._backoff_times.set(state.number, failure.time)
        return True

    def _fail(self, state: KeyState, offsets: list[int], reason: str, now: int, asked: int) -> None:
        for offset in offsets:
            count = self._count(state, offset, reason, now)
            state.failures[offset] = Failure(count, now + self.policy.delay(count, asked))
        self._rewind(state, offsets[0])

    def _count(self, state: KeyState, offset: int, reason: str, now: int) -> int:
        before = state.failures.get(offset)
        count = 1 if before is None else before.number + 1
        state.failures[offset] = Failure(count, now)
        if self._poison.exhausted(count):
            self._poison.add(offset, count, reason, now)
        return count

    def _rewind(self, state: KeyState, first: int) -> None:
        self._leave_line(state)
        rewound = state.rewind(first)
        self._in_flight -= len(rewound)
        for offset, lease in rewound.items():
            self._recalled.append((lease.consumer, offset, offset))
            lease.left -= 1
            if not lease.left:
                self._leases.close(lease)
        self._recheck_overdue(state)

    # -- status

    def held(self, consumer: ConsumerId) -> list[tuple[int, int]]:
        member = self._roster.find(consumer)
        held = [offset for state in self._keys.values() if state.holder is member for offset in state.flight]
        return ranges_of(sorted(held))

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def waiting(self) -> int:
        return len(self._states) - self._in_flight

    @property
    def stopped(self) -> int:
        states = {state.number: state for offset in self._poison.messages if (state := self._states.get(offset))}
        return sum(len(state.queue) for state in states.values())

    @property
    def is_stalled(self) -> bool:
        return self.waiting >= self.settings.lookahead_max and self.stopped == self.waiting

    def explain(self, offset: int, now: int) -> Explanation:
        state = self._states.get(offset)
        if state is None:
            if offset <= self._offered:
                return Explanation(Cause.ACKED)
            return self._explain_reading() or Explanation(Cause.NOT_READ)
        if state.holder is not None and offset in state.flight:
            return Explanation(Cause.IN_FLIGHT, consumer=state.holder.id)
        if offset in self._poison:
            return self._explain_poison(offset)
        return self._explain_queued(state, offset)

    def _explain_queued(self, state: KeyState, offset: int) -> Explanation:
        head, key = state.queue[0], state.key
        if head in self._poison:
            return Explanation(Cause.KEY_BLOCKED, key=key, offset=head)
        failure = state.failures.get(head)
        if failure is not None and failure.time > self._polled:
            if offset == head:
                return Explanation(Cause.REDELIVERY, until=failure.time)
            return Explanation(Cause.KEY_BLOCKED, key=key, offset=head)
        if not self._roster or self.paused:
            return Explanation(Cause.PAUSED if self._roster else Cause.NO_CONSUMER)
        owner = self._owner(key)
        if owner is None:
            return Explanation(Cause.KEY_UNMATCHED, key=key)
        member = state.holder or owner
        if state.flight and (state.overdue or (member is not owner and offset > state.owed)):
            return Explanation(Cause.KEY_HELD, key=key, consumer=member.id)
        if not member.permits:
            return self._explain_no_permits(member.id)
        return self._explain_standstill(self.settings.unacked_max - self._in_flight) or Explanation(Cause.READY)

    def explain_consumer(self, consumer: ConsumerId, now: int) -> Explanation:
        member = self._roster.get(consumer)
        if not self.paused and not member.permits:
            return self._explain_no_permits(consumer)
        held_up, later = self._explain_reading(), self._backoff_times.next_time()
        if held_up is None and later is not None:
            return Explanation(Cause.NOT_DUE, consumer=consumer, until=later)
        return held_up or Explanation(Cause.IDLE, consumer=consumer)

    def _explain_reading(self) -> Explanation | None:
        """What keeps the engine from reading further, if anything does."""
        standstill = self._explain_standstill(self.settings.unacked_max - self._in_flight)
        if standstill is None and self.waiting >= self.settings.lookahead_max:
            oldest = min((state for state in self._keys.values() if state.queue), key=lambda state: state.queue[0])
            return Explanation(Cause.LOOKAHEAD_FULL, key=oldest.key, count=self.waiting)
        return standstill


def _deliveries(consumer: ConsumerId, offsets: list[int], failures: dict[int, Failure]) -> list[Deliver]:
    """Deliveries of ascending offsets: one per range of consecutive offsets with equal attempts."""
    if not failures:
        return [Deliver(consumer, first, last, 0) for first, last in ranges_of(offsets)]
    attempts = {offset: failure.number for offset, failure in failures.items()}
    found: list[Deliver] = []
    for first, last in ranges_of(offsets):
        start = first
        for offset in range(first, last + 1):
            attempt = attempts.get(offset, 0)
            if offset == last or attempts.get(offset + 1, 0) != attempt:
                found.append(Deliver(consumer, start, offset, attempt))
                start = offset + 1
    return found
