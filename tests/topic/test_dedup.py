"""An idempotent producer makes no duplicate; what cannot be known is a typed error, never a silent accept."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pydanube.base.errors import (
    DanubeError,
    NameInvalid,
    OffsetUnknown,
    ProducerFenced,
    ProducerUnknown,
    SequenceGap,
    SequenceInvalid,
    SequenceOverlap,
    SequenceUnknown,
    StateInvalid,
    TooManyProducers,
)
from pydanube.base.limits import DEDUP_WINDOW_BATCHES, OFFSET_MAX, PRODUCER_IDLE_SECONDS, PRODUCERS_MAX
from pydanube.topic import dedup
from pydanube.topic.dedup import FRESH, NO_PRODUCER, Duplicate, ProducerTable, Renewal
from pydanube.topic.records import ProducerAttached, ProducersForgotten, ProducersReleased, decode, encode

WEEK = PRODUCER_IDLE_SECONDS * 1_000_000
EVERYTHING = OFFSET_MAX + 1


def attach(table: ProducerTable, name: str, now: int = 0) -> ProducerAttached:
    attached = None
    for attached in table.decide_attach(name, now):
        table.replay(attached)
    assert isinstance(attached, ProducerAttached)
    return attached


def publish(table: ProducerTable, first: int, count: int, offset: int, *, producer: int = 1, epoch: int = 1) -> None:
    assert table.decide(producer, epoch, first, count) == FRESH
    table.appended(producer, first, count, offset, 0)


def published(*batches: tuple[int, int, int]) -> ProducerTable:
    """A table with one producer, 1, and these batches of it: first sequence, count, base offset."""
    table = ProducerTable()
    attach(table, "meter")
    for first, count, offset in batches:
        publish(table, first, count, offset)
    return table


def restarted(table: ProducerTable, data_offset: int = EVERYTHING) -> ProducerTable:
    again = ProducerTable()
    again.made, again.forgotten = table.made, table.forgotten
    for state in table.snapshot(data_offset):
        read = decode(encode(state))
        assert read == state
        again.replay(state)
    return again


class TableAgainstBatches(RuleBasedStateMachine):
    """The model is the list of batches that were accepted, each with its offset, and how many of them are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ProducerTable()
        self.batches: list[tuple[int, int, int]] = []
        self.forgotten = 0
        self.end = 0

    @initialize()
    def attach(self) -> None:
        self.epoch = attach(self.table, "meter").epoch

    @property
    def expected(self) -> int:
        return self.batches[-1][0] + self.batches[-1][1] if self.batches else 0

    def right_answer(self, first: int, count: int) -> object:
        """What §13 says, from the batches alone."""
        if not self.batches or first == self.expected:
            return FRESH
        if first > self.expected or first < self.batches[0][0]:
            return SequenceOverlap if first < self.batches[0][0] and first + count > self.expected else SequenceGap
        remembered = self.batches[self.forgotten :]
        for known, size, offset in remembered:
            if known <= first and first + count <= known + size:
                return Duplicate(offset + first - known)
        oldest = remembered[0][0] if remembered else self.expected
        return OffsetUnknown if first + count <= oldest else SequenceOverlap

    @rule(first=st.integers(0, 40), count=st.integers(1, 4), gap=st.integers(0, 3))
    def publish(self, first: int, count: int, gap: int) -> None:
        try:
            answer: object = self.table.decide(1, self.epoch, first, count)
        except DanubeError as error:
            answer = type(error)
        assert answer == self.right_answer(first, count)
        if answer == FRESH:
            offset = self.end + gap  # others publish as well
            self.table.appended(1, first, count, offset, 0)
            self.batches.append((first, count, offset))
            self.end = offset + count
            self.forgotten = max(self.forgotten, len(self.batches) - DEDUP_WINDOW_BATCHES)

    @rule(batches=st.one_of(st.integers(1, 3), st.just(DEDUP_WINDOW_BATCHES + 2)), count=st.integers(1, 4))
    def publish_next(self, batches: int, count: int) -> None:
        for _ in range(batches):
            self.publish(self.expected, count, 1)

    @rule(back=st.one_of(st.integers(0, 5), st.integers(DEDUP_WINDOW_BATCHES - 2, DEDUP_WINDOW_BATCHES + 2)))
    def send_again(self, back: int) -> None:
        if back < len(self.batches):
            first, count, _ = self.batches[-1 - back]
            self.publish(first, count, 0)

    @rule()
    def attach_again(self) -> None:
        self.epoch = attach(self.table, "meter").epoch

    @rule(in_flight=st.integers(0, 6), lost=st.integers(0, 6), again=st.integers(0, 4))
    def crash(self, in_flight: int, lost: int, again: int) -> None:
        """After a snapshot, with some batches in flight: the last of them are lost, the rest are read again."""
        confirmed = max(0, len(self.batches) - in_flight)
        data_offset = self.batches[confirmed][2] if confirmed < len(self.batches) else self.end
        assert self.table.snapshot_ready(data_offset) == (confirmed >= self.forgotten)
        if confirmed < self.forgotten:
            return
        self.table = restarted(self.table, data_offset)
        del self.batches[max(confirmed, len(self.batches) - lost) :]
        for first, count, offset in self.batches[max(0, confirmed - again) :]:
            self.table.appended(1, first, count, offset, 0)

    @invariant()
    def it_expects_the_next_sequence(self) -> None:
        producer = self.table.get(1)
        assert producer.last_sequence == (self.expected - 1 if self.batches else None)
        assert len(producer.firsts) == len(producer.bases) == len(self.batches) - self.forgotten


