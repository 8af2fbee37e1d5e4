"""Fetching: what was collected and never handed out is lost to nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pydanube.sync
from client.broker import TOPIC, Door, running, until, with_client, with_door
from pydanube.base.errors import SubscriptionNotFound
from pydanube.client import Client, Consumer


async def given_up(consumer: Consumer, count: int) -> None:
    """A fetch of more than there is, cancelled once it has collected so many."""
    fetching = asyncio.ensure_future(consumer.fetch(1000))
    await until(lambda: len(consumer.inbox._fetching) == 1 and len(consumer.inbox._fetching[0]) == count)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching


@pytest.mark.parametrize("prefetch", [2, 10_000])
def test_a_fetch_that_is_cancelled_gives_back_what_it_had_in_order(tmp_path: Path, prefetch: int) -> None:
    async def run(client: Client) -> None:
        async with (
            client.producer(TOPIC, batch_messages=3) as producer,
            client.consumer(TOPIC, subscription="s", type="shared", start="earliest", prefetch=prefetch) as consumer,
        ):
            for number in range(10):
                producer.send(b"%d" % number)
            await producer.flush()
            assert (await consumer.receive(5)).payload == b"0"
            await given_up(consumer, 9)
            await given_up(consumer, 9)
            producer.send(b"10")
            assert (await consumer.receive(5)).payload == b"1"
            found = await consumer.fetch(9, timeout=5)
            assert [message.payload for message in found] == [b"%d" % number for number in range(2, 11)]
            for message in found:
                await consumer.ack(message)
            assert await consumer.fetch(1, timeout=0.02) == []

    with_client(tmp_path, run)


def test_another_who_waits_gets_what_is_given_back(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
        ):
            fetching = asyncio.ensure_future(consumer.fetch(1000))
            await asyncio.sleep(0)
            await producer.send(b"one")
            await until(lambda: bool(consumer.inbox._fetching[0]))
            waiting = asyncio.ensure_future(anext(consumer.batches()))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            fetching.cancel()
            assert (await waiting).payloads == [b"one"]

    with_client(tmp_path, run)


def test_what_the_broker_delivers_again_is_not_given_back(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
        ):
            await producer.send_many([b"one", b"two"])
            await given_up(consumer, 2)
            fetching = asyncio.ensure_future(consumer.fetch(3))
            await asyncio.sleep(0)
            door.cut()
            await until(lambda: not client.connected)
            await producer.send(b"three")
            assert [message.payload for message in await fetching] == [b"one", b"two", b"three"]
            assert await consumer.fetch(1, timeout=0.02) == []

    with_door(tmp_path, run)


def test_what_was_collected_before_the_end_is_handed_out_before_it_is_said(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
        ):
            await producer.send(b"one")
            fetching = asyncio.ensure_future(consumer.fetch(2))
            await until(lambda: bool(consumer.inbox._fetching and consumer.inbox._fetching[0]))
            await client.admin.delete_subscription(TOPIC, "s")
            assert [message.payload for message in await fetching] == [b"one"]
            with pytest.raises(SubscriptionNotFound):
                await consumer.fetch(2)

    with_client(tmp_path, run)


def test_a_thread_gets_what_was_brought_before_the_end_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as server:
            await asyncio.to_thread(story, server.url)

    def story(url: str) -> None:
        with pydanube.sync.connect(url) as client:
            consumer = client.consumer(TOPIC, subscription="s", start="earliest").open()
            with client.producer(TOPIC) as producer:
                producer.send_many([b"one", b"two"]).result(5)
            assert consumer.receive(5).payload == b"one"
            client.admin.delete_subscription(TOPIC, "s")
            assert [message.payload for message in consumer.fetch(2, 5)] == [b"two"]
            with pytest.raises(SubscriptionNotFound):
                consumer.fetch(2, 5)

    asyncio.run(run())
