"""A client hears of new topics and partitions from the broker: nothing is polled, and no restart leaves a gap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pydanube
from client.broker import Door, until, with_client, with_door
from pydanube.client import Client, Consumer
from pydanube.client.connection import A
from pydanube.client.partition_consumer import PartitionConsumer
from pydanube.client.topic_watch import FailedTopics, TopicNames
from pydanube.operations.operation import Request
from pydanube.testing.broker import broker

PATTERN = "/default/orders-*"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Verbs that clients ask, in their order."""
    verbs: list[str] = []
    ask = Client.ask

    async def noted(self: Client, request: Request[A]) -> A:
        verbs.append(request.operation)
        return await ask(self, request)

    monkeypatch.setattr(Client, "ask", noted)
    return verbs


def topics_of(consumer: Any) -> list[str]:
    return sorted(topic for topic, _ in consumer.partitions)


def test_a_new_topic_costs_one_question_about_it_and_others_cost_none(tmp_path: Path, asked: list[str]) -> None:
    async def run(client: Client) -> None:
        async with (
            client.consumer(pattern=PATTERN, subscription="a") as first,
            client.consumer(pattern=PATTERN, subscription="b") as second,
        ):
            await until(lambda: asked.count("topic.watch") == 2)  # the first said where we are, the second waits
            await until(lambda: asked.count("topic.list") == 4)  # each has looked twice: when it opened, and then
            asked.clear()
            for number in range(20):
                await client.admin.create_topic(f"/default/other-{number}")
            await client.admin.create_topic("/default/orders-1")
            await until(lambda: topics_of(first) == topics_of(second) == ["/default/orders-1"])
            assert asked.count("topic.list") == 0
            assert asked.count("topic") == 2
            assert client.topic_watches.namespaces == ["default"], "both wait with one request"
        assert client.topic_watches._task is None

    with_client(tmp_path, run)


