"""The simulator finds the bugs it is meant to find: each guard of the product is turned off, and seeds must fail."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Collection, Iterator, Sequence

import pytest

from pydanube.base.errors import DanubeError, NodeBusy
from pydanube.base.limits import OFFSET_MAX
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.producer_sessions import Sessions
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.keys import KeyState
from pydanube.journal import ledger_table as table
from pydanube.journal.ledger_table import Ledger
from pydanube.ports.catalog import RecordChange
from pydanube.ports.disk import Disk
from pydanube.sim.run import Outcome, run_seed
from pydanube.storage import local
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.node import node_file
from pydanube.storage.node.journal import ActiveFile, Journal, Pending
from pydanube.storage.node.keeper import Keeper
from pydanube.storage.node.node_file import read_node_file
from pydanube.storage.stream import recovery, writer
from pydanube.storage.stream.answers import Answers
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.storage.stream.managed import ManagedLedger
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Held
from pydanube.stream.record import Copies, Phase, StreamRecord
from pydanube.topic.cursor import Range
from pydanube.topic.dedup import FRESH, Fresh, ProducerTable
from pydanube.topic.records import (
    Cause,
    CursorChunks,
    ProducerState,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    SubscriptionState,
)
from pydanube.topic.state import TopicState
from pydanube.wire.batch import Batch

pytestmark = pytest.mark.timeout(1200)  # exhaustive: minutes on a busy machine

SEEDS = 200
OF_SNAPSHOTS = (SnapshotBegin, SubscriptionState, CursorChunks, ProducerState, SnapshotEnd)
LOST = {"I1", "I2"}  # acknowledged but lost, or another payload at the same offset


def first_violation(profile: str, *promises: str, first: int = 0) -> Outcome:
    """The first of 200 seeds that breaks one of these promises; without any, a promise about data."""
    for seed in range(first, first + SEEDS):
        outcome = run_seed(seed, profile)
        if (set(promises) or LOST) & {violation.promise for violation in outcome.violations}:
            return outcome
    pytest.fail(f"{SEEDS} seeds of profile {profile} found nothing")


def test_acknowledging_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Journal, group: Pending) -> bool:
        return False

    monkeypatch.setattr(Journal, "_must_sync", never)
    first_violation("power")


def test_a_writer_that_nobody_fences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybody(self: Ledger, epoch: int) -> bool:
        return self.state != table.SEALED

    monkeypatch.setattr(Ledger, "admits", anybody)
    first_violation("owners")


def test_an_owner_that_does_not_look_at_its_assignment_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has lost the topic, it continues from the record that its successor has stored."""
    honest = MetadataCatalog.store

    async def unchecked(self: MetadataCatalog, changes: Sequence[RecordChange], held: Held | None) -> int:
        return await honest(self, changes, None)

    async def trusting(self: Tenure) -> None:
        self.epoch = (await self.catalog.assignment(self.topic))[1]

    monkeypatch.setattr(MetadataCatalog, "store", unchecked)
    monkeypatch.setattr(Tenure, "confirm", trusting)
    first_violation("owners", "I1", "I2", "I5", "I8")


def test_removing_a_file_before_its_copy_is_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Keeper, disk: Disk, active: ActiveFile) -> None:
        await disk.rename(active.file.name + ".tmp", active.file.name)

    monkeypatch.setattr(Keeper, "_seal_copy", hasty)
    first_violation("power")


def test_acknowledging_below_the_ack_quorum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_is_enough(acks: int, copies: Copies) -> bool:
        return acks >= 1

    monkeypatch.setattr(writer, "acknowledged", one_is_enough)
    first_violation("power")


