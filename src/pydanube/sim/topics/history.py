"""What producers and consumers of simulated topics saw, and whether the promises to them held (I1, I3, I4, I11).

Written from the outside: it knows what was published, delivered, acknowledged and confirmed, and compares that with
what a topic says of itself only when it is opened and in the end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pydanube.topic.cursor import Cursor
from pydanube.topic.records import SubscriptionKind

ORDERED = (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
Check = Callable[[bool, str, str], None]


@dataclass(eq=False, slots=True)
class Era:
    """The time of one subscription between two seeks."""

    generation: int
    floor: int
    decided: bool  # the seek that began it was confirmed
    submitted: set[int] = field(default_factory=set)  # acknowledged, whatever became of it
    submitted_through: int = -1  # cumulatively
    confirmed: set[int] = field(default_factory=set)
    confirmed_through: int = -1

    def acknowledged(self, offset: int) -> bool:
        return offset <= self.submitted_through or offset in self.submitted

    def confirm(self, first: int, last: int) -> None:
        self.confirmed.update(range(first, last + 1))

    def confirm_through(self, offset: int) -> None:
        self.confirmed_through = max(self.confirmed_through, offset)

    def kept(self, offset: int) -> bool:
        return offset <= self.confirmed_through or offset in self.confirmed


@dataclass(eq=False, slots=True)
class Holding:
    """What one connected consumer has in hand."""

    instance: int  # of the topic it is connected to
    unacked: dict[int, float] = field(default_factory=dict)  # offset: when it came


class SubscriptionHistory:
    """One subscription across all lives of its topic."""

    def __init__(self, topic: TopicHistory, name: str, kind: SubscriptionKind, ack_timeout: float) -> None:
        self.topic = topic
        self.name = name
        self.kind = kind
        self.ack_timeout = ack_timeout  # as the fastest clock sees it
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
        """The era of a delivery; while a seek is under way that may be the one before."""
        return next((era for era in reversed(self.eras) if era.generation == generation), None)

    def done(self, era: Era, offset: int) -> bool:
        return era.acknowledged(offset) or offset in self.given_up or offset < self.topic.truncated

    # -- what a topic remembers ----------------------------------------------------------------------------------------

    def opened(self, cursor: Cursor, first: int, check: Check) -> None:
        """A topic was opened, by a restart or another owner: it must know every confirmed seek and ack."""
        self.holdings.clear()  # whoever had something in hand is gone
        if not self.eras:
            self.eras.append(Era(cursor.generation, cursor.floor, decided=True))
        while len(self.eras) > 1 and self.era.generation > cursor.generation:
            era = self.eras.pop()
            check(not era.decided and not era.confirmed, "I4", f"{self._label}: a confirmed seek is undone")
        check(self.era.generation == cursor.generation, "I4", f"{self._label}: another generation")
        self.era.decided = True
        if self.topic.lossy:
            return
        for offset in sorted(self.era.confirmed):
            if cursor.pending(offset, offset):
                check(False, "I4", f"{self._label}: the confirmed ack of {offset} is forgotten")
        for offset in self.topic.offsets_from(max(cursor.floor, self.era.floor)):
            if offset >= first:
                break
            if cursor.pending(offset, offset):
                check(False, "I1", f"{self._label}: {offset} was deleted before the cursor had passed it")
        self.check_floor(cursor, check)

    def check_floor(self, cursor: Cursor, check: Check) -> None:
        """A cursor never passes a message that nobody acknowledged."""
        if self.topic.forgiving:
            return
        for offset in self.topic.offsets_from(self.era.floor):
            if offset >= cursor.floor:
                break
            if not self.done(self.era, offset):
                check(False, "I4", f"{self._label}: the cursor passed {offset}, which no consumer acknowledged")

    # -- what consumers see --------------------------------------------------------------------------------------------

    def join(self) -> Holding:
        holding = Holding(self.topic.instance)
        self.holdings.append(holding)
        return holding

    def leave(self, holding: Holding) -> None:
        if holding in self.holdings:
            self.holdings.remove(holding)

    def current(self, holding: Holding) -> bool:
        """Not of an owner that was replaced, nor of a consumer that left."""
        return holding.instance == self.topic.instance and holding in self.holdings

    def delivered(self, holding: Holding, era: Era, offsets: Iterable[int], now: float, check: Check) -> None:
        for offset in offsets:
            if era.kept(offset):
                check(False, "I4", f"{self._label}: {offset} was delivered again after its confirmed ack")
            if self.kind in ORDERED:
                self._check_order(holding, era, offset, self.topic.offsets_from(era.floor), check)
            elif self.kind is SubscriptionKind.KEY_SHARED:
                self._check_key(holding, era, offset, now, check)
            holding.unacked[offset] = now

    def _check_order(self, holding: Holding, era: Era, offset: int, before: Iterable[int], check: Check) -> None:
        """Everything before it is done, or in the same hands."""
        for earlier in before:
            if earlier >= offset:
                return
            if earlier not in holding.unacked and not self.done(era, earlier) and not self.topic.forgiving:
                check(False, "I3", f"{self._label}: {offset} overtook {earlier}")

    def _check_key(self, holding: Holding, era: Era, offset: int, now: float, check: Check) -> None:
        keys = self.topic.keys
        key = keys.get(offset)
        if key is None or self.topic.expires:  # what a consumer has in hand may expire, and then its key moves
            return
        for other in self.holdings:
            if other is holding:
                continue
            for earlier, since in other.unacked.items():
                held = keys.get(earlier) == key and not self.done(era, earlier)
                if held and now - since < self.ack_timeout:
                    check(False, "I3", f"{self._label}: two consumers hold key {key!r}: {earlier} and {offset}")
        self._check_order(holding, era, offset, self.topic.offsets_of(key, era.floor), check)

    def submit(self, era: Era, offsets: Sequence[int]) -> None:
        """Written down before the topic is asked: whatever it answers, it may count."""
        era.submitted.update(offsets)
        if era is self.era:  # else it is of the time before a seek, and what is in hand now is not meant
            for holding in self.holdings:
                for offset in offsets:
                    holding.unacked.pop(offset, None)

    def submit_through(self, era: Era, offset: int) -> None:
        era.submitted_through = max(era.submitted_through, offset)
        for holding in self.holdings if era is self.era else ():
            for held in [each for each in holding.unacked if each <= offset]:
                del holding.unacked[held]


class TopicHistory:
    """One topic across all lives and owners."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instance = 0  # one more with each open; older ones are stale
        self.lossy = False  # buffered: some of what was confirmed may be gone
        self.expires = False  # messages have a time to live
        self.truncated = 0  # what lies below was given up by somebody who may
        self.published: dict[int, bytes] = {}  # offset: payload, of what was confirmed
        self.keys: dict[int, bytes] = {}
        self.subscriptions: dict[str, SubscriptionHistory] = {}
        self._offsets: list[int] = []
        self._by_key: dict[bytes, list[int]] = {}

    @property
    def forgiving(self) -> bool:
        """Messages may go without having been acknowledged."""
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
