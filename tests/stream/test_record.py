"""The record of a stream: one owner, ledgers in offset order, all but the last sealed. Whatever happens to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pydanube.base.durability import Durability
from pydanube.base.errors import EntryMissing, OwnershipLost
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import OFFSETS_OF_A_LEDGER_MAX
from pydanube.stream.cold import Cold
from pydanube.stream.record import Copies, LedgerRecord, LostRange, Phase, StreamRecord, new_ledger
from pydanube.stream.segments import Segment

NODES = (NodeIdentity("a" * 32),)
FIRST = LedgerId(1)


def ledger(number: int, epoch: Epoch, first: int) -> LedgerRecord:
    return new_ledger(LedgerId(number), epoch, first, NODES, Copies(), Durability.FSYNC)


class Stream(RuleBasedStateMachine):
    """Owners take over, open, recover, seal and trim, in any order that the record allows."""

    @initialize()
    def begin(self) -> None:
        self.record = StreamRecord()
        self.ids = 0
        self.used: list[tuple[int, int]] = []  # offset ranges of ledgers that were ever sealed
        self.end = NO_OFFSET  # the highest that was ever told

    @rule(later=st.integers(1, 3))
    def take_over(self, later: int) -> None:
        before = self.record
        self.record = before.owned_by(Epoch(before.owner + later))
        assert self.record.owner == before.owner + later
        assert (self.record.ledgers, self.record.next_offset) == (before.ledgers, before.next_offset)
        for stale in (before.owner, Epoch(self.record.owner + 1)):
            with pytest.raises(OwnershipLost):
                self.record.trimmed(stale, 0)

    @precondition(lambda self: self.record.owner > 0 and self.record.unsealed is None)
    @rule(gap=st.integers(0, 3))
    def open(self, gap: int) -> None:
        self.ids += 1
        made = ledger(self.ids, self.record.owner, self.record.next_offset + gap)
        self.record = self.record.opened(self.record.owner, made)
        assert self.record.unsealed == made

    @precondition(lambda self: self.record.unsealed is not None and self.record.owner > self.record.unsealed.epoch)
    @rule()
    def recover(self) -> None:
        self.record = self.record.recovering(self.record.owner)
        unsealed = self.record.unsealed
        assert unsealed is not None
        assert (unsealed.phase, unsealed.epoch) == (Phase.RECOVERING, self.record.owner)

    @precondition(lambda self: self.record.unsealed is not None)
    @rule(count=st.integers(0, 5), reserved=st.integers(0, 4))
    def seal(self, count: int, reserved: int) -> None:
        unsealed = self.record.unsealed
        assert unsealed is not None
        last = unsealed.first + count - 1
        self.record = self.record.sealed(self.record.owner, unsealed.id, last, last + 1 + reserved)
        if count:
            self.used.append((unsealed.first, last))
            assert self.record.end == last
        else:
            assert self.record.is_dead(self.record.ledgers[-1]), "an empty ledger is listed until no node has it"

    @precondition(lambda self: self.record.owner > 0)
    @rule(before=st.integers(0, 60))
    def trim(self, before: int) -> None:
        first = self.record.first
        trimmed = self.record.trimmed(self.record.owner, before)
        assert trimmed.ledgers == self.record.ledgers, "they are listed until no node has them"
        for each in trimmed.ledgers:
            if each.phase is Phase.SEALED and each.last < before:
                assert trimmed.is_dead(each)
            else:
                assert trimmed.is_dead(each) == self.record.is_dead(each)
        assert trimmed.first >= first
        self.record = trimmed

    @precondition(lambda self: self.record.owner > 0)
    @rule(draw=st.data())
    def sweep(self, draw: st.DataObject) -> None:
        dead = [each.id for each in self.record.ledgers if self.record.is_dead(each)]
        deleted = draw.draw(st.lists(st.sampled_from(dead), unique=True)) if dead else []
        before = self.record
        self.record = before.swept(before.owner, deleted)
        assert [each.id for each in self.record.ledgers] == [i.id for i in before.ledgers if i.id not in deleted]
        assert self.record.first == before.first

    @invariant()
    def ledgers_are_in_order_and_no_offset_is_used_twice(self) -> None:
        previous = NO_OFFSET
        for each in self.record.ledgers:
            assert each.first > previous
            if each.phase is Phase.SEALED:
                assert each.last >= each.first or self.record.is_dead(each)
                previous = each.last
        assert [each for each in self.record.ledgers[:-1] if each.phase is not Phase.SEALED] == []
        assert self.record.next_offset > self.record.end
        for (_, last), (first, _) in zip(self.used, self.used[1:], strict=False):
            assert last < first

    @invariant()
    def the_end_never_falls(self) -> None:
        """Whoever was told that an offset is confirmed holds on to it: cursors, producers, readers."""
        assert self.record.end >= self.end
        self.end = self.record.end

    @invariant()
    def every_offset_leads_to_its_ledger_or_to_the_next(self) -> None:
        for offset in range(self.record.next_offset + 3):
            alive = [each for each in self.record.ledgers if not self.record.is_dead(each)]
            later = [each for each in alive if each.phase is not Phase.SEALED or offset <= each.last]
            if later:
                assert self.record.ledger_at(offset) == later[0]
            else:
                with pytest.raises(EntryMissing):
                    self.record.ledger_at(offset)


TestStream = Stream.TestCase
TestStream.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def opened() -> StreamRecord:
    record = StreamRecord().owned_by(Epoch(1))
    return record.opened(record.owner, ledger(1, record.owner, 0))


@given(st.integers(0, 4).filter(lambda epoch: epoch != 1))
def test_only_the_owner_decides(stranger: int) -> None:
    record, epoch = opened(), Epoch(stranger)
    sealed = record.sealed(record.owner, FIRST, 4, 5)
    for decide in (
        lambda: record.recovering(epoch),
        lambda: record.sealed(epoch, FIRST, 4, 5),
        lambda: record.trimmed(epoch, 100),
        lambda: record.swept(epoch, ()),
        lambda: sealed.opened(epoch, ledger(2, epoch, 5)),
    ):
        with pytest.raises(OwnershipLost):
            decide()


@pytest.mark.parametrize(
    "decide",
    [
        lambda record: record.opened(record.owner, ledger(2, record.owner, 0)),  # one is open already
        lambda record: record.recovering(record.owner),  # its own, while it writes it
        lambda record: record.sealed(record.owner, FIRST, -2, 0),  # before it began
        lambda record: record.sealed(record.owner, FIRST, 4, 4),  # the next would use offset 4 again
        lambda record: record.sealed(record.owner, LedgerId(2), 4, 5),  # another ledger
        lambda record: record.sealed(record.owner, FIRST, 4, 5).opened(record.owner, ledger(2, record.owner, 4)),
        lambda record: record.sealed(record.owner, FIRST, 4, 5).opened(record.owner, ledger(2, Epoch(9), 5)),
        lambda record: record.sealed(record.owner, FIRST, 4, 5).sealed(
            record.owner, FIRST, 4, 5
        ),  # nothing is left to seal
    ],
)
def test_a_transition_that_would_break_the_record_is_a_bug_of_ours(decide: object) -> None:
    with pytest.raises(AssertionError):
        decide(opened())  # type: ignore[operator]


def test_the_end_stays_when_a_later_ledger_is_deleted_before_an_earlier_one() -> None:
    record = opened().sealed(Epoch(1), FIRST, 9, 10)
    record = record.opened(Epoch(1), ledger(2, Epoch(1), 10)).sealed(Epoch(1), LedgerId(2), 19, 20)
    record = record.trimmed(Epoch(1), 20).swept(Epoch(1), [LedgerId(2)])
    assert [each.id for each in record.ledgers] == [FIRST]  # a node of it did not answer
    assert (record.end, record.first) == (19, 20)


def test_the_end_stays_when_a_ledger_goes_before_the_segments_that_precede_it() -> None:
    segment = Segment(0, 9, Epoch(1), 10, 1, 1, "c", "d", 1, 1, (0,))
    record = opened().sealed(Epoch(1), FIRST, 9, 10)
    record = record.opened(Epoch(1), ledger(2, Epoch(1), 10)).sealed(Epoch(1), LedgerId(2), 19, 20)
    record = record.with_cold(Epoch(1), Cold(entries=(segment,), local_from=10)).swept(Epoch(1), [FIRST])
    record = record.trimmed(Epoch(1), 20).swept(Epoch(1), [LedgerId(2)])
    assert (record.end, record.first) == (19, 20)


def test_what_was_given_up_is_forgotten_when_nothing_below_is_kept() -> None:
    """Else a topic that lives long would run into the limit of its ranges."""
    record = opened().given_up(Epoch(1), [LostRange(1, 1), LostRange(3, 5), LostRange(8, 8, known=False)])
    assert record.truncated(Epoch(1), 4).lost == (LostRange(3, 5), LostRange(8, 8, known=False))
    passed = record.truncated(Epoch(1), 9)
    assert passed.lost == ()
    assert passed.given_up(Epoch(1), [LostRange(2, 2), LostRange(9, 9)]).lost == (LostRange(9, 9),)


def test_without_its_node_a_stream_goes_on_behind_every_offset_that_was_given() -> None:
    record = opened().sealed(Epoch(1), FIRST, 9, 10, bytes=100, newest=1)
    assert record.without_node("t", NodeIdentity("b" * 32)) is record
    left = record.without_node("t", NODES[0])
    assert (list(left.ledgers), left.first, left.end, left.next_offset) == ([], 10, 9, 10)
    writing = record.opened(Epoch(1), ledger(2, Epoch(1), 10)).without_node("t", NODES[0])
    assert writing.next_offset == writing.first == writing.end + 1 == 10 + OFFSETS_OF_A_LEDGER_MAX


def test_without_its_node_a_stream_has_what_lies_in_object_storage_and_passes_over_the_rest() -> None:
    record = opened().sealed(Epoch(1), FIRST, 9, 10, bytes=100, newest=1)
    record = record.opened(Epoch(1), ledger(2, Epoch(1), 10)).sealed(Epoch(1), LedgerId(2), 14, 15, bytes=50, newest=2)
    stored = record.with_cold(Epoch(1), Cold(entries=(Segment(0, 9, Epoch(1), 10, 100, 50, "c", "d", 1, 1, (0,)),)))
    left = stored.without_node("t", NODES[0])
    assert (left.first, left.end, left.past_lost(9), left.past_lost(10)) == (0, 14, 9, 15)


def test_a_ledger_that_ends_empty_has_no_bytes() -> None:
    record = opened().sealed(Epoch(1), FIRST, -1, 0, bytes=100)
    assert record.bytes == 0
    assert record.swept(Epoch(1), [FIRST]).bytes == 0


def test_a_reserved_mark_moves_the_next_ledger_and_never_back() -> None:
    record = opened().sealed(Epoch(1), FIRST, 4, 1000)
    assert record.next_offset == 1000
    record = record.opened(Epoch(1), ledger(2, Epoch(1), 1000)).sealed(Epoch(1), LedgerId(2), 999, 1000)
    assert (record.next_offset, [each.id for each in record.ledgers if not record.is_dead(each)]) == (1000, [1])
