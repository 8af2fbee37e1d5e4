"""Exclusive and Failover: offset order through failures, crashes and changes of the active consumer."""

from __future__ import annotations

import pytest

from dispatch.desk import DELAY, ONCE, ONCE_DEAD, ONCE_DROP, A, B, C, connect, offer
from pydanube.base.errors import ConsumerBusy, ConsumerNotFound, FilterInvalid, TooManyConsumers
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import CONSUMERS_MAX, PERMITS_MAX, SECOND
from pydanube.dispatch.events import Deliver, Poisoned
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy

DEFAULT = DispatchSettings()


def exclusive(policy: FailurePolicy | None = None, permits: int = 100, window: int = 10_000) -> Exclusive:
    engine = Exclusive(policy or FailurePolicy(), DispatchSettings(unacked_max=window))
    connect(engine, permits, A)
    return engine


def test_a_run_is_delivered_as_one_range() -> None:
    engine = exclusive()
    assert engine.wants() == 100
    assert offer(engine, 0, 99) == [Deliver(A, 0, 99, 0)]
    assert (engine.in_flight, engine.waiting, engine.wants()) == (100, 0, 0)


def test_permits_and_the_window_bound_what_is_in_flight_and_the_rest_of_a_batch_is_queued() -> None:
    engine = exclusive(permits=5, window=3)
    assert engine.wants() == 3
    assert offer(engine, 0, 9) == [Deliver(A, 0, 2, 0)]
    engine.acked(1, 1)
    assert engine.poll(0) == [Deliver(A, 3, 3, 0)]
    engine.acked(0, 3)
    assert engine.poll(0) == [Deliver(A, 4, 4, 0)], "five permits are used up"
    assert engine.waiting == 5


def test_permits_add_up_to_a_bound() -> None:
    engine = exclusive(permits=0)
    engine.grant(A, PERMITS_MAX, 0)
    engine.grant(A, PERMITS_MAX, 0)
    engine.grant(A, -5, 0)
    assert engine.wants() == DEFAULT.unacked_max
    with pytest.raises(ConsumerNotFound):
        engine.grant(B, 1, 0)


def test_a_second_consumer_of_an_exclusive_subscription_is_refused() -> None:
    engine = exclusive()
    with pytest.raises(ConsumerBusy):
        engine.join(B, 0)
    engine.join(A, 0)
    assert engine.wants() == 100, "joining twice changes nothing"
    with pytest.raises(FilterInvalid):
        Exclusive(FailurePolicy(), DEFAULT).join(A, 0, filters=[b"a*"])


def test_consumers_are_bounded() -> None:
    engine = Failover(FailurePolicy(), DEFAULT)
    connect(engine, 0, *(ConsumerId(number) for number in range(CONSUMERS_MAX)))
    with pytest.raises(TooManyConsumers):
        engine.join(ConsumerId(CONSUMERS_MAX), 0)


def test_a_nack_rewinds_and_nothing_overtakes_it() -> None:
    engine = exclusive()
    offer(engine, 0, 9)
    engine.nack(A, 4, 4, 0, reason="no")
    assert engine.held(A) == [(0, 3)]
    assert offer(engine, 10, 12) == []
    assert engine.wants() == 0
    assert engine.due() == DELAY
    assert engine.poll(DELAY - 1) == []
    assert engine.poll(DELAY) == [Deliver(A, 4, 4, 1), Deliver(A, 5, 12, 0)]


def test_an_acked_message_is_not_sent_again() -> None:
    engine = exclusive()
    offer(engine, 0, 9)
    engine.acked(6, 7)
    engine.nack(A, 5, 5, 0)
    engine.acked(8, 8)
    assert engine.poll(DELAY) == [Deliver(A, 5, 5, 1), Deliver(A, 9, 9, 0)]


def test_a_late_ack_of_the_failed_message_releases_the_rest_at_once() -> None:
    engine = exclusive()
    offer(engine, 0, 9)
    engine.nack(A, 0, 0, 0)
    engine.acked(0, 0)
    assert engine.poll(1) == [Deliver(A, 1, 9, 0)]


def test_only_messages_in_flight_with_the_consumer_can_be_nacked() -> None:
    engine = exclusive()
    offer(engine, 0, 9)
    engine.nack(B, 0, 9, 0)
    engine.nack(A, 50, 60, 0)
    assert engine.in_flight == 10


def test_a_timeout_rewinds_at_the_first_unacked_message() -> None:
    engine = exclusive()
    offer(engine, 0, 4)
    engine.acked(0, 1)
    due = engine.due()
    assert due is not None
    assert 30 * SECOND <= due <= 31 * SECOND
    assert engine.poll(30 * SECOND - 1) == []
    assert engine.poll(due) == []
    assert engine.poll(due + DELAY) == [Deliver(A, 2, 2, 1), Deliver(A, 3, 4, 0)]


