"""The interface of all reliable engines, and what they have in common: consumers, permits, pausing, poison.

An engine decides which consumer of one subscription receives which offsets. It owns no cursor: the host offers it only
unacknowledged messages, in offset order, and stores acknowledgements. The host polls after every call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from pydanube.base.errors import FilterInvalid
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import BATCH_MESSAGES_MAX, DECIDED_AT_ONCE, KEYS_AT_ONCE_BYTES
from pydanube.dispatch.events import Effect, Run
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy
from pydanube.dispatch.redelivery import Poison
from pydanube.dispatch.roster import M, Roster

NOTHING_OFFERED = -1


class Engine(ABC, Generic[M]):
    """Times are in microseconds and never run backwards. Only `join`, `grant` and the explanations raise errors.

    One poll handles at most `at_once` messages or keys of each sort: failed, due, and ready to deliver. When a consumer
    leaves, that many of its messages are taken back at once, and the others by the next polls.
    """

    at_once = DECIDED_AT_ONCE

    def __init__(self, policy: FailurePolicy, settings: DispatchSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.paused = False
        self._roster: Roster[M] = Roster()
        self._poison = Poison(policy)
        self._offered = NOTHING_OFFERED  # the highest offset that was offered
        self._recalled: list[tuple[ConsumerId, int, int]] = []
        self._polled = 0  # time of the last poll
        self.unfinished = False  # the last poll left work that the next one can do at once

    @property
    def key_bytes_at_once(self) -> int:
        """How many bytes of keys may be offered in one turn."""
        return KEYS_AT_ONCE_BYTES

    # -- consumers

    def join(self, consumer: ConsumerId, now: int, *, filters: Sequence[bytes] = (), timed: bool = True) -> None:
        """Connects a consumer, without permits. Joining twice changes nothing.

        If it is `timed`, the ack timeout of a message starts at its delivery, otherwise when it is `taken`.
        """
        if self._roster.find(consumer) is None:
            self._admit(consumer, filters)
            self._roster.get(consumer).timed = timed

    def set_timed(self, consumer: ConsumerId, now: int) -> None:
        """Makes the consumer `timed` from now on, also for the messages that it has in flight."""
        member = self._roster.get(consumer)
        if not member.timed:
            member.timed = True
            for first, last in self.held(consumer):
                self.taken(consumer, first, last, now)

    @abstractmethod
    def _admit(self, consumer: ConsumerId, filters: Sequence[bytes]) -> None: ...

    @abstractmethod
    def leave(self, consumer: ConsumerId, now: int, *, crashed: bool) -> None:
        """Makes its messages in flight due at once; a crash counts as a failure of the message it was working on."""

    def grant(self, consumer: ConsumerId, permits: int, now: int) -> None:
        """Allows the consumer this many more messages, redeliveries included."""
        self._roster.grant(consumer, permits)

    def withdraw(self, consumer: ConsumerId) -> int:
        """Takes back all permits of a consumer that can take no more for now; returns how many there were."""
        return self._roster.withdraw(consumer)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def alter(self, policy: FailurePolicy, settings: DispatchSettings, now: int) -> None:
        """Applies a new policy and new settings. The ack timeout of everything in flight starts again."""
        self.policy, self.settings = policy, settings
        self._poison.alter(policy, now)

    # -- messages

    @abstractmethod
    def wants(self) -> int:
        """How many messages to offer now. The offer may exceed it by the rest of one batch."""

    @abstractmethod
    def offer(self, run: Run, now: int) -> None:
        """Hands over unacknowledged messages, in offset order, each of them once."""

    def _accept(self, run: Run, kept: int, kept_max: int) -> None:
        """Checks what the host does: offsets ascend, and it offers only what was wanted plus the rest of a batch."""
        assert self._offered < run.first <= run.last, (self._offered, run.first, run.last)
        assert kept + run.last - run.first < kept_max + BATCH_MESSAGES_MAX, (kept, run.last - run.first)
        self._offered = run.last

    @abstractmethod
    def poll(self, now: int) -> list[Effect]:
        """What to do now. A second poll at the same time returns nothing, unless the first was `unfinished`."""

    def shift_delays(self, by: int) -> None:
        """Moves all delivery times, because the wall clock was corrected. Only Shared has delivery times."""

    def take_recalled(self) -> list[tuple[ConsumerId, int, int]]:
        """The messages (consumer, first, last) that failed or were rewound since the last call.

        Called before earlier deliveries are handed out: the host must no longer hand out these messages.
        """
        recalled, self._recalled = self._recalled, []
        return recalled

    @abstractmethod
    def due(self) -> int | None:
        """When to poll again at the latest, even if nothing happens. Always after the last poll."""

    @abstractmethod
    def acked(self, first: int, last: int) -> None:
        """Removes acknowledged messages, in flight or not. Unknown offsets are ignored."""

    @abstractmethod
    def nack(self, consumer: ConsumerId, first: int, last: int, now: int, delay: int = 0, reason: str = "") -> None:
        """Marks messages as failed. Those that are not in flight with the consumer are ignored."""

    @abstractmethod
    def taken(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        """The consumer works on these: their ack timeout (re)starts. Those not in flight with it are ignored."""

    @abstractmethod
    def undelivered(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        """A delivery could not be handed out: it is assigned again, the permits come back, and no failure counts."""

    def poison_failed(self, offset: int, now: int, why: str = "") -> None:
        """Dropping or dead-lettering a message has failed; the engine asks again later."""
        self._poison.failed(offset, now, why)

    @abstractmethod
    def reset(self, now: int) -> None:
        """Forgets all messages and their failures, after a seek. Consumers and permits stay."""

    # -- status

    @property
    def blocked_at(self) -> int | None:
        """The first message whose retries are exhausted and that blocks others, or that cannot be given up."""
        block = self.policy.poison is PoisonPolicy.BLOCK
        return self._poison.first() if block else self._poison.first_stuck()

    @abstractmethod
    def held(self, consumer: ConsumerId) -> list[tuple[int, int]]:
        """The ranges in flight with a consumer, ascending."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """How many messages are delivered, and neither acknowledged nor failed."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many messages were offered, and are neither acknowledged nor in flight."""

    @property
    def delayed(self) -> int:
        """How many of the waiting messages wait for their delivery times. Only Shared has any."""
        return 0

    @property
    def delayed_until(self) -> int | None:
        """The earliest of these delivery times."""
        return None

    @property
    @abstractmethod
    def stopped(self) -> int:
        """How many waiting messages are held back because of one that failed too often."""

    @property
    @abstractmethod
    def is_stalled(self) -> bool:
        """Whether nothing new is read until a poisoned message is dealt with, or a delivery time comes."""

    @abstractmethod
    def explain(self, offset: int, now: int) -> Explanation:
        """Why this message is not acknowledged yet, or that it is."""

    @abstractmethod
    def explain_consumer(self, consumer: ConsumerId, now: int) -> Explanation:
        """Why this consumer receives nothing now."""

    def _explain_standstill(self, room: int) -> Explanation | None:
        """The reason why no message can be delivered, or None."""
        if not self._roster:
            return Explanation(Cause.NO_CONSUMER)
        if self.paused:
            return Explanation(Cause.PAUSED)
        if not self._roster.permits:
            if self.in_flight:
                return Explanation(Cause.ALL_FULL, count=self.in_flight)
            return Explanation(Cause.ALL_WITHOUT_PERMITS, count=len(self._roster))
        if room <= 0:
            return Explanation(Cause.UNACKED_LIMIT, count=self.settings.unacked_max)
        return None

    def _explain_no_permits(self, consumer: ConsumerId) -> Explanation:
        held = sum(last - first + 1 for first, last in self.held(consumer))
        if held:
            return Explanation(Cause.FULL, consumer=consumer, count=held)
        return Explanation(Cause.NO_PERMITS, consumer=consumer)

    def _explain_poison(self, offset: int) -> Explanation:
        """Explains a message whose own retries are exhausted."""
        if (why := self._poison.why_stuck(offset)) is not None:
            return Explanation(Cause.POISON_STUCK, offset=offset, what=why)
        if self.policy.poison is PoisonPolicy.BLOCK:
            return Explanation(Cause.POISON_BLOCKS, offset=offset)
        return Explanation(Cause.DEAD_LETTERING)


def refuse_filters(filters: Sequence[bytes]) -> None:
    if filters:
        raise FilterInvalid("only Key-Shared subscriptions support key filters")
