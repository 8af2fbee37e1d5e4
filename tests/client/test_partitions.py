"""Topics that grow while they are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.broker import TOPIC, Door, until, with_client, with_door
from pydanube.base.errors import DanubeError, ProducerFenced
from pydanube.base.keys import fnv1a64
from pydanube.base.retry import Backoff
from pydanube.client import Client, ClientEvent, Producer

KEYS = ("a", "b", "c", "d", "e", "f")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.client.topic_watch.RETRY", Backoff(0.01, 30.0))


async def grown(producer: Producer, partitions: int) -> None:
    await until(lambda: len(producer.next_sequences) == partitions)


def test_a_producer_uses_partitions_that_are_new(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=1)
        async with client.producer(TOPIC, name="ours") as producer:
            assert {(await producer.send(b"x", key=key)).partition for key in KEYS} == {0}
            await client.admin.alter_topic(TOPIC, partitions=3)
            await grown(producer, 3)
            for key in KEYS:
                assert (await producer.send(b"x", key=key)).partition == fnv1a64(key.encode()) % 3
            rotated = [(await producer.send(b"x")).partition for _ in range(6)]
            assert sorted(rotated) == [0, 0, 1, 1, 2, 2]

    with_client(tmp_path, run)


def test_what_was_under_way_when_a_topic_grew_goes_where_it_was_sent(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await client.admin.create_topic(TOPIC, partitions=1)
        async with client.producer(TOPIC, linger=60) as producer:
            waits = [producer.send(b"%d" % number, key=KEYS[number % 6]) for number in range(12)]
            await client.admin.alter_topic(TOPIC, partitions=4)
            await grown(producer, 4)
            door.cut()
            receipts = [await each for each in waits]
            assert [(each.partition, each.offset) for each in receipts] == [(0, number) for number in range(12)]

    with_door(tmp_path, run)


def test_a_consumer_reads_new_partitions_from_their_beginning(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=1)
        async with client.consumer(TOPIC, subscription="s") as consumer:
            await client.admin.alter_topic(TOPIC, partitions=3)
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"x"] * len(KEYS), keys=KEYS)
            messages = await consumer.fetch(len(KEYS), timeout=5)
            assert sorted(message.key or "" for message in messages) == list(KEYS)

    with_client(tmp_path, run)


def test_a_topic_without_partitions_is_not_asked_about_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer, client.consumer(TOPIC, subscription="s") as consumer:
            assert producer._refresher is None
            assert consumer._refresher is None

    with_client(tmp_path, run)


def test_looking_without_a_connection_is_said_and_done_again(tmp_path: Path) -> None:
    events: list[ClientEvent] = []

    async def run(client: Client, door: Door) -> None:
        await client.admin.create_topic(TOPIC, partitions=1)
        async with client.producer(TOPIC) as producer:
            door.lose_after('"topic"')
            await door.lost_some.wait()
            door.cut()
            door.silent = False
            await until(lambda: not client.connected)
            await client.admin.alter_topic(TOPIC, partitions=2)
            await grown(producer, 2)
        failures = [event.error for event in events if event.what == "refresh_failed"]
        assert all(isinstance(error, DanubeError) and error.retriable for error in failures)
        assert failures

    with_door(tmp_path, run, on_event=events.append)


def test_a_producer_that_has_failed_looks_for_nothing_more(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=1)
        first = await client.producer(TOPIC, name="ours").open()
        await client.producer(TOPIC, name="ours").open()
        with pytest.raises(ProducerFenced):
            await first.send(b"x")
        assert first._refresher is not None
        await until(first._refresher.done)

    with_client(tmp_path, run)


def test_a_producer_that_is_closed_while_it_grows_leaves_nothing_open(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await client.admin.create_topic(TOPIC, partitions=1)
        producer = await client.producer(TOPIC).open()
        await client.admin.alter_topic(TOPIC, partitions=8)
        await until(lambda: bool(producer._opening))
        await producer.close()
        await until(lambda: not any(opened.producers for opened in door.server._broker.door.topics._opened.values()))

    with_door(tmp_path, run)


def test_a_partition_can_be_used_by_its_name(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=2)
        name = f"{TOPIC}-part-1"
        async with client.producer(name) as producer:
            receipt = await producer.send(b"x", key="whatever its hash is")
        assert (receipt.partition, receipt.offset) == (1, 0)
        async with client.consumer(name, subscription="s", start="earliest") as consumer:
            assert (await consumer.receive(5)).payload == b"x"
        [message] = await client.admin.peek(TOPIC, partition=1)
        assert message.payload == b"x"
        assert await client.bounds(f"{TOPIC}-part-0") == (0, 0)

    with_client(tmp_path, run)
