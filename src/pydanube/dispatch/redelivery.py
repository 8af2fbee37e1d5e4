"""Deliveries that fail: leases that run out, and messages whose retries are exhausted.

This module does not decide which consumer receives a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pydanube.base.ids import ConsumerId
from pydanube.base.limits import POISON_FAILURES_QUIET, POISON_RETRY_MICROSECONDS_MIN, REASON_CHARACTERS_MAX
from pydanube.dispatch.agenda import Agenda
from pydanube.dispatch.events import Poisoned
from pydanube.dispatch.policy import FailurePolicy, PoisonPolicy

TIMED_OUT = "not acknowledged in time"
CRASHED = "the consumer's connection broke"
LEASE_STEPS = 64  # a timeout fires late by at most this fraction of itself, so that there are few deadlines


class Failure(NamedTuple):
    """How often a message has failed, and when it may be sent again."""

    number: int
    time: int


class Lease:
    """The messages of one delivery to one consumer. `left` of its offsets are still in flight."""

    __slots__ = ("attempt", "consumer", "left", "number", "offsets", "term")

    def __init__(self, number: int, term: Term, consumer: ConsumerId, offsets: Sequence[int], attempt: int) -> None:
        self.number = number
        self.term = term
        self.consumer = consumer
        self.offsets = offsets
        self.attempt = attempt
        self.left = len(offsets)


class Term:
    """Leases, by number, that began within one step of the timeout and run out together."""

    __slots__ = ("deadline", "leases", "until")

    def __init__(self, until: int | None, deadline: int | None) -> None:
        self.until = until
        self.deadline = deadline
        self.leases: dict[int, Lease] = {}


class EndedLeases:
    """Leases whose consumer left or did not acknowledge in time. Their messages are taken back a few at a time."""

    __slots__ = ("_at", "_done", "_leases", "reason", "time")

    def __init__(self, leases: Sequence[Lease], reason: str | None, time: int) -> None:
        self.reason = reason  # None if it does not count as a failure
        self.time = time
        self._leases = leases
        self._at = 0  # index of the next lease
        self._done = 0  # offsets of it that were returned

    def take(self, most: int) -> list[tuple[Lease, Sequence[int]]]:
        """The next `most` offsets, by lease, or all that are left; some may have been acknowledged since."""
        taken: list[tuple[Lease, Sequence[int]]] = []
        while most > 0 and self._at < len(self._leases):
            lease = self._leases[self._at]
            part = lease.offsets[self._done : self._done + most]
            most -= max(1, len(part))
            self._done += len(part)
            if self._done >= len(lease.offsets):
                self._at, self._done = self._at + 1, 0
            taken.append((lease, part))
        return taken


class Leases:
    """All leases of an engine, oldest first. None runs out early, and none more than one step late."""

    def __init__(self, timeout: int | None) -> None:
        self._timeout = timeout
        self._terms: deque[Term] = deque()
        self._untimed = Term(None, None)  # these last as long as their consumers are connected
        self._number = 0

    def open(
        self, now: int, consumer: ConsumerId, offsets: Sequence[int], attempt: int = 0, *, timed: bool = True
    ) -> Lease:
        """A lease that is not `timed` never runs out."""
        terms, term = self._terms, self._untimed
        if timed:
            if not terms or ((until := terms[-1].until) is not None and now > until):
                terms.append(_term(now, self._timeout))
            term = terms[-1]
        self._number += 1
        lease = Lease(self._number, term, consumer, offsets, attempt)
        term.leases[self._number] = lease
        return lease

    def is_timed(self, lease: Lease) -> bool:
        return lease.term is not self._untimed

    def alter(self, timeout: int | None, now: int) -> None:
        """Changes the timeout, for new leases and from now on for open ones."""
        self._timeout = timeout
        for term in self._terms:
            term.until, term.deadline = now - 1, None if timeout is None else now + timeout

    def close(self, lease: Lease) -> None:
        lease.term.leases.pop(lease.number, None)

    def take_expired(self, now: int) -> list[EndedLeases]:
        """Closes and returns the leases that have run out."""
        self._drop_empty()
        found: list[EndedLeases] = []
        while self._terms and (deadline := self._terms[0].deadline) is not None and deadline <= now:
            found.append(EndedLeases(list(self._terms.popleft().leases.values()), TIMED_OUT, now))
        return found

    def of(self, consumer: ConsumerId) -> list[Lease]:
        terms = (self._untimed, *self._terms)
        return [lease for term in terms for lease in term.leases.values() if lease.consumer == consumer]

    def due(self) -> int | None:
        self._drop_empty()
        return self._terms[0].deadline if self._terms else None

    def clear(self) -> None:
        self._terms.clear()
        self._untimed.leases.clear()

    def _drop_empty(self) -> None:
        while self._terms and not self._terms[0].leases:
            self._terms.popleft()


def _term(now: int, timeout: int | None) -> Term:
    if timeout is None:
        return Term(None, None)
    until = now + timeout // LEASE_STEPS
    return Term(until, until + timeout)


class Poison:
    """Messages whose retries are exhausted, until they are acknowledged.

    Each is emitted once, and again whenever the host failed to drop or dead-letter it.
    """

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy
        self.messages: dict[int, Poisoned] = {}
        self._emit = Agenda()
        self._failures: dict[int, int] = {}  # failed attempts to drop or dead-letter, by offset
        self._stuck: dict[int, str] = {}  # why those that fail repeatedly cannot be given up

    def __contains__(self, offset: int) -> bool:
        return offset in self.messages

    def __len__(self) -> int:
        return len(self.messages)

    def first(self) -> int | None:
        """The lowest offset, so that every explanation names the same one."""
        return min(self.messages, default=None)

    def first_stuck(self) -> int | None:
        """The lowest offset that cannot be given up."""
        return min(self._stuck, default=None)

    def why_stuck(self, offset: int) -> str | None:
        return self._stuck.get(offset)

    def exhausted(self, failures: int) -> bool:
        return failures > self._policy.max_redelivery_count

    def add(self, offset: int, attempts: int, reason: str, now: int) -> None:
        if offset not in self.messages:
            self.messages[offset] = Poisoned(offset, attempts, self._policy.poison, reason[:REASON_CHARACTERS_MAX])
            if self._policy.poison is not PoisonPolicy.BLOCK:
                self._emit.set(offset, now)

    def alter(self, policy: FailurePolicy, now: int) -> None:
        """Gives up messages that no longer block; those being given up are handled by the new policy."""
        before, self._policy = self._policy, policy
        self._failures.clear()
        self._stuck.clear()
        for offset, poisoned in self.messages.items():
            self.messages[offset] = poisoned._replace(policy=policy.poison)
            if policy.poison is PoisonPolicy.BLOCK:
                self._emit.discard(offset)
            elif before.poison is PoisonPolicy.BLOCK or self._emit.time_of(offset) is not None:
                self._emit.set(offset, now)

    def emit(self, now: int, most: int) -> list[Poisoned]:
        return [self.messages[offset] for offset in self._emit.take_due(now, most)]

    def is_due(self, now: int) -> bool:
        """Whether there is more to emit now."""
        return self._emit.is_due(now)

    def failed(self, offset: int, now: int, why: str) -> None:
        if self._policy.poison is PoisonPolicy.BLOCK:
            return  # the policy has changed since the message was emitted
        if offset in self.messages and self._emit.time_of(offset) is None:
            failures = self._failures[offset] = self._failures.get(offset, 0) + 1
            if failures > POISON_FAILURES_QUIET:
                self._stuck[offset] = why[:REASON_CHARACTERS_MAX]
            self._emit.set(offset, now + max(self._policy.delay(failures), POISON_RETRY_MICROSECONDS_MIN))

    def acked(self, first: int, last: int) -> list[int]:
        """Forgets the messages in [first, last] and returns their offsets."""
        if not self.messages:
            return []
        if last - first < len(self.messages):
            found = [offset for offset in range(first, last + 1) if offset in self.messages]
        else:
            found = [offset for offset in self.messages if first <= offset <= last]
        for offset in found:
            del self.messages[offset]
            self._failures.pop(offset, None)
            self._stuck.pop(offset, None)
            self._emit.discard(offset)
        return found

    def due(self) -> int | None:
        return self._emit.next_time()

    def clear(self) -> None:
        self.messages.clear()
        self._emit.clear()
        self._failures.clear()
        self._stuck.clear()


def earliest(*times: int | None) -> int | None:
    """The earliest of several times, where None means never."""
    return min((time for time in times if time is not None), default=None)
