"""Consumers of one subscription: who gets what, in which order, and why somebody gets nothing."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import Inbox, TopicWorld, connected, numbers, publish, subscribed
from pydanube.base.errors import ConsumerBusy, ConsumerNotFound, FilterInvalid
from pydanube.base.ids import ConsumerId
from pydanube.dispatch.explain import Cause as Why
from pydanube.dispatch.policy import DispatchSettings, Unmatched
from pydanube.topic.records import Cause, SubscriptionKind

ALL = list(SubscriptionKind)
EXCLUSIVE, SHARED = SubscriptionKind.EXCLUSIVE, SubscriptionKind.SHARED
FAILOVER, KEY_SHARED = SubscriptionKind.FAILOVER, SubscriptionKind.KEY_SHARED


def keyed(inbox: Inbox) -> dict[bytes | None, list[int]]:
    """The offsets that came, by key, in the order they came."""
    found: dict[bytes | None, list[int]] = {}
    for delivery in inbox.deliveries:
        for message in delivery.cut().messages():
            found.setdefault(message.key, []).append(message.offset)
    return found


def test_exclusive_has_one_consumer_until_it_leaves(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, EXCLUSIVE)
        first = connected(topic, host)
        with pytest.raises(ConsumerBusy):
            connected(topic, host)
        await publish(topic, *numbers(0, 9))
        await first.until(10)
        await host.ack_through(0, 3)
        host.leave(first.id, crashed=True)
        second = connected(topic, host)
        assert await second.until(6) == list(range(4, 10))

    world.run(main())


@pytest.mark.parametrize("crashed", [True, False])
def test_failover_promotes_the_next_consumer_and_keeps_order(world: TopicWorld, crashed: bool) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, FAILOVER)
        first, second, third = (connected(topic, host, name) for name in "abc")
        await publish(topic, *numbers(0, 9))
        await first.until(10)
        assert host.explain_consumer(second.id).cause is Why.STANDBY
        await host.ack_through(0, 5)
        await publish(topic, *numbers(10, 14))
        host.leave(second.id, crashed=False)
        host.leave(first.id, crashed=crashed)
        await publish(topic, *numbers(15, 19))
        assert await third.until(14) == list(range(6, 20))
        assert second.offsets == []
        host.leave(ConsumerId(99), crashed=True)

    world.run(main())


def test_shared_spreads_over_those_who_ask(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        inboxes = [connected(topic, host, permits=permits) for permits in (100, 100, 0)]
        await publish(topic, *numbers(0, 99))
        await asyncio.sleep(1)
        assert [len(inbox.offsets) for inbox in inboxes] == [50, 50, 0]
        assert sorted(offset for inbox in inboxes for offset in inbox.offsets) == list(range(100))

    world.run(main())


def test_key_shared_keeps_each_key_in_order_through_joins_and_leaves(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, KEY_SHARED)
        inboxes = [connected(topic, host, "a"), connected(topic, host, "b")]
        acked: list[int] = []

        async def work(round_: int) -> None:
            """Everything on its way is acknowledged, as it came."""
            keys = [f"k{number % 7}" for number in range(40)]
            await publish(topic, *numbers(round_ * 40, round_ * 40 + 39), keys=keys)
            await asyncio.sleep(0.5)
            for inbox in inboxes:
                left = [offset for offset in inbox.offsets if host.known.cursor.pending(offset, offset)]
                acked.extend(left)
                await inbox.ack(*left)

        await work(0)
        inboxes.append(connected(topic, host, "c"))
        await work(1)
        gone = inboxes.pop(0)
        host.leave(gone.id, crashed=True)
        await work(2)
        await work(3)
        assert sorted(acked) == list(range(160))
        assert host.known.cursor.floor == 160
        for inbox in (*inboxes, gone):
            for key, offsets in keyed(inbox).items():
                assert offsets == sorted(offsets), key
        assert len({key for inbox in inboxes for key in keyed(inbox)}) == 7

    world.run(main())


def test_a_key_stays_with_its_holder_while_messages_of_it_are_in_flight(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, KEY_SHARED)
        first = connected(topic, host, "a")
        keys = [f"k{number}" for number in range(20)]
        await publish(topic, *numbers(0, 19), keys=keys)
        await first.until(20)
        second = connected(topic, host, "b")
        await publish(topic, *numbers(20, 39), keys=keys)
        await asyncio.sleep(1)
        moved = [offset for offset in range(20, 40) if offset not in first.offsets]
        assert moved, "some keys have a new owner"
        assert second.offsets == []
        assert {host.explain(offset).cause for offset in moved} == {Why.KEY_HELD}
        await first.ack(*range(20))
        assert sorted(await second.until(len(moved))) == moved

    world.run(main())


def test_key_filters_choose_and_what_nobody_accepts_waits_or_is_skipped(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        waiting = await subscribed(topic, KEY_SHARED, name="waiting")
        settings = DispatchSettings(unmatched=Unmatched.SKIP)
        skipping = await subscribed(topic, KEY_SHARED, name="skipping", settings=settings)
        red = [connected(topic, host, filters=[b"red-*"]) for host in (waiting, skipping)]
        await publish(topic, *numbers(0, 5), keys=["red-1", "blue-1", "red-2", "blue-2", "red-1", "blue-1"])
        for inbox in red:
            assert sorted(await inbox.until(3)) == [0, 2, 4]
            await inbox.ack_all()
        await asyncio.sleep(1)
        assert waiting.explain(1).cause is Why.KEY_UNMATCHED
        assert (skipping.known.cursor.floor, skipping.known.counts[Cause.FILTERED]) == (6, 3)
        blue = connected(topic, waiting, filters=[b"blue-*"])
        assert sorted(await blue.until(3)) == [1, 3, 5]
        with pytest.raises(FilterInvalid):
            connected(topic, await subscribed(topic, SHARED), filters=[b"x"])

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_nobody_gets_more_than_was_asked_for(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind)
        inbox = connected(topic, host, permits=0)
        await publish(topic, *numbers(0, 29))
        await asyncio.sleep(1)
        for permits in (1, 5, 24):
            before = len(inbox.offsets)
            host.grant(inbox.id, permits)
            await asyncio.sleep(1)
            assert len(inbox.offsets) == before + permits
        assert host.explain_consumer(inbox.id).cause is Why.FULL
        host.grant(inbox.id, 1)
        await asyncio.sleep(1)
        assert host.explain_consumer(inbox.id).cause is Why.IDLE
        with pytest.raises(ConsumerNotFound):
            host.grant(ConsumerId(99), 1)
        with pytest.raises(ConsumerNotFound):
            host.explain_consumer(ConsumerId(99))

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_a_pause_stops_delivery_and_nothing_else(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, kind))
        await publish(topic, *numbers(0, 4))
        await inbox.until(5)
        inbox.host.pause(inbox.id)
        await publish(topic, *numbers(5, 9))
        await inbox.ack(*range(5))
        await asyncio.sleep(100)
        assert len(inbox.offsets) == 5
        assert inbox.host.explain(7).cause is Why.PAUSED
        inbox.host.resume()
        assert sorted(await inbox.until(10)) == list(range(10))

    world.run(main())


@pytest.mark.parametrize("crashed", [False, True])
def test_a_pause_ends_when_those_who_paused_have_left(world: TopicWorld, crashed: bool) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SubscriptionKind.SHARED)
        one, two, three = (connected(topic, host) for _ in range(3))
        host.pause(one.id)
        host.pause(two.id)
        await publish(topic, *numbers(0, 4))
        host.leave(one.id, crashed=crashed)
        await asyncio.sleep(100)
        assert (host.engine.paused, three.offsets) == (True, [])
        host.leave(two.id, crashed=crashed)
        assert await three.until(5) == list(range(5))
        assert not host.engine.paused

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_the_window_of_unacknowledged_messages_is_bounded(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind, settings=DispatchSettings(unacked_max=10))
        inbox = connected(topic, host, permits=1000)
        for first in range(0, 60, 3):
            await publish(topic, *numbers(first, first + 2))
        await asyncio.sleep(1)
        assert sorted(inbox.offsets) == list(range(10))
        assert host.explain(59).cause is Why.UNACKED_LIMIT
        for count in range(20, 70, 10):
            await inbox.ack_all()
            assert len(await inbox.until(count)) == count

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_it_explains_what_only_the_host_knows(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, *numbers(0, 4))
        host = await subscribed(topic, kind, start="latest")
        await publish(topic, *numbers(5, 9))
        assert host.explain(4).cause is Why.BELOW_START
        assert host.explain(7).cause is Why.NO_CONSUMER
        assert host.explain(10).cause is Why.NOT_PUBLISHED
        inbox = connected(topic, host)
        await inbox.until(5)
        assert host.explain(7).cause is Why.IN_FLIGHT
        await inbox.ack(7)
        assert host.explain(7).cause is Why.ACKED
        assert host.explain(7).sentence == "It was acknowledged or skipped."

    world.run(main())


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED])
def test_a_crash_of_a_consumer_while_its_messages_are_read_leaves_none_behind(kind: SubscriptionKind) -> None:
    world = TopicWorld(cache_bytes=1)

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind)
        for first in (0, 10):
            await publish(topic, *numbers(first, first + 9), keys=[f"k{number}" for number in range(10)])
        gone, left = connected(topic, host, "a"), connected(topic, host, "b")
        await asyncio.sleep(1)
        for inbox in (gone, left):
            inbox.nack(*range(20))
        world.disk.slow(2.0, only="read")
        await asyncio.sleep(2)
        assert host._sender.outbox
        host.leave(gone.id, crashed=True)
        assert all(deliver.consumer == left.id for deliver in host._sender.outbox)
        await asyncio.sleep(10)
        await left.ack_all()
        assert host.known.cursor.floor == 20

    world.run(main())
    world.end()
