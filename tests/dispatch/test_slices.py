"""However much is due at once, one step of an engine is short: it handles a limited number of messages or keys."""

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
    """Consumer A has every other message, each with its own key."""
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
    """Polls until there is nothing more to do; each poll is short."""
    while True:
        effects = engine.poll(now)
        assert len(effects) <= 2 * AT_ONCE  # per sort
        yield effects
        if not engine.unfinished:
            break


def delivered(engine: Engine[Member], now: int) -> list[tuple[int, int]]:
    """The offsets and attempts of all deliveries."""
    found = [each for effects in polls(engine, now) for each in effects if isinstance(each, Deliver)]
    return sorted((offset, each.attempt) for each in found for offset in range(each.first, each.last + 1))


@KINDS
@pytest.mark.parametrize("crashed", [False, True])
def test_messages_of_a_consumer_that_left_are_reassigned_in_steps(kind: SubscriptionKind, crashed: bool) -> None:
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
def test_messages_that_time_out_are_redelivered_in_steps(kind: SubscriptionKind) -> None:
    engine = scattered(kind, FailurePolicy(ack_timeout=SECOND, base_delay=0))
    engine.grant(A, COUNT, 1)
    assert [offset for offset, _ in delivered(engine, 2 * SECOND)] == SCATTERED


@KINDS
def test_poisoned_messages_are_given_up_in_steps(kind: SubscriptionKind) -> None:
    engine = scattered(kind, FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DROP))
    engine.nack(A, 0, COUNT - 1, 1)
    poisoned = [each.offset for effects in polls(engine, 1) for each in effects if isinstance(each, Poisoned)]
    assert poisoned == SCATTERED


def test_messages_due_at_the_same_time_are_delivered_in_steps() -> None:
    engine = ENGINES[SubscriptionKind.SHARED](FailurePolicy(), DispatchSettings(unacked_max=COUNT, delayed_max=COUNT))
    engine.join(A, 0)
    engine.grant(A, COUNT, 0)
    engine.offer(Run(0, COUNT - 1, None, [SECOND] * COUNT), 0)
    engine.at_once = AT_ONCE
    assert engine.poll(0) == []
    assert [offset for offset, _ in delivered(engine, SECOND)] == list(range(COUNT))
