"""What a program can ask of messages, one promise a test, from the producer through the broker to the consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pydanube
from client.broker import TOPIC, Door, until, with_client, with_door
from pydanube.base.errors import (
    ArgumentInvalid,
    ClientClosed,
    ConnectionLost,
    DanubeError,
    NothingReceived,
    ProducerBusy,
)
from pydanube.client import Client, Consumer
from pydanube.testing import VirtualClock
from pydanube.testing.broker import broker

TIMES = pa.timestamp("us", tz="UTC")
COLUMNS = {
    "offset": pa.int64(),
    "publish_time": TIMES,
    "append_time": TIMES,
    "event_time": TIMES,
    "delivery_time": TIMES,
    "key": pa.binary(),
    "payload": pa.binary(),
    "attributes": pa.map_(pa.string(), pa.string()),
    "producer": pa.int64(),
    "sequence": pa.int64(),
    "schema_id": pa.int64(),
    "schema_version": pa.int32(),
    "epoch": pa.int64(),
}


def by_the_clock(test: Callable[[Client, VirtualClock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = VirtualClock()
        async with (
            asyncio.timeout(20),
            broker(clock=clock) as server,
            pydanube.connect(server.url, clock=clock) as client,
        ):
            await test(client, clock)

    asyncio.run(run())


def reading(client: Client, subscription: str = "s", **options: Any) -> Consumer:
    return client.consumer(TOPIC, **{"subscription": subscription, "start": "earliest"} | options)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_table_has_every_column_under_the_name_and_type_it_always_has(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        happened = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
        async with client.producer(TOPIC, name="till") as producer:
            await producer.send(b"plain")
            await producer.send(None, key="k", attributes={"a": "1"}, event_time=happened, delivery_time=happened)
        table = await client.read_arrow(TOPIC)
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == COLUMNS
        plain, rich = table.to_pylist()
        assert (plain["offset"], plain["payload"], plain["sequence"]) == (0, b"plain", 0)
        assert [plain[name] for name in ("key", "attributes", "event_time", "delivery_time", "schema_id")] == [None] * 5
        assert (rich["payload"], rich["key"], rich["attributes"]) == (None, b"k", [("a", "1")])
        assert (rich["event_time"], rich["delivery_time"]) == (happened, happened)
        assert plain["producer"] == rich["producer"] > 0
        assert (await client.read_arrow(TOPIC, start="latest")).schema == table.schema  # also where nothing is

    with_client(tmp_path, run)


def test_a_message_says_before_which_time_it_was_not_to_be_delivered(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        times = [None, 5_000_000, None, 6_000_000]
        async with client.producer(TOPIC) as producer:
            for time in times:
                producer.send(b"", delivery_time=time)
        assert [message.delivery_time for message in await client.admin.peek(TOPIC, 4)] == times
        assert [message.delivery_time for message in await client.admin.peek(TOPIC, 4, start=1)] == times[1:]

    with_client(tmp_path, run)


def test_a_table_is_read_by_time_and_over_partitions(tmp_path: Path) -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await client.admin.create_topic(TOPIC, partitions=2)
        noon = datetime.fromtimestamp(clock.wall() / 1_000_000, UTC)
        async with client.producer(TOPIC) as producer:
            for hour in range(3):
                await producer.send_many([b"%d" % hour] * 4, keys=["a", "b", "c", "d"])
                clock.advance(3600)
        one = await client.read_arrow(TOPIC, start=noon + timedelta(minutes=30), end=noon + timedelta(minutes=90))
        assert one.column("payload").to_pylist() == [b"1"] * 4
        both = [(await client.read_arrow(TOPIC, partition=number)).num_rows for number in (0, 1)]
        assert sum(both) == (await client.read_arrow(TOPIC)).num_rows == 12
        with pytest.raises(ArgumentInvalid):
            await client.read_arrow(TOPIC, partition=2)

    by_the_clock(run)


# -- times -------------------------------------------------------------------------------------------------------------


def test_a_delayed_message_comes_at_its_time_and_lets_others_pass(tmp_path: Path) -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        async with client.producer(TOPIC) as producer:
            for number, delay in enumerate((30, 10, 0, 20)):
                await producer.send(b"%d" % number, delivery_time=clock.wall() + delay * 1_000_000)
            await producer.send(b"4")
        async with reading(client, type="shared") as consumer:

            async def arrive() -> list[bytes | None]:
                came = await consumer.fetch(5, timeout=0.05)
                for message in came:
                    consumer.ack(message)
                return [message.payload for message in came]

            assert await arrive() == [b"2", b"4"]
            clock.advance(9)
            assert await arrive() == []
            for payload in (b"1", b"3", b"0"):
                clock.advance(1 if payload == b"1" else 10)
                assert (await consumer.receive(5)).payload == payload
        async with reading(client, "ordered", type="exclusive") as consumer:  # §16: in order, at once
            assert [message.offset for message in await consumer.fetch(5, timeout=5)] == [0, 1, 2, 3, 4]

    by_the_clock(run)


def test_a_consumer_gets_everything_of_a_message(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        happened = datetime(2026, 1, 1, tzinfo=UTC)
        async with client.producer(TOPIC, name="till") as producer:
            await producer.send(b"x", key="k", attributes={"a": "1", "b": ""}, event_time=happened)
            await producer.send(b"y", event_time=5)
            async with client.producer(TOPIC, name="other") as other:
                await other.send(b"z")
        async with reading(client) as consumer:
            x, y, z = await consumer.fetch(3, timeout=5)
        assert (x.key, x.attributes, x.event_time) == ("k", {"a": "1", "b": ""}, 1_767_225_600_000_000)
        assert (y.key, y.attributes, y.event_time) == (None, {}, 5)
        assert (x.topic, x.partition, x.offset, x.redelivery_count) == (TOPIC, None, 0, 0)
        assert [each.sequence for each in (x, y, z)] == [0, 1, 0]
        assert x.producer == y.producer != z.producer

    with_client(tmp_path, run)


# -- contents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_is_nobodys_business_but_the_producers(tmp_path: Path, compression: str) -> None:
    async def run(client: Client) -> None:
        values = [b"abc" * number for number in range(400)]
        async with client.producer(TOPIC, compression=compression) as producer:
            await producer.send_many(values, keys=[b"%d" % (number % 3) for number in range(400)])
            await producer.send(b"d" * 1000, attributes={"a": "b" * 1000})
        async with reading(client, prefetch=7) as consumer:  # a slice of the batch at a time
            messages = await consumer.fetch(401, timeout=5)
            assert [message.payload for message in messages[:400]] == values
            assert messages[400].attributes == {"a": "b" * 1000}
            assert messages[5].batch.to_arrow().column("key").to_pylist()[0] is not None
        assert (await client.read_arrow(TOPIC)).column("payload").to_pylist()[:400] == values

    with_client(tmp_path, run)


def test_a_consumer_reads_values_with_its_deserializer(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, serializer=lambda value: json.dumps(value).encode()) as producer:
            await producer.send_many([{"n": 1}, [2, None]])
        async with client.producer(TOPIC) as producer:
            await producer.send(None)
        async with reading(client, deserializer=json.loads) as consumer:
            assert [message.value for message in await consumer.fetch(3, timeout=5)] == [{"n": 1}, [2, None], None]
            await consumer.seek("earliest")
            async for batch in consumer.batches():
                assert batch.values == [{"n": 1}, [2, None]][: len(batch)]
                break

    with_client(tmp_path, run)


def test_what_a_serializer_refuses_is_the_calls_own_error(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, serializer=str.encode) as producer:
            with pytest.raises(TypeError):
                producer.send(5)
            assert (await producer.send("five")).offset == 0

    with_client(tmp_path, run)


# -- where to begin ----------------------------------------------------------------------------------------------------


def test_every_kind_of_start_begins_where_it_says(tmp_path: Path) -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        async with client.producer(TOPIC) as producer:
            for number in range(4):
                await producer.send(b"%d" % number)
                clock.advance(60)
            begun = clock.wall() - 240_000_000
            second = datetime.fromtimestamp(begun / 1_000_000, UTC) + timedelta(seconds=61)
            starts: dict[str, tuple[Any, int]] = {
                "earliest": ("earliest", 0),
                "latest": ("latest", 4),
                "offset": (3, 3),
                "time": (second, 2),
                "microseconds": ({"time": begun + 1}, 1),
                "future": (second + timedelta(days=1), 4),
            }
            consumers = {name: await reading(client, name, start=start).open() for name, (start, _) in starts.items()}
            await producer.send(b"4")
            for name, (_, expected) in starts.items():
                assert (await consumers[name].receive(5)).offset == expected, name
        with pytest.raises(ArgumentInvalid, match="zone"):
            reading(client, start=datetime(2026, 1, 1))

    by_the_clock(run)


def test_a_subscription_that_is_there_goes_on_where_it_was_whatever_the_start(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"0", b"1", b"2"])
        async with reading(client) as consumer:
            await consumer.ack(await consumer.receive(5))
        async with reading(client, start="latest") as consumer:
            assert (await consumer.receive(5)).offset == 1

    with_client(tmp_path, run)


def test_a_reader_goes_through_all_partitions_or_one(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=3)
        async with client.producer(TOPIC) as producer:
            sent = [await producer.send(b"%d" % number) for number in range(9)]
        async with client.reader(TOPIC) as reader:
            found = [await reader.receive(5) for _ in range(9)]
            assert sorted(message.payload or b"" for message in found) == [b"%d" % number for number in range(9)]
            assert reader.offsets == {0: 3, 1: 3, 2: 3}
        async with client.reader(TOPIC, partition=1, start=1) as reader:
            found = [await reader.receive(5) for _ in range(2)]
            assert [message.payload for message in found] == [
                b"%d" % number for number, each in enumerate(sent) if (each.partition, each.offset) in ((1, 1), (1, 2))
            ]

    with_client(tmp_path, run)


# -- receiving and acknowledging ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["exclusive", "failover"])
def test_ack_all_is_for_everything_up_to_a_message(tmp_path: Path, type: str) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 10)
        async with reading(client, type=type) as consumer:
            messages = await consumer.fetch(10, timeout=5)
            consumer.ack(messages[8])
            await consumer.ack_all(messages[5])
            [known] = await client.admin.subscriptions(TOPIC)
            assert (known["floor"], known["backlog"]) == (6, 3)
            await consumer.ack_all(messages[2])  # behind the floor: nothing more to do
        async with reading(client, type=type) as consumer:
            assert [message.offset for message in await consumer.fetch(3, timeout=5)] == [6, 7, 9]

    with_client(tmp_path, run)


def test_receive_waits_no_longer_than_it_is_told_and_loses_nothing(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer, reading(client) as consumer:
            with pytest.raises(NothingReceived, match=r"0\.01 seconds"):
                await consumer.receive(timeout=0.01)
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            await producer.send(b"x")
            assert (await consumer.receive(timeout=5)).payload == b"x"

    with_client(tmp_path, run)


def test_a_consumer_that_takes_nothing_holds_no_more_than_its_prefetch(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([bytes(100)] * 1000)
        async with reading(client, type="shared", prefetch=16) as consumer:
            await until(lambda: sum(map(len, consumer.inbox._queue)) == 16)
            [known] = await client.admin.subscriptions(TOPIC)
            assert known["in_flight"] == 16
            assert len(await consumer.fetch(1000, timeout=5)) == 1000

    with_client(tmp_path, run)


def test_a_producer_that_hears_nothing_holds_no_more_than_its_buffer(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        producer = await client.producer(TOPIC, buffer_bytes=200_000, batch_bytes=10_000).open()
        door.silent = True
        while not producer.busy:
            producer.send(bytes(900))
        while producer.buffered_bytes < 200_000:
            producer.send(bytes(900))
        with pytest.raises(ProducerBusy):
            producer.send_nowait(b"x")
        assert producer.buffered_bytes <= 220_000
        waiting = asyncio.create_task(producer.ready())
        door.cut()
        door.silent = False
        await waiting
        await producer.close()

    with_door(tmp_path, run)


# -- three ways not to get through -------------------------------------------------------------------------------------


def test_closed_by_us_closed_by_them_and_busy_are_told_apart(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, buffer_bytes=1, batch_bytes=1, send_timeout=0.5) as producer:
            sent = producer.send(b"fills it")
            with pytest.raises(ProducerBusy) as busy:
                producer.send_nowait(b"x")
            await sent
            await door.server.stop()
            with pytest.raises(DanubeError) as theirs:
                await producer.send(b"x")
        with pytest.raises(ClientClosed) as ours:
            producer.send(b"x")
        errors: list[DanubeError] = [busy.value, theirs.value, ours.value]
        assert [error.retriable for error in errors] == [True, True, False]
        assert len({error.code for error in errors}) == 3

    with_door(tmp_path, run)


def test_while_the_broker_is_away_messages_share_batches_though_each_is_sent_in_a_turn_of_its_own(
    tmp_path: Path,
) -> None:
    async def run(client: Client, door: Door) -> None:
        producer = await client.producer(TOPIC, send_timeout=60)
        await producer.send(b"first")
        await door.server.stop()
        sent = []
        for number in range(2_000):
            sent.append(producer.send(b"%d" % number))
            await asyncio.sleep(0)
        [partition] = producer._partitions
        assert len(partition._waiting) + len(partition._in_flight) < 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await producer.close()
        assert all(each.done for each in sent)

    with_door(tmp_path, run)


def test_a_request_that_gets_no_answer_says_what_was_asked_of_whom(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        door.silent = True
        with pytest.raises(ConnectionLost, match=r"no answer to namespace\.list within 0\.05 seconds"):
            await client.admin.namespaces()

    with_door(tmp_path, run, request_timeout=0.05)