def test_taking_silence_for_absence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery does not wait: a node that is down, cut off, damaged or wiped counts as one without the entry."""

    def always(error: DanubeError, *, fenced: bool) -> bool:
        return True

    def any_will_do(nodes: object, fenced: Collection[object], copies: Copies) -> bool:
        return bool(fenced)

    def one_is_enough(absences: int, copies: Copies) -> bool:
        return absences >= 1

    monkeypatch.setattr(recovery, "counts_as_absence", always)
    monkeypatch.setattr(recovery, "fenced_enough", any_will_do)
    monkeypatch.setattr(recovery, "proves_absence", one_is_enough)
    first_violation("partition")


def test_a_busy_node_that_ends_a_ledger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(self: writer.LedgerWriter) -> None:
        self._fail(NodeBusy("too many bytes are waiting for the journal"))

    monkeypatch.setattr(writer.LedgerWriter, "_wait_out", give_up)
    first_violation("busy", "I8")


def test_a_recovery_that_waits_for_every_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_of_them(self: Answers[object], enough: object) -> None:
        while await self.one_more():
            pass

    monkeypatch.setattr(Answers, "until", all_of_them)
    first_violation("silent", "I8")


def test_a_new_directory_that_is_not_synced_in_its_parent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(disk: Disk, owner: str, *, locked: bool) -> None:
        await disk.make()
        if not locked:
            await disk.lock(owner)

    monkeypatch.setattr(node_file, "settle_directory", hasty)
    first_violation("power", "I1", "I8")  # a node with a new identity cannot prove anything, so its streams wait


def test_a_start_that_does_not_check_for_missing_files_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def anything(known: object, for_metadata: Disk, for_node: Disk) -> int:
        found = await read_node_file(for_node)
        return 0 if found is None else found.boots

    monkeypatch.setattr(local, "_refuse_if_missing", anything)
    first_violation("mounts")


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_topic_without_dedup_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def anything(self: ProducerTable, producer: int, epoch: int, first_sequence: int, count: int) -> Fresh:
        return FRESH

    monkeypatch.setattr(ProducerTable, "decide", anything)
    first_violation("producers", "I11")


def test_deleting_without_regard_to_the_cursors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: TopicState) -> int:
        return OFFSET_MAX

    monkeypatch.setattr(TopicState, "deletable_before", everything)
    first_violation("seek", "I1")


def test_a_key_that_moves_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The present owner gets the next message, although another consumer holds earlier ones."""

    def always(self: KeyShared, state: KeyState) -> bool:
        return True

    monkeypatch.setattr(KeyShared, "_is_free", always)
    first_violation("churn", "I3")


def test_an_ack_from_before_a_seek_that_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SubscriptionHost.ack

    def careless(self: SubscriptionHost, generation: int, ranges: Sequence[Range], *cause: Cause) -> Future[None]:
        return honest(self, self.known.cursor.generation, ranges, *cause)

    monkeypatch.setattr(SubscriptionHost, "ack", careless)
    first_violation("seek", "I4")


def test_delivering_what_is_not_confirmed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers see messages that a power cut loses: the offset is empty afterwards, or has another message."""
    honest = ManagedLedger.append

    def hasty(self: ManagedLedger, batch: Batch) -> tuple[Batch, Future[None]]:
        stamped, confirmed = honest(self, batch)
        self._tail.add(stamped)
        self._changed(None)
        return stamped, confirmed

    monkeypatch.setattr(ManagedLedger, "append", hasty)
    monkeypatch.setattr(ManagedLedger, "confirmed_end", property(lambda self: self.stream.next_offset))
    first_violation("churn", "I2")


def test_an_ack_timeout_that_runs_in_a_clients_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every timeout starts at delivery, as if no consumer reported what it takes."""
    monkeypatch.setattr("pydanube.broker.subscription.delivery.Consumer.is_timed", lambda consumer, options: True)
    first_violation("churn", "I4")


def test_an_end_that_falls_when_a_later_ledger_is_deleted_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_what_is_listed(self: StreamRecord) -> int:
        sealed = (each.last for each in reversed(self.ledgers) if each.phase is Phase.SEALED and not each.empty)
        return next(sealed, self.next_offset - 1)

    monkeypatch.setattr(StreamRecord, "end", property(of_what_is_listed))
    first_violation("sweep", "I2")


def test_records_amid_a_snapshot_that_count_before_it_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records between the parts of a snapshot are replayed as if they came before the snapshot."""
    honest = TopicState._replay

    def at_once(self: TopicState, record: Record) -> None:
        loading = self._loading
        if loading is None or isinstance(record, OF_SNAPSHOTS):
            return honest(self, record)
        self._loading = None
        honest(self, record)
        self._loading = loading

    monkeypatch.setattr(TopicState, "_replay", at_once)
    first_violation("state", "I4", "I8")


def test_short_lived_producers_that_are_remembered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(self: Sessions, producers: ProducerTable, now: float) -> Iterator[int]:
        return iter(())

    monkeypatch.setattr(Sessions, "take_gone", nobody)
    first_violation("state", "I9")


def test_dead_letters_that_are_published_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the state cannot be written, the message is dead-lettered again, instead of only recording it again."""

    def impatient(self: SubscriptionHost, generation: int, done: Range, cause: Cause) -> None:
        self.ack(generation, [done], cause)

    monkeypatch.setattr(SubscriptionHost, "_discard", impatient)
    first_violation("state", "I4")


def test_deleting_by_a_clock_that_has_jumped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(self: CheckedClock, since: float | None = None) -> bool:
        return bool(self.append_time())

    monkeypatch.setattr(CheckedClock, "trusted", always)
    first_violation("clock", "I4", first=37)
