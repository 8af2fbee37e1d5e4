"""The broker by a clock that the test moves: hours pass at once, and nothing passes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import process_time

import pytest

import pydanube
import pydanube.sync
from client.broker import TOPIC
from pydanube.base.errors import NothingReceived
from pydanube.client import Client
from pydanube.testing import VirtualClock
from pydanube.testing.broker import broker, broker_thread

HOUR = 3600


def by_the_clock(test: Callable[[Client, VirtualClock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = VirtualClock()
        async with asyncio.timeout(20), broker(clock=clock) as server, pydanube.connect(server.url) as client:
            await test(client, clock)

    asyncio.run(run())


def test_a_nack_is_delayed_until_the_clock_says_so() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"later")
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            consumer.nack(await consumer.receive(5), delay=50)
            await client.admin.namespaces()  # answered behind the nack: the broker has it
            clock.advance(49)
            with pytest.raises(NothingReceived):
                await consumer.receive(timeout=0.02)
            clock.advance(1)
            assert (await consumer.receive(5)).redelivery_count == 1

    by_the_clock(run)


def test_an_ack_timeout_runs_by_the_clock() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"slow")
        options = {"failure": {"ack_timeout": HOUR}}
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest", options=options) as one:
            assert (await one.receive(5)).redelivery_count == 0
            await client.admin.namespaces()  # answered by a broker that knows who has the message in hand
            clock.advance(2 * HOUR)  # the delivery has failed
            await client.admin.namespaces()  # answered by a broker that has seen it
            clock.advance(60)  # and whatever delay a failure has is over
            assert (await one.receive(5)).redelivery_count >= 1

    by_the_clock(run)


def test_messages_expire_by_the_clock() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await client.admin.create_topic(TOPIC, policies={"ttl_seconds": HOUR})
        await client.admin.create_subscription(TOPIC, "s")
        async with client.producer(TOPIC) as producer:
            await producer.send(b"old")
            clock.advance(HOUR + 1)
            while (await client.admin.subscriptions(TOPIC))[0]["backlog"]:
                clock.advance(1)
            await producer.send(b"new")
        async with client.consumer(TOPIC, subscription="s") as consumer:
            assert (await consumer.receive(5)).payload == b"new"

    by_the_clock(run)


def test_append_times_are_the_clocks() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        async with client.producer(TOPIC) as producer, client.reader(TOPIC) as reader:
            clock.advance(HOUR)
            await producer.send(b"x")
            assert (await reader.receive(5)).append_time == clock.wall()

    by_the_clock(run)


def test_a_broker_in_a_thread_follows_the_clock_too() -> None:
    clock = VirtualClock(wall=1_000_000)
    with broker_thread(clock=clock) as url, pydanube.sync.connect(url) as client:
        with client.producer(TOPIC) as producer:
            producer.send(b"x", delivery_time=clock.wall() + HOUR * 1_000_000)
        with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            assert consumer.fetch(1, timeout=0.02) == []
            clock.advance(HOUR)
            assert consumer.receive(5).payload == b"x"
    clock.advance(1)  # nobody runs by it any more, and nobody minds


def test_a_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="cannot move backwards"):
        VirtualClock().advance(-1)


def test_a_broker_is_up_within_fifty_milliseconds() -> None:
    async def starts() -> list[float]:  # of the processor's time: a test does not know who else uses the disk
        found = []
        for _ in range(7):
            begun = process_time()
            async with broker():
                found.append(process_time() - begun)
        return found

    assert min(asyncio.run(starts())) < 0.05