TableAgainstBatches.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestTableAgainstBatches = TableAgainstBatches.TestCase


def test_a_batch_without_a_producer_is_always_fresh() -> None:
    assert ProducerTable().decide(NO_PRODUCER, 0, 0, 1) == FRESH


def test_a_batch_sent_again_gets_its_first_offset() -> None:
    table = published((0, 10, 100), (10, 5, 200))
    assert table.decide(1, 1, 0, 10) == Duplicate(100)
    assert table.decide(1, 1, 10, 5) == Duplicate(200)
    assert table.decide(1, 1, 15, 5) == FRESH
    assert table.get(1).last_sequence == 14


@pytest.mark.parametrize(
    ("first", "count", "error"),
    [
        (16, 1, SequenceGap),
        (14, 2, SequenceOverlap),  # one old, one new
        (5, 11, SequenceOverlap),
        (5, 10, SequenceOverlap),  # two batches as one
        (5, 6, SequenceOverlap),
        (9, 2, SequenceOverlap),
        (4, 1, SequenceGap),  # it started at 5: nobody published this
        (-1, 1, SequenceInvalid),
        (15, 0, SequenceInvalid),
        (OFFSET_MAX, 2, SequenceInvalid),
    ],
)
def test_only_the_next_sequence_is_accepted(first: int, count: int, error: type[DanubeError]) -> None:
    table = published((5, 5, 100), (10, 5, 200))
    with pytest.raises(error):
        table.decide(1, 1, first, count)


@pytest.mark.parametrize(("first", "count", "offset"), [(5, 4, 100), (6, 1, 101), (10, 4, 200), (13, 2, 203)])
def test_a_part_of_a_batch_sent_again_gets_its_own_offset(first: int, count: int, offset: int) -> None:
    """After a restart an application's numbers are the same, and how they are cut into batches is not."""
    assert published((5, 5, 100), (10, 5, 200)).decide(1, 1, first, count) == Duplicate(offset)


def test_a_gap_says_what_is_expected() -> None:
    with pytest.raises(SequenceGap, match="expected 5"):
        published((0, 5, 0)).decide(1, 1, 7, 1)


def test_a_duplicate_beyond_the_window_has_an_unknown_offset() -> None:
    table = published(*((at, 1, at) for at in range(DEDUP_WINDOW_BATCHES + 1)))
    with pytest.raises(OffsetUnknown):
        table.decide(1, 1, 0, 1)
    assert table.decide(1, 1, 1, 1) == Duplicate(1)


def test_attaching_again_keeps_the_sequence_and_fences_the_older_session() -> None:
    table = published((0, 5, 0))
    assert attach(table, "meter", 7) == ProducerAttached(1, "meter", 2, 7)
    assert table.get(1).last_sequence == 4
    with pytest.raises(ProducerFenced):
        table.decide(1, 1, 5, 1)
    assert table.decide(1, 2, 5, 1) == FRESH
    assert attach(table, "other") == ProducerAttached(2, "other", 1, 0)


def test_a_session_is_renewed_once_however_often_it_asks() -> None:
    table = published((0, 5, 0))
    renewal = Renewal(1, 1000)
    [record] = table.decide_attach("meter", 7, renewal=renewal)
    assert record == ProducerAttached(1, "meter", 1000, 7)
    table.replay(record)
    assert table.decide_attach("meter", 8, renewal=renewal) == []
    assert table.decide(1, 1000, 5, 1) == FRESH


