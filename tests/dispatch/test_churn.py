"""Consumers come, go, crash, fail and stall: each engine agrees with the model, and drains once they behave."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dispatch.model import Model
from pydanube.base.errors import ConsumerBusy
from pydanube.base.ids import ConsumerId
from pydanube.base.ranges import ranges_of
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Effect, Run
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.failover import Failover
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.policy import BackoffPolicy, DispatchSettings, FailurePolicy, PoisonPolicy, Unmatched
from pydanube.dispatch.roster import Member
from pydanube.dispatch.shared import Shared
from pydanube.topic.records import SubscriptionKind

ENGINES: dict[SubscriptionKind, type[Engine[Member]]] = {
    SubscriptionKind.EXCLUSIVE: Exclusive,
    SubscriptionKind.FAILOVER: Failover,
    SubscriptionKind.SHARED: Shared,
    SubscriptionKind.KEY_SHARED: KeyShared,  # type: ignore[dict-item]
}
KEYS = [b"a", b"b", b"ab", b"c"]
CONSUMERS = st.integers(1, 4).map(ConsumerId)
POLICIES = st.builds(
    FailurePolicy,
    max_redelivery_count=st.integers(0, 3),
    ack_timeout=st.sampled_from([None, 30]),  # below 64 a timeout is exact
    base_delay=st.sampled_from([0, 5]),
    max_delay=st.just(40),
    backoff=st.sampled_from(BackoffPolicy),
    poison=st.sampled_from([PoisonPolicy.BLOCK, PoisonPolicy.DROP]),
)


SETTINGS = st.builds(
    DispatchSettings,
    unacked_max=st.integers(1, 12),
    lookahead_max=st.integers(1, 12),
    delayed_max=st.integers(1, 8),
    unmatched=st.sampled_from(Unmatched),
)


class Churn(RuleBasedStateMachine):
    kind: SubscriptionKind

    @initialize(policy=POLICIES, options=SETTINGS, consumers=st.integers(0, 3), at_once=st.sampled_from([1, 2, 256]))
    def start(self, policy: FailurePolicy, options: DispatchSettings, consumers: int, at_once: int) -> None:
        self.engine = ENGINES[self.kind](policy, options)
        self.engine.at_once = at_once
        self.model = Model(self.kind, policy, options)
        self.now = 0
        self.end = 0  # the next offset to offer
        for number in range(1, consumers + 1):
            self.join(ConsumerId(number), ())
            self.grant(ConsumerId(number), 20)

    @rule(policy=POLICIES, options=SETTINGS)
    def alter(self, policy: FailurePolicy, options: DispatchSettings) -> None:
        self.engine.alter(policy, options, self.now)
        self.model.alter(policy, options, self.now)
        self.poll()

    # -- consumers

    @rule(consumer=CONSUMERS, filters=st.sampled_from([(), (), (b"a*",), (b"?", b"*b")]))
    def join(self, consumer: ConsumerId, filters: tuple[bytes, ...]) -> None:
        filters = filters if self.kind is SubscriptionKind.KEY_SHARED else ()
        if self.kind is SubscriptionKind.EXCLUSIVE and self.model.permits and consumer not in self.model.permits:
            with pytest.raises(ConsumerBusy):
                self.engine.join(consumer, self.now)
            return
        self.engine.join(consumer, self.now, filters=filters)
        if consumer not in self.model.permits:
            self.model.permits[consumer] = 0
            self.model.filters[consumer] = filters
        self.poll()

    @rule(consumer=CONSUMERS, crashed=st.booleans())
    def leave(self, consumer: ConsumerId, crashed: bool) -> None:
        self.engine.leave(consumer, self.now, crashed=crashed)
        self.model.leave(consumer, self.now, crashed=crashed)
        self.poll()

    @rule(consumer=CONSUMERS, permits=st.integers(1, 20))
    def grant(self, consumer: ConsumerId, permits: int) -> None:
        if consumer in self.model.permits:
            self.engine.grant(consumer, permits, self.now)
            self.model.permits[consumer] += permits
            self.poll()

    @rule(passed=st.sampled_from([0, 5, 31]))
    def pause_for_a_while(self, passed: int) -> None:
        self.engine.pause()
        self.model.paused = True
        assert self.engine.wants() == 0
        self.pass_time(passed)
        self.resume()

    def resume(self) -> None:
        self.engine.resume()
        self.model.paused = False
        self.poll()

    # -- messages

    @precondition(lambda self: self.engine.wants() > 0)
    @rule(more=st.integers(0, 3), gap=st.integers(0, 1), data=st.data())
    def offer(self, more: int, gap: int, data: st.DataObject) -> None:
        count = self.engine.wants() + more if more else 1
        first = self.end + gap
        self.end = first + count
        keys = data.draw(st.lists(st.sampled_from(KEYS), min_size=count, max_size=count))
        delays = data.draw(st.lists(st.sampled_from([None, None, 0, 7]), min_size=count, max_size=count))
        due = (
            [None if delay is None else self.now + delay for delay in delays]
            if self.kind is SubscriptionKind.SHARED
            else None
        )
        self.engine.offer(Run(first, self.end - 1, keys, due), self.now)
        for offset, key in enumerate(keys, first):
            self.model.add(offset, key, (due[offset - first] or 0) if due else 0)
        self.poll()

    @rule(data=st.data(), length=st.integers(0, 3))
    def ack(self, data: st.DataObject, length: int) -> None:
        first = self.some_offset(data)
        self.engine.acked(first, first + length)
        self.model.acked(first, first + length)
        self.poll()

    @precondition(lambda self: self.model.flight())
    @rule(data=st.data(), length=st.integers(0, 2), delay=st.sampled_from([0, 0, 12]))
    def nack(self, data: st.DataObject, length: int, delay: int) -> None:
        message = data.draw(st.sampled_from(self.model.flight()))
        assert message.holder is not None
        self.nack_as(message.holder, message.offset, message.offset + length, delay)

    @precondition(lambda self: self.model.flight())
    @rule(data=st.data(), length=st.integers(0, 2))
    def undelivered(self, data: st.DataObject, length: int) -> None:
        message = data.draw(st.sampled_from(self.model.flight()))
        assert message.holder is not None
        consumer, last = message.holder, message.offset + length
        self.engine.undelivered(consumer, message.offset, last, self.now)
        self.model.undelivered(consumer, message.offset, last, self.now)
        self.poll()

    @rule(consumer=CONSUMERS, data=st.data())
    def nack_messages_that_may_not_be_in_flight(self, consumer: ConsumerId, data: st.DataObject) -> None:
        first = self.some_offset(data)
        self.nack_as(consumer, first, first + 1, 0)

    def nack_as(self, consumer: ConsumerId, first: int, last: int, delay: int) -> None:
        self.engine.nack(consumer, first, last, self.now, delay, "no")
        self.model.nack(consumer, first, last, self.now, delay)
        self.poll()

    @precondition(lambda self: any(message.poison for message in self.model.messages.values()))
    @rule(data=st.data())
    def poison_fails(self, data: st.DataObject) -> None:
        poison = [message.offset for message in self.model.messages.values() if message.poison]
        offset = data.draw(st.sampled_from(poison))
        self.engine.poison_failed(offset, self.now)
        self.model.poison_failed(offset, self.now)
        self.poll()

    @rule(passed=st.sampled_from([1, 5, 31, 200_000]))
    def pass_time(self, passed: int) -> None:
        self.now += passed
        self.poll()

    @rule()
    def wake_up_when_due(self) -> None:
        self.now = self.engine.due() or self.now
        self.poll()

    @rule(chance=st.integers(0, 9))
    def seek(self, chance: int) -> None:
        if chance:
            return
        self.engine.reset(self.now)
        self.model.messages.clear()
        self.model.poison_times.clear()
        self.model.poison_failures.clear()
        self.end = 0
        assert self.engine.poll(self.now) == []

    def some_offset(self, data: st.DataObject) -> int:
        known = sorted(self.model.messages)
        return data.draw(st.sampled_from(known) if known else st.integers(0, 9))

    def poll(self) -> list[Effect]:
        effects = self.engine.poll(self.now)
        while self.engine.unfinished:
            effects += self.engine.poll(self.now)
        self.model.time_out(self.now)
        self.model.check(effects, self.now)
        due = self.engine.due()
        assert due is None or due > self.now
        return effects

    # -- invariants

    @invariant()
    def the_engine_and_the_model_know_the_same(self) -> None:
        if not hasattr(self, "engine"):
            return
        model, engine = self.model, self.engine
        assert engine.in_flight == len(model.flight())
        assert engine.in_flight + engine.waiting == len(model.messages)
        for consumer in model.permits:
            held = [message.offset for message in model.flight() if message.holder == consumer]
            assert engine.held(consumer) == ranges_of(held)
            assert engine.explain_consumer(consumer, self.now).sentence
        for offset in range(self.end + 2):
            explanation = engine.explain(offset, self.now)
            assert explanation.sentence
            assert "None" not in explanation.sentence
            message = model.messages.get(offset)
            assert (explanation.cause.code == "in_flight") == (message is not None and message.holder is not None)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.heal()

    def heal(self) -> None:
        """Adds a consumer that accepts any key. From now on all of them grant and ack, so everything must drain."""
        self.resume()
        if self.kind is not SubscriptionKind.EXCLUSIVE or not self.model.permits:
            self.join(ConsumerId(9), ())
        for _ in range(200):
            for consumer in list(self.model.permits):
                self.grant(consumer, 10)
            if not self.model.messages:
                break
            for message in list(self.model.messages.values()):
                if message.holder or message.poison:
                    self.engine.acked(message.offset, message.offset)
                    self.model.acked(message.offset, message.offset)
            self.poll()
            self.wake_up_when_due()
        assert self.engine.in_flight == self.engine.waiting == 0
        assert self.engine.wants() > 0


def machine(kind_: SubscriptionKind) -> type[Churn]:
    class Machine(Churn):
        kind = kind_

    return Machine


@pytest.mark.slow
@pytest.mark.parametrize("kind", SubscriptionKind)
def test_an_engine_keeps_its_rules_whatever_consumers_do(kind: SubscriptionKind) -> None:
    run_state_machine_as_test(machine(kind), settings=settings(max_examples=150, stateful_step_count=40))
