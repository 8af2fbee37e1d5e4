"""A topic with its streams, cursors and consumers on one node, through kills and power cuts."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import TopicWorld, connected, numbers, publish, subscribed
from pydanube.base.errors import DanubeError, TopicClosed
from pydanube.base.limits import KIB
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.storage.stream.state import Closed
from pydanube.stream.retention import RetentionPolicy
from pydanube.topic.records import SubscriptionKind

ALL = list(SubscriptionKind)


@pytest.mark.parametrize("kind", ALL)
def test_what_is_published_is_delivered_and_what_is_acked_does_not_come_again(
    world: TopicWorld, kind: SubscriptionKind
) -> None:
    async def first_life() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind)
        inbox = connected(topic, host)
        for start in range(0, 30, 10):
            assert await publish(topic, *numbers(start, start + 9)) == start
        assert sorted(await inbox.until(30)) == list(range(30))
        assert inbox.payloads == [f"m{offset}".encode() for offset in inbox.offsets]
        await inbox.ack(*range(10), 15, 29)

    async def second_life() -> None:
        topic = await world.open()
        host = topic.subscriptions["s"]
        inbox = connected(topic, host)
        left = [offset for offset in range(10, 29) if offset != 15]
        assert sorted(await inbox.until(len(left))) == left
        await inbox.ack_all()
        assert host.known.cursor.floor == 30
        await asyncio.sleep(1)
        assert sorted(inbox.offsets) == left

    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_topic_that_is_closed_is_closed_wholly_whoever_subscribes_or_leaves_meanwhile(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topic = await world.open()
        hosts = [await subscribed(topic, SubscriptionKind.SHARED, name=f"s{number}") for number in range(3)]
        inboxes = [connected(topic, host) for host in hosts]
        async with topic._core.starting:  # a trim, say
            late = asyncio.ensure_future(subscribed(topic, SubscriptionKind.SHARED, name="late"))
            leaving = asyncio.ensure_future(topic.unsubscribe("s2"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            close = SubscriptionHost.close

            async def slowly(host: SubscriptionHost, why: DanubeError) -> None:
                await close(host, why)
                await asyncio.sleep(1)

            monkeypatch.setattr(SubscriptionHost, "close", slowly)
            closing = asyncio.ensure_future(topic.close())
            await asyncio.sleep(0.5)
        with pytest.raises(TopicClosed):
            await late
        await closing
        await asyncio.gather(leaving, return_exceptions=True)
        assert "late" not in topic.subscriptions
        assert all(inbox.ended is not None for inbox in inboxes)
        assert isinstance(topic.ledger.stream._state, Closed)

    world.run(main())


@pytest.mark.parametrize("pinned", [False, True])
def test_what_is_pinned_while_a_housekeeping_round_is_under_way_is_not_deleted_in_it(pinned: bool) -> None:
    world = TopicWorld(options=TopicOptions(ledger_bytes=KIB, retention=RetentionPolicy(seconds=2)))

    async def main() -> None:
        topic = await world.open()
        await publish(topic, *numbers(0, 99))
        topic.ledger.stream.roll()
        await publish(topic, "last")
        await asyncio.sleep(10)
        async with topic._core.starting:  # somebody subscribes, on a slow disk
            tick = asyncio.ensure_future(topic.tick())
            await asyncio.sleep(1)
            topic.pinned = pinned
        await tick
        assert topic.ledger.first == (0 if pinned else 101)

    world.run(main())
