"""Closing beside other work, closing that is given up, and time-outs: everybody who waits is told, nothing piles up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.broker import TOPIC, Door, until, with_client, with_door
from pydanube.api.native import connection as broker_connection
from pydanube.base.errors import ClientClosed, ConnectionLost, DanubeError, NotAnswered, NothingReceived
from pydanube.client import Client, Consumer, Message
from pydanube.client import connection as client_connection

# -- producers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linger", [0.0, 60.0])
def test_every_send_beside_closing_is_stored_or_fails(tmp_path: Path, linger: float) -> None:
    async def run(client: Client) -> None:
        producer = await client.producer(TOPIC, linger=linger).open()
        stored = 0

        async def work() -> None:
            nonlocal stored
            while True:
                await producer.send(b"x")
                stored += 1

        workers = [asyncio.create_task(work()) for _ in range(20)]
        await until(lambda: stored >= 100)
        await producer.close()
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ClientClosed}
        assert (await client.admin.describe_topic(TOPIC))["end"] == stored
        with pytest.raises(ClientClosed):
            producer.send(b"x")
        with pytest.raises(ClientClosed):
            producer.send_many([b"x"])

    with_client(tmp_path, run)


def test_what_was_sent_before_closing_is_stored_and_nothing_is_taken_after(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        producer = await client.producer(TOPIC, linger=60).open()
        before = [producer.send(b"1"), producer.send(b"2", key="k")]
        closing = [asyncio.create_task(producer.close()) for _ in range(2)]
        await asyncio.sleep(0)
        for options in ({}, {"key": "k"}):
            with pytest.raises(ClientClosed):
                producer.send(b"3", **options)
        await asyncio.gather(*closing)
        assert [(await sent).offset for sent in before] == [0, 1]
        assert (await client.admin.describe_topic(TOPIC))["end"] == 2

    with_client(tmp_path, run)


@pytest.mark.parametrize("whole_client", [False, True])
def test_closing_that_is_given_up_fails_what_is_not_answered(tmp_path: Path, whole_client: bool) -> None:
    async def run(client: Client, door: Door) -> None:
        producer = await client.producer(TOPIC, buffer_bytes=1000, batch_bytes=500).open()
        await producer.send(b"before")
        door.stall()
        sends = [asyncio.ensure_future(producer.send(bytes(400))) for _ in range(10)]  # sent, waiting and in line
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await (client if whole_client else producer).close()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {NotAnswered, ClientClosed}, outcomes
        with pytest.raises(ClientClosed):
            producer.send(b"after")
        door.flow()

    with_door(tmp_path, run)


def test_closing_with_the_broker_away_ends_when_its_sends_have_timed_out(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        producer = await client.producer(TOPIC, send_timeout=0.05).open()
        await door.stop()
        await until(lambda: not client.connected)
        sent = producer.send(b"x")
        with pytest.raises(ConnectionLost):
            await producer.close()
        with pytest.raises(ConnectionLost):
            await sent

    with_door(tmp_path, run)


def test_a_cancelled_block_closes_in_a_hurry_when_the_broker_is_away(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async def program() -> None:
            async with client.producer(TOPIC) as producer, client.consumer(TOPIC, subscription="s"):
                await producer.send(b"x")
                await door.stop()
                await until(lambda: not client.connected)
                open_.set()
                await producer.send(b"y")

        open_ = asyncio.Event()
        task = asyncio.create_task(program())
        await open_.wait()
        began = asyncio.get_running_loop().time()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - began < 2

    with_door(tmp_path, run)


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


def test_a_consumer_can_be_closed_at_any_moment_of_joining_new_partitions(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for turns in range(0, 120, 8):
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


def test_closing_that_is_given_up_leaves_no_partition_behind_on_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition is a request, and of more at once than the broker serves it refuses the rest."""
    monkeypatch.setattr(broker_connection, "REQUESTS_AT_ONCE_MAX", 8)
    monkeypatch.setattr(client_connection, "CLIENT_REQUESTS_AT_ONCE", 6)

    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=40)
        consumer = await client.consumer(TOPIC, subscription="s").open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await consumer.close()
        while (await client.admin.describe_subscription(TOPIC, "s"))["consumers"]:
            await client.admin.namespaces()
        await (await client.consumer(TOPIC, subscription="s").open()).close()

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
