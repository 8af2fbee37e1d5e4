"""Acks and nacks of very many messages reach the engine in bounded turns of the loop, and as if in one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.topic_world import TopicWorld, batch_of, connected, numbers, subscribed
from dispatch.desk import A, connect
from pydanube.base.limits import ACKED_AT_ONCE, DELIVERIES_AT_ONCE, NACKED_AT_ONCE, UNACKED_MAX
from pydanube.broker.subscription.ack_queue import AckQueue, RangeQueue
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.subscription.lifetime import Lifetime
from pydanube.dispatch.engine import Engine
from pydanube.dispatch.events import Run
from pydanube.dispatch.exclusive import Exclusive
from pydanube.dispatch.key_shared import KeyShared
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.dispatch.shared import Shared
from pydanube.topic.records import SubscriptionKind

EXCLUSIVE, SHARED, KEY_SHARED = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED
MESSAGES = 20_000


class Applied:
    """What was applied since it was last asked."""

    def __init__(self, at_once: int) -> None:
        self.queue = RangeQueue(at_once)
        self._applied: list[tuple[int, int]] = []

    def add(self, *ranges: tuple[int, int]) -> list[tuple[int, int]]:
        self.queue.add(lambda first, last: self._applied.append((first, last)), ranges)
        return self.since()

    def turn(self) -> list[tuple[int, int]]:
        self.queue.turn()
        return self.since()

    def since(self) -> list[tuple[int, int]]:
        applied, self._applied = self._applied, []
        return applied


def test_a_limited_number_is_applied_in_a_turn_and_in_order() -> None:
    applied = Applied(10)
    assert applied.add((0, 0), (1, 3)) == [(0, 0), (1, 3)]
    assert applied.add((4, 4), (5, 8), (9, 10), (11, 12)) == [(4, 4), (5, 8), (10, 10)]
    assert (applied.add((20, 21)), applied.queue.count, applied.queue.midway) == ([], 5, True)
    assert applied.turn() == [(9, 9)]  # and what was held back goes first
    assert not applied.queue.midway
    assert applied.turn() == [(11, 12), (20, 21)]
    assert applied.queue.count == 0


def test_a_long_range_is_applied_from_its_end() -> None:
    applied = Applied(10)
    assert applied.add((0, 24)) == [(15, 24)]
    assert (applied.turn(), applied.queue.midway) == ([(5, 14)], True)
    assert (applied.turn(), applied.queue.midway, applied.queue.count) == ([(0, 4)], False, 0)


def test_what_waits_can_be_applied_at_once_or_dropped() -> None:
    applied = Applied(10)
    applied.add((0, 99), (200, 200))
    applied.queue.finish()
    assert (applied.since(), applied.queue.count) == ([(0, 89), (200, 200)], 0)
    applied.add((0, 99))
    applied.queue.clear()
    assert (applied.turn(), applied.queue.count, applied.queue.midway) == ([], 0, False)


def test_no_more_nacks_wait_than_can_be_in_flight() -> None:
    engine = Exclusive(FailurePolicy(), DispatchSettings())
    queue = AckQueue(engine, ordered=True)
    for _ in range(10):
        queue.nacked(A, [(0, UNACKED_MAX // 2 - 1)], 0, "", 0)
        assert queue._nacks.count <= UNACKED_MAX


@pytest.mark.parametrize("kind", [Exclusive, Shared, KeyShared])
@given(
    ranges=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), min_size=1, max_size=4),
    acked=st.lists(st.integers(0, 59), max_size=20),
    at_once=st.integers(1, 70),
    delay=st.sampled_from([0, 5_000_000]),
)
def test_in_parts_as_in_one_step(
    kind: Callable[..., Engine[Any]], ranges: list[tuple[int, int]], acked: list[int], at_once: int, delay: int
) -> None:
    """All that comes out of the engine afterwards is the same."""

    def filled() -> Engine[Any]:
        engine = kind(FailurePolicy(max_redelivery_count=1), DispatchSettings())
        connect(engine, 200, A)
        keys = [b"k%d" % (offset % 7) for offset in range(60)] if kind is KeyShared else None
        engine.offer(Run(0, 59, keys), 0)
        engine.poll(0)
        for offset in acked:
            engine.acked(offset, offset)
        return engine

    def later(engine: Engine[Any]) -> list[tuple[int, int, int]]:
        """The offsets that come again: when, which, and how often each has failed."""
        found = []
        for now in range(10, 60_000_000, 1_000_000):
            for effect in engine.poll(now):
                offsets = range(effect.first, effect.last + 1) if hasattr(effect, "first") else [effect.offset]
                found += [(now, offset, getattr(effect, "attempt", -1)) for offset in offsets]
        return sorted(found)

    ordered = [(min(each), max(each)) for each in ranges]
    whole, cut = filled(), filled()
    for first, last in ordered:
        whole.nack(A, first, last, 10, delay)
    parts = RangeQueue(at_once)
    parts.add(lambda first, last: cut.nack(A, first, last, 10, delay), ordered)
    while parts.count:
        parts.turn()
    assert cut.held(A) == whole.held(A)
    assert later(cut) == later(whole)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_a_whole_window_that_fails_in_one_range_takes_no_long_turn(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionKind
) -> None:
    nacked = Counter[int]()  # messages, by the event of the loop

    async def main() -> None:
        topic = await world.open()
        count = 5 * NACKED_AT_ONCE
        host = await subscribed(topic, kind, policy=FailurePolicy(base_delay=0))
        inbox = connected(topic, host, permits=2 * count)
        await topic.publish(batch_of(*numbers(0, count - 1), keys=[f"k{at % 50}" for at in range(count)])).confirmed
        await inbox.until(count)
        inbox.forget()
        nack = host.engine.nack

        def counted(consumer: int, first: int, last: int, *rest: Any) -> None:
            assert not inbox.deliveries, "nothing is delivered before all of it is applied"
            nacked[world.loop.events] += last - first + 1
            nack(consumer, first, last, *rest)

        monkeypatch.setattr(host.engine, "nack", counted)
        host.nack(inbox.id, 0, [(0, 1 << 60)])
        again = await inbox.until(count)
        assert sorted(again) == list(range(count))
        assert {delivery.attempt for delivery in inbox.deliveries} == {1}
        for key in range(50 if kind is KEY_SHARED else 0):
            assert [offset for offset in again if offset % 50 == key] == list(range(key, count, 50))

    world.run(main())
    assert max(nacked.values()) <= NACKED_AT_ONCE


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_nothing_that_is_acknowledged_in_one_range_comes_again(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionKind
) -> None:
    """Though it is overdue when the engine hears of it."""
    acked = Counter[int]()

    async def main() -> None:
        topic = await world.open()
        count = 3 * ACKED_AT_ONCE
        settings = DispatchSettings(unacked_max=count, lookahead_max=count)
        policy = FailurePolicy(ack_timeout=1_000_000, base_delay=0)
        host = await subscribed(topic, kind, policy=policy, settings=settings)
        inbox = connected(topic, host, permits=2 * count)
        for first in range(0, count, 1_024):
            keys = [f"k{first + at}" for at in range(1_024)]
            await topic.publish(batch_of(*numbers(first, first + 1_023), keys=keys)).confirmed
        await inbox.until(count)
        host.taken(inbox.id, 0, [(0, count - 1)])
        inbox.forget()
        engine_acked = host.engine.acked

        def counted(first: int, last: int) -> None:
            acked[world.loop.events] += (last - first + 1) if first < last else 0  # it asks itself for single ones
            engine_acked(first, last)

        monkeypatch.setattr(host.engine, "acked", counted)
        monkeypatch.setattr(Lifetime, "now", property(lambda _: 10_000_000_000))
        await host.ack(0, [(0, count - 1)])
        await topic.publish(batch_of("last", keys=["k"])).confirmed
        assert await inbox.until(1) == [count]
        assert (len(inbox.deliveries), host.engine.in_flight) == (1, 1)

    world.run(main())
    assert max(acked.values()) <= ACKED_AT_ONCE


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_scattered_messages_that_fail_at_once_take_no_long_turn(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionKind
) -> None:
    nacked, delivered = Counter[int](), Counter[int]()  # by the event of the loop in which it happened
    failed = range(0, MESSAGES, 2)

    async def main() -> None:
        topic = await world.open()
        settings = DispatchSettings(unacked_max=MESSAGES, lookahead_max=MESSAGES)
        host = await subscribed(topic, kind, policy=FailurePolicy(base_delay=0), settings=settings)
        inbox = connected(topic, host, permits=2 * MESSAGES)
        for first in range(0, MESSAGES, 1_000):
            batch = batch_of(*numbers(first, first + 999), keys=[f"k{first + at}" for at in range(1_000)])
            await topic.publish(batch).confirmed
        await inbox.until(MESSAGES)
        inbox.forget()
        nack, deliver = host.engine.nack, inbox.deliver

        def counted_nack(*arguments: Any) -> None:
            nacked[world.loop.events] += 1
            nack(*arguments)

        def counted_deliver(delivery: Delivery) -> None:
            delivered[world.loop.events] += 1
            deliver(delivery)

        monkeypatch.setattr(host.engine, "nack", counted_nack)
        monkeypatch.setattr(inbox, "deliver", counted_deliver)
        inbox.nack(*failed)
        assert sorted(await inbox.until(len(failed))) == list(failed)
        assert {delivery.attempt for delivery in inbox.deliveries} == {1}

    world.run(main())
    assert sum(nacked.values()) == len(failed)
    assert max(nacked.values()) <= NACKED_AT_ONCE
    assert max(delivered.values()) <= DELIVERIES_AT_ONCE


def test_a_consumer_that_gives_up_much_and_leaves_has_failed_all_of_it(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        count = 3 * NACKED_AT_ONCE
        host = await subscribed(topic, SHARED, policy=FailurePolicy(base_delay=0))
        inbox = connected(topic, host, permits=count)
        await topic.publish(batch_of(*numbers(0, count - 1))).confirmed
        await inbox.until(count)
        inbox.nack(*range(count))
        host.leave(inbox.id, crashed=False)
        other = connected(topic, host, permits=count)
        assert sorted(await other.until(count)) == list(range(count))
        assert {delivery.attempt for delivery in other.deliveries} == {1}

    world.run(main())