def test_without_a_timeout_nothing_is_due() -> None:
    engine = exclusive(FailurePolicy(ack_timeout=None))
    offer(engine, 0, 4)
    assert engine.due() is None
    assert engine.poll(1 << 60) == []


def test_deadlines_stay_few_however_many_polls() -> None:
    engine = exclusive(permits=PERMITS_MAX)
    for now in range(0, 30 * SECOND, SECOND // 100):
        offset = now // (SECOND // 100)
        offer(engine, offset, offset, now=now)
        engine.acked(max(offset, 1), offset)  # all but the first
    assert len(engine._terms) <= 66


def test_a_crash_counts_against_the_first_message_and_a_clean_leave_against_none() -> None:
    engine = exclusive()
    offer(engine, 0, 4)
    engine.leave(A, 0, crashed=True)
    connect(engine, 100, B)
    assert engine.poll(0) == [Deliver(B, 0, 0, 1), Deliver(B, 1, 4, 0)]
    engine.leave(B, 0, crashed=False)
    connect(engine, 100, C)
    assert engine.poll(0) == [Deliver(C, 0, 0, 1), Deliver(C, 1, 4, 0)]


def test_a_standby_takes_over_when_the_active_consumer_leaves() -> None:
    engine = Failover(FailurePolicy(), DEFAULT)
    connect(engine, 10, A, B, C)
    assert offer(engine, 0, 9) == [Deliver(A, 0, 9, 0)]
    engine.acked(2, 2)
    engine.leave(C, 0, crashed=True)
    assert engine.poll(0) == []
    engine.leave(A, 0, crashed=False)
    assert engine.active == B
    assert engine.poll(0) == [Deliver(B, 0, 1, 0), Deliver(B, 3, 9, 0)]


def test_blocking_poison_stops_everything_until_it_is_acked() -> None:
    engine = exclusive(ONCE)
    offer(engine, 0, 9)
    engine.acked(0, 2)
    engine.nack(A, 3, 3, 0)
    assert engine.poll(1 << 50) == []
    assert engine.wants() == 0
    engine.acked(3, 3)
    assert engine.poll(1 << 50) == [Deliver(A, 4, 9, 0)]


@pytest.mark.parametrize("policy", [ONCE_DROP, ONCE_DEAD])
def test_poison_is_handed_over_and_order_waits_for_it(policy: FailurePolicy) -> None:
    engine = exclusive(policy)
    offer(engine, 0, 4)
    engine.nack(A, 1, 1, 0, reason="x" * 5_000)
    assert engine.poll(0) == [Poisoned(1, 1, policy.poison, "x" * 1_000)]
    assert engine.poll(10 * SECOND) == []
    engine.poison_failed(1, 10 * SECOND)
    engine.poison_failed(1, 10 * SECOND)
    assert engine.poll(10 * SECOND) == []
    assert engine.due() == 11 * SECOND
    assert engine.poll(11 * SECOND) == [Poisoned(1, 1, policy.poison, "x" * 1_000)]
    engine.acked(1, 1)
    assert engine.poll(11 * SECOND) == [Deliver(A, 2, 4, 0)]


def test_a_message_is_delivered_once_more_than_it_may_be_redelivered() -> None:
    engine = exclusive(FailurePolicy(max_redelivery_count=2, poison=PoisonPolicy.DROP))
    offer(engine, 0, 0)
    attempts = []
    for now in (100 * SECOND, 200 * SECOND):
        engine.nack(A, 0, 0, now - 90 * SECOND)
        attempts += engine.poll(now)
    assert attempts == [Deliver(A, 0, 0, 1), Deliver(A, 0, 0, 2)]
    engine.nack(A, 0, 0, 201 * SECOND, reason="why")
    assert engine.poll(201 * SECOND) == [Poisoned(0, 3, PoisonPolicy.DROP, "why")]


def test_a_pause_holds_deliveries_and_reading() -> None:
    engine = exclusive()
    engine.pause()
    assert engine.wants() == 0
    assert offer(engine, 0, 4) == []
    engine.resume()
    assert engine.poll(0) == [Deliver(A, 0, 4, 0)]


def test_a_seek_forgets_messages_and_keeps_permits() -> None:
    engine = exclusive(ONCE, permits=10)
    offer(engine, 5, 7)
    engine.nack(A, 5, 5, 0)
    engine.reset(0)
    assert (engine.in_flight, engine.waiting, engine.wants(), engine.due()) == (0, 0, 7, None)
    assert offer(engine, 0, 9) == [Deliver(A, 0, 6, 0)]


def test_a_host_that_offers_backwards_or_far_too_much_is_stopped() -> None:
    engine = exclusive(window=10)
    offer(engine, 5, 7)
    with pytest.raises(AssertionError):
        offer(engine, 7, 8)
    with pytest.raises(AssertionError):
        offer(engine, 8, 1 << 20)
