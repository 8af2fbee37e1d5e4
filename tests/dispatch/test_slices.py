"""However much comes back at once, one step of an engine is short: it deals with so many messages or keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.desk import A, B
from dispatch.test_churn import ENGINES
from pydanube.base.limits import SECOND
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Deliver, Effect, Poisoned, Run
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy
from pydanube.dispatch.roster import Member
from pydanube.topic.records import SubscriptionKind

COUNT, AT_ONCE = 200, 7
SCATTERED = list(range(1, COUNT, 2))
KINDS = pytest.mark.parametrize("kind", SubscriptionKind)


def scattered(kind: SubscriptionKind, policy: FailurePolicy | None = None) -> Engine[Member]:
    """A has every other message in hand, and each of them has a key of its own."""
    settings = DispatchSettings(unacked_max=COUNT, lookahead_max=COUNT)
    engine = ENGINES[kind](policy or FailurePolicy(), settings)
    engine.join(A, 0)
    engine.grant(A, COUNT, 0)
    keys = [b"%d" % offset for offset in range(COUNT)] if kind is SubscriptionKind.KEY_SHARED else None
    engine.offer(Run(0, COUNT - 1, keys), 0)
    assert engine.poll(0)
    for offset in range(0, COUNT, 2):
        engine.acked(offset, offset)
    engine.at_once = AT_ONCE
    assert engine.held(A) == [(offset, offset) for offset in SCATTERED]
    return engine


def polls(engine: Engine[Member], now: int) -> Iterator[list[Effect]]:
    """Until there is nothing more to do now; each is short."""
    while True:
        effects = engine.poll(now)
        assert len(effects) <= 2 * AT_ONCE  # so many of a sort
        yield effects
        if not engine.unfinished:
            break


def delivered(engine: Engine[Member], now: int) -> list[tuple[int, int]]:
    """Offsets and attempts."""
    found = [each for effects in polls(engine, now) for each in effects if isinstance(each, Deliver)]
    return sorted((offset, each.attempt) for each in found for offset in range(each.first, each.last + 1))


@KINDS
@pytest.mark.parametrize("crashed", [False, True])
def test_what_somebody_had_who_left_goes_to_the_next_some_in_each_step(kind: SubscriptionKind, crashed: bool) -> None:
    engine = scattered(kind)
    engine.leave(A, 1, crashed=crashed)
    if kind in (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED):
        assert len(SCATTERED) - AT_ONCE <= engine.in_flight < len(SCATTERED)
    engine.join(B, 1)
    engine.grant(B, COUNT, 1)
    attempts = dict(delivered(engine, 1))
    assert sorted(attempts) == SCATTERED
    only_first = kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
    failed = [offset for offset in SCATTERED if attempts[offset]]
    assert failed == ((SCATTERED[:1] if only_first else SCATTERED) if crashed else [])
    assert engine.held(B) == [(offset, offset) for offset in SCATTERED]


@KINDS
def test_what_is_not_acknowledged_in_time_comes_back_some_in_each_step(kind: SubscriptionKind) -> None:
    engine = scattered(kind, FailurePolicy(ack_timeout=SECOND, base_delay=0))
    engine.grant(A, COUNT, 1)
    assert [offset for offset, _ in delivered(engine, 2 * SECOND)] == SCATTERED


@KINDS
def test_what_is_given_up_is_so_some_in_each_step(kind: SubscriptionKind) -> None:
    engine = scattered(kind, FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DROP))
    engine.nack(A, 0, COUNT - 1, 1)
    poisoned = [each.offset for effects in polls(engine, 1) for each in effects if isinstance(each, Poisoned)]
    assert poisoned == SCATTERED


def test_what_is_due_at_the_same_time_goes_out_some_in_each_step() -> None:
    engine = ENGINES[SubscriptionKind.SHARED](FailurePolicy(), DispatchSettings(unacked_max=COUNT, delayed_max=COUNT))
    engine.join(A, 0)
    engine.grant(A, COUNT, 0)
    engine.offer(Run(0, COUNT - 1, None, [SECOND] * COUNT), 0)
    engine.at_once = AT_ONCE
    assert engine.poll(0) == []
    assert [offset for offset, _ in delivered(engine, SECOND)] == list(range(COUNT))
