"""Much that fails or waits at once is dealt with in bounded turns of the loop, and in one pass."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from broker.topic_world import TopicWorld, batch_of, connected, numbers, subscribed
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DELIVERIES_AT_ONCE, NACKS_AT_ONCE
from pydanube.broker.delivery import Delivery
from pydanube.broker.outbox import Nack, Nacks, Outbox
from pydanube.dispatch.events import Deliver
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.ledger.state_records import SubscriptionKind

ONE, TWO = ConsumerId(1), ConsumerId(2)
MESSAGES = 20_000


def test_what_is_recalled_is_cut_out_and_the_rest_waits_in_order() -> None:
    outbox = Outbox()
    for consumer, first, last in ((ONE, 0, 9), (TWO, 10, 19), (ONE, 20, 20), (ONE, 30, 39)):
        outbox.add(Deliver(consumer, first, last, 0), now=first)
    assert outbox.since == 0
    recalled = [(ONE, 35, 100), (ONE, 20, 20), (ONE, 3, 4), (ONE, 7, 7), (TWO, 0, 9), (TWO, 30, 39)]
    assert outbox.drop(recalled) == {ONE: 2 + 1 + 1 + 5}
    left = [(deliver.consumer, deliver.first, deliver.last) for deliver in outbox]
    assert left == [(ONE, 0, 2), (ONE, 5, 6), (ONE, 8, 9), (TWO, 10, 19), (ONE, 30, 34)]


@pytest.mark.parametrize("seed", range(20))
def test_cutting_out_agrees_with_sets(seed: int) -> None:
    chance = Random(seed)
    outbox, expected = Outbox(), set()
    at = 0
    for _ in range(30):
        consumer, first = chance.choice((ONE, TWO)), at + chance.randrange(3)
        at = first + chance.randrange(1, 8)
        outbox.add(Deliver(consumer, first, at - 1, 0), now=0)
        expected |= {(consumer, offset) for offset in range(first, at)}
    recalled = []
    for _ in range(25):
        first = chance.randrange(at)
        recalled.append((chance.choice((ONE, TWO)), first, first + chance.randrange(5)))
    gone = {(consumer, offset) for consumer, first, last in recalled for offset in range(first, last + 1)}
    dropped = outbox.drop(recalled)
    assert dropped == Counter(consumer for consumer, _ in expected & gone)
    left = [(each.consumer, offset) for each in outbox for offset in range(each.first, each.last + 1)]
    assert sorted(left, key=lambda each: each[1]) == left
    assert set(left) == expected - gone


def test_nacks_are_applied_so_many_in_a_turn_and_in_order() -> None:
    applied: list[Nack] = []
    nacks = Nacks(applied.append, at_once=10, waiting_max=100)

    def offsets() -> list[int]:
        taken = [first for nack in applied for first, _ in nack.ranges]
        applied.clear()
        return taken

    nacks.add(nack_of(0, 4), now=1)
    assert offsets() == [0, 1, 2, 3]
    nacks.add(nack_of(4, 15), now=2)
    assert offsets() == [4, 5, 6, 7, 8, 9]
    assert nacks.time == 1  # all of one turn have one time
    nacks.add(nack_of(15, 26), now=3)
    assert (offsets(), nacks.count) == ([], 16)
    nacks.turn(4)
    assert (offsets(), nacks.count, nacks.time) == (list(range(10, 20)), 6, 4)
    nacks.finish()
    assert (offsets(), nacks.count) == (list(range(20, 26)), 0)


def test_no_more_nacks_wait_than_may() -> None:
    applied: list[Nack] = []
    nacks = Nacks(applied.append, at_once=10, waiting_max=20)
    for first in range(0, 100, 10):
        nacks.add(nack_of(first, first + 10), now=0)
        assert nacks.count <= 20
    assert [first for nack in applied for first, _ in nack.ranges] == list(range(80))
    nacks.clear()
    nacks.finish()
    assert (nacks.count, len(applied)) == (0, 8)


def nack_of(first: int, end: int) -> Nack:
    return Nack(ONE, 0, [(offset, offset) for offset in range(first, end)], 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED])
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
    assert max(nacked.values()) <= NACKS_AT_ONCE
    assert max(delivered.values()) <= DELIVERIES_AT_ONCE


def test_a_consumer_that_gives_up_much_and_leaves_has_failed_all_of_it(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        count = 3 * NACKS_AT_ONCE
        host = await subscribed(topic, SubscriptionKind.SHARED, policy=FailurePolicy(base_delay=0))
        inbox = connected(topic, host, permits=count)
        await topic.publish(batch_of(*numbers(0, count - 1))).confirmed
        await inbox.until(count)
        inbox.nack(*range(count))
        host.leave(inbox.id, crashed=False)
        other = connected(topic, host, permits=count)
        assert sorted(await other.until(count)) == list(range(count))
        assert {delivery.attempt for delivery in other.deliveries} == {1}

    world.run(main())