@pytest.mark.parametrize("newer", [None, Renewal(2, 500)])
def test_a_renewal_never_fences_a_newer_session(newer: Renewal | None) -> None:
    table = published((0, 5, 0))
    attach(table, "meter")
    if newer is not None:
        for record in table.decide_attach("meter", 0, renewal=newer):
            table.replay(record)
    with pytest.raises(ProducerFenced):
        table.decide_attach("meter", 0, renewal=Renewal(1, 1000))


def test_a_renewal_of_a_name_that_is_not_known_attaches_it() -> None:
    assert ProducerTable().decide_attach("meter", 3, renewal=Renewal(8, 9)) == [ProducerAttached(1, "meter", 1, 3)]


@pytest.mark.parametrize(("held", "wanted"), [(0, 1), (2, 2), (3, 2), (-1, 5), (1, OFFSET_MAX + 1)])
def test_a_renewal_goes_up(held: int, wanted: int) -> None:
    with pytest.raises(SequenceInvalid):
        Renewal(held, wanted).check()


def test_a_producer_nobody_attached_is_unknown() -> None:
    with pytest.raises(ProducerUnknown):
        published().decide(2, 1, 0, 1)


def test_a_new_producer_may_start_anywhere() -> None:
    table = published()
    assert table.get(1).last_sequence is None
    assert table.decide(1, 1, 77, 3) == FRESH


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "\x7f", "\ud800"])
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(NameInvalid):
        ProducerTable().decide_attach(name, 0)


def test_a_lost_part_of_the_topic_starts_the_window_anew() -> None:
    table = published((0, 5, 0))
    table.appended(1, 9, 1, 50, 0)
    assert table.decide(1, 1, 9, 1) == Duplicate(50)
    assert table.decide(1, 1, 10, 1) == FRESH
    with pytest.raises(OffsetUnknown):
        table.decide(1, 1, 0, 5)


# -- forgetting --------------------------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> ProducerTable:
    """Four producers, as many as fit, used at 0, 10, 20, 30."""
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 4)
    monkeypatch.setattr(dedup, "PRODUCERS_FORGOTTEN_MAX", 2)
    table = ProducerTable()
    for at in range(4):
        attach(table, f"p{at}", 10 * at)
    return table


def test_a_full_table_forgets_the_longest_idle_first(full: ProducerTable) -> None:
    full.appended(1, 0, 1, 0, 40)  # so p1 and p2 are idle longest
    forgotten, attached = full.decide_attach("new", WEEK + 35)
    assert forgotten == ProducersForgotten((2, 3))
    assert attached == ProducerAttached(5, "new", 1, WEEK + 35)


def test_a_full_table_forgets_nobody_who_was_there_lately(full: ProducerTable) -> None:
    with pytest.raises(TooManyProducers):
        full.decide_attach("new", WEEK)
    assert full.decide_attach("p2", WEEK) == [ProducerAttached(3, "p2", 2, WEEK)]
    assert full.decide_attach("new", WEEK + 1)[0] == ProducersForgotten((1,))


def test_deciding_forgets_nothing_yet(full: ProducerTable) -> None:
    full.decide_attach("new", 2 * WEEK)
    assert len(full) == 4


@pytest.mark.parametrize("sequence", [0, 5])
def test_a_name_that_may_have_been_forgotten_is_not_taken_for_a_new_one(full: ProducerTable, sequence: int) -> None:
    back = attach(full, "new", 2 * WEEK)
    for table in (full, restarted(full)):
        with pytest.raises(SequenceUnknown):
            table.decide(back.producer, 1, sequence, 1)
    assert full.decide(4, 1, 5, 1) == FRESH  # it was there before anybody was forgotten


@pytest.mark.parametrize("sequence", [0, 5])
def test_a_name_that_may_have_been_forgotten_starts_if_its_user_vouches_for_it(
    full: ProducerTable, sequence: int
) -> None:
    attach(full, "new", 2 * WEEK)
    [record] = full.decide_attach("new", 2 * WEEK, fresh=True)
    full.replay(decode(encode(record)))  # type: ignore[arg-type]
    for table in (full, restarted(full)):
        assert table.decide(record.producer, 2, sequence, 1) == FRESH  # type: ignore[union-attr]


def test_a_new_name_that_is_vouched_for_at_once_starts(full: ProducerTable) -> None:
    attach(full, "new", 2 * WEEK)
    for record in full.decide_attach("newer", 3 * WEEK, fresh=True):
        full.replay(record)
    producer = full.find("newer")
    assert producer is not None
    assert full.decide(producer.id, 1, 3, 1) == FRESH


