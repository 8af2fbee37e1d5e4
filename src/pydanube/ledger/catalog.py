"""What the cluster agrees on about one stream: its owner's epoch and its ledgers. Pure transitions, checked.

Ensemble, epoch, fence and seal are decisions recorded here; copies of entries are quorum writes. Whoever stores these
records does it by compare-and-set, so two would-be owners cannot both succeed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum

from pydanube.base.durability import Durability
from pydanube.base.errors import EntryMissing, OwnershipLost
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.ledger.cold import Cold
from pydanube.ledger.retention import LedgerInfo
from pydanube.ledger.segments import Segment, SegmentPlan


class Phase(Enum):
    OPEN = "open"
    RECOVERING = "recovering"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class Copies:
    """How many copies: an entry goes to `write` of `replicas` nodes and is acknowledged when `ack` have it."""

    replicas: int = 1
    write: int = 1
    ack: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.ack <= self.write <= self.replicas:
            raise ValueError(f"needs 1 <= ack_quorum <= write_quorum <= replicas, not {self}")


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    id: LedgerId
    epoch: Epoch  # the owner that made it, or that recovers it
    phase: Phase
    first: int
    last: int  # the decided end once sealed
    nodes: tuple[NodeIdentity, ...]  # these very identities: a wiped node is another one
    copies: Copies
    durability: Durability
    bytes: int = 0  # once sealed: about how many of one copy
    newest: int = 0  # once sealed: append time of its last entry


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream's ledgers in offset order; all but the last are sealed."""

    owner: Epoch = Epoch(0)
    token: str = ""  # of the owner itself, to know its own change again when the answer to it was lost
    next_offset: int = 0  # no ledger opened from now on starts below
    newest: int = 0  # append time of the last entry of the sealed ledgers: later ones are not older
    ledgers: tuple[LedgerRecord, ...] = ()
    kept_from: int = 0  # what lies below is not there any more, whether or not its ledger holds more
    cold: Cold = field(default_factory=Cold)  # what lies in object storage, and maybe in ledgers too

    @property
    def unsealed(self) -> LedgerRecord | None:
        return self.ledgers[-1] if self.ledgers and self.ledgers[-1].phase is not Phase.SEALED else None

    @property
    def end(self) -> int:
        """The last offset of the last sealed ledger, also if it was trimmed: confirmed, whoever asks.

        It never falls: `kept_from` outlives ledgers that are deleted in whatever order their nodes answer.
        """
        sealed = [
            ledger.last for ledger in self.ledgers if ledger.phase is Phase.SEALED and ledger.last >= ledger.first
        ]
        if sealed or self.cold.entries:
            return max([*sealed[-1:], self.cold.end - 1, self.kept_from - 1])
        return self.next_offset - 1

    def taken_over(self, token: str) -> StreamRecord:
        return replace(self, owner=Epoch(self.owner + 1), token=token)

    def check_owner(self, epoch: Epoch) -> None:
        if epoch != self.owner:
            raise OwnershipLost(f"epoch {self.owner} owns the stream, not {epoch}")

    def opened(self, epoch: Epoch, ledger: LedgerRecord) -> StreamRecord:
        self.check_owner(epoch)
        assert self.unsealed is None
        assert ledger.first >= self.next_offset
        assert ledger.epoch == epoch
        return replace(self, ledgers=(*self.ledgers, ledger))

    def recovering(self, epoch: Epoch) -> StreamRecord:
        self.check_owner(epoch)
        ledger = self.unsealed
        assert ledger is not None
        assert epoch > ledger.epoch or ledger.phase is Phase.RECOVERING
        return self._with_last(replace(ledger, phase=Phase.RECOVERING, epoch=epoch))

    def sealed(
        self, epoch: Epoch, id: LedgerId, last: int, next_offset: int, *, bytes: int = 0, newest: int = 0
    ) -> StreamRecord:
        """Ledger `id`, the unsealed one, ends at `last`; the next one starts at or above `next_offset`."""
        self.check_owner(epoch)
        ledger = self.unsealed
        assert ledger is not None
        assert ledger.id == id
        assert last >= ledger.first - 1
        assert next_offset > last
        record = self._with_last(
            replace(ledger, phase=Phase.SEALED, last=last, epoch=epoch, bytes=bytes, newest=newest)
        )
        return replace(record, next_offset=max(self.next_offset, next_offset), newest=max(self.newest, newest))

    def trimmed(self, epoch: Epoch, before: int) -> StreamRecord:
        """The sealed ledgers and the segments that end below `before` are dead from now on."""
        self.check_owner(epoch)
        ends = [ledger.last + 1 for ledger in self.ledgers if ledger.phase is Phase.SEALED and ledger.last < before]
        ends += [entry.last + 1 for entry in self.cold.entries if entry.last < before]
        return replace(self, kept_from=max([self.kept_from, *ends]))

    def swept(self, epoch: Epoch, deleted: Collection[LedgerId]) -> StreamRecord:
        """Without those dead ledgers, for no node has them any more."""
        self.check_owner(epoch)
        assert all(self.is_dead(ledger) for ledger in self.ledgers if ledger.id in deleted)
        return replace(self, ledgers=tuple(ledger for ledger in self.ledgers if ledger.id not in deleted))

    def is_dead(self, ledger: LedgerRecord) -> bool:
        """No node needs it any more. It is listed until no node has it: else nobody would know.

        What is being written as a segment is needed, whatever else holds.
        """
        plan = self.cold.planned
        if plan is not None and ledger.first <= plan.last and plan.first <= ledger.last:
            return False
        return ledger.phase is Phase.SEALED and ledger.last < max(ledger.first, self.kept_from, self.cold.local_from)

    def truncated(self, epoch: Epoch, before: int) -> StreamRecord:
        """Nothing below `before` is there any more; ledgers that hold more stay until they can go as a whole."""
        self.check_owner(epoch)
        return replace(self, kept_from=max(self.kept_from, before))

    @property
    def first(self) -> int:
        """The first offset that is still there, or will be."""
        starts = [ledger.first for ledger in self.ledgers if not self.is_dead(ledger)][:1]
        starts += [entry.first for entry in self.cold.entries[:1]]
        return max(self.kept_from, min(starts, default=self.next_offset))

    @property
    def stretches(self) -> list[LedgerInfo]:
        """All that is sealed and still there, in segments or in ledgers, each part once, oldest first."""
        cold, start = self.cold.entries, max(self.cold.end, self.cold.local_from)
        found = [LedgerInfo(each.first, each.last, each.bytes, each.newest) for each in cold]
        for ledger in self.ledgers:
            if ledger.phase is Phase.SEALED and ledger.last >= max(ledger.first, start):
                found.append(LedgerInfo(ledger.first, ledger.last, ledger.bytes, ledger.newest))
        return [each for each in found if each.last >= self.kept_from]

    def ledger_at(self, offset: int) -> LedgerRecord:
        """The ledger that holds `offset`, or the next one if it fell into a gap that was never used."""
        for ledger in self.ledgers:
            if not self.is_dead(ledger) and (ledger.phase is not Phase.SEALED or offset <= ledger.last):
                return ledger
        raise EntryMissing(f"the stream has nothing at or after offset {offset}")

    # -- object storage ------------------------------------------------------------------------------------------------

    def plan_segment(self, epoch: Epoch, last: int) -> StreamRecord:
        """What no segment has yet, up to `last`, is to become one. The plan holds for whoever owns the stream next."""
        self.check_owner(epoch)
        assert self.cold.planned is None
        waiting = [ledger for ledger in self.waiting if ledger.last <= last]
        assert waiting
        assert waiting[-1].last == last
        first = max(waiting[0].first, self.cold.end, self.kept_from)
        return self.with_cold(epoch, replace(self.cold, planned=SegmentPlan(first, last, epoch)))

    @property
    def waiting(self) -> tuple[LedgerRecord, ...]:
        """The sealed ledgers that no segment has yet, nor is being made of."""
        plan = self.cold.planned
        end = max(self.cold.end, self.kept_from, 0 if plan is None else plan.last + 1)
        return tuple(
            ledger
            for ledger in self.ledgers
            if ledger.phase is Phase.SEALED and ledger.first <= ledger.last and ledger.last >= end
        )

    def published(self, epoch: Epoch, segment: Segment) -> StreamRecord:
        """Its object is there, and was read: readers may find it."""
        return self.with_cold(epoch, self.cold.published(segment))

    def with_cold(self, epoch: Epoch, cold: Cold) -> StreamRecord:
        self.check_owner(epoch)
        return replace(self, cold=cold)

    def _with_last(self, ledger: LedgerRecord) -> StreamRecord:
        return replace(self, ledgers=(*self.ledgers[:-1], ledger))


def new_ledger(
    id: LedgerId, epoch: Epoch, first: int, nodes: tuple[NodeIdentity, ...], copies: Copies, durability: Durability
) -> LedgerRecord:
    return LedgerRecord(id, epoch, Phase.OPEN, first, NO_OFFSET, nodes, copies, durability)
