"""Shared: even shares, failures of single messages, delivery times."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dispatch.desk import DELAY, ONCE, ONCE_DROP, A, B, C, connect, offer
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DECIDED_AT_ONCE, SECOND
from pydanube.dispatch.events import Deliver, Poisoned, Run
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy
from pydanube.dispatch.roster import Member, Roster
from pydanube.dispatch.shared import Shared


def shared(policy: FailurePolicy | None = None, **options: int) -> Shared:
    return Shared(policy or FailurePolicy(), DispatchSettings(**options))  # type: ignore[arg-type]


def test_a_run_is_split_evenly_into_contiguous_ranges() -> None:
    engine = shared()
    connect(engine, 100, A, B, C)
    assert offer(engine, 0, 8) == [Deliver(A, 0, 2, 0), Deliver(B, 3, 5, 0), Deliver(C, 6, 8, 0)]


def test_a_consumer_with_few_permits_uses_them_all_and_the_others_share_the_rest() -> None:
    engine = shared()
    connect(engine, 100, A, B)
    connect(engine, 1, C)
    effects = offer(engine, 0, 8)
    assert {effect.consumer: effect.last - effect.first + 1 for effect in effects if isinstance(effect, Deliver)} == {
        A: 4,
        B: 4,
        C: 1,
    }


def test_single_messages_go_to_consumers_in_turn() -> None:
    engine = shared()
    connect(engine, 100, A)
    connect(engine, 5_000, B)
    connect(engine, 200, C)
    given_to = Counter[ConsumerId]()
    for offset in range(30):
        for effect in offer(engine, offset, offset):
            assert isinstance(effect, Deliver)
            given_to[effect.consumer] += 1
    assert given_to == {A: 10, B: 10, C: 10}


def test_the_first_share_goes_to_consumers_in_turn() -> None:
    engine = shared()
    connect(engine, 0, ConsumerId(9))  # asks for nothing, and holds up no one
    connect(engine, 100, A, B, C)
    starts = [offer(engine, offset, offset + 2)[0] for offset in range(0, 9, 3)]
    assert {start.consumer for start in starts if isinstance(start, Deliver)} == {A, B, C}


def test_the_remainder_goes_to_consumers_in_turn() -> None:
    engine = shared()
    connect(engine, 100, A, B, C)
    given_to = Counter[ConsumerId]()
    for offset in range(0, 30, 5):
        for effect in offer(engine, offset, offset + 4):
            assert isinstance(effect, Deliver)
            given_to[effect.consumer] += effect.last - effect.first + 1
    assert given_to == {A: 10, B: 10, C: 10}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 100))
def test_shares_are_equal_as_far_as_permits_go(permits: list[int], total: int) -> None:
    roster: Roster[Member] = Roster()
    for number, count in enumerate(permits):
        roster.add(Member(ConsumerId(number)))
        roster.grant(ConsumerId(number), count)
    shares = {member.id: share for member, share in roster.shares(total)}
    assert sum(shares.values()) == min(total, sum(permits))
    assert all(share <= permits[consumer] for consumer, share in shares.items())
    unsated = [shares.get(ConsumerId(n), 0) for n, count in enumerate(permits) if shares.get(ConsumerId(n), 0) < count]
    most = max(shares.values(), default=0)
    assert all(most - share <= 1 for share in unsated)


def test_a_nack_concerns_only_its_message_and_any_consumer_may_get_it_next() -> None:
    engine = shared()
    connect(engine, 3, A)
    offer(engine, 0, 2)
    engine.nack(B, 0, 2, 0)
    engine.nack(A, 1, 1, 0)
    assert (engine.held(A), engine.waiting) == ([(0, 0), (2, 2)], 1)
    connect(engine, 5, B)
    assert engine.poll(DELAY - 1) == []
    assert engine.poll(DELAY) == [Deliver(B, 1, 1, 1)]
    engine.nack(B, 1, 1, DELAY)
    assert engine.due() == 3 * DELAY


def test_a_crash_counts_against_all_in_flight_and_they_are_due_at_once() -> None:
    engine = shared()
    connect(engine, 5, A)
    offer(engine, 0, 4)
    engine.acked(2, 2)
    connect(engine, 9, B)
    engine.leave(A, 7, crashed=True)
    assert engine.poll(7) == [Deliver(B, 0, 1, 1), Deliver(B, 3, 4, 1)]
    engine.leave(B, 8, crashed=False)
    connect(engine, 9, C)
    assert engine.poll(8) == [Deliver(C, 0, 1, 1), Deliver(C, 3, 4, 1)]


def test_a_timeout_fails_what_is_left_of_a_lease() -> None:
    engine = shared()
    connect(engine, 9, A)
    offer(engine, 0, 4)
    engine.acked(0, 2)
    due = engine.due()
    assert due is not None
    assert engine.poll(due - 1) == []
    assert engine.poll(due) == []
    assert engine.poll(due + DELAY) == [Deliver(A, 3, 4, 1)]


def test_messages_that_wait_after_a_failure_count_as_unacked() -> None:
    engine = shared(unacked_max=4)
    connect(engine, 99, A)
    assert offer(engine, 0, 7) == [Deliver(A, 0, 3, 0)]
    engine.nack(A, 0, 3, 0)
    assert engine.poll(0) == []
    assert engine.wants() == 0
    engine.acked(0, 0)
    assert engine.poll(0) == [Deliver(A, 4, 4, 0)]


def test_blocking_poison_stops_new_messages_but_not_redeliveries() -> None:
    engine = shared(FailurePolicy(max_redelivery_count=1))
    connect(engine, 99, A)
    offer(engine, 0, 1)
    engine.nack(A, 0, 0, 0)
    engine.poll(DELAY)
    engine.nack(A, 0, 0, DELAY)
    engine.nack(A, 1, 1, DELAY)
    assert engine.wants() == 0
    assert offer(engine, 2, 3, now=2 * DELAY) == [Deliver(A, 1, 1, 1)]
    engine.acked(0, 0)
    assert engine.poll(2 * DELAY) == [Deliver(A, 2, 3, 0)]


def test_dropped_poison_holds_up_nothing() -> None:
    engine = shared(ONCE_DROP)
    connect(engine, 99, A)
    offer(engine, 0, 1)
    engine.nack(A, 0, 0, 0, reason="bad")
    assert offer(engine, 2, 3) == [Poisoned(0, 1, PoisonPolicy.DROP, "bad"), Deliver(A, 2, 3, 0)]
    assert engine.waiting == 1
    engine.acked(0, 3)
    assert (engine.in_flight, engine.waiting) == (0, 0)


def test_a_flood_of_poison_is_bounded_by_the_window() -> None:
    engine = shared(ONCE, unacked_max=5)
    connect(engine, 99, A)
    offer(engine, 0, 4)
    engine.nack(A, 0, 4, 0)
    assert engine.wants() == 0
    assert engine.waiting == 5


def test_a_delayed_message_is_delivered_at_its_time_and_holds_up_nothing() -> None:
    engine = shared()
    connect(engine, 99, A)
    engine.offer(Run(0, 4, due=[None, 50, 50, 10, 0]), 0)
    assert engine.poll(0) == [Deliver(A, 0, 0, 0), Deliver(A, 4, 4, 0)]
    assert engine.due() == 10
    assert engine.poll(10) == [Deliver(A, 3, 3, 0)]
    engine.acked(1, 1)
    assert engine.poll(50) == [Deliver(A, 2, 2, 0)]


def test_a_full_delay_index_stops_reading() -> None:
    engine = shared(delayed_max=2)
    connect(engine, 99, A)
    engine.offer(Run(0, 2, due=[70, 50, 60]), 0)
    assert engine.wants() == 0
    engine.poll(60)
    assert engine.wants() > 0


def test_stale_entries_of_retries_acked_late_are_removed() -> None:
    engine = shared()
    connect(engine, 100_000, A)
    for offset in range(5_000):
        offer(engine, offset, offset)
        engine.nack(A, offset, offset, 0)
        engine.acked(offset, offset)
    assert len(engine._retry_times._heap) < 2_000
    assert engine.due() is None


def test_an_ack_of_everything_is_quick_however_wide() -> None:
    engine = shared()
    connect(engine, 9, A)
    offer(engine, 0, 20)
    engine.acked(0, 1 << 60)
    assert (engine.in_flight, engine.waiting, engine.due()) == (0, 0, None)


def test_a_seek_forgets_messages_and_keeps_permits() -> None:
    engine = shared(ONCE)
    connect(engine, 10, A)
    engine.offer(Run(0, 3, due=[SECOND, None, None, None]), 0)
    engine.poll(0)
    engine.nack(A, 1, 1, 0)
    engine.reset(0)
    assert (engine.in_flight, engine.waiting, engine.wants(), engine.due()) == (0, 0, 7, None)
    assert offer(engine, 0, 9) == [Deliver(A, 0, 6, 0)]


def test_messages_that_fail_at_the_same_time_are_redelivered_as_ranges() -> None:
    engine = shared()
    connect(engine, 100, A)
    offer(engine, 0, 9)
    for offset in (7, 2, 1, 3, 8):
        engine.nack(A, offset, offset, 0)
    engine.acked(2, 2)
    assert engine.poll(DELAY) == [Deliver(A, 1, 1, 1), Deliver(A, 3, 3, 1), Deliver(A, 7, 8, 1)]


def test_a_poll_handles_a_limited_number_of_scattered_messages_and_the_next_the_rest() -> None:
    count = 2 * DECIDED_AT_ONCE + 100
    engine = shared(unacked_max=2 * count)
    connect(engine, count, A, B, C)
    offer(engine, 0, 2 * count - 1)
    for consumer in (A, B, C):
        for first, last in engine.held(consumer):
            for offset in range(first + first % 2, last + 1, 2):
                engine.nack(consumer, offset, offset, 0)
    polls = []
    while not polls or engine.unfinished:
        polls.append(engine.poll(DELAY))
    assert [len(effects) for effects in polls] == [DECIDED_AT_ONCE, DECIDED_AT_ONCE, 100]
    again = [effect.first for effects in polls for effect in effects if isinstance(effect, Deliver)]
    assert sorted(again) == list(range(0, 2 * count, 2))
    assert engine.poll(DELAY) == []
    assert engine.in_flight == 2 * count


def test_an_undelivered_message_has_not_failed_even_if_fewer_failures_are_allowed_now() -> None:
    engine = shared()
    connect(engine, 100, A)
    offer(engine, 0, 1)
    engine.nack(A, 0, 1, 0)
    assert engine.poll(DELAY) == [Deliver(A, 0, 1, 1)]
    engine.alter(ONCE_DROP, engine.settings, DELAY)
    engine.undelivered(A, 0, 0, DELAY)
    assert engine.poll(DELAY) == [Deliver(A, 0, 0, 1)]
    engine.leave(A, DELAY, crashed=False)
    connect(engine, 100, B)
    assert engine.poll(DELAY) == [Deliver(B, 0, 1, 1)]
    engine.nack(B, 0, 0, DELAY)
    assert engine.poll(DELAY) == [Poisoned(0, 2, PoisonPolicy.DROP, "")]
