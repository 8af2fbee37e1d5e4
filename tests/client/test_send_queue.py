"""Sends that find the producer full: they wait in line, in their order, and every one of them ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pydanube
from client.broker import TOPIC, Door, until, with_client, with_door
from client.test_producer import payloads_of
from pydanube.base.errors import DanubeError, ProducerBusy, TopicNotFound
from pydanube.client import Client, Receipt


def test_awaiting_a_send_waits_for_room(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, buffer_bytes=20_000, batch_bytes=5_000) as producer:

            async def one(number: int) -> int | None:
                if number % 10:
                    return (await producer.send(b"%d" % number + bytes(1000))).offset
                return (await producer.send_many([b"%d" % number + bytes(1000)])).offsets[0]

            offsets = await asyncio.gather(*map(one, range(500)))
            assert offsets == list(range(500))
        assert [payload.rstrip(b"\0") for payload in await payloads_of(client, count=500) if payload] == [
            b"%d" % number for number in range(500)
        ]

    with_client(tmp_path, run)


def test_what_waits_in_line_keeps_its_order_with_and_without_keys(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, buffer_bytes=2_000, batch_bytes=1_000, linger=60) as producer:
            for number in range(200):
                options = {"key": "k"} if number % 3 else {}
                producer.send(b"%d" % number + bytes(100), **options)
                if number % 50 == 25:
                    producer.send_many([b"many"])
                if number % 20 == 10:
                    await asyncio.sleep(0)
        found = [payload.rstrip(b"\0") for payload in await payloads_of(client, count=204) if payload]
        assert [each for each in found if each != b"many"] == [b"%d" % number for number in range(200)]
        assert [at for at, each in enumerate(found) if each == b"many"] == [26, 77, 128, 179]

    with_client(tmp_path, run)


def test_only_so_much_waits_in_line_that_nobody_awaits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.client.send_queue.PRODUCER_QUEUE_BYTES_MAX", 10_000)

    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, buffer_bytes=2_000, batch_bytes=1_000) as producer:
            door.stall()
            for _ in range(12):
                producer.send(bytes(936))
            with pytest.raises(ProducerBusy):
                producer.send(bytes(936))
            door.flow()
            await producer.flush()
            assert (await producer.send(b"next")).offset == 12

    with_door(tmp_path, run)


def test_those_in_line_fail_when_their_time_is_over_and_go_when_the_broker_is_back(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, buffer_bytes=1_000, batch_bytes=500, send_timeout=0.2) as producer:
            door.stall()
            sends = [asyncio.ensure_future(producer.send(bytes(400))) for _ in range(10)]
            dropped = producer.send(bytes(400))
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(outcome, DanubeError) and outcome.retriable for outcome in outcomes), outcomes
            await until(lambda: dropped.done)
            with pytest.raises(DanubeError) as raised:
                await producer.flush()
            assert raised.value.__notes__ == ["sending 1 message failed, and no one awaited the result"]
            door.flow()
            assert (await producer.send(b"next")).durability == "fsynced"

    with_door(tmp_path, run)


def test_a_producer_that_fails_fails_its_line(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        producer = await client.producer(TOPIC, buffer_bytes=1_000, batch_bytes=500).open()
        door.stall()
        sends = [asyncio.ensure_future(producer.send(bytes(400))) for _ in range(10)]
        async with pydanube.connect(door.server.url) as other:
            await other.admin.delete_topic(TOPIC)
        door.flow()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {TopicNotFound, Receipt}, outcomes
        assert TopicNotFound in {type(outcome) for outcome in outcomes}

    with_door(tmp_path, run)


def test_a_send_is_accepted_wherever_asyncio_takes_a_coroutine(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, buffer_bytes=1_000, batch_bytes=500) as producer:
            assert (await asyncio.create_task(producer.send(b"0"))).offset == 0
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(producer.send(bytes(400))) for _ in range(10)]
                many = group.create_task(producer.send_many([b"a", b"b"]))
            assert [task.result().offset for task in tasks] == list(range(1, 11))
            assert many.result().offsets == [11, 12]
            done, _ = await asyncio.wait({asyncio.create_task(producer.send(b"13"))})
            assert [task.result().offset for task in done] == [13]
            assert (await asyncio.wait_for(producer.send(b"14"), 5)).offset == 14
            assert [receipt.offset for receipt in await asyncio.gather(producer.send(b"15"), producer.send(b"16"))] == [
                15,
                16,
            ]
            given_up = asyncio.create_task(producer.send(b"17"))
            await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert (await producer.send(b"18")).offset == 18

    with_client(tmp_path, run)
