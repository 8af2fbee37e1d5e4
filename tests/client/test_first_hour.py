"""What people try first: the natural spelling works, or says at once what to write instead."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import logging
import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import pydanube.sync
from client.broker import TOPIC, Door, running, until, with_client, with_door
from pydanube.base.errors import AlreadyOpened, ArgumentInvalid, ConsumerBusy, NothingReceived, NotOpened
from pydanube.client import Client, Message
from pydanube.testing.broker import broker_thread


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with broker_thread(tmp_path / "data") as url:
        yield url


# -- opening -----------------------------------------------------------------------------------------------------------


def test_everything_can_be_opened_with_await(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), running(tmp_path) as server:
            monkeypatch.setenv("DANUBE_URL", server.url)
            client = await pydanube.connect()
            producer = await client.producer(TOPIC)
            assert (await producer.send(b"one")).offset == 0
            consumer = await client.consumer(TOPIC, subscription="s", start="earliest")
            assert (await anext(consumer)).payload == b"one"
            reader = await client.reader(TOPIC)
            assert (await anext(reader)).payload == b"one"
            await client.close()
            async with await pydanube.connect(server.url) as client, await client.producer(TOPIC) as producer:
                assert (await producer.send(b"two")).offset == 1
                with pytest.raises(AlreadyOpened):
                    await producer
            assert not client.connected

    asyncio.run(run())


def test_what_is_not_open_yet_says_so(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        producer = client.producer(TOPIC)
        with pytest.raises(NotOpened, match="not open yet"):
            await producer.send(b"x")
        with pytest.raises(NotOpened):
            await producer.send(b"x", key="k")
        with pytest.raises(NotOpened):
            await producer.send_many([b"x"])
        with pytest.raises(NotOpened):
            await client.consumer(TOPIC, subscription="s").receive()
        other = pydanube.connect("danube://127.0.0.1:1")
        with pytest.raises(NotOpened):
            await other.producer(TOPIC).open()
        with pytest.raises(NotOpened):
            await other.admin.topics()

    with_client(tmp_path, run)


# -- names and types ---------------------------------------------------------------------------------------------------


def test_a_short_name_is_a_topic_of_the_namespace_default(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic("orders", partitions=2)
        async with client.producer("orders") as producer:
            receipt = await producer.send(b"x")
            assert receipt.topic == "/default/orders"
        async with client.consumer("orders", subscription="s", start="earliest") as consumer:
            assert (await consumer.receive(5)).topic == "/default/orders"
        async with client.consumer(pattern="ord*", subscription="p", start="earliest") as consumer:
            assert (await consumer.receive(5)).topic == "/default/orders"
        async with client.reader("orders") as reader:
            assert (await reader.receive(5)).topic == "/default/orders"
        assert (await client.read_arrow("orders")).num_rows == 1
        assert len(await client.admin.peek("orders")) == 1
        assert {each["subscription"] for each in await client.admin.subscriptions("orders")} == {"s", "p"}
        assert (await client.admin.describe_topic("orders"))["topic"] == "/default/orders"
        assert await client.bounds("orders-part-0") is not None
        await client.admin.delete_topic("orders")
        assert await client.admin.topics() == []

    with_client(tmp_path, run)


def test_types_are_accepted_in_any_case(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for text in ("Shared", "SHARED", "Key_Shared", "KeyShared", "key-shared", "Failover", "Exclusive"):
            async with client.consumer(TOPIC, subscription=text, type=text) as consumer:
                assert consumer.type == text.lower().replace("-", "_").replace("keyshared", "key_shared")
        await client.admin.create_subscription(TOPIC, "made", type="KeyShared")
        assert (await client.admin.describe_subscription(TOPIC, "made"))["type"] == "key_shared"
        with pytest.raises(ArgumentInvalid, match="exclusive, shared, failover or key_shared"):
            client.consumer(TOPIC, subscription="s", type="fanout")

    with_client(tmp_path, run)


def test_a_second_exclusive_consumer_learns_which_types_take_several(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for reliable in (True, False):
            topic = f"/default/reliable-{reliable}"
            await client.admin.create_topic(topic, reliable=reliable)
            async with client.consumer(topic, subscription="s"):
                with pytest.raises(ConsumerBusy, match="failover, shared and key_shared"):
                    await client.consumer(topic, subscription="s").open()

    with_client(tmp_path, run)


def test_explain_is_about_the_first_message_that_is_not_done(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"0", b"1"])
            await (await consumer.receive(5)).ack()
            assert await client.admin.explain(TOPIC, "s") == await client.admin.explain(TOPIC, "s", offset=1)
        await client.admin.create_topic("grown", partitions=2)
        await client.admin.create_subscription("grown", "s")
        assert await client.admin.explain("grown", "s") == "Nothing to do: 0 of 0 acknowledged."
        async with client.producer("grown") as producer:
            await producer.send_many([b"0", b"1", b"2"], keys=["a", "a", "a"])
        [part] = [each for each in (await client.admin.explanations("grown", "s"))["explanations"] if each["backlog"]]
        said = await client.admin.explain(f"grown-part-{part['partition']}", "s")
        expected = f"3 of 3 messages to do. Partition {part['partition']}, offset 0: {said}"
        assert await client.admin.explain("grown", "s") == expected
        assert (part["code"], part["offset"], part["total"]) == ("no_consumer", 0, 3)

    with_client(tmp_path, run)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_message_acknowledges_itself(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"0", b"1"])
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            await (await anext(consumer)).ack()
            (await anext(consumer)).nack(delay=timedelta(milliseconds=1), reason="not now")
            again = await consumer.receive(timeout=timedelta(seconds=5))
            assert (again.offset, again.redelivery_count) == (1, 1)
            await again.ack()
            assert (await client.admin.describe_subscription(TOPIC, "s"))["backlog"] == 0
        async with client.reader(TOPIC) as reader:
            with pytest.raises(ArgumentInvalid, match="did not come from a consumer"):
                (await anext(reader)).ack()

    with_client(tmp_path, run)


def test_messages_are_values(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, compression="zstd") as producer:
            for number in range(5):
                options = {"key": f"k{number}", "attributes": {"a": str(number)}, "event_time": number}
                producer.send(json.dumps(number), **options)
        async with client.consumer(TOPIC, subscription="s", start="earliest", deserializer=json.loads) as consumer:
            messages = await consumer.fetch(5, timeout=5)
            assert len({*messages, *messages}) == 5
            assert copy.copy(messages[0]) == copy.deepcopy(messages)[0] == messages[0]
            for message in messages:
                other: Message = pickle.loads(pickle.dumps(message))
                assert other == message
                assert {other} == {message}
                assert other[1:] == message[1:]
                for name in ("value", "key", "topic", "partition", "append_time", "sequence", "delivery_time"):
                    assert getattr(other, name) == getattr(message, name), name
                with pytest.raises(ArgumentInvalid):
                    other.ack()
            assert messages[0] != messages[1]
            batch = pickle.loads(pickle.dumps(messages[0].batch))
            assert (batch.offsets, batch.values) == (messages[0].batch.offsets, messages[0].batch.values)
            await copy.deepcopy(messages[4]).ack()

    with_client(tmp_path, run)


def test_a_message_is_equal_to_itself_however_often_it_is_delivered(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer, client.producer("/default/other") as other:
            await producer.send(b"x")
            await other.send(b"x")
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            first = await consumer.receive(5)
            first.nack()
            again = await consumer.receive(5)
            assert again.redelivery_count == 1
            assert again == first
        async with client.reader("/default/other") as reader:
            assert await reader.receive(5) != first

    with_client(tmp_path, run)


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1)])
def test_a_send_takes_a_delay_instead_of_a_time(tmp_path: Path, delay: float | timedelta) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer, client.reader(TOPIC) as reader:
            before = client.clock.wall()
            await producer.send(b"later", delay=delay)
            after = client.clock.wall()
            due = (await reader.receive(5)).delivery_time
            assert due is not None
            assert before <= due - 3_600_000_000 <= after
            with pytest.raises(ArgumentInvalid, match="delay or delivery_time"):
                producer.send(b"x", delay=1, delivery_time=1)
            with pytest.raises(ArgumentInvalid, match="negative"):
                producer.send(b"x", delay=-1)

    with_client(tmp_path, run)


def test_durations_are_seconds_or_timedeltas(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        second = timedelta(seconds=1)
        options = {"failure": {"base_delay": timedelta(milliseconds=5)}}
        async with (
            client.producer(TOPIC, linger=timedelta(0), send_timeout=second) as producer,
            client.consumer(TOPIC, subscription="s", type="shared", options=options) as consumer,
        ):
            assert producer.send_timeout == 1.0
            with pytest.raises(NothingReceived):
                await consumer.receive(timeout=timedelta(0))
            assert await consumer.fetch(1, timeout=timedelta(0)) == []
            described = await client.admin.describe_subscription(TOPIC, "s")
            assert described["options"]["failure"]["base_delay"] == 0.005
        await client.admin.alter_topic(TOPIC, policies={"ttl_seconds": second})
        assert (await client.admin.describe_topic(TOPIC))["policies"]["ttl_seconds"] == 1

    with_client(tmp_path, run, request_timeout=timedelta(seconds=10))


@pytest.mark.parametrize("ago", ["yesterday", "1 week", "10m", timedelta(minutes=10)])
def test_a_place_is_a_time_as_people_write_it(tmp_path: Path, ago: str | timedelta) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
        async with client.reader(TOPIC, start=ago, end="latest") as reader:
            assert [message.payload async for message in reader] == [b"x"]
        async with client.reader(TOPIC, start="tomorrow 08:00", end="latest") as reader:
            assert [message async for message in reader] == []
        async with client.consumer(TOPIC, subscription="s", start=ago) as consumer:
            assert (await consumer.receive(5)).payload == b"x"
            await consumer.seek(ago)
            assert (await consumer.receive(5)).payload == b"x"
        await client.admin.create_subscription(TOPIC, "other", start=ago)
        assert (await client.admin.describe_subscription(TOPIC, "other"))["backlog"] == 1
        await client.admin.seek_subscription(TOPIC, "other", "now")
        assert (await client.admin.describe_subscription(TOPIC, "other"))["backlog"] == 0

    with_client(tmp_path, run)


def test_sizes_are_bytes_or_text_with_a_unit(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        producer = client.producer(TOPIC, buffer_bytes="64MiB", batch_bytes="10kB")
        assert (producer.buffer_bytes, producer.batch_bytes) == (64 << 20, 10_000)
        assert client.consumer(TOPIC, subscription="s", prefetch_bytes="1 MiB").prefetch_bytes == 1 << 20
        with pytest.raises(ArgumentInvalid, match="'large' is not a size; write it as 1000, 10MB or 64MiB"):
            client.producer(TOPIC, buffer_bytes="large")

    with_client(tmp_path, run)


# -- without asyncio ---------------------------------------------------------------------------------------------------


def test_the_same_without_await(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANUBE_URL", url)
    with pydanube.sync.connect() as client:
        with client.producer("orders") as producer:
            assert producer.send_many(["0", b"1", "2"]).result(timedelta(seconds=5)).offsets == [0, 1, 2]
        with client.consumer("orders", subscription="s", type="Shared", start="earliest") as consumer:
            next(consumer).ack().result(5)
            next(consumer).nack(delay=timedelta(0))
            assert sorted(consumer.receive(timeout=timedelta(seconds=5)).offset for _ in range(2)) == [1, 2]
        with client.reader("orders", end="latest") as reader:
            assert next(reader).offset == 0
            assert [message.offset for message in reader] == [1, 2]
            assert next(reader, None) is None
        with client.reader("orders", end="latest") as reader:
            assert sum(map(len, reader.batches())) == 3
            assert reader.offsets == {None: 3}
        assert {"create_topic", "describe_subscription", "explain"} <= set(dir(client.admin))  # a notebook offers them
        assert "policies" in inspect.signature(client.admin.create_topic).parameters


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_client_logs_what_happens_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, send_timeout=1.0) as producer:
            await producer.send(b"x")
            door.cut()
            await until(lambda: not client.connected)
            await until(lambda: client.connected)
            await producer.send(b"y")
            door.stall()
            dropped = producer.send(b"z")
            await until(lambda: dropped.done)
            await asyncio.sleep(0)
            door.flow()
            with pytest.raises(pydanube.DanubeError):
                await producer.flush()

    with caplog.at_level(logging.INFO, logger="pydanube"):
        with_door(tmp_path, run)
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "client" in record.name]
    assert [level for level, text in said if text.startswith("disconnected from danube://127.0.0.1:")] == ["WARNING"]
    assert [level for level, text in said if text.startswith("connected to danube://127.0.0.1:")] == ["INFO"] * 2
    failed = "sending 1 message to /default/orders failed, and no one awaited the result: "
    assert [level for level, text in said if text.startswith(failed)] == ["WARNING"]
