"""The ack timeouts of consumers that report what their programs take start then, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatch.desk import A, B
from pydanube.base.limits import SECOND
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver, Run
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.dispatch.shared import Shared

TIMEOUT = 30 * SECOND
LATE = TIMEOUT + SECOND  # timeouts fire within a step
HOUR = 3600 * SECOND
POLICY = FailurePolicy(base_delay=0, max_delay=0, max_redelivery_count=100)
Make = Callable[[FailurePolicy, DispatchSettings], Engine[Any]]
each = pytest.mark.parametrize("make", [Exclusive, Failover, Shared, KeyShared])


def engine_of(make: Make, *, timed: bool = False, keys: str = "abcdefghij") -> Engine[Any]:
    engine = make(POLICY, DispatchSettings())
    engine.join(A, 0, timed=timed)
    engine.grant(A, 1000, 0)
    engine.offer(Run(0, 9, [key.encode() for key in keys]), 0)
    assert deliveries(engine, 0) == [(0, 9, 0)]
    return engine


def deliveries(engine: Engine[Any], now: int) -> list[tuple[int, int, int]]:
    return [(each.first, each.last, each.attempt) for each in engine.poll(now) if isinstance(each, Deliver)]


@each
def test_messages_in_a_clients_queue_never_time_out(make: Make) -> None:
    engine = engine_of(make)
    assert engine.due() is None
    assert deliveries(engine, 100 * HOUR) == []
    assert engine.in_flight == 10


@each
def test_the_timeout_of_a_consumer_that_does_not_report_starts_at_delivery(make: Make) -> None:
    engine = engine_of(make, timed=True)
    assert [found[2] for found in deliveries(engine, LATE)][:1] == [1]


@each
def test_the_ack_timeout_begins_when_the_program_takes_a_message(make: Make) -> None:
    engine = engine_of(make)
    engine.taken(A, 0, 0, HOUR)
    assert deliveries(engine, HOUR + TIMEOUT - 1) == []
    assert deliveries(engine, HOUR + LATE)[0] == (0, 0, 1)
    assert (A, 0, 0) in [(who, first, first) for who, first, _ in engine.take_recalled()]


@each
def test_messages_acknowledged_in_time_are_not_delivered_again(make: Make) -> None:
    engine = engine_of(make)
    for offset in range(10):
        now = offset * TIMEOUT
        engine.taken(A, offset, offset, now)
        assert deliveries(engine, now + TIMEOUT - 1) == []
        engine.acked(offset, offset)
    assert engine.in_flight == 0
    assert engine.due() is None


@each
def test_reporting_a_message_as_taken_again_restarts_its_timeout(make: Make) -> None:
    engine = engine_of(make)
    engine.taken(A, 0, 9, 0)
    for offset in range(9):
        now = (offset + 1) * (TIMEOUT - 1)
        assert deliveries(engine, now) == []
        engine.acked(offset, offset)
        engine.taken(A, offset + 1, 9, now)
    assert engine.in_flight == 1
    assert deliveries(engine, 9 * (TIMEOUT - 1) + LATE)[0] == (9, 9, 1)


def test_only_the_taken_message_fails_on_a_shared_subscription() -> None:
    engine = engine_of(Shared)
    engine.taken(A, 3, 4, 0)
    assert deliveries(engine, LATE) == [(3, 4, 1)]


def test_a_queued_message_does_not_keep_its_key_forever() -> None:
    engine = engine_of(KeyShared, keys="aaaaabbbbb")
    engine.join(B, 0, timed=False)
    engine.grant(B, 1000, 0)
    engine.taken(A, 0, 0, 0)
    assert deliveries(engine, LATE) == []  # the other messages of its key may be taken soon
    found = deliveries(engine, 2 * LATE)
    assert [(first, last) for first, last, _ in found] in ([(0, 4)], [(0, 0), (1, 4)])
    assert engine.explain(5, 2 * LATE).cause.code == "in_flight"


@each
def test_a_message_taken_by_another_consumer_is_ignored(make: Make) -> None:
    engine = engine_of(make)
    if make is not Exclusive:
        engine.join(B, 0)
    engine.taken(B, 0, 9, 0)
    engine.taken(A, 50, 60, 0)
    assert engine.due() is None


@each
def test_a_timeout_that_is_set_later_starts_then(make: Make) -> None:
    engine = engine_of(make)
    engine.set_timed(A, HOUR)
    assert deliveries(engine, HOUR + TIMEOUT - 1) == []
    assert deliveries(engine, HOUR + LATE)[0][::2] == (0, 1)


@each
def test_a_changed_timeout_applies_only_to_taken_messages(make: Make) -> None:
    engine = engine_of(make)
    engine.taken(A, 0, 0, 0)
    engine.alter(FailurePolicy(ack_timeout=SECOND, base_delay=0), engine.settings, SECOND)
    assert deliveries(engine, 3 * SECOND)[0] == (0, 0, 1)
    engine.acked(0, 9)
    assert engine.due() is None
