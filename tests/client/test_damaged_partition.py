"""One partition whose state is damaged on disk: clients of the topic go on with the others until it is mended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pydanube
from client.broker import TOPIC
from pydanube.base.errors import DanubeError, OffsetsDamaged
from pydanube.broker.topic.topic import Topic
from pydanube.client import Client, Producer
from pydanube.storage.stream.tenure import Tenure
from pydanube.testing.broker import broker

MESSAGES = 30


class Damage:
    """Makes the openings of some partitions fail, as a damaged state does."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.partitions: set[int] = set()
        whole = Topic.open

        async def opened(tenure: Tenure, around: Any, options: Any, name: str | None = None) -> Topic:
            if name in {f"{TOPIC}-part-{number}" for number in self.partitions}:
                raise OffsetsDamaged(f"the state of {name} is damaged on disk")
            return await whole(tenure, around, options, name)

        patch.setattr(Topic, "open", opened)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Damage:
    return Damage(monkeypatch)


async def fill(client: Client) -> None:
    await client.admin.create_topic(TOPIC, partitions=3)
    await client.admin.create_subscription(TOPIC, "s", type="shared", start="earliest")
    async with client.producer(TOPIC) as producer:
        for number in range(MESSAGES):
            await producer.send(b"%d" % number, key=str(number))


def test_a_consumer_goes_on_with_the_other_partitions_and_joins_it_when_it_is_mended(
    tmp_path: Path, damage: Damage
) -> None:
    told: list[DanubeError] = []

    async def story() -> None:
        async with broker(tmp_path) as server, pydanube.connect(server.url) as client:
            await fill(client)
        damage.partitions = {1}
        async with broker(tmp_path) as server, pydanube.connect(server.url) as client:
            stats = await client.admin.describe_subscription(TOPIC, "s")
            assert "part-1 is damaged" in stats["unreadable"]
            left = stats["backlog"]
            assert 0 < left < MESSAGES
            assert [each["subscription"] for each in await client.admin.subscriptions(TOPIC)] == ["s"]
            consumer = client.consumer(
                TOPIC, subscription="s", type="shared", on_error=lambda error, _: told.append(error)
            )
            async with consumer:
                found = await consumer.fetch(left, timeout=10)
                assert {message.partition for message in found} == {0, 2}
                assert [type(error) for error in told] == [OffsetsDamaged], "told once, however often it is tried"
                for message in found:
                    await consumer.ack(message)
                damage.partitions.clear()
                assert len(await consumer.fetch(MESSAGES - left, timeout=10)) == MESSAGES - left

    async def within() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(within())


def test_a_producer_sends_to_the_other_partitions_and_fails_what_must_go_to_the_damaged_one(
    tmp_path: Path, damage: Damage
) -> None:
    async def sent(producer: Producer, **key: str) -> bool:
        try:
            await producer.send(b"x", **key)
        except OffsetsDamaged:
            return False
        return True

    async def story() -> None:
        async with broker(tmp_path) as server, pydanube.connect(server.url) as client:
            await fill(client)
        damage.partitions = {0}
        async with (
            broker(tmp_path) as server,
            pydanube.connect(server.url) as client,
            client.producer(TOPIC) as producer,
        ):
            assert all([await sent(producer) for _ in range(10)]), "without a key they go to the others"
            keyed = [await sent(producer, key=str(number)) for number in range(MESSAGES)]
            assert len({*keyed}) == 2, "those of the damaged partition fail at once, the others go on"
            damage.partitions.clear()
            async with asyncio.timeout(20):
                while not all([await sent(producer, key=str(number)) for number in range(MESSAGES)]):
                    await client.admin.namespaces()
        damage.partitions = {0, 1, 2}
        async with broker(tmp_path) as server, pydanube.connect(server.url) as client:
            with pytest.raises(OffsetsDamaged):
                await client.producer(TOPIC).open()

    asyncio.run(story())


def test_where_all_partitions_are_damaged_a_consumer_is_not_opened(tmp_path: Path, damage: Damage) -> None:
    async def story() -> None:
        async with broker(tmp_path) as server, pydanube.connect(server.url) as client:
            await fill(client)
        damage.partitions = {0, 1, 2}
        async with broker(tmp_path) as server, pydanube.connect(server.url) as client:
            with pytest.raises(OffsetsDamaged):
                await client.consumer(TOPIC, subscription="s", type="shared").open()
            with pytest.raises(OffsetsDamaged):
                await client.admin.describe_subscription(TOPIC, "s")

    asyncio.run(story())
