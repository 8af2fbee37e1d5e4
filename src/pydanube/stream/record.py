"""The record of one stream that the cluster agrees on: its owner's epoch and its ledgers. Pure transitions, checked.

Ensemble, epoch, fence and seal are decisions recorded here; copies of entries are quorum writes. Records are stored by
compare-and-set, so two would-be owners cannot both succeed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from pydanube.base.durability import Durability
from pydanube.base.errors import EntryMissing, LimitReached, OwnershipLost
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGERS_LISTED_MAX, LOST_RANGES_MAX, OFFSETS_OF_A_LEDGER_MAX
from pydanube.stream.cold import Cold
from pydanube.stream.ledgers import Copies, LedgerRecord, Ledgers, Phase
from pydanube.stream.retention import SealedPart
from pydanube.stream.segments import Segment, SegmentPlan
from pydanube.stream.times import Correction, Corrections, corrected, latest_time, time_for_deletion

__all__ = ["Copies", "LedgerRecord", "Ledgers", "LostRange", "Phase", "StreamRecord", "new_ledger"]


@dataclass(frozen=True, slots=True, order=True)
class LostRange:
    """Offsets that are damaged on every copy. If it is not `known`, perhaps none of them belonged to a message."""

    first: int
    last: int
    known: bool = True

    @property
    def messages(self) -> int:
        """How many messages were lost for certain."""
        return self.last - self.first + 1 if self.known else 0


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream's ledgers in offset order; all but the last are sealed."""

    owner: Epoch = Epoch(0)  # who stored it: the epoch of an owner is that of its topic's assignment
    next_offset: int = 0  # no later ledger starts below it
    newest: int = 0  # append time of the last entry of the sealed ledgers: no later entry has an earlier one
    ledgers: Ledgers = field(default_factory=Ledgers)
    kept_from: int = 0  # offsets below were deleted, even if their ledger still exists
    cold: Cold = field(default_factory=Cold)  # the part in object storage, which may be in ledgers as well
    corrections: Corrections = ()  # of append times that were in the future
    lost: tuple[LostRange, ...] = ()  # accepted as lost, so that readers skip it; in order, never overlapping

    @property
    def unsealed(self) -> LedgerRecord | None:
        listed = self.ledgers.listed
        return listed[-1] if listed and listed[-1].phase is not Phase.SEALED else None

    @property
    def end(self) -> int:
        """The last offset of the last sealed ledger, which is confirmed, even if it was trimmed since.

        It never decreases: ledgers may be deleted in any order, but `kept_from` stays.
        """
        sealed = (ledger.last for ledger in reversed(self.ledgers) if ledger.phase is Phase.SEALED and not ledger.empty)
        last = next(sealed, None)
        if last is not None or self.cold.entries:
            lost = self.lost[-1].last if self.lost else NO_OFFSET  # the ledger may have been lost with its node
            return max(NO_OFFSET if last is None else last, self.cold.end - 1, self.kept_from - 1, lost)
        return self.next_offset - 1

    def owned_by(self, epoch: Epoch) -> StreamRecord:
        """The record in the hands of the owner with this epoch, which is stored with its first change."""
        assert epoch >= self.owner
        return replace(self, owner=epoch)

    def check_owner(self, epoch: Epoch) -> None:
        if epoch != self.owner:
            raise OwnershipLost(f"epoch {self.owner} owns the stream, not {epoch}")

    def opened(self, epoch: Epoch, ledger: LedgerRecord, listed_max: int = LEDGERS_LISTED_MAX) -> StreamRecord:
        self.check_owner(epoch)
        assert self.unsealed is None
        assert ledger.first >= self.next_offset
        assert ledger.epoch == epoch
        return replace(self, ledgers=self.ledgers.added(ledger, listed_max))

    def recovering(self, epoch: Epoch) -> StreamRecord:
        self.check_owner(epoch)
        ledger = self.unsealed
        assert ledger is not None
        assert epoch > ledger.epoch or ledger.phase is Phase.RECOVERING
        return self._with_last(replace(ledger, phase=Phase.RECOVERING, epoch=epoch))

    def sealed(
        self,
        epoch: Epoch,
        id: LedgerId,
        last: int,
        next_offset: int,
        *,
        bytes: int = 0,
        newest: int = 0,
        unknown_from: int = NO_OFFSET,
    ) -> StreamRecord:
        """Ledger `id`, the unsealed one, ends at `last`; the next one starts at or above `next_offset`."""
        self.check_owner(epoch)
        ledger = self.unsealed
        assert ledger is not None
        assert ledger.id == id
        assert last >= ledger.first - 1
        assert next_offset > last
        if last < ledger.first:
            bytes = 0  # its nodes may have entries, but none was confirmed
        ended = replace(ledger, phase=Phase.SEALED, last=last, epoch=epoch, bytes=bytes, newest=newest)
        record = self._with_last(replace(ended, unknown_from=unknown_from))
        return replace(record, next_offset=max(self.next_offset, next_offset), newest=max(self.newest, newest))

    def time_corrected(self, epoch: Epoch, offset: int, time: int) -> StreamRecord:
        """Everything so far was appended at `time` or earlier; append times continue from there at `offset`."""
        self.check_owner(epoch)
        assert offset >= self.next_offset
        assert time < self.newest
        found = corrected(self.corrections, Correction(offset, time), self.kept_from)
        return replace(self, corrections=found, newest=time)

    def latest_time(self, offset: int, stamp: int) -> int:
        """The latest time at which the message at `offset` can have been appended; never decreases with the offset."""
        return latest_time(self.corrections, offset, stamp) if self.corrections else stamp

    def aging_time(self, offset: int, stamp: int, now: int) -> int:
        """The append time of the message at `offset`, for deleting it by age."""
        return time_for_deletion(self.corrections, offset, stamp, now) if self.corrections else stamp

    def trimmed(self, epoch: Epoch, before: int) -> StreamRecord:
        """The record after deleting the sealed ledgers and segments that end below `before`."""
        self.check_owner(epoch)
        ends = [entry.last + 1 for entry in self.cold.entries if entry.last < before]
        return self._kept_from(max([self.kept_from, self.ledgers.end_before(before), *ends]))

    def swept(self, epoch: Epoch, deleted: Collection[LedgerId]) -> StreamRecord:
        """The record without these dead ledgers, which no node has any longer."""
        self.check_owner(epoch)
        swept = self.without(deleted)
        assert (swept.first, swept.bytes, swept.unsealed) == (self.first, self.bytes, self.unsealed)
        return swept

    def without(self, deleted: Collection[LedgerId]) -> StreamRecord:
        """The record without these ledgers, for removing the whole stream."""
        return replace(self, ledgers=self.ledgers.without(deleted))

    @property
    def dead(self) -> Iterator[LedgerRecord]:
        """Ledgers that no node needs any more and some may still have, oldest first."""
        found = self.ledgers.starting_before(max(self.kept_from, self.cold.local_from))
        return (ledger for ledger in found if self.is_dead(ledger))

    def is_dead(self, ledger: LedgerRecord) -> bool:
        """Whether no node needs it any longer. It stays listed until no node has it, so that it is not forgotten there.

        A ledger that is being written as a segment is always needed.
        """
        plan = self.cold.planned
        if plan is not None and ledger.first <= plan.last and plan.first <= ledger.last:
            return False
        return ledger.phase is Phase.SEALED and ledger.last < max(ledger.first, self.kept_from, self.cold.local_from)

    def truncated(self, epoch: Epoch, before: int) -> StreamRecord:
        """The record after deleting messages below `before`; a ledger that also has later ones stays for now."""
        self.check_owner(epoch)
        return self._kept_from(max(self.kept_from, before))

    def _kept_from(self, offset: int) -> StreamRecord:
        """Drops lost ranges below it as well, because nothing is read there any longer."""
        lost = tuple(each for each in self.lost if each.last >= offset)
        return replace(self, kept_from=offset, lost=lost)

    @property
    def first(self) -> int:
        """The first offset that still exists, or the next one if there is none."""
        needed = self.ledgers.reaching(max(self.kept_from, self.cold.local_from))
        starts = [entry.first for entry in self.cold.entries[:1]]
        starts.append(next((ledger.first for ledger in needed if not self.is_dead(ledger)), self.next_offset))
        return max(self.kept_from, min(starts))

    def sealed_parts(self, start: int = 0) -> Iterator[SealedPart]:
        """All segments and sealed ledgers that still exist, oldest first; what is in both counts once.

        Only those that end at `start` or after it.
        """
        start = max(start, self.kept_from)
        for each in self.cold.entries:
            if each.last >= start:
                yield SealedPart(each.first, each.last, each.bytes, each.newest, self.corrections)
        for ledger in self.ledgers.reaching(max(start, self.cold.end, self.cold.local_from)):
            if ledger.phase is Phase.SEALED and not ledger.empty:
                yield SealedPart(ledger.first, ledger.last, ledger.bytes, ledger.newest, self.corrections)

    @property
    def bytes(self) -> int:
        """The bytes of all sealed parts, without going through them."""
        kept, cold = self.kept_from, self.cold
        stored = sum([each.bytes for each in cold.entries if each.last >= kept])
        return stored + self.ledgers.bytes_reaching(max(kept, cold.end, cold.local_from))

    def ledger_at(self, offset: int) -> LedgerRecord:
        """The ledger that contains `offset`, or the next one if the offset lies in a gap that was never used."""
        for ledger in self.ledgers.reaching(offset):
            if not self.is_dead(ledger):
                return ledger
        raise EntryMissing(f"the stream has nothing at or after offset {offset}")

    # -- damage --------------------------------------------------------------------------------------------------------

    def given_up(self, epoch: Epoch, lost: Collection[LostRange]) -> StreamRecord:
        """The record with these ranges accepted as lost for good."""
        self.check_owner(epoch)
        merged: list[LostRange] = []
        for each in sorted({*self.lost, *(each for each in lost if each.last >= self.kept_from)}):
            before = merged[-1] if merged else None
            if before is not None and before.known == each.known and each.first <= before.last + 1:
                merged[-1] = replace(before, last=max(before.last, each.last))
            else:
                merged.append(each)
        if len(merged) > LOST_RANGES_MAX:
            raise LimitReached(f"{len(merged)} damaged ranges; one topic can give up at most {LOST_RANGES_MAX}")
        return replace(self, lost=tuple(merged))

    def without_node(self, name: str, node: NodeIdentity) -> StreamRecord:
        """The record without the ledgers that only this node had, which is gone for good; unchanged if there are none.

        It is unknown where the ledger being written ended, so offsets continue after all that it can have used.
        """
        gone = [ledger for ledger in self.ledgers if ledger.nodes == (node,)]
        if not gone:
            return self
        end = self.next_offset
        if self.unsealed in gone:
            end = max(end, gone[-1].first) + OFFSETS_OF_A_LEDGER_MAX
        cold = self.cold if self.cold.planned is None else self.cold.given_up(name)
        left = replace(self, ledgers=self.ledgers.without([ledger.id for ledger in gone]), next_offset=end, cold=cold)
        if not cold.entries:
            return left._kept_from(end)
        first = max(gone[0].first, cold.end, self.kept_from)
        return left.given_up(left.owner, [LostRange(first, end - 1, known=False)]) if first < end else left

    def past_lost(self, offset: int) -> int:
        """The offset itself, or the first one after the range accepted as lost there."""
        for each in self.lost[max(0, bisect_right(self.lost, offset, key=lambda lost: lost.first) - 1) :]:
            if not each.first <= offset <= each.last:
                break
            offset = each.last + 1
        return offset

    # -- object storage ------------------------------------------------------------------------------------------------

    def plan_segment(self, epoch: Epoch, last: int) -> StreamRecord:
        """Plans a segment of everything up to `last` that has none yet. The plan also binds the next owner."""
        self.check_owner(epoch)
        assert self.cold.planned is None
        first = next((ledger.first for ledger in self.waiting if ledger.last <= last), None)
        assert first is not None
        assert self.ledgers.end_before(last + 1) == last + 1
        first = max(first, self.cold.end, self.kept_from)
        return self.with_cold(epoch, replace(self.cold, planned=SegmentPlan(first, last, epoch)))

    def replanned(self, epoch: Epoch, stream: str, last: int) -> StreamRecord:
        """The plan ends at `last` now, which is the end of a batch or of a ledger.

        It ends earlier if there was too much for one segment, or less than planned; later if it contained no messages.
        """
        plan = self.cold.planned
        assert plan is not None
        assert plan.first <= last != plan.last
        return self.with_cold(epoch, replace(self.cold.given_up(stream), planned=SegmentPlan(plan.first, last, epoch)))

    @property
    def waiting(self) -> Iterator[LedgerRecord]:
        """The sealed ledgers that are in no segment and in no plan yet, oldest first."""
        plan = self.cold.planned
        end = max(self.cold.end, self.kept_from, 0 if plan is None else plan.last + 1)
        return (ledger for ledger in self.ledgers.reaching(end) if ledger.phase is Phase.SEALED and not ledger.empty)

    def published(self, epoch: Epoch, segment: Segment) -> StreamRecord:
        """The object exists and was read back: readers may use it."""
        return self.with_cold(epoch, self.cold.published(segment))

    def with_cold(self, epoch: Epoch, cold: Cold) -> StreamRecord:
        self.check_owner(epoch)
        return replace(self, cold=cold)

    def _with_last(self, ledger: LedgerRecord) -> StreamRecord:
        return replace(self, ledgers=self.ledgers.with_last(ledger))


def new_ledger(
    id: LedgerId, epoch: Epoch, first: int, nodes: tuple[NodeIdentity, ...], copies: Copies, durability: Durability
) -> LedgerRecord:
    return LedgerRecord(id, epoch, Phase.OPEN, first, NO_OFFSET, nodes, copies, durability)
