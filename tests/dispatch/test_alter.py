"""Policies and settings that change while messages are in flight apply to all of them from then on."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.desk import ONCE, ONCE_DEAD, ONCE_DROP, A, connect, offer
from pydanube.base.limits import SECOND
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver, Poisoned, Run, Skipped
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy, Unmatched
from pydanube.dispatch.redelivery import LEASE_STEPS
from pydanube.dispatch.shared import Shared

ENGINES = [Exclusive, Failover, Shared, KeyShared]
SETTINGS = DispatchSettings()
every_engine = pytest.mark.parametrize("kind", ENGINES)


@every_engine
@pytest.mark.parametrize(("before", "after"), [(None, SECOND), (100 * SECOND, SECOND), (SECOND, 10 * SECOND)])
def test_messages_in_flight_get_the_new_timeout_from_the_change_on(
    kind: type[Engine[Any]], before: int | None, after: int
) -> None:
    engine = kind(FailurePolicy(ack_timeout=before, base_delay=0), SETTINGS)
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    engine.alter(FailurePolicy(ack_timeout=after, base_delay=0), SETTINGS, 1000)
    assert engine.poll(1000 + after - 1) == []
    assert engine.due() is not None
    assert engine.poll(1000 + after + after // LEASE_STEPS) == [Deliver(A, 0, 0, 1)]


@every_engine
def test_without_a_timeout_nothing_runs_out(kind: type[Engine[Any]]) -> None:
    engine = kind(FailurePolicy(ack_timeout=SECOND), SETTINGS)
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    engine.alter(FailurePolicy(ack_timeout=None), SETTINGS, 0)
    assert engine.poll(100 * SECOND) == []
    assert (engine.due(), engine.in_flight) == (None, 1)


@every_engine
def test_a_message_that_blocks_is_given_up_when_the_policy_says_so(kind: type[Engine[Any]]) -> None:
    engine = kind(ONCE, SETTINGS)
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    engine.nack(A, 0, 0, 0, reason="bad")
    assert engine.poll(0) == []
    engine.alter(ONCE_DEAD, SETTINGS, 5)
    assert engine.poll(5) == [Poisoned(0, 1, PoisonPolicy.DEAD_LETTER, "bad")]
    assert engine.poll(6) == []


@every_engine
def test_a_message_that_could_not_be_given_up_blocks_when_the_policy_says_so(kind: type[Engine[Any]]) -> None:
    engine = kind(ONCE_DROP, SETTINGS)
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    engine.nack(A, 0, 0, 0)
    assert engine.poll(0) == [Poisoned(0, 1, PoisonPolicy.DROP, "")]
    engine.alter(ONCE, SETTINGS, 1)
    engine.poison_failed(0, 1)
    assert engine.poll(100 * SECOND) == []
    assert engine.due() is None


@every_engine
def test_a_smaller_window_takes_no_more_until_there_is_room(kind: type[Engine[Any]]) -> None:
    engine = kind(FailurePolicy(), SETTINGS)
    connect(engine, 100, A)
    offer(engine, 0, 9, "abcdefghij")
    engine.alter(FailurePolicy(), DispatchSettings(unacked_max=5), 0)
    assert engine.wants() == 0
    engine.acked(0, 7)
    assert 0 < engine.wants() <= 3


def test_unmatched_keys_are_skipped_once_the_setting_says_so() -> None:
    engine = KeyShared(FailurePolicy(), SETTINGS)
    engine.join(A, 0, filters=[b"mine*"])
    engine.grant(A, 10, 0)
    engine.offer(Run(0, 1, [b"other", b"mine"]), 0)
    assert engine.poll(0) == [Deliver(A, 1, 1, 0)]
    engine.alter(FailurePolicy(), DispatchSettings(unmatched=Unmatched.SKIP), 0)
    assert engine.poll(0) == [Skipped(0, 0)]
