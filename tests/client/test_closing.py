"""Closing beside other work, closing that is given up, and time-outs: everybody who waits is told, nothing piles up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.broker import TOPIC, Door, until, with_client, with_door
from pydanube.base.errors import ConnectionLost, DanubeError, NothingReceived
from pydanube.client import Client, Consumer, Message

# -- consumers ---------------------------------------------------------------------------------------------------------


def test_receiving_with_a_time_out_leaves_nothing_behind(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(TOPIC, subscription="s") as consumer:
            for _ in range(100):
                with pytest.raises(NothingReceived):
                    await consumer.receive(timeout=0)
                assert await consumer.fetch(1, timeout=0) == []
            assert len(consumer._arrivals) == 0

    with_client(tmp_path, run)


def test_requests_given_up_without_a_connection_leave_nothing_behind(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await door.stop()
        await until(lambda: not client.connected)
        for _ in range(100):
            with pytest.raises(ConnectionLost):
                await client.admin.topics()
        assert len(client._waiters) == 0

    with_door(tmp_path, run, request_timeout=0.001)


def test_a_consumer_can_be_closed_at_any_moment_of_joining_new_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydanube.client.consumer.REFRESH_SECONDS", 0)

    async def run(client: Client) -> None:
        for turns in range(0, 120, 3):
            topic = f"/default/grows-{turns}"
            await client.admin.create_topic(topic, partitions=1)
            consumer = await client.consumer(topic, subscription="s").open()
            await client.admin.alter_topic(topic, partitions=6)
            for _ in range(turns):  # of the loop, so that it is found at every step of joining
                await asyncio.sleep(0)
            await consumer.close()
            describe = client.admin.describe_subscription
            assert (await describe(topic, "s"))["consumers"] == 0

    with_client(tmp_path, run)


def test_closing_a_consumer_that_is_given_up_tells_who_waits(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        consumer = await client.consumer(TOPIC, subscription="s", start="earliest").open()
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
        message = await consumer.receive(timeout=5)
        door.stall()
        ack = asyncio.ensure_future(_awaited_ack(consumer, message))
        receiving = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        outcomes = await asyncio.gather(closing, ack, receiving, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert all(isinstance(outcome, DanubeError) for outcome in outcomes[1:]), outcomes
        door.flow()

    with_door(tmp_path, run)


async def _awaited_ack(consumer: Consumer, message: Message) -> None:
    await consumer.ack(message)