def test_ids_are_never_used_again(full: ProducerTable) -> None:
    for table in (full, restarted(full)):
        table.replay(ProducersForgotten((4,)))
        assert attach(table, "p3", 0).producer == 5


def test_batches_of_a_forgotten_producer_count_no_more(full: ProducerTable) -> None:
    full.replay(ProducersForgotten((1,)))
    full.appended(1, 0, 1, 0, 0)
    with pytest.raises(ProducerUnknown):
        full.decide(1, 1, 1, 1)


def test_records_that_contradict_the_table_are_refused() -> None:
    table = published()
    with pytest.raises(StateInvalid):
        table.replay(ProducerAttached(2, "meter", 2, 0))
    with pytest.raises(StateInvalid):
        table.replay(ProducerAttached(1, "meter", 1, 0))
    with pytest.raises(StateInvalid):
        table.replay(ProducerAttached(1, "other", 1, 0))
    with pytest.raises(StateInvalid):
        table.replay(ProducersForgotten((9,)))


def test_as_many_producers_as_the_limit_says() -> None:
    table = ProducerTable()
    for at in range(PRODUCERS_MAX):
        attach(table, f"p{at}")
    with pytest.raises(TooManyProducers):
        attach(table, "one more")


DAY = 24 * 3600 * 1_000_000


def crowded(monkeypatch: pytest.MonkeyPatch, *, temporary: bool) -> ProducerTable:
    """A table without room: producers 1 to 4, attached one after the other."""
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 4)
    table = ProducerTable()
    for number in range(4):
        for record in table.decide_attach(f"p{number}", number, temporary=temporary, fresh=True):
            table.replay(record)
    return table


def test_producers_without_a_name_of_their_own_make_room_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    table = crowded(monkeypatch, temporary=True)
    released, attached = table.decide_attach("p9", 10, temporary=True, held=(1, 3))
    assert (released, attached) == (ProducersReleased((2, 4)), ProducerAttached(5, "p9", 1, 10, False, True))
    for record in (released, attached):
        table.replay(record)
    assert table.decide(5, 1, 0, 1) == FRESH, "nobody who may come back was forgotten"
    assert [*table.temporary] == [1, 3, 5]


@pytest.mark.parametrize("temporary", [True, False])
def test_names_and_producers_without_one_do_not_keep_each_other_out(
    monkeypatch: pytest.MonkeyPatch, temporary: bool
) -> None:
    table = crowded(monkeypatch, temporary=temporary)
    [attached] = table.decide_attach("another", 10, temporary=not temporary, held=(1, 2, 3, 4))
    assert attached == ProducerAttached(5, "another", 1, 10, False, not temporary)


def test_names_in_use_are_never_forgotten_and_the_refusal_does_not_promise_that_trying_again_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = crowded(monkeypatch, temporary=False)
    with pytest.raises(TooManyProducers) as refused:
        table.decide_attach("one more", 6 * DAY)
    assert not refused.value.retriable
    forgotten, _ = table.decide_attach("one more", 8 * DAY)
    assert forgotten == ProducersForgotten((1, 2, 3, 4))


def test_temporary_producers_that_are_connected_are_never_released_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    table = crowded(monkeypatch, temporary=True)
    with pytest.raises(TooManyProducers):
        table.decide_attach("one more", 8 * DAY, temporary=True, held=(1, 2, 3, 4))


def test_after_some_were_forgotten_a_name_that_starts_afresh_and_a_temporary_one_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = crowded(monkeypatch, temporary=False)
    for name, options in (("doubtful", {}), ("fresh", {"fresh": True}), ("temporary", {"temporary": True})):
        for record in table.decide_attach(name, 8 * DAY, **options):
            table.replay(record)
    with pytest.raises(SequenceUnknown):
        table.decide(5, 1, 0, 1)
    assert table.decide(6, 1, 0, 1) == FRESH
    assert table.decide(7, 1, 0, 1) == FRESH


def test_only_producers_that_are_there_are_released_and_not_too_many_in_one_record() -> None:
    table = ProducerTable()
    for number in range(300):
        for record in table.decide_attach(f"p{number}", number):
            table.replay(record)
    first, second = table.decide_release(range(1, 1000))
    assert (len(first.producers), len(second.producers)) == (256, 44)
    for released in (first, second):
        table.replay(released)
    assert (len(table), table.forgotten) == (0, 0)
    assert table.decide_release([1, 2]) == []
