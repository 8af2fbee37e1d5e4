"""Non-reliable topics (§5): at most once, every loss counted, no byte written, and typed errors for all the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.topic_world import TopicWorld, batch_of, numbers
from pydanube.base.errors import (
    ConsumerBusy,
    ConsumerNotFound,
    DanubeError,
    NameInvalid,
    NotReliable,
    SubscriptionKindDiffers,
    SubscriptionNotFound,
    TooManySubscriptions,
    TopicClosed,
)
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import UNUSED_SUBSCRIPTION_SECONDS
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.topic import best_effort, best_effort_subscription
from pydanube.broker.topic.best_effort import BestEffortTopic
from pydanube.broker.topic.best_effort_subscription import BestEffortSubscription
from pydanube.dispatch.policy import FailurePolicy, PoisonPolicy
from pydanube.ports.clock import Clock
from pydanube.topic.records import SubscriptionKind

ALL = list(SubscriptionKind)
EXCLUSIVE, SHARED = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED
FAILOVER, KEY_SHARED = SubscriptionKind.FAILOVER, SubscriptionKind.KEY_SHARED


class Basket:
    """A consumer that keeps what it is handed."""

    def __init__(self, topic: BestEffortTopic, host: BestEffortSubscription, permits: int) -> None:
        self.deliveries: list[Delivery] = []
        self.id = topic.connect(host, "c", self).id
        if permits:
            host.grant(self.id, permits)

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    def reset(self, generation: int) -> None:
        raise AssertionError("there are no seeks")

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        raise AssertionError

    def unreadable(self, error: DanubeError | None) -> None:
        raise AssertionError("there is nothing to read")

    def closed(self, error: DanubeError) -> None:
        self.ended = error

    @property
    def offsets(self) -> list[int]:
        return [offset for delivery in self.deliveries for offset in range(delivery.first, delivery.last + 1)]

    @property
    def payloads(self) -> list[bytes | None]:
        return [payload for delivery in self.deliveries for payload in delivery.cut().payloads()]


class StoppedClock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> int:
        return 1_000_000


def run(main: Callable[[BestEffortTopic], Awaitable[None]]) -> None:
    clock: Clock = StoppedClock()

    async def start() -> None:
        await main(BestEffortTopic("/default/t", clock))

    asyncio.run(start())


def test_without_consumers_publishing_succeeds_is_dropped_and_counted() -> None:
    async def main(topic: BestEffortTopic) -> None:
        await topic.publish(batch_of(*numbers(0, 4))).confirmed
        assert (topic.published, topic.unheard) == (5, 5)
        host = await topic.subscribe("s", SHARED)
        receipt = topic.publish(batch_of(*numbers(5, 7)))
        assert receipt.confirmed.done()
        assert (receipt.offset, receipt.duplicate, topic.receipt) == (5, False, "none")
        assert (topic.unheard, host.dropped, host.outbound.messages) == (5, 3, 0)

    run(main)


@pytest.mark.parametrize("kind", ALL)
def test_every_type_delivers_what_was_asked_for_and_counts_the_rest(kind: SubscriptionKind) -> None:
    async def main(topic: BestEffortTopic) -> None:
        host = await topic.subscribe("s", kind)
        basket = Basket(topic, host, 7)
        for first in range(0, 10, 5):
            topic.publish(batch_of(*numbers(first, first + 4), keys=["a", "b", None, "c", "a"]))
        assert basket.offsets == list(range(7))
        assert basket.payloads == [name.encode() for name in numbers(0, 6)]
        assert (host.outbound.messages, host.dropped) == (7, 3)
        host.grant(basket.id, 100)
        topic.publish(batch_of("later"))
        assert basket.offsets[7:] == [10], "what was missed does not come later"
        assert {(delivery.attempt, delivery.generation) for delivery in basket.deliveries} == {(0, 0)}

    run(main)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, KEY_SHARED])
def test_a_slow_consumer_loses_and_it_is_known_who(kind: SubscriptionKind) -> None:
    async def main(topic: BestEffortTopic) -> None:
        host = await topic.subscribe("s", kind)
        basket = Basket(topic, host, 2)
        topic.publish(batch_of(*numbers(0, 9)))
        topic.publish(batch_of(*numbers(10, 14)))
        assert (host.lost(basket.id), host.dropped) == (13, 13)
        with pytest.raises(ConsumerNotFound):
            host.lost(ConsumerId(99))

    run(main)


def test_exclusive_has_one_consumer_and_failover_promotes_the_next() -> None:
    async def main(topic: BestEffortTopic) -> None:
        exclusive, failover = await topic.subscribe("e", EXCLUSIVE), await topic.subscribe("f", FAILOVER)
        Basket(topic, exclusive, 10)
        with pytest.raises(ConsumerBusy):
            Basket(topic, exclusive, 10)
        first, second = Basket(topic, failover, 10), Basket(topic, failover, 10)
        topic.publish(batch_of("a"))
        failover.leave(first.id, crashed=True)
        failover.leave(first.id, crashed=True)
        topic.publish(batch_of("b"))
        assert (first.offsets, second.offsets) == ([0], [1])

    run(main)


def test_shared_splits_and_key_shared_goes_by_key() -> None:
    async def main(topic: BestEffortTopic) -> None:
        shared, by_key = await topic.subscribe("s", SHARED), await topic.subscribe("k", KEY_SHARED)
        halves = [Basket(topic, shared, 100) for _ in range(2)]
        keyed = [Basket(topic, by_key, 100) for _ in range(3)]
        for _ in range(3):
            topic.publish(batch_of(*numbers(0, 19), keys=[f"k{number}" for number in range(20)]))
        assert [len(basket.offsets) for basket in halves] == [30, 30]
        owners = [{offset % 20 for offset in basket.offsets} for basket in keyed]
        assert sum(map(len, owners)) == 20, "each key has one consumer"
        assert all(basket.offsets == sorted(basket.offsets) for basket in keyed)

    run(main)


def test_acks_and_nacks_change_nothing() -> None:
    async def main(topic: BestEffortTopic) -> None:
        host = await topic.subscribe("s", EXCLUSIVE)
        basket = Basket(topic, host, 10)
        topic.publish(batch_of("a", "b"))
        host.nack(basket.id, 0, [(0, 1)], reason="broken")
        await host.ack(0, [(0, 99)])
        await host.ack_through(7, -1)
        assert basket.offsets == [0, 1]
        assert (host.outbound.messages, host.dropped) == (2, 0)

    run(main)


def test_what_needs_a_promise_is_refused() -> None:
    async def main(topic: BestEffortTopic) -> None:
        dead = FailurePolicy(poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead")
        for refused in (
            topic.subscribe("t", SHARED, start="earliest"),
            topic.subscribe("t", SHARED, start=0),
            topic.subscribe("t", SHARED, options=SubscriptionOptions(failure=dead)),
        ):
            with pytest.raises(NotReliable):
                await refused
        with pytest.raises(NotReliable):
            topic.publish(batch_of("a", delivery_times=[99]))
        with pytest.raises(NotReliable):
            topic.publish(batch_of("a", producer_id=1, first_sequence=0))
        assert topic.published == 0

    run(main)


def test_subscriptions_have_names_kinds_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(topic: BestEffortTopic) -> None:
        monkeypatch.setattr(best_effort, "SUBSCRIPTIONS_MAX", 2)
        host = await topic.subscribe("s", SHARED)
        assert await topic.subscribe("s", SHARED, options=SubscriptionOptions()) is host
        with pytest.raises(SubscriptionKindDiffers):
            await topic.subscribe("s", EXCLUSIVE)
        with pytest.raises(NameInvalid):
            await topic.subscribe("", SHARED)
        await topic.subscribe("t", SHARED)
        with pytest.raises(TooManySubscriptions):
            await topic.subscribe("u", SHARED)
        basket = Basket(topic, host, 10)
        await topic.unsubscribe("s")
        topic.publish(batch_of("a"))
        assert basket.offsets == []
        with pytest.raises(SubscriptionNotFound):
            await topic.unsubscribe("s")
        with pytest.raises(SubscriptionNotFound):
            topic.connect(host, "c", basket)
        with pytest.raises(ConsumerNotFound):
            host.grant(basket.id, 1)

    run(main)


def test_a_closed_topic_takes_and_gives_nothing() -> None:
    async def main(topic: BestEffortTopic) -> None:
        host = await topic.subscribe("s", SHARED)
        basket = Basket(topic, host, 10)
        await topic.close()
        with pytest.raises(TopicClosed):
            topic.publish(batch_of("a"))
        with pytest.raises(TopicClosed):
            topic.connect(host, "c", basket)
        with pytest.raises(TopicClosed):
            await topic.subscribe("s", SHARED)

    run(main)


def test_no_byte_is_written(world: TopicWorld) -> None:
    async def main() -> None:
        await world.open("/default/reliable")
        await asyncio.sleep(5)  # the node has nothing left to do
        before = world.disk.operations.copy()
        topic = BestEffortTopic("/default/t", world.clock)
        hosts = [await topic.subscribe(kind.name, kind) for kind in ALL]
        baskets = [Basket(topic, host, 1000) for host in hosts]
        for _ in range(10):
            await topic.publish(batch_of(*numbers(0, 9))).confirmed
        await asyncio.gather(*(host.ack(0, [(0, 9)]) for host in hosts))
        await asyncio.sleep(5)
        assert [len(basket.offsets) for basket in baskets] == [100] * 4
        assert world.disk.operations == before

    world.run(main())


@given(
    kind=st.sampled_from(ALL),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 9)),
            st.tuples(st.just("grant"), st.integers(0, 9)),
            st.tuples(st.just("join"), st.just(0)),
            st.tuples(st.just("leave"), st.just(0)),
        ),
        max_size=40,
    ),
)
def test_each_message_reaches_a_subscription_once_or_is_counted(
    kind: SubscriptionKind, steps: list[tuple[str, int]]
) -> None:
    async def main(topic: BestEffortTopic) -> None:
        host = await topic.subscribe("s", kind)
        here: list[Basket] = []
        everybody: list[Basket] = []
        granted = 0
        for step, number in steps:
            if step == "publish":
                topic.publish(batch_of(*numbers(1, number), keys=[f"k{key}" for key in range(number)]))
            elif step == "grant" and here:
                host.grant(here[number % len(here)].id, number)
                granted += number
            elif step == "join" and (kind is not EXCLUSIVE or not here):
                here.append(Basket(topic, host, 0))
                everybody.append(here[-1])
            elif step == "leave" and here:
                host.leave(here.pop(0).id, crashed=False)
        seen = [offset for basket in everybody for offset in basket.offsets]
        assert len(seen) == len(set(seen)) == host.outbound.messages <= granted
        assert host.outbound.messages + host.dropped == topic.published
        assert all(basket.offsets == sorted(basket.offsets) for basket in everybody)

    run(main)


@pytest.mark.parametrize("seconds", [None, 5])
def test_a_subscription_that_nobody_uses_ends_and_one_that_is_used_stays(seconds: int | None) -> None:
    class Hand(StoppedClock):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    async def main() -> None:
        clock = Hand()
        topic = BestEffortTopic("/default/t", clock, TopicOptions(unused_subscription_seconds=seconds))
        longest = seconds or UNUSED_SUBSCRIPTION_SECONDS
        for name in ("unused", "used", "used again"):
            await topic.subscribe(name, SHARED)
        used = Basket(topic, topic.subscriptions["used"], 1)
        topic.end_unused()
        clock.now += longest - 1
        topic.end_unused()
        assert list(topic.subscriptions) == ["unused", "used", "used again"]
        again = Basket(topic, topic.subscriptions["used again"], 1)
        topic.end_unused()
        topic.subscriptions["used again"].leave(again.id, crashed=False)
        clock.now += 1
        topic.end_unused()
        assert list(topic.subscriptions) == ["used", "used again"]
        topic.subscriptions["used"].leave(used.id, crashed=True)
        clock.now += longest
        topic.end_unused()
        assert list(topic.subscriptions) == ["used"], "its time has only begun"
        clock.now += longest
        topic.end_unused()
        assert topic.subscriptions == {}
        await topic.subscribe("unused", KEY_SHARED)  # as a new one

    asyncio.run(main())


def test_keys_of_many_messages_are_looked_at_some_in_each_turn_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_effort_subscription, "EXAMINED_AT_ONCE", 10)

    async def main(topic: BestEffortTopic) -> None:
        host = await topic.subscribe("s", KEY_SHARED)
        baskets = [Basket(topic, host, 100) for _ in range(2)]
        large = topic.publish(batch_of(*numbers(0, 34), keys=[f"k{at}" for at in range(35)]))
        small = topic.publish(batch_of("m35", keys=["k0"]))
        assert not large.confirmed.done()
        assert host.outbound.messages == 10
        await large.confirmed
        assert not small.confirmed.done()
        await small.confirmed
        assert (host.outbound.messages, host.dropped, topic.published) == (36, 0, 36)
        assert sorted(offset for basket in baskets for offset in basket.offsets) == list(range(36))
        assert all(basket.offsets == sorted(basket.offsets) for basket in baskets)
        assert topic.publish(batch_of("m36", keys=["k0"])).confirmed.done()

    run(main)


def test_what_is_still_being_looked_at_is_dropped_when_its_topic_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_effort_subscription, "EXAMINED_AT_ONCE", 10)

    async def main(topic: BestEffortTopic) -> None:
        hosts = [await topic.subscribe(name, KEY_SHARED) for name in "st"]
        for host in hosts:
            Basket(topic, host, 100)
        receipts = [topic.publish(batch_of(*numbers(0, 24))) for _ in range(2)]
        await topic.close()
        for receipt in receipts:
            await receipt.confirmed
        assert [(host.outbound.messages, host.dropped) for host in hosts] == [(10, 40), (10, 40)]

    run(main)
