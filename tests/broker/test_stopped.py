"""How many messages of a subscription are stopped: nobody gets them until a message that failed is dealt with."""

from __future__ import annotations

import asyncio

from broker.door_world import DoorWorld, served
from broker.topic_world import Inbox, connected, numbers, publish, subscribed
from pydanube.base.limits import SECOND
from pydanube.broker.door.door import Door
from pydanube.broker.door.stats import describe_subscription
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy, PoisonPolicy
from pydanube.topic.records import SubscriptionKind

BLOCK = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.BLOCK)


def stopped(opened: OpenTopic, inbox: Inbox) -> int:
    """The same for the subscription in its only partition and for the whole topic."""
    count = inbox.host.describe().stopped
    assert describe_subscription("s", [opened], 0).stopped == count
    return count


def test_a_blocked_key_stops_only_what_waits_behind_it() -> None:
    async def work(door: Door) -> None:
        opened = await served(door, "/default/t", create=True)
        topic, settings = opened.reliable, DispatchSettings(unacked_max=200, lookahead_max=2000)
        host = await subscribed(topic, SubscriptionKind.KEY_SHARED, policy=BLOCK, settings=settings)
        for _ in range(5):
            await publish(topic, *numbers(0, 999), keys=[f"k{number % 100}" for number in range(1000)])
        inbox = connected(topic, host, permits=200)
        await inbox.until(200)
        inbox.nack(0)
        await asyncio.sleep(1)
        figures = host.describe()
        assert (figures.blocked_at, figures.backlog) == (0, 5000)
        read = host._window.next_offset
        assert 200 < read < 5000
        assert stopped(opened, inbox) == len(range(0, read, 100)), "messages of the other keys are still delivered"

    world = DoorWorld()
    world.run(work)
    world.end()


def test_a_blocked_key_stops_everything_once_nothing_more_is_read() -> None:
    async def work(door: Door) -> None:
        opened = await served(door, "/default/t", create=True)
        topic, settings = opened.reliable, DispatchSettings(lookahead_max=3)
        host = await subscribed(topic, SubscriptionKind.KEY_SHARED, policy=BLOCK, settings=settings)
        for number in range(10):
            await publish(topic, f"m{number}", keys=["k"])
        inbox = connected(topic, host, permits=100)
        await inbox.until(1)
        inbox.nack(0)
        await asyncio.sleep(1)
        assert stopped(opened, inbox) == 10

    world = DoorWorld()
    world.run(work)
    world.end()


def test_too_many_delayed_messages_stop_what_is_not_read_yet() -> None:
    async def work(door: Door) -> None:
        opened = await served(door, "/default/t", create=True)
        topic = opened.reliable
        host = await subscribed(topic, SubscriptionKind.SHARED, settings=DispatchSettings(delayed_max=2))
        inbox = connected(topic, host)
        for number in range(2):
            assert stopped(opened, inbox) == 0
            await publish(topic, f"m{number}", delivery_times=[door.clock.wall() + 3600 * SECOND])
            await asyncio.sleep(1)
        for number in range(5):
            await publish(topic, f"n{number}")
        await asyncio.sleep(1)
        assert (inbox.offsets, host.describe().delayed) == ([], 2)
        assert stopped(opened, inbox) == 5

    world = DoorWorld()
    world.run(work)
    world.end()
