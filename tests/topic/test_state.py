"""Decide, log, replay for all a topic remembers: any snapshot and the records since give the same state."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import (
    DanubeError,
    NameInvalid,
    StateInvalid,
    SubscriptionExists,
    SubscriptionInvalid,
    SubscriptionNotFound,
    TooManySubscriptions,
)
from pydanube.base.limits import (
    CURSOR_CHUNK_OFFSETS,
    STATE_RECORD_BYTES_MAX,
    SUBSCRIPTION_OPTIONS_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
)
from pydanube.topic import dedup
from pydanube.topic.dedup import FRESH, Duplicate
from pydanube.topic.records import (
    CHUNKS_IN_RECORD_MAX,
    Acked,
    Cause,
    CursorChunks,
    Moved,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionKind,
    SubscriptionState,
    decode,
    encode,
)
from pydanube.topic.state import TopicState

END = 3 * CURSOR_CHUNK_OFFSETS
SHARED = SubscriptionKind.SHARED
WEEK = 7 * 24 * 3600 * 1_000_000


def facts(state: TopicState) -> object:
    """All that is remembered across a restart, asked for from outside."""
    subscriptions = [
        (
            known.id,
            known.name,
            known.kind,
            known.start,
            known.options,
            tuple(known.counts),
            known.cursor.floor,
            known.cursor.generation,
            known.cursor.pending(0, END),
            known.cursor.above.count,
            state.find(known.name) is known,
        )
        for known in state
    ]
    producers = [state.producers.get(at) for at in range(1, state.producers.made + 1) if known_producer(state, at)]
    remembered = [
        (p.id, p.name, p.epoch, p.used, p.doubtful, p.start, p.next_sequence, list(p.firsts), list(p.bases))
        for p in producers
    ]
    return subscriptions, remembered, state.producers.forgotten, next_ids(state), [*state.fills.snapshot()]


def known_producer(state: TopicState, producer: int) -> bool:
    try:
        state.producers.get(producer)
    except DanubeError:
        return False
    return True


def next_ids(state: TopicState) -> tuple[int, int]:
    made = state.decide_create("nobody has this name", SHARED, 0, END)
    return made.subscription, state.producers.made


def replayed(*logs: list[Record]) -> TopicState:
    """A restart: everything goes through its bytes."""
    state = TopicState()
    for log in logs:
        for record in log:
            state.replay(decode(encode(record)))
    state.recovered()
    return state


def made(*records: Record) -> TopicState:
    """One subscription, 1, and what happened to it."""
    state = TopicState()
    for record in (SubscriptionCreated(1, "s", SHARED, 0), *records):
        state.replay(decode(encode(record)))
    return state


Step = Callable[[TopicState], list[Record]]
names = st.sampled_from(["a", "b", "c"])
ids = st.integers(1, 5)
near = st.builds(lambda chunk, away: max(0, chunk * CURSOR_CHUNK_OFFSETS + away), st.integers(0, 2), st.integers(-3, 3))
places = st.one_of(near, st.integers(0, END - 1))
ranges = st.tuples(places, st.integers(0, 40)).map(lambda at: (at[0], min(END - 1, at[0] + at[1])))
causes = st.sampled_from([cause for cause in Cause if cause is not Cause.SEEK])
moves = st.sampled_from([Cause.SEEK, Cause.EXPIRED, Cause.DROPPED, Cause.SKIPPED])


def listed(record: Record | None) -> list[Record]:
    return [] if record is None else [record]


def filled(state: TopicState, sink: bytes, batch: int, first: int, now: int) -> list[Record]:
    """Begins a part, or ends the one that was begun."""
    if state.fills.open is not None:
        return [state.fills.decide_end()]
    return [*state.fills.decide_begin(sink, batch, first, now + 1, lambda _, filled: filled > now // 5)]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    name, subscription, floor = draw(names), draw(ids), draw(st.integers(0, END))
    group, cause, move = draw(st.lists(ranges, min_size=1, max_size=5)), draw(causes), draw(moves)
    kind, now = draw(st.sampled_from(SubscriptionKind)), draw(st.integers(0, 20))
    choices: list[Step] = [
        lambda state: [state.decide_create(name, kind, floor, END, name.encode())],
        lambda state: listed(state.decide_change(subscription, str(floor).encode())),
        lambda state: [state.decide_delete(subscription)],
        lambda state: listed(state.get(subscription).cursor.decide_ack(group, END, cause)),
        lambda state: listed(state.get(subscription).cursor.decide_move(floor, END, move)),
        lambda state: [*state.producers.decide_attach(name * (now % 3 + 1), now * WEEK // 5)],
        lambda state: filled(state, name.encode() * 16, subscription, floor, now),
    ]
    return draw(st.sampled_from(choices))


def run(decisions: list[Step]) -> tuple[TopicState, list[Record], list[list[Record]]]:
    """The state, the records that made it, and its snapshot before each of them."""
    state, log = TopicState(), []
    snapshots: list[list[Record]] = []
    for decide in decisions:
        before = facts(state)
        try:
            records = decide(state)
        except DanubeError:
            records = []
        assert facts(state) == before, "deciding only reads"
        for record in records:
            snapshots.append([*state.snapshot(0)])
            state.replay(record)
            log.append(record)
    return state, log, [*snapshots, [*state.snapshot(0)]]


@pytest.fixture(autouse=True, scope="module")
def few_producers() -> Iterator[None]:
    """So that some are forgotten."""
    patch = pytest.MonkeyPatch()
    patch.setattr(dedup, "PRODUCERS_MAX", 4)
    yield
    patch.undo()


@given(st.lists(steps(), max_size=30), st.data())
@settings(max_examples=150)
def test_any_snapshot_and_the_records_since_give_the_same_state(decisions: list[Step], draw: st.DataObject) -> None:
    state, log, snapshots = run(decisions)
    assert facts(replayed(log)) == facts(state)
    at = draw.draw(st.integers(0, len(log)))
    assert facts(replayed(snapshots[at], log[at:])) == facts(state)
    assert facts(replayed(log[:at], snapshots[at], log[at:])) == facts(state)


@given(st.lists(steps(), max_size=20), st.data())
@settings(max_examples=150)
def test_records_between_the_parts_of_a_snapshot_count_on_top_of_it(decisions: list[Step], draw: st.DataObject) -> None:
    """Whether or not the snapshot comes to its end, and whether or not what is older than it is still there."""
    state, log, snapshots = run(decisions)
    at = draw.draw(st.integers(0, len(log)))
    begin, *parts = snapshots[at]
    written: list[Record] = [begin]
    later = log[at:]
    marks = [0]  # how many of the log are among the first n that are written
    while parts or later:
        taken = parts if not later or (parts and draw.draw(st.booleans())) else later
        written.append(taken.pop(0))
        marks.append(len(log) - at - len(later))
    assert facts(replayed(written)) == facts(state)
    assert facts(replayed(log[:at], written)) == facts(state)
    cut = draw.draw(st.integers(0, len(written)))
    logged = marks[cut - 1] if cut else 0
    rest = log[at + logged :]
    assert facts(replayed(log[:at], written[:cut], rest)) == facts(state)
    assert facts(replayed(log[:at], written[:cut], snapshots[at + logged], rest)) == facts(state)


@given(st.lists(steps(), max_size=20), st.data())
@settings(max_examples=100)
def test_a_snapshot_without_its_end_changes_nothing(decisions: list[Step], draw: st.DataObject) -> None:
    state, log, snapshots = run(decisions)
    at = draw.draw(st.integers(0, len(log)))
    other = draw.draw(st.sampled_from(snapshots))
    part = other[: draw.draw(st.integers(0, len(other) - 1))]
    assert facts(replayed(log[:at], part, log[at:])) == facts(state)
    assert facts(replayed(log[:at], part, snapshots[at], log[at:])) == facts(state)


def report_durable(state: TopicState, record: Record, before: TopicState) -> None:
    """What a host does when a record is on disk; `before` is the state as of the records up to and with it."""
    if isinstance(record, SubscriptionDeleted):
        state.durable_deletion(record.subscription)
    elif isinstance(record, Acked | Moved):
        cursor = before.get(record.subscription).cursor
        state.durable(record.subscription, cursor.generation, cursor.floor)


@given(st.lists(st.tuples(steps(), st.integers(0, 3)), max_size=15))
@settings(max_examples=100)
def test_nothing_is_deletable_that_a_crash_could_ask_for(decisions: list[tuple[Step, int]]) -> None:
    """However much of the log a crash leaves, no cursor comes back below what was deletable before it."""
    state, on_disk = TopicState(), TopicState()
    log: list[Record] = []
    synced = deleted = 0
    for decide, more in decisions:
        try:
            records = decide(state)
        except DanubeError:
            records = []
        for record in records:
            lowest = {SubscriptionCreated: "start", Moved: "floor"}.get(type(record))
            if lowest is None or getattr(record, lowest) >= deleted:  # a host lets nobody start below its first offset
                state.replay(record)
                log.append(record)
        for record in log[synced : synced + more]:
            on_disk.replay(record)
            report_durable(state, record, on_disk)
        synced = min(len(log), synced + more)
        deleted = max(deleted, state.deletable_before() or 0)
        for survived in range(synced, len(log) + 1):
            assert [known.name for known in replayed(log[:survived]) if known.cursor.floor < deleted] == []


# -- what is durable ---------------------------------------------------------------------------------------------------


def test_without_subscriptions_no_cursor_says_what_may_go() -> None:
    assert TopicState().deletable_before() is None


def test_acked_data_may_go_when_the_ack_is_durable() -> None:
    state = made(Acked(1, 0, ((0, 9),)))
    assert state.deletable_before() == 0
    state.durable(1, 0, 10)
    assert state.deletable_before() == 10


def test_the_slowest_subscription_decides() -> None:
    state = made(SubscriptionCreated(2, "t", SHARED, 5), Acked(1, 0, ((0, 9),)))
    state.durable(1, 0, 10)
    assert state.deletable_before() == 5


def test_a_seek_back_needs_its_data_at_once_and_later_news_of_older_acks_change_nothing() -> None:
    state = made(Acked(1, 0, ((0, 99),)))
    state.durable(1, 0, 50)
    state.replay(Moved(1, 1, 10, Cause.SEEK, 0))
    state.durable(1, 0, 100)
    assert state.deletable_before() == 10
    state.replay(Acked(1, 1, ((10, 99),)))
    assert state.deletable_before() == 10
    state.durable(1, 1, 100)
    assert state.deletable_before() == 100


def test_a_deleted_subscription_holds_its_data_until_the_deletion_is_durable() -> None:
    state = made(SubscriptionDeleted(1))
    assert state.deletable_before() == 0
    state.durable(1, 0, 100)
    assert state.deletable_before() == 0
    state.durable_deletion(1)
    assert state.deletable_before() is None


def test_a_deletion_is_never_durable_before_it_was_decided() -> None:
    state = made()
    state.durable_deletion(1)
    assert state.deletable_before() == 0


def test_after_a_restart_all_that_was_read_is_durable() -> None:
    state = made(Acked(1, 0, ((0, 9),)), SubscriptionCreated(2, "t", SHARED, 0), SubscriptionDeleted(2))
    state.recovered()
    assert state.deletable_before() == 10


def test_batches_since_the_last_durable_snapshot_are_needed_while_there_are_producers() -> None:
    state = made()
    state.durable_snapshot(70)
    assert state.needed_from() is None
    for record in state.producers.decide_attach("p", 0):
        state.replay(record)
    assert state.needed_from() == 70
    state.durable_snapshot(60)
    assert state.needed_from() == 70
    assert replayed([*state.snapshot(90)]).needed_from() == 90


def test_a_batch_that_a_crash_may_take_is_not_in_the_snapshot() -> None:
    state = TopicState()
    for record in state.producers.decide_attach("p", 0):
        state.replay(record)
    for first, offset in ((0, 0), (5, 10), (10, 20)):
        state.producers.appended(1, first, 5, offset, 0)
    again = replayed([*state.snapshot(20)])  # confirmed is below 20
    assert again.producers.decide(1, 1, 5, 5) == Duplicate(10)
    assert again.producers.decide(1, 1, 10, 5) == FRESH
    again.producers.appended(1, 5, 5, 10, 0)  # in the snapshot already
    again.producers.appended(1, 10, 5, 20, 0)
    assert facts(again) == facts(state)


# -- subscriptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decide", "error"),
    [
        (lambda state: state.decide_create("s", SHARED, 0, END), SubscriptionExists),
        (lambda state: state.decide_create("", SHARED, 0, END), NameInvalid),
        (lambda state: state.decide_create("é" * 128, SHARED, 0, END), NameInvalid),
        (lambda state: state.decide_create("a\tb", SHARED, 0, END), NameInvalid),
        (lambda state: state.decide_create("t", SHARED, END + 1, END), SubscriptionInvalid),
        (lambda state: state.decide_create("t", SHARED, -1, END), SubscriptionInvalid),
        (
            lambda state: state.decide_create("t", SHARED, 0, END, bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX + 1)),
            SubscriptionInvalid,
        ),
        (lambda state: state.decide_change(1, bytes(SUBSCRIPTION_OPTIONS_BYTES_MAX + 1)), SubscriptionInvalid),
        (lambda state: state.decide_change(2, b""), SubscriptionNotFound),
        (lambda state: state.decide_delete(2), SubscriptionNotFound),
        (lambda state: state.get(2), SubscriptionNotFound),
    ],
)
def test_a_decision_that_cannot_be_taken_says_why(
    decide: Callable[[TopicState], object], error: type[DanubeError]
) -> None:
    with pytest.raises(error):
        decide(made())


def test_as_many_subscriptions_as_the_limit_says() -> None:
    state = TopicState()
    for at in range(SUBSCRIPTIONS_MAX):
        state.replay(state.decide_create(f"s{at}", SHARED, 0, END))
    with pytest.raises(TooManySubscriptions):
        state.decide_create("one more", SHARED, 0, END)


def test_the_id_of_a_deleted_subscription_is_never_used_again() -> None:
    state = made(SubscriptionDeleted(1))
    assert state.find("s") is None
    assert replayed([*state.snapshot(0)]).decide_create("s", SHARED, 0, END).subscription == 2


def test_a_subscription_may_start_at_the_earliest_offset_and_at_the_latest() -> None:
    state = TopicState()
    for name, start in (("earliest", 0), ("latest", END)):
        state.replay(state.decide_create(name, SHARED, start, END))
        assert [known.cursor.floor for known in state if known.name == name] == [start]


def test_the_same_options_again_are_not_logged() -> None:
    state = made()
    assert state.decide_change(1, b"") is None
    change = state.decide_change(1, b"x")
    assert change is not None
    state.replay(change)
    assert state.get(1).options == b"x"


def test_counts_by_cause_survive_a_restart() -> None:
    state = made(
        Acked(1, 0, ((0, 4), (8, 8))),
        Acked(1, 0, ((4, 5),), Cause.POISON),  # one of them was done before
        Moved(1, 0, 20, Cause.EXPIRED, 13),
        Moved(1, 1, 25, Cause.SEEK, 5),
    )
    counts = {cause: state.get(1).counts[cause] for cause in Cause if state.get(1).counts[cause]}
    assert counts == {Cause.ACKED: 6, Cause.POISON: 1, Cause.EXPIRED: 13, Cause.SEEK: 5}
    assert replayed([*state.snapshot(0)]).get(1).counts == state.get(1).counts


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_large_snapshot_is_cut_into_records_of_bounded_size() -> None:
    state = made()
    chunks = 2 * CHUNKS_IN_RECORD_MAX + 5
    for number in range(chunks):
        state.get(1).cursor.above.load_chunk(number, 1 << (CURSOR_CHUNK_OFFSETS - 1))
    snapshot = [*state.snapshot(0)]
    assert [len(record.chunks) for record in snapshot if isinstance(record, CursorChunks)] == [
        CHUNKS_IN_RECORD_MAX,
        CHUNKS_IN_RECORD_MAX,
        5,
    ]
    assert max(len(encode(record)) for record in snapshot) <= STATE_RECORD_BYTES_MAX
    assert replayed(snapshot).get(1).cursor.above == state.get(1).cursor.above


BEGIN = SnapshotBegin(1, 0, 1, 0, 0)
STATE = SubscriptionState(1, "s", SHARED, 0, 5, 0, (0,) * len(Cause), b"")


@pytest.mark.parametrize(
    "records",
    [
        [STATE],
        [SnapshotEnd(0)],
        [BEGIN, STATE, SnapshotEnd(2)],
        [BEGIN, STATE, SnapshotEnd(0)],
        [BEGIN, STATE, STATE],
        [BEGIN, STATE, SubscriptionCreated(1, "s", SHARED, 0), SnapshotEnd(1)],  # something in between
        [BEGIN, CursorChunks(1, ((0, 1 << 6),))],
        [BEGIN, STATE, CursorChunks(1, ((0, 1 << 5),))],  # the floor itself
        [BEGIN, STATE, CursorChunks(1, ((0, 1 << 6),)), CursorChunks(1, ((0, 1 << 7),))],
        [SubscriptionCreated(1, "s", SHARED, 0), SubscriptionCreated(1, "t", SHARED, 0)],
        [SubscriptionCreated(1, "s", SHARED, 0), SubscriptionCreated(2, "s", SHARED, 0)],
        [SubscriptionDeleted(1)],
        [Acked(1, 0, ((0, 0),))],
        [Moved(1, 0, 5, Cause.SKIPPED, 5)],
    ],
)
def test_records_that_contradict_each_other_are_refused(records: list[Record]) -> None:
    with pytest.raises(StateInvalid):
        replayed(records)
