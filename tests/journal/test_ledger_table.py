"""Decide, log, replay: deciding changes nothing, and replaying the records gives the same table, from any start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import (
    DanubeError,
    EntryConflict,
    LedgerDamaged,
    LedgerExists,
    LedgerFenced,
    LedgerNotFound,
)
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId
from pydanube.base.limits import OFFSET_MAX
from pydanube.journal.group import EntryKind
from pydanube.journal.ledger_table import (
    BUFFERED,
    FENCED,
    FSYNC,
    NOTHING_REFUSED,
    OPEN,
    SEALED,
    Control,
    Ledger,
    LedgerTable,
    checkpoint_ok,
)

LEDGER = LedgerId(7)
Facts = dict[int, tuple[object, ...]]


def facts(table: LedgerTable) -> Facts:
    """All that is remembered of each ledger across a restart."""
    return {
        ledger.id: (
            ledger.epoch,
            ledger.durability,
            ledger.state,
            ledger.fence,
            ledger.sealed,
            ledger.reserved,
            ledger.homes,
            ledger.lost_through,
            ledger.unsure,
            ledger.quarantined,
        )
        for ledger in table
    }


def replayed(records: list[Control], start: bytes = b"") -> LedgerTable:
    table = LedgerTable()
    table.load_checkpoint(start)
    for record in records:
        table.replay(record)
    return table


ledgers = st.integers(1, 4).map(LedgerId)
epochs = st.integers(1, 5).map(Epoch)
Step = Callable[[LedgerTable], list[Control]]


def of_known(table: LedgerTable, record: Control) -> list[Control]:
    """Nobody logs this of a ledger that is not there."""
    return [] if table.find(record.ledger) is None else [record]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    ledger, epoch = draw(ledgers), draw(epochs)
    number = draw(st.integers(0, 9))
    return draw(
        st.sampled_from(
            [
                lambda table: table.decide_create(ledger, epoch, number % 2),
                lambda table: table.decide_fence(ledger, epoch),
                lambda table: table.decide_seal(ledger, epoch, number),
                lambda table: table.decide_delete(ledger),
                lambda table: of_known(table, Control(EntryKind.RESERVE, ledger, number)),
                lambda table: of_known(table, Control(EntryKind.KEPT, ledger, number)),
                lambda table: of_known(table, Control(EntryKind.QUARANTINE, ledger, number % 2)),
                lambda table: of_known(table, Control(EntryKind.DAMAGED, ledger)),
            ]
        )
    )


def run(decisions: list[Step]) -> tuple[LedgerTable, list[Control], list[bytes]]:
    """The table, the records that made it, and its checkpoint before each of them."""
    table, log, checkpoints = LedgerTable(), [], []
    for decide in decisions:
        before = facts(table)
        try:
            records = decide(table)
        except DanubeError:
            records = []
        assert facts(table) == before, "deciding only reads"
        for record in records:
            checkpoints.append(table.checkpoint())
            table.replay(record)
            log.append(record)
    return table, log, [*checkpoints, table.checkpoint()]


@given(st.lists(steps(), max_size=40))
@settings(max_examples=200)
def test_a_restart_is_a_replay_of_the_same_records(decisions: list[Step]) -> None:
    table, log, _ = run(decisions)
    assert facts(replayed(log)) == facts(table)


@given(st.lists(steps(), max_size=40), st.data())
@settings(max_examples=200)
def test_any_checkpoint_and_the_records_since_give_the_same_table(decisions: list[Step], draw: st.DataObject) -> None:
    """Also if some of those records are in the checkpoint already: it is taken when a record is queued, not written."""
    table, log, checkpoints = run(decisions)
    at = draw.draw(st.integers(0, len(log)))
    since = draw.draw(st.integers(0, at))
    assert checkpoint_ok(checkpoints[at])
    assert facts(replayed(log[at:], checkpoints[at])) == facts(table)
    assert facts(replayed(log[since:], checkpoints[at])) == facts(table)


@pytest.mark.parametrize("sealed_first", [False, True])
def test_that_nobody_can_tell_what_was_lost_is_known_after_any_number_of_restarts(sealed_first: bool) -> None:
    fence, seal, damaged = (
        Control(EntryKind.FENCE, LEDGER, 2),
        Control(EntryKind.SEAL, LEDGER, 5, 2),
        Control(EntryKind.DAMAGED, LEDGER),
    )
    table = replayed([fence, seal, damaged] if sealed_first else [fence, damaged, seal])
    for _ in range(3):
        assert table.get(LEDGER).lost_through == 5
        table = replayed([], table.checkpoint())


@given(st.lists(steps(), max_size=40))
def test_what_was_decided_is_never_undone(decisions: list[Step]) -> None:
    """A seal stays where it is, a fence never falls, a closed ledger never opens, until the ledger is deleted."""
    table, previous = LedgerTable(), {}
    for decide in decisions:
        try:
            records = decide(table)
        except DanubeError:
            continue
        for record in records:
            table.replay(record)
            now = {ledger.id: (ledger.state, ledger.fence, ledger.sealed, ledger.reserved) for ledger in table}
            for ledger, (state, fence, sealed, reserved) in previous.items():
                if ledger in now:
                    assert now[ledger][0] >= state
                    assert now[ledger][1] >= fence
                    assert now[ledger][3] >= reserved
                    assert state != SEALED or now[ledger][2] == sealed
            previous = now


@given(st.lists(steps(), max_size=30), ledgers, epochs)
def test_a_ledger_admits_its_maker_or_its_newest_fencer_and_nobody_else(
    decisions: list[Step], ledger: LedgerId, epoch: Epoch
) -> None:
    table, _, _ = run(decisions)
    found = table.find(ledger)
    if found is None:
        return
    allowed = {OPEN: found.epoch, FENCED: found.fence}.get(found.state)
    whole = found.state != OPEN or not found.incomplete
    assert found.admits(epoch) == (epoch == allowed and whole)
    found.close()
    assert not found.admits(found.epoch) or found.fence == found.epoch


def made(*records: Control) -> LedgerTable:
    return replayed([Control(EntryKind.CREATE, LEDGER, 3, FSYNC), *records])


@pytest.mark.parametrize(
    ("table", "decide", "error"),
    [
        (made(), lambda table: table.decide_create(LEDGER, Epoch(4), FSYNC), LedgerExists),
        (made(), lambda table: table.decide_create(LEDGER, Epoch(3), BUFFERED), LedgerExists),
        (made(), lambda table: table.decide_create(LEDGER, Epoch(2), FSYNC), LedgerFenced),
        (made(), lambda table: table.decide_fence(LEDGER, Epoch(3)), LedgerFenced),
        (made(Control(EntryKind.FENCE, LEDGER, 5)), lambda table: table.decide_fence(LEDGER, Epoch(4)), LedgerFenced),
        (made(Control(EntryKind.FENCE, LEDGER, 5)), lambda table: table.decide_seal(LEDGER, Epoch(3), 0), LedgerFenced),
        (
            made(Control(EntryKind.SEAL, LEDGER, 1, 3)),
            lambda table: table.decide_seal(LEDGER, Epoch(3), 2),
            EntryConflict,
        ),
        (made(Control(EntryKind.DELETE, LEDGER)), lambda table: table.decide_seal(LEDGER, Epoch(3), 2), LedgerNotFound),
        (made(), lambda table: table.get(LedgerId(8)), LedgerNotFound),
    ],
)
def test_a_decision_that_cannot_be_taken_says_why(
    table: LedgerTable, decide: Callable[[LedgerTable], object], error: type[DanubeError]
) -> None:
    with pytest.raises(error):
        decide(table)


def test_a_table_that_forgot_something_denies_nothing() -> None:
    table = made()
    table.forgetful = True
    with pytest.raises(LedgerDamaged):
        table.get(LedgerId(8))
    records = table.decide_fence(LedgerId(8), Epoch(9))
    assert records == [Control(EntryKind.FENCE, LedgerId(8), 9), Control(EntryKind.DAMAGED, LedgerId(8))]
    for record in records:
        table.replay(record)
    assert table.get(LedgerId(8)).may_have_lost(OFFSET_MAX)
    assert not table.get(LEDGER).may_have_lost(0)


def test_a_table_that_forgot_something_takes_only_ledgers_that_were_made_since() -> None:
    """A fence may be among what it forgot: were the ledger made here now, its old writer could go on."""
    table = made()
    table.forgetful = True
    with pytest.raises(LedgerDamaged):
        table.decide_create(LedgerId(8), Epoch(9), FSYNC)
    table.born_later = LedgerId(9)
    with pytest.raises(LedgerDamaged):
        table.decide_create(LedgerId(8), Epoch(9), FSYNC)
    assert table.decide_create(LedgerId(9), Epoch(9), FSYNC) == [Control(EntryKind.CREATE, LedgerId(9), 9, FSYNC)]
    assert table.decide_fence(LedgerId(10), Epoch(9)) == [Control(EntryKind.FENCE, LedgerId(10), 9)]
    with pytest.raises(LedgerNotFound):
        table.get(LedgerId(11))


def test_a_restart_closes_what_was_open_and_nothing_else() -> None:
    table = replayed(
        [
            Control(EntryKind.CREATE, LedgerId(1), 3, FSYNC),
            Control(EntryKind.CREATE, LedgerId(2), 3, FSYNC),
            Control(EntryKind.FENCE, LedgerId(2), 5),
            Control(EntryKind.CREATE, LedgerId(3), 3, FSYNC),
            Control(EntryKind.SEAL, LedgerId(3), 9, 3),
        ]
    )
    table.close_all()
    states = {ledger.id: (ledger.state, ledger.fence, ledger.sealed) for ledger in table}
    assert states == {1: (FENCED, 0, NO_OFFSET), 2: (FENCED, 5, NO_OFFSET), 3: (SEALED, 0, 9)}
    again = LedgerTable()
    again.load_checkpoint(table.checkpoint())
    assert facts(again) == facts(table)


def test_a_checkpoint_of_another_length_is_not_one() -> None:
    body = made().checkpoint()
    assert checkpoint_ok(body)
    assert len(body) == made().checkpoint_bytes
    assert not any(checkpoint_ok(body[:length]) for length in range(1, len(body)))


# -- one ledger --------------------------------------------------------------------------------------------------------


def test_extents_tell_which_files_may_hold_an_offset() -> None:
    ledger = Ledger(LEDGER, Epoch(1), FSYNC)
    ledger.add_extent(1, 0, 9, 100)
    ledger.add_extent(2, 5, 19, 50)
    ledger.add_extent(4, 30, 39, 7)
    assert [ledger.files_at(offset, offset) for offset in (0, 5, 10, 25, 35)] == [[1], [2, 1], [2], [], [4]]
    assert ledger.files_at(0, 100) == [4, 2, 1]
    assert (ledger.queued, ledger.held) == (39, 39)
    assert list(ledger.files()) == [(4, 7), (2, 50), (1, 100)]
    ledger.drop_extents({1, 4})
    assert list(ledger.files()) == [(2, 50)]


def test_a_busy_ledger_waits_for_the_very_entry_it_refused() -> None:
    ledger = Ledger(LEDGER, Epoch(1), FSYNC)
    assert ledger.takes(0, room=True)
    assert not ledger.takes(1, room=False)
    assert not ledger.takes(2, room=True)
    assert not ledger.takes(1, room=False)
    assert ledger.takes(1, room=True)
    assert ledger.takes(2, room=True)
    assert ledger.refused == NOTHING_REFUSED


def test_a_ledger_on_a_disk_that_is_away_admits_nobody_and_does_not_remember_it() -> None:
    table = made()
    ledger = table.get(LEDGER)
    ledger.away = True
    assert ledger.incomplete
    assert not ledger.admits(Epoch(3))
    again = LedgerTable()
    again.load_checkpoint(table.checkpoint())
    assert not again.get(LEDGER).incomplete
