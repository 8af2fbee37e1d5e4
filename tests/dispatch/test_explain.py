"""Every wait has its cause, and every cause its sentence."""

from __future__ import annotations

import string

import pytest

from dispatch.desk import DELAY, ONCE, ONCE_DROP, A, B, C, connect, offer
from pydanube.base.errors import ConsumerNotFound
from pydanube.dispatch.events import Run
from pydanube.dispatch.explain import Cause, Explanation
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.dispatch.shared import Shared

NARROW = DispatchSettings(unacked_max=2, delayed_max=1)


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.code)
def test_a_cause_is_one_sentence_about_known_facts(cause: Cause) -> None:
    names = {name for _, name, _, _ in string.Formatter().parse(cause.value) if name}
    assert names <= {"consumer", "offset", "key", "until", "count", "what"}
    sentence = Explanation(cause, A, 7, b"k\xff", 5, 6, "the disk").sentence
    assert sentence.endswith(".")
    assert "{" not in sentence
    assert not names or sentence != cause.value


def test_a_long_key_is_shown_in_part() -> None:
    assert len(Explanation(Cause.KEY_UNMATCHED, key=b"x" * 10_000).sentence) < 200


def test_a_failover_subscription_says_why_a_message_waits() -> None:
    engine = Failover(FailurePolicy(), NARROW)
    assert engine.explain(0, 0).cause is Cause.NO_CONSUMER
    connect(engine, 0, A, B)
    assert engine.explain(0, 0) == Explanation(Cause.NO_PERMITS, consumer=A)
    assert engine.explain_consumer(B, 0) == Explanation(Cause.STANDBY, consumer=B)
    engine.grant(A, 10, 0)
    assert engine.explain(0, 0).cause is Cause.NOT_READ
    assert engine.explain_consumer(A, 0).cause is Cause.IDLE
    engine.offer(Run(0, 3), 0)
    assert engine.explain(0, 0).cause is Cause.READY
    engine.poll(0)
    assert engine.explain(0, 0) == Explanation(Cause.IN_FLIGHT, consumer=A)
    assert engine.explain(2, 0) == Explanation(Cause.UNACKED_LIMIT, count=2)
    engine.pause()
    assert engine.explain(2, 0).cause is engine.explain_consumer(A, 0).cause is Cause.PAUSED
    engine.resume()
    engine.acked(1, 1)
    assert engine.explain(1, 0).cause is Cause.ACKED
    engine.nack(A, 0, 0, 0)
    engine.poll(0)
    assert engine.explain(0, 0) == Explanation(Cause.REDELIVERY, until=DELAY)
    assert engine.explain(2, 0) == Explanation(Cause.BEHIND, offset=0, until=DELAY)
    assert engine.explain_consumer(A, 0) == Explanation(Cause.NOT_DUE, consumer=A, until=DELAY)
    with pytest.raises(ConsumerNotFound):
        engine.explain_consumer(C, 0)


def test_an_ordered_subscription_names_the_message_that_blocks() -> None:
    for policy, own in ((ONCE, Cause.POISON_BLOCKS), (ONCE_DROP, Cause.DEAD_LETTERING)):
        engine = Failover(policy, DispatchSettings())
        connect(engine, 10, A)
        offer(engine, 0, 1)
        engine.nack(A, 0, 1, 0)
        assert engine.explain(0, 0).cause is own
        assert engine.explain(1, 0) == Explanation(Cause.POISON_BLOCKS, offset=0)


def test_a_shared_subscription_says_why_a_message_waits() -> None:
    engine = Shared(ONCE, NARROW)
    connect(engine, 0, A)
    assert engine.explain(0, 0) == Explanation(Cause.ALL_WITHOUT_PERMITS, count=1)
    assert engine.explain_consumer(A, 0) == Explanation(Cause.NO_PERMITS, consumer=A)
    engine.grant(A, 10, 0)
    engine.offer(Run(0, 3, due=[9, None, None, None]), 0)
    engine.poll(0)
    assert engine.explain(0, 0) == Explanation(Cause.DELAYED, until=9)
    assert engine.explain(1, 0) == Explanation(Cause.IN_FLIGHT, consumer=A)
    assert engine.explain(3, 0) == Explanation(Cause.UNACKED_LIMIT, count=2)
    assert engine.explain(4, 0) == Explanation(Cause.DELAYS_FULL, count=1)
    engine.nack(A, 1, 1, 0)
    assert engine.explain(3, 0) == engine.explain(1, 0) == Explanation(Cause.POISON_BLOCKS, offset=1)
    engine.acked(0, 3)
    assert engine.explain(4, 0).cause is Cause.NOT_READ
    assert engine.explain_consumer(A, 0).cause is Cause.IDLE
