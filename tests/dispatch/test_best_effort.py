"""Non-reliable topics: at most once, and every loss is counted."""

from __future__ import annotations

import pytest

from dispatch.desk import A, B
from pydanube.base.errors import ConsumerBusy, FilterInvalid
from pydanube.dispatch.best_effort import BestEffort, Routed
from pydanube.dispatch.events import Deliver, Run
from pydanube.topic.records import SubscriptionKind


def best_effort(kind: SubscriptionKind, a: int, b: int | None = None) -> BestEffort:
    made = BestEffort(kind)
    for consumer, permits in ((A, a), (B, b)):
        if permits is not None:
            made.join(consumer)
            made.grant(consumer, permits)
    return made


@pytest.mark.parametrize("kind", SubscriptionKind)
def test_without_consumers_everything_is_dropped_and_counted(kind: SubscriptionKind) -> None:
    assert BestEffort(kind).route(Run(5, 9, keys=[b"x"] * 5)) == Routed([], 5)


def test_the_active_consumer_gets_what_it_asked_for_and_loses_the_rest() -> None:
    engine = best_effort(SubscriptionKind.FAILOVER, 3, 10)
    assert engine.route(Run(0, 4)) == Routed([Deliver(A, 0, 2, 0)], 2)
    assert engine.route(Run(5, 6)) == Routed([], 2), "a standby gets nothing"
    engine.leave(A)
    assert engine.route(Run(7, 8)) == Routed([Deliver(B, 7, 8, 0)], 0)


def test_an_exclusive_subscription_has_one_consumer() -> None:
    engine = best_effort(SubscriptionKind.EXCLUSIVE, 3)
    engine.join(A)
    with pytest.raises(ConsumerBusy):
        engine.join(B)
    with pytest.raises(FilterInvalid):
        BestEffort(SubscriptionKind.SHARED).join(A, filters=[b"x"])


def test_shared_splits_over_permits() -> None:
    engine = best_effort(SubscriptionKind.SHARED, 1, 3)
    routed = engine.route(Run(0, 5))
    assert routed == Routed([Deliver(A, 0, 0, 0), Deliver(B, 1, 3, 0)], 2)


def test_key_shared_routes_by_key_and_a_full_consumer_loses_only_its_own_keys() -> None:
    engine = BestEffort(SubscriptionKind.KEY_SHARED)
    engine.join(A, filters=[b"a*"])
    engine.join(B, filters=[b"b*"])
    engine.grant(A, 9)
    engine.grant(B, 1)
    keys = [b"a1", b"a2", b"b1", b"b2", b"a3", b"c"]
    assert engine.route(Run(0, 5, keys)) == Routed([Deliver(A, 0, 1, 0), Deliver(B, 2, 2, 0), Deliver(A, 4, 4, 0)], 2)