def test_what_changed_while_the_connection_was_lost_is_heard_of_after_it(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with (
            client.consumer(pattern=PATTERN, subscription="s") as consumer,
            pydanube.connect(door.server.url) as other,
        ):
            for number in range(5):
                await until(lambda: client.connected)
                door.cut()
                await other.admin.create_topic(f"/default/orders-{number}")
            await until(lambda: topics_of(consumer) == [f"/default/orders-{number}" for number in range(5)])

    with_door(tmp_path, run)


def test_what_changes_around_a_restart_of_the_broker_is_heard_of(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker(tmp_path) as danube, pydanube.connect(danube.url) as client:
            await client.admin.create_topic("/default/wide", partitions=1)
            async with (
                client.consumer(pattern=PATTERN, subscription="s") as consumer,
                client.producer("/default/wide") as producer,
            ):
                async with pydanube.connect(danube.url) as other:
                    await other.admin.create_topic("/default/orders-1")
                    await danube.crash()
                    await other.admin.create_topic("/default/orders-2")
                    await other.admin.alter_topic("/default/wide", partitions=2)
                await until(lambda: topics_of(consumer) == ["/default/orders-1", "/default/orders-2"])
                await until(lambda: len(producer.next_sequences) == 2)

    asyncio.run(run())


def test_a_topic_that_is_made_again_is_joined_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(pattern=PATTERN, subscription="s") as consumer:
            for _ in range(3):
                await client.admin.create_topic("/default/orders-1")
                await until(lambda: topics_of(consumer) == ["/default/orders-1"])
                await client.admin.delete_topic("/default/orders-1")
                await until(lambda: not consumer.partitions)

    with_client(tmp_path, run)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_was_made_again_while_the_connection_was_lost_is_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Here the broker tells of the topic before it refuses the channel of the one that was deleted."""
    looked, old = asyncio.Event(), set[PartitionConsumer]()
    open_feed, join = PartitionConsumer.open, Consumer._join_changed

    async def late(self: PartitionConsumer) -> None:
        if self in old:
            await looked.wait()
        await open_feed(self)

    async def noted(self: Consumer, changed: TopicNames) -> FailedTopics:
        failed = await join(self, changed)
        if old:
            looked.set()
        return failed

    monkeypatch.setattr(PartitionConsumer, "open", late)
    monkeypatch.setattr(Consumer, "_join_changed", noted)

    async def run(client: Client, door: Door) -> None:
        name = "/default/orders-1"
        async with pydanube.connect(door.server.url) as other:
            await other.admin.create_topic(name, partitions=partitions)
            async with client.consumer(pattern=PATTERN, subscription="s", prefetch=2) as consumer:
                async with other.producer(name) as producer:
                    await producer.send(b"old")
                assert (await consumer.receive(5)).value == b"old"
                await until(lambda: client.topic_watches._revision is not None)
                old.update(consumer._sources.values())
                door.stall()
                door.cut()
                await until(lambda: not client.connected)
                await other.admin.delete_topic(name)
                await other.admin.create_topic(name, partitions=partitions)
                door.flow()
                await until(lambda: bool(consumer._sources) and not old & set(consumer._sources.values()))
                assert not consumer.nearly_full, "of what is gone nothing is left"
                async with other.producer(name) as producer:
                    await producer.send(b"new")
                assert (await consumer.receive(5)).value == b"new"

    with_door(tmp_path, run)


def test_a_topic_that_cannot_be_joined_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ["/default/orders-1"]
    topic = Client.topic

    async def asked_for(self: Client, name: str, **how: Any) -> Any:
        if name in refused:
            raise pydanube.errors.ConsumerLimitReached(f"{name} is full")
        return await topic(self, name, **how)

    monkeypatch.setattr(Client, "topic", asked_for)

    async def run(client: Client) -> None:
        async with client.consumer(pattern=PATTERN, subscription="s") as consumer:
            await client.admin.create_topic("/default/orders-1")
            await client.admin.create_topic("/default/orders-2")
            await until(lambda: topics_of(consumer) == ["/default/orders-2"])
            refused.clear()
            await until(lambda: topics_of(consumer) == ["/default/orders-1", "/default/orders-2"])

    with_client(tmp_path, run)


def test_a_new_topic_that_keeps_nothing_is_joined_where_it_stands(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.consumer(pattern=PATTERN, subscription="s") as consumer:
            await client.admin.create_topic("/default/orders-1", reliable=False)
            await client.admin.create_topic("/default/orders-2")
            await until(lambda: topics_of(consumer) == ["/default/orders-1", "/default/orders-2"])

    with_client(tmp_path, run)


def test_a_pattern_passes_over_the_dead_letters_of_its_consumers(tmp_path: Path) -> None:
    options = {"failure": {"max_redelivery_count": 0, "base_delay": 0.001, "max_delay": 0.001}}

    async def run(client: Client) -> None:
        await client.admin.create_topic("/default/orders-1")
        async with (
            client.consumer(pattern=PATTERN, subscription="s", type="shared", options=options) as consumer,
            client.producer("/default/orders-1") as producer,
        ):
            await producer.send(b"poison")
            consumer.nack(await consumer.receive(5))
            letters = "/default/orders-1-s-dlq"
            async with client.consumer(pattern=letters, subscription="inspector", start="earliest") as inspector:
                assert (await inspector.receive(5)).value == b"poison"
            await client.admin.create_topic("/default/orders-2")
            await until(lambda: "/default/orders-2" in topics_of(consumer))
            assert topics_of(consumer) == ["/default/orders-1", "/default/orders-2"]

    with_client(tmp_path, run)


def test_a_consumer_by_pattern_closes_while_its_topics_are_deleted(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        topics = [f"/default/orders-{number}" for number in range(6)]
        for topic in topics:
            await client.admin.create_topic(topic)
        consumer = await client.consumer(pattern=PATTERN, subscription="s").open()
        sources = list(consumer._sources.values())
        close = sources[0].close

        async def close_while_others_go() -> None:
            for source in sources[1:]:
                consumer.partition_failed(source, pydanube.errors.TopicNotFound("it was deleted"))
            await close()

        sources[0].close = close_while_others_go  # type: ignore[method-assign]
        await consumer.close()

    with_client(tmp_path, run)


def test_who_follows_more_namespaces_than_a_connection_serves_requests_still_asks_and_hears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far more than this machine opens quickly would be needed: so fewer are served at once."""
    monkeypatch.setattr("pydanube.client.connection.CLIENT_REQUESTS_AT_ONCE", 5)
    monkeypatch.setattr("pydanube.api.native.connection.REQUESTS_AT_ONCE_MAX", 6)
    monkeypatch.setattr("pydanube.client.topic_watch.TOPIC_WATCH_NAMESPACES_MAX", 8)

    async def run(client: Client) -> None:
        producers: list[Any] = []
        for number in range(12):
            await client.admin.create_namespace(f"n{number}")
            await client.admin.create_topic(f"/n{number}/wide", partitions=1)
            producers.append(await client.producer(f"/n{number}/wide").open())
        async with asyncio.timeout(5):
            await asyncio.gather(*(client.bounds("/n0/wide-part-0") for _ in range(20)))
            for number in (0, 11):
                await client.admin.alter_topic(f"/n{number}/wide", partitions=2)
            await until(lambda: [len(each.next_sequences) for each in producers] == [2] + [1] * 10 + [2])

    with_client(tmp_path, run)
