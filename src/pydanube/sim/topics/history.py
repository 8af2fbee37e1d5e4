"""What producers and consumers of simulated topics saw, and whether the promises were kept (I1, I3, I4, I11).

It records what was published, delivered, acknowledged and confirmed. It looks at the state of a topic only when that is
opened, and in the end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from pydanube.topic.cursor import Cursor
from pydanube.topic.records import SubscriptionKind

ORDERED = (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
Check = Callable[[bool, str, str], None]


@dataclass(eq=False, slots=True)
class Era:
    """The time between two seeks of a subscription."""

    generation: int
    floor: int
    decided: bool  # the seek that began it was confirmed
    submitted: set[int] = field(default_factory=set)  # acks that were sent, confirmed or not
    submitted_through: int = -1  # by cumulative acks that were sent
    confirmed: dict[int, float] = field(default_factory=dict)  # when a client knew, by offset
    confirmed_through: list[tuple[int, float]] = field(default_factory=list)  # both ascending

    def acknowledged(self, offset: int) -> bool:
        return offset <= self.submitted_through or offset in self.submitted

    def confirm(self, first: int, last: int, now: float) -> None:
        for offset in range(first, last + 1):
            self.confirmed.setdefault(offset, now)

    def confirm_through(self, offset: int, now: float) -> None:
        if not self.confirmed_through or offset > self.confirmed_through[-1][0]:
            self.confirmed_through.append((offset, now))

    def is_confirmed(self, offset: int, time: float) -> bool:
        """Whether a client knew it before that time."""
        at = bisect_left(self.confirmed_through, (offset, -inf))
        through = self.confirmed_through[at][1] if at < len(self.confirmed_through) else inf
        return min(through, self.confirmed.get(offset, inf)) < time


@dataclass(eq=False, slots=True)
class Holding:
    """The messages that one connected consumer holds."""

    instance: int  # of the topic it is connected to
    unacked: dict[int, float] = field(default_factory=dict)  # offset: when it was sent
    nacked: dict[int, int] = field(default_factory=dict)  # those of them that it gave back, and where in what it sent


class SubscriptionHistory:
    """One subscription across all lives of its topic."""

    def __init__(self, topic: TopicHistory, name: str, kind: SubscriptionKind, ack_timeout: float) -> None:
        self.topic = topic
        self.name = name
        self.kind = kind
        self.ack_timeout = ack_timeout  # in seconds of the fastest possible clock
        self.eras: list[Era] = []
        self.given_up: set[int] = set()  # dead-lettered
        self.holdings: list[Holding] = []

    @property
    def era(self) -> Era:
        return self.eras[-1]

    @property
    def _label(self) -> str:
        return f"{self.topic.name}/{self.name}"

    def era_of(self, generation: int) -> Era | None:
        """The era of a delivery. During a seek it may be the previous one."""
        return next((era for era in reversed(self.eras) if era.generation == generation), None)

    def done(self, era: Era, offset: int) -> bool:
        return era.acknowledged(offset) or offset in self.given_up or offset < self.topic.truncated

    # -- the state of a topic ------------------------------------------------------------------------------------------

    def opened(self, cursor: Cursor, first: int, check: Check) -> None:
        """Checks that a topic that was just opened knows every confirmed seek and ack."""
        self.holdings.clear()  # all consumers are disconnected
        if not self.eras:
            self.eras.append(Era(cursor.generation, cursor.floor, decided=True))
        while len(self.eras) > 1 and self.era.generation > cursor.generation:
            era = self.eras.pop()
            check(not era.decided and not era.confirmed, "I4", f"{self._label}: a confirmed seek was undone")
        check(self.era.generation == cursor.generation, "I4", f"{self._label}: the generation is wrong")
        self.era.decided = True
        if self.topic.lossy:
            return
        for offset in sorted(self.era.confirmed):
            if cursor.pending(offset, offset):
                check(False, "I4", f"{self._label}: the confirmed ack of {offset} was forgotten")
        for offset in self.topic.offsets_from(max(cursor.floor, self.era.floor)):
            if offset >= first:
                break
            if cursor.pending(offset, offset):
                check(False, "I1", f"{self._label}: {offset} was deleted before the cursor had passed it")
        self.check_floor(cursor, check)

    def check_floor(self, cursor: Cursor, check: Check) -> None:
        """Checks that the cursor has not passed a message that no consumer acknowledged."""
        if self.topic.may_lose_messages:
            return
        for offset in self.topic.offsets_from(self.era.floor):
            if offset >= cursor.floor:
                break
            if not self.done(self.era, offset):
                check(False, "I4", f"{self._label}: the cursor passed {offset}, which no consumer acknowledged")

    # -- consumers -----------------------------------------------------------------------------------------------------

    def join(self, instance: int) -> Holding:
        holding = Holding(instance)
        self.holdings.append(holding)
        return holding

    def leave(self, holding: Holding) -> None:
        if holding in self.holdings:
            self.holdings.remove(holding)

    def current(self, holding: Holding) -> bool:
        """Whether the consumer is still connected, and its topic has the same owner."""
        return holding.instance == self.topic.instance and holding in self.holdings

    def delivered(
        self, holding: Holding, era: Era, offsets: Iterable[int], sent_at: float, now: float, check: Check
    ) -> None:
        """The messages arrive at a consumer. By then, a key may have moved on, if they were on their way for long."""
        for offset in offsets:
            holding.nacked.pop(offset, None)
            if era.is_confirmed(offset, sent_at):
                check(False, "I4", f"{self._label}: {offset} was delivered again after its confirmed ack")
            if self.kind in ORDERED:
                self._check_order(holding, era, offset, self.topic.offsets_from(era.floor), check)
            elif self.kind is SubscriptionKind.KEY_SHARED and now - sent_at < self.ack_timeout:
                self._check_key(holding, era, offset, now, check)
            holding.unacked[offset] = sent_at

    def _check_order(self, holding: Holding, era: Era, offset: int, before: Iterable[int], check: Check) -> None:
        """Checks that everything before the message is done, or held by the same consumer."""
        for earlier in before:
            if earlier >= offset:
                return
            if earlier not in holding.unacked and not self.done(era, earlier) and not self.topic.may_lose_messages:
                check(False, "I3", f"{self._label}: {offset} overtook {earlier}")

    def _check_key(self, holding: Holding, era: Era, offset: int, now: float, check: Check) -> None:
        keys = self.topic.keys
        key = keys.get(offset)
        if key is None or self.topic.expires:  # if a held message expires, its key moves
            return
        for other in self.holdings:
            if other is holding:
                continue
            for earlier, since in other.unacked.items():
                held = keys.get(earlier) == key and not self.done(era, earlier) and earlier not in other.nacked
                if held and now - since < self.ack_timeout:
                    check(False, "I3", f"{self._label}: two consumers hold key {key!r}: {earlier} and {offset}")
        self._check_order(holding, era, offset, self.topic.offsets_of(key, era.floor), check)

    def nack(self, holding: Holding, offset: int, end: int) -> None:
        """It is given back, but messages after it may be on their way already."""
        if offset in holding.unacked:
            holding.nacked[offset] = end

    def settle_nacks(self, holding: Holding, heard_at: Callable[[int], float], sent_at: float) -> None:
        """Before messages arrive that were sent at that time: the broker knew of nacks that it had read before."""
        for offset in [each for each, end in holding.nacked.items() if heard_at(end) < sent_at]:
            del holding.nacked[offset]
            holding.unacked.pop(offset, None)

    def submit(self, era: Era, offsets: Sequence[int]) -> None:
        """Records an ack before it is sent: it may take effect, whatever the answer."""
        era.submitted.update(offsets)
        if era is self.era:  # an ack from before a seek does not refer to what is held now
            for holding in self.holdings:
                for offset in offsets:
                    holding.unacked.pop(offset, None)

    def submit_through(self, era: Era, offset: int) -> None:
        era.submitted_through = max(era.submitted_through, offset)
        for holding in self.holdings if era is self.era else ():
            for held in [each for each in holding.unacked if each <= offset]:
                del holding.unacked[held]


class TopicHistory:
    """One topic across all its lives and owners."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance = 0  # incremented each time the topic is opened
        self.lossy = False  # buffered: confirmed messages may be lost
        self.expires = False  # messages have a time to live
        self.truncated = 0  # lower offsets were deleted on request
        self.published: dict[int, bytes] = {}  # offset: payload, if confirmed
        self.keys: dict[int, bytes] = {}
        self._offsets: list[int] = []
        self._by_key: dict[bytes, list[int]] = {}

    @property
    def may_lose_messages(self) -> bool:
        """Whether messages may disappear without an ack."""
        return self.lossy or self.expires

    def publish(self, offset: int, payload: bytes, key: bytes | None) -> None:
        if offset in self.published:
            return
        self.published[offset] = payload
        insort(self._offsets, offset)
        if key is not None:
            self.keys[offset] = key
            insort(self._by_key.setdefault(key, []), offset)

    def offsets_from(self, offset: int) -> list[int]:
        return self._offsets[bisect_left(self._offsets, offset) :]

    def offsets_of(self, key: bytes, floor: int) -> list[int]:
        offsets = self._by_key.get(key, [])
        return offsets[bisect_left(offsets, floor) :]
