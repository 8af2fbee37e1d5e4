"""How long the oldest message of a subscription has waited, as `describe` and `list` say it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import pydanube
from client.broker import TOPIC
from pydanube.client import Client
from pydanube.testing import VirtualClock
from pydanube.testing.broker import RunningBroker, broker

WIDE = "/default/wide"
Story = Callable[[Client, VirtualClock, RunningBroker], Awaitable[None]]


def by_the_clock(story: Story) -> None:
    async def run() -> None:
        clock = VirtualClock()
        async with asyncio.timeout(20), broker(clock=clock) as server, pydanube.connect(server.url) as client:
            await story(client, clock, server)

    asyncio.run(run())


async def publish(client: Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        await producer.send(b"")


async def age(client: Client, topic: str = TOPIC) -> float | None:
    described = (await client.admin.describe_subscription(topic, "s"))["backlog_seconds"]
    [listed] = await client.admin.subscriptions(topic)
    assert listed["backlog_seconds"] == described
    return None if described is None else round(described)


def test_it_is_the_age_of_the_first_message_that_is_not_acknowledged() -> None:
    async def story(client: Client, clock: VirtualClock, server: RunningBroker) -> None:
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            assert await age(client) == 0
            await publish(client, TOPIC)
            clock.advance(60)
            await publish(client, TOPIC)
            clock.advance(5)
            assert await age(client) == 65
            first, second = await consumer.fetch(2, timeout=5)
            assert await age(client) == 65  # received is not acknowledged
            await consumer.ack(first)
            assert await age(client) == 5
            await consumer.ack(second)
            assert await age(client) == 0

    by_the_clock(story)


def test_of_partitions_the_oldest_counts() -> None:
    async def story(client: Client, clock: VirtualClock, server: RunningBroker) -> None:
        await client.admin.create_topic(WIDE, partitions=3)
        await client.admin.create_subscription(WIDE, "s")
        for partition in (2, 0):
            await publish(client, f"{WIDE}-part-{partition}")
            clock.advance(10)
        await client.admin.alter_topic(WIDE, partitions=4)  # a partition where the subscription is not yet
        assert await age(client, WIDE) == 20
        assert await age(client, f"{WIDE}-part-0") == 10
        assert await age(client, f"{WIDE}-part-1") == 0

    by_the_clock(story)


def test_a_topic_that_keeps_nothing_has_nothing_old() -> None:
    async def story(client: Client, clock: VirtualClock, server: RunningBroker) -> None:
        await client.admin.create_topic(TOPIC, reliable=False)
        await client.admin.create_subscription(TOPIC, "s")
        assert await age(client) == 0

    by_the_clock(story)


def test_after_a_restart_it_is_read_as_often_as_one_answer_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(client: Client, clock: VirtualClock, server: RunningBroker) -> None:
        await client.admin.create_topic(WIDE, partitions=2)
        await client.admin.create_subscription(WIDE, "s")
        for partition in range(2):
            await publish(client, f"{WIDE}-part-{partition}")
        await server.restart()
        clock.advance(7)
        monkeypatch.setattr("pydanube.broker.door.verbs.subscriptions.AGE_READS_MAX", 1)
        unknown = await client.admin.describe_subscription(WIDE, "s")
        assert (unknown["backlog"], unknown["backlog_seconds"]) == (2, None)  # one of the two is not known yet
        known = await client.admin.describe_subscription(WIDE, "s")
        assert round(known["backlog_seconds"]) == 7

    by_the_clock(story)
