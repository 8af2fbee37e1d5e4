"""The one interface of all reliable engines, and what they share: consumers, permits, pausing, poison.

An engine decides which consumer of one subscription gets which offsets. It owns no cursor: the host feeds it only what
is not done, in offset order, and keeps durable what is acknowledged. After every call the host polls.
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
    """Times are microseconds and never run backwards. Only `join`, `grant` and the explanations raise errors.

    One poll deals with `at_once` messages or keys of each sort: those that failed, that are due, that go out. The first
    of what somebody had who left are taken back at once, the others by the next polls.
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
        self._polled = 0  # the time of the last poll
        self.unfinished = False  # the last poll left some of what may go now to the next one

    @property
    def key_bytes_at_once(self) -> int:
        """Of keys of messages that are offered in one turn."""
        return KEYS_AT_ONCE_BYTES

    # -- consumers

    def join(self, consumer: ConsumerId, now: int, *, filters: Sequence[bytes] = (), timed: bool = True) -> None:
        """Connects a consumer, without permits. Joining twice changes nothing.

        `timed`: an ack timeout runs from when a message is delivered, else from when it is `taken`.
        """
        if self._roster.find(consumer) is None:
            self._admit(consumer, filters)
            self._roster.get(consumer).timed = timed

    def set_timed(self, consumer: ConsumerId, now: int) -> None:
        """From now on it is `timed`, also for what it has in flight."""
        member = self._roster.get(consumer)
        if not member.timed:
            member.timed = True
            for first, last in self.held(consumer):
                self.taken(consumer, first, last, now)

    @abstractmethod
    def _admit(self, consumer: ConsumerId, filters: Sequence[bytes]) -> None: ...

    @abstractmethod
    def leave(self, consumer: ConsumerId, now: int, *, crashed: bool) -> None:
        """What it had in flight is due at once; only a crash counts as a failure of the message it worked on."""

    def grant(self, consumer: ConsumerId, permits: int, now: int) -> None:
        """Lets the consumer be given so many more messages, redeliveries included."""
        self._roster.grant(consumer, permits)

    def withdraw(self, consumer: ConsumerId) -> int:
        """It can take no more for now: its permits are taken back, and how many they were is said."""
        return self._roster.withdraw(consumer)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def alter(self, policy: FailurePolicy, settings: DispatchSettings, now: int) -> None:
        """Goes by these from now on. What is in flight has the new time to be acknowledged, from now on."""
        self.policy, self.settings = policy, settings
        self._poison.alter(policy, now)

    # -- messages

    @abstractmethod
    def wants(self) -> int:
        """How many messages it would take now. The rest of one batch may come on top."""

    @abstractmethod
    def offer(self, run: Run, now: int) -> None:
        """Feeds messages that are not done, in offset order, none twice."""

    def _accept(self, run: Run, kept: int, kept_max: int) -> None:
        """The host's side of the bargain: ascending offsets, and not more than was wanted and the rest of a batch."""
        assert self._offered < run.first <= run.last, (self._offered, run.first, run.last)
        assert kept + run.last - run.first < kept_max + BATCH_MESSAGES_MAX, (kept, run.last - run.first)
        self._offered = run.last

    @abstractmethod
    def poll(self, now: int) -> list[Effect]:
        """What to do now. A second poll at the same time has nothing to add, unless it is `unfinished`."""

    def shift_delays(self, by: int) -> None:
        """Delivery times that were told turned out to be so much later. Only Shared has any."""

    def take_recalled(self) -> list[tuple[ConsumerId, int, int]]:
        """Whose messages (consumer, first, last) failed or were rewound since it was last asked.

        The host asks before it hands out what was decided earlier: these must no longer be.
        """
        recalled, self._recalled = self._recalled, []
        return recalled

    @abstractmethod
    def due(self) -> int | None:
        """When to poll again at the latest, even if nothing happens; always later than the last poll."""

    @abstractmethod
    def acked(self, first: int, last: int) -> None:
        """These are done, wherever they are; what is not known is passed over."""

    @abstractmethod
    def nack(self, consumer: ConsumerId, first: int, last: int, now: int, delay: int = 0, reason: str = "") -> None:
        """These failed. Only what is in flight with that consumer counts."""

    @abstractmethod
    def taken(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        """Its program works on these: their ack timeout begins, or begins again. Only what it has in flight counts."""

    @abstractmethod
    def undelivered(self, consumer: ConsumerId, first: int, last: int, now: int) -> None:
        """It could not be handed out: it is decided again, its permits come back, and nothing has failed."""

    def poison_failed(self, offset: int, now: int, why: str = "") -> None:
        """Dropping or dead-lettering did not work; the engine asks again later."""
        self._poison.failed(offset, now, why)

    @abstractmethod
    def reset(self, now: int) -> None:
        """A seek: all messages are forgotten, with their failures. Consumers and permits stay."""

    # -- what is known

    @property
    def blocked_at(self) -> int | None:
        """The first message whose retries are exhausted, and that stops others or cannot be given up."""
        block = self.policy.poison is PoisonPolicy.BLOCK
        return self._poison.first() if block else self._poison.first_stuck()

    @abstractmethod
    def held(self, consumer: ConsumerId) -> list[tuple[int, int]]:
        """The ranges in flight with a consumer, ascending."""

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Messages that are delivered and neither acknowledged nor failed."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Messages that were offered and are neither done nor in flight."""

    @property
    def delayed(self) -> int:
        """How many of the waiting messages wait for their delivery times. Only Shared has any."""
        return 0

    @property
    def delayed_until(self) -> int | None:
        """The earliest of these times."""
        return None

    @property
    @abstractmethod
    def stopped(self) -> int:
        """How many of the waiting messages no consumer gets until somebody decides about one that failed too often."""

    @property
    @abstractmethod
    def at_a_stand(self) -> bool:
        """Whether nothing new is read until somebody decides, or a delivery time has come."""

    @abstractmethod
    def explain(self, offset: int, now: int) -> Explanation:
        """Why this message is where it is."""

    @abstractmethod
    def explain_consumer(self, consumer: ConsumerId, now: int) -> Explanation:
        """Why this consumer is given nothing now."""

    def _explain_standstill(self, room: int) -> Explanation | None:
        """What holds up every message alike, if anything does."""
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
        """Of a message whose own retries are exhausted."""
        if (why := self._poison.why_stuck(offset)) is not None:
            return Explanation(Cause.POISON_STUCK, offset=offset, what=why)
        if self.policy.poison is PoisonPolicy.BLOCK:
            return Explanation(Cause.POISON_BLOCKS, offset=offset)
        return Explanation(Cause.DEAD_LETTERING)


def no_filters(filters: Sequence[bytes]) -> None:
    if filters:
        raise FilterInvalid("only Key-Shared subscriptions support key filters")
