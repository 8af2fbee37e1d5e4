"""A batch that says of itself what it is not: consumers refuse it and go on, readers name it and continue after it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from client.broker import TOPIC, with_client
from client.unreadable import poison
from pydanube.base.errors import BatchUnreadable, DanubeError
from pydanube.client import Client, ClientEvent


async def fill(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"0", b"1"])
        await poison(client, 3)
        await producer.send_many([b"5", b"6"])


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared", "failover"])
def test_a_consumer_goes_on_behind_it_and_the_subscription_deals_with_it(tmp_path: Path, kind: str) -> None:
    events: list[ClientEvent] = []

    async def run(client: Client) -> None:
        await fill(client)
        heard: list[tuple[DanubeError, int]] = []
        failure = {"max_redelivery_count": 1, "base_delay": 0, "max_delay": 0, "poison": "drop"}
        consumer = client.consumer(
            TOPIC,
            subscription="s",
            type=kind,
            start="earliest",
            options={"failure": failure},
            on_error=lambda error, count: heard.append((error, count)),
        )
        found: list[bytes | None] = []
        async with consumer:
            async for message in consumer:
                found.append(message.payload)
                await consumer.ack(message)
                if message.offset == 6:
                    break
            async with asyncio.timeout(5):
                while (await client.admin.describe_subscription(TOPIC, "s"))["backlog"]:
                    await consumer.fetch(1, timeout=0.01)
        assert found == [b"0", b"1", b"5", b"6"]
        assert heard
        for error, count in heard:
            assert isinstance(error, BatchUnreadable)
            assert f"messages 2..4 of {TOPIC} cannot be read" in str(error)
            assert count == 3
        assert [event.what for event in events if event.what != "connected"] == ["unreadable"] * len(heard)

    with_client(tmp_path, run, on_event=events.append)


def test_a_reader_says_which_messages_they_are_and_goes_on_behind_them(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await fill(client)
        async with client.reader(TOPIC) as reader:
            found = [(await reader.receive(5)).offset for _ in range(2)]
            with pytest.raises(BatchUnreadable, match=r"messages 2\.\.4 of /default/orders"):
                await reader.receive(5)
            found += [(await reader.receive(5)).offset for _ in range(2)]
            assert found == [0, 1, 5, 6]
            await reader.seek(3)
            with pytest.raises(BatchUnreadable, match=r"messages 3\.\.4"):
                await anext(aiter(reader))
            await reader.seek(5)
            assert (await anext(aiter(reader))).payload == b"5"

    with_client(tmp_path, run)


def test_a_table_of_it_cannot_be_made_and_of_what_lies_behind_it_can(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await fill(client)
        with pytest.raises(BatchUnreadable, match=r"messages 2\.\.4"):
            await client.read_arrow(TOPIC)
        assert (await client.read_arrow(TOPIC, 5)).num_rows == 2

    with_client(tmp_path, run)
