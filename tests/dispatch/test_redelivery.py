"""Agendas, leases and poison: everything is due at its time, once, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.desk import ONCE_DROP, A, connect, offer
from pydanube.base.limits import SECOND
from pydanube.dispatch.agenda import Agenda
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Poisoned
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.policy import DispatchSettings, PoisonPolicy
from pydanube.dispatch.redelivery import LEASE_STEPS, Leases
from pydanube.dispatch.shared import Shared


def test_a_number_is_due_once_at_the_last_time_set() -> None:
    agenda = Agenda()
    for number, time in ((1, 10), (2, 20), (1, 30), (3, 5)):
        agenda.set(number, time)
    agenda.discard(3)
    assert agenda.take_due(25) == [2]
    assert (agenda.time_of(1), agenda.next_time()) == (30, 30)
    assert agenda.take_due(30) == [1]
    assert (len(agenda), agenda.next_time()) == (0, None)


def test_stale_entries_are_removed() -> None:
    agenda = Agenda()
    for number in range(10_000):
        agenda.set(number, number)
        agenda.discard(number)
    assert len(agenda._heap) < 2_000


def test_a_lease_never_runs_out_early_and_at_most_a_step_late() -> None:
    timeout = 6_400
    leases = Leases(timeout)
    given = {leases.open(now, A, [now]).number: now for now in range(0, 1_000, 7)}
    for now in range(0, 10_000, 5):
        for lease in [lease for ended in leases.take_expired(now) for lease in ended._leases]:
            started = given.pop(lease.number)
            assert started + timeout <= now <= started + timeout + timeout // LEASE_STEPS + 5
    assert given == {}
    assert (leases.due(), len(leases._terms)) == (None, 0)


@pytest.mark.parametrize("kind", [Exclusive, Failover, Shared, KeyShared])
def test_poison_that_is_acked_is_not_handed_over_again(kind: type[Engine[Any]]) -> None:
    engine = kind(ONCE_DROP, DispatchSettings())
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    engine.nack(A, 0, 0, 0, reason="bad")
    assert engine.poll(0) == [Poisoned(0, 1, PoisonPolicy.DROP, "bad")]
    engine.poison_failed(0, 0)
    engine.acked(0, 0)
    assert engine.due() is None
    assert engine.poll(100 * SECOND) == []
    assert engine.waiting == 0


@pytest.mark.parametrize("kind", [Exclusive, Failover, Shared, KeyShared])
def test_poison_that_cannot_be_given_up_is_shown_as_blocked_until_it_is(kind: type[Engine[Any]]) -> None:
    engine = kind(ONCE_DROP, DispatchSettings())
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    engine.nack(A, 0, 0, 0, reason="bad")
    for failures in range(4):
        assert engine.blocked_at == (None if failures < 3 else 0)
        now = failures * 100 * SECOND
        assert engine.poll(now) == [Poisoned(0, 1, PoisonPolicy.DROP, "bad")]
        engine.poison_failed(0, now, "the disk is full")
    assert engine.explain(0, now) == Explanation(Cause.POISON_STUCK, offset=0, what="the disk is full")
    engine.acked(0, 0)
    assert engine.blocked_at is None


@pytest.mark.parametrize("kind", [Exclusive, Failover, Shared, KeyShared])
def test_altering_the_policy_tries_again_at_once_what_could_not_be_given_up(kind: type[Engine[Any]]) -> None:
    engine = kind(ONCE_DROP, DispatchSettings())
    connect(engine, 10, A)
    offer(engine, 0, 0, "x")
    engine.nack(A, 0, 0, 0, reason="bad")
    for now in range(0, 300 * SECOND, 100 * SECOND):
        assert len(engine.poll(now)) == 1
        engine.poison_failed(0, now, "no such topic")
    engine.alter(ONCE_DROP, DispatchSettings(), now + 1)
    assert engine.blocked_at is None
    assert engine.poll(now + 1) == [Poisoned(0, 1, PoisonPolicy.DROP, "bad")]
