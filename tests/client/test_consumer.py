"""Consumers and readers against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from client.broker import TOPIC, with_client
from pydanube.base.errors import (
    ArgumentInvalid,
    ClientClosed,
    ConsumerBusy,
    NothingReceived,
    SubscriptionKindDiffers,
    TopicNotFound,
)
from pydanube.client import Client, Consumer, Message


async def publish(client: Client, payloads: Sequence[bytes], topic: str = TOPIC) -> None:
    async with client.producer(topic) as producer:
        await producer.send_many(payloads)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, count)]


def payloads(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.payload for message in messages]


@pytest.mark.parametrize("type", ["exclusive", "shared", "failover", "key_shared"])
def test_acknowledged_messages_do_not_come_again(tmp_path: Path, type: str) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many(numbers(10), keys=["k"] * 10)

        def consumer() -> Consumer:
            return client.consumer(TOPIC, subscription="audit", type=type, start="earliest")

        async with consumer() as first:
            got = []
            async for message in first:
                got.append(message)
                first.ack(message)
                if len(got) == 5:
                    break
            assert payloads(got) == numbers(5)
        async with consumer() as second:
            messages = await second.fetch(5, timeout=5)
            assert payloads(messages) == numbers(10, 5)
            await second.ack_all(messages[-1]) if type in ("exclusive", "failover") else None

    with_client(tmp_path, run)


def test_an_awaited_ack_is_durable(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(3))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            messages = await consumer.fetch(3, timeout=5)
            await consumer.ack(messages[0])
            [known] = await client.admin.subscriptions(TOPIC)
            assert (known["floor"], known["backlog"]) == (1, 2)
            acks = [consumer.ack(messages[2]), consumer.ack(messages[1])]
            await acks[0]
            await acks[1]
            [known] = await client.admin.subscriptions(TOPIC)
            assert (known["floor"], known["backlog"]) == (3, 0)

    with_client(tmp_path, run)


def test_batches_have_columns_and_are_acknowledged_whole(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(1000))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            first = await consumer.receive(5)
            consumer.ack(first)
            got: list[bytes | None] = [first.payload]
            async for batch in consumer.batches():
                assert len(batch) == len(batch.offsets) == len(batch.payloads) == len(batch.keys)
                assert payloads(list(batch.messages())) == batch.payloads
                table = batch.to_arrow()
                assert table.column("offset").to_pylist() == list(batch.offsets)
                assert table.column("payload").to_pylist() == batch.payloads
                got += batch.payloads
                await consumer.ack(batch)
                if len(got) == 1000:
                    break
            assert got == numbers(1000)
            [known] = await client.admin.subscriptions(TOPIC)
            assert known["floor"] == 1000

    with_client(tmp_path, run)


def test_a_small_prefetch_is_granted_again_and_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(500))
        async with client.consumer(TOPIC, subscription="s", start="earliest", prefetch=7) as consumer:
            got = []
            while len(got) < 500:
                message = await consumer.receive(5)
                consumer.ack(message)
                got.append(message)
            assert payloads(got) == numbers(500)

    with_client(tmp_path, run)


def test_a_nacked_message_comes_again_and_says_so(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(2))
        options = {"failure": {"base_delay": 0.001}}
        async with client.consumer(
            TOPIC, subscription="s", type="shared", start="earliest", options=options
        ) as consumer:
            first, second = await consumer.fetch(2, timeout=5)
            assert first.redelivery_count == 0
            consumer.ack(second)
            consumer.nack(first, delay=0.002, reason="not today")
            again = await consumer.receive(5)
            assert (again.payload, again.redelivery_count) == (b"0", 1)
            await consumer.ack(again)

    with_client(tmp_path, run)


def test_a_seek_voids_what_was_received(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(10))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            before = await consumer.fetch(4, timeout=5)  # six more wait in the client
            await consumer.seek(2)
            await consumer.ack(before[3])  # of an older generation: answered, and without effect
            assert payloads(await consumer.fetch(8, timeout=5)) == numbers(10, 2)
            await consumer.seek("earliest")
            assert payloads(await consumer.fetch(10, timeout=5)) == numbers(10)
            await consumer.seek("latest")
            with pytest.raises(NothingReceived):
                await consumer.receive(timeout=0.02)
            await publish(client, [b"new"])
            assert (await consumer.receive(5)).payload == b"new"

    with_client(tmp_path, run)


def test_a_seek_ends_an_iteration_over_what_was_received(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(10))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            got = []
            async for message in consumer:
                got.append(message.offset)
                if len(got) == 3:
                    await consumer.seek(8)
                if len(got) == 5:
                    break
            assert got == [0, 1, 2, 8, 9]

    with_client(tmp_path, run)


def test_a_seek_by_time_goes_to_the_first_message_after_it(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(1))
        async with client.reader(TOPIC) as reader:
            appended = (await reader.receive(5)).append_time
        await publish(client, [b"later"])
        after = datetime.fromtimestamp((appended + 1) / 1_000_000, UTC)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            await consumer.seek(after)
            assert (await consumer.receive(5)).payload == b"later"
        async with client.consumer(TOPIC, subscription="t", start=after) as consumer:
            assert (await consumer.receive(5)).payload == b"later"
        async with client.reader(TOPIC, start=after) as reader:
            assert (await reader.receive(5)).payload == b"later"

    with_client(tmp_path, run)


def test_a_paused_subscription_delivers_nothing(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(TOPIC, subscription="s") as consumer:
            await consumer.pause()
            await publish(client, [b"waits"])
            with pytest.raises(NothingReceived):
                await consumer.receive(timeout=0.02)
            assert "paused" in await client.admin.explain(TOPIC, "s", offset=0)
            assert (await client.admin.describe_subscription(TOPIC, "s"))["paused"] is True
            await consumer.resume()
            assert (await consumer.receive(5)).payload == b"waits"
            assert (await client.admin.describe_subscription(TOPIC, "s"))["paused"] is False

    with_client(tmp_path, run)


def test_fetch_returns_what_came_in_time(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(3))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert payloads(await consumer.fetch(2, timeout=5)) == numbers(2)
            assert payloads(await consumer.fetch(10, timeout=0.05)) == [b"2"]
            assert await consumer.fetch(10, timeout=0.01) == []

    with_client(tmp_path, run)


def test_all_partitions_are_consumed(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=3)
        async with client.producer(TOPIC) as producer:
            for number in range(9):
                await producer.send(b"%d" % number)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert consumer.partitions == [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)]
            messages = await consumer.fetch(9, timeout=5)
            assert sorted(map(str, payloads(messages))) == sorted(map(str, numbers(9)))
            assert {message.topic for message in messages} == {TOPIC}
            assert sorted({message.partition or 0 for message in messages}) == [0, 1, 2]
            with pytest.raises(ArgumentInvalid):
                await consumer.seek(1)
            await consumer.seek(2, partition=1)
            assert (await consumer.receive(5)).offset == 2

    with_client(tmp_path, run)


def test_new_partitions_and_topics_that_match_are_joined(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic("/default/orders-eu", partitions=1)
        await client.admin.create_topic("/default/returns")
        async with client.consumer(pattern="/default/orders-*", subscription="s") as consumer:
            assert consumer.partitions == [("/default/orders-eu", 0)]
            await client.admin.alter_topic("/default/orders-eu", partitions=2)
            async with client.producer("/default/orders-eu") as producer:
                await producer.send(b"0")
                await producer.send(b"1")
            await publish(client, [b"2"], "/default/orders-us")
            await publish(client, [b"x"], "/default/returns")
            messages = await consumer.fetch(3, timeout=5)
            assert sorted(map(str, payloads(messages))) == sorted(map(str, numbers(3)))
            assert len(consumer.partitions) == 3

    with_client(tmp_path, run)


def test_several_topics_are_one_stream(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        topics = ["/default/a", "/default/b"]
        for topic in topics:
            await publish(client, [topic.encode()], topic)
        async with client.consumer(topics, subscription="s", start="earliest") as consumer:
            messages = await consumer.fetch(2, timeout=5)
            assert sorted(message.topic for message in messages) == topics
            for message in messages:
                await consumer.ack(message)

    with_client(tmp_path, run)


def test_a_second_exclusive_consumer_is_refused(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(TOPIC, subscription="s"):
            with pytest.raises(ConsumerBusy):
                async with client.consumer(TOPIC, subscription="s"):
                    pass
            with pytest.raises(SubscriptionKindDiffers):
                async with client.consumer(TOPIC, subscription="s", type="shared"):
                    pass
        async with client.consumer(TOPIC, subscription="s"):
            pass

    with_client(tmp_path, run)


def test_wrong_arguments_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for wrong in ({"type": "fanout"}, {"prefetch": 0}, {"start": "middle"}, {"pattern": "/default/*"}):
            with pytest.raises(ArgumentInvalid):
                client.consumer(TOPIC, subscription="s", **wrong)
        with pytest.raises(ArgumentInvalid):
            client.consumer(subscription="s")
        for pattern in ("a/b*", "/*/orders", "/default/a/b"):
            with pytest.raises(ArgumentInvalid):
                await client.consumer(pattern=pattern, subscription="s").open()

    with_client(tmp_path, run)


def test_closing_ends_who_waits(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        consumer = await client.consumer(TOPIC, subscription="s").open()
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(ClientClosed):
            await waiting

    with_client(tmp_path, run)


def test_an_ack_after_the_end_says_so(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(1))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            message = await consumer.receive(5)
        with pytest.raises(ClientClosed):
            await consumer.ack(message)

    with_client(tmp_path, run)


def test_best_effort_topics_deliver_to_who_is_there(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with (
            client.consumer(TOPIC, subscription="s", reliable=False) as consumer,
            client.producer(TOPIC, reliable=False) as producer,
        ):
            await producer.send(b"heard")
            message = await consumer.receive(5)
            assert message.payload == b"heard"
            await consumer.ack(message)

    with_client(tmp_path, run)


def test_a_reader_follows_a_topic_without_a_subscription(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await publish(client, numbers(10))
        async with client.reader(TOPIC, start=7) as reader:
            assert payloads([await reader.receive(5) for _ in range(3)]) == numbers(10, 7)
            waiting = asyncio.create_task(reader.receive())
            await publish(client, [b"new"])
            assert (await waiting).payload == b"new"
            with pytest.raises(NothingReceived):
                await reader.receive(timeout=0.02)
            await reader.seek("earliest")
            async for batch in reader.batches():
                assert batch.payloads == numbers(10)
                break
        assert await client.admin.subscriptions(TOPIC) == []
        with pytest.raises(TopicNotFound):
            async with client.reader("/default/nothing"):
                pass

    with_client(tmp_path, run)


def test_a_topic_is_read_as_an_arrow_table(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for start in range(0, 3000, 1000):
            await publish(client, numbers(start + 1000, start))
        table = await client.read_arrow(TOPIC)
        assert table.column("payload").to_pylist() == numbers(3000)
        part = await client.read_arrow(TOPIC, start=500, end=2500)
        assert part.column("offset").to_pylist() == list(range(500, 2500))
        assert (await client.read_arrow(TOPIC, start="latest")).num_rows == 0

    with_client(tmp_path, run)
