"""Policies over the wire: what each does at its limit, with which error, and from when on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pydanube
from api.frame_client import Client, close_all
from pydanube.api.server import Server
from pydanube.base.errors import (
    BacklogFull,
    ConsumerLimitReached,
    LimitReached,
    MessageTooLarge,
    NotReliable,
    PolicyInvalid,
    ProducerLimitReached,
    QuotaReached,
    SubscriptionConsumerLimitReached,
    TopicLimitReached,
)
from pydanube.base.limits import KIB, UNCONFIRMED_ALONE_BYTES_MAX
from pydanube.broker.standalone import StandaloneSettings
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import build
from pydanube.wire.commands import Deliver, Error, Grant, Publish, Published

TOPIC = "/default/orders"


def run(tmp_path: Path, *lives: Any) -> None:
    """Each of `lives` with a broker of its own on the same directory, and a client."""

    async def life(scenario: Any) -> None:
        server = Server(StandaloneSettings(tmp_path, port=0, node=NodeSettings(file_bytes=256 * KIB)))
        await server.start()
        try:
            async with pydanube.connect(server.url) as client:
                await scenario(server, client)
        finally:
            await close_all()
            await server.stop()

    for scenario in lives:
        asyncio.run(life(scenario))


async def limit(client: pydanube.Client, namespace: str = "default", **policies: Any) -> None:
    assert (await client.admin.policies(namespace, change=policies)).to_fields().items() >= {
        name: value for name, value in policies.items() if value is not None
    }.items()


async def answers(client: Client, count: int) -> list[Any]:
    return [await client.receive() for _ in range(count)]


def publish(client: Client, request: int, payload: bytes = b"x", messages: int = 1) -> None:
    client.send(Publish(1, request, build([payload] * messages, publish_time=1).to_bytes()))


async def fill(producer: Any, count: int) -> None:
    for _ in range(count):
        await producer.send(b"x" * 1000)


# -- who may come ------------------------------------------------------------------------------------------------------


def test_a_lower_limit_lets_those_who_are_there_stay_and_refuses_new_ones(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        async with (
            client.producer(TOPIC) as one,
            client.producer(TOPIC) as two,
            client.consumer(TOPIC, subscription="s", type="shared"),
            client.consumer(TOPIC, subscription="s", type="shared"),
        ):
            await limit(client, producers_max=1, consumers_max=1, topics_max=1)
            await one.send(b"1")
            await two.send(b"2")
            with pytest.raises(ProducerLimitReached):
                await client.producer(TOPIC).open()
            with pytest.raises(ConsumerLimitReached):
                await client.consumer(TOPIC, subscription="s", type="shared").open()
            with pytest.raises(TopicLimitReached):
                await client.admin.create_topic("/default/another")
            await limit(client, producers_max=3, topics_max=None)
            async with client.producer(TOPIC), client.producer("/default/another"):
                pass

    run(tmp_path, life)


def test_a_subscription_has_no_more_consumers_than_its_policy_says(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await limit(client, consumers_per_subscription_max=2)
        opened = [client.consumer(TOPIC, subscription="s", type="shared") for _ in range(5)]
        done = await asyncio.gather(*(each.open() for each in opened), return_exceptions=True)
        refused = [each for each in done if isinstance(each, BaseException)]
        assert len(refused) == 3
        assert all(isinstance(each, SubscriptionConsumerLimitReached) for each in refused)
        async with client.consumer(TOPIC, subscription="another", type="shared"):
            pass
        await client.admin.alter_topic(TOPIC, policies={"consumers_per_subscription_max": 3})
        async with client.consumer(TOPIC, subscription="s", type="shared"):
            with pytest.raises(SubscriptionConsumerLimitReached, match="limit of 3"):
                await client.consumer(TOPIC, subscription="s", type="shared").open()

    run(tmp_path, life)


def test_many_who_come_at_once_do_not_slip_past_a_limit(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await limit(client, producers_max=2, consumers_max=2, subscriptions_max=2)
        frames = await Client.connect(server.address)
        await client.admin.create_topic(TOPIC)
        for kind in ("producer", "consumer"):
            opened = [
                client.producer(TOPIC) if kind == "producer" else client.consumer(TOPIC, subscription=f"s{number}")
                for number in range(6)
            ]
            done = await asyncio.gather(*(each.open() for each in opened), return_exceptions=True)
            refused = [each for each in done if isinstance(each, BaseException)]
            assert len(refused) == 4
            assert all(isinstance(each, LimitReached) for each in refused)
        assert len((await frames.ask("subscription.list", topic=TOPIC))["subscriptions"]) == 2

    run(tmp_path, life)


def test_a_topic_overrides_its_namespace_and_takes_it_back(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await limit(client, message_bytes_max=10)
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 100})
        async with client.producer(TOPIC, send_timeout=1) as producer:
            await producer.send(b"x" * 100)
            described = await client.admin.alter_topic(TOPIC, policies={"message_bytes_max": None})
            assert dict(described.policies) == {}
            with pytest.raises(MessageTooLarge, match="10 bytes"):
                await producer.send(b"x" * 11)
            await limit(client, message_bytes_max=None)
            await producer.send(b"x" * 1000)

    run(tmp_path, life)


def test_what_makes_no_sense_for_a_topic_is_refused(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        with pytest.raises(NotReliable, match="ttl_seconds"):
            await client.admin.create_topic(TOPIC, reliable=False, policies={"ttl_seconds": 1})
        await client.admin.create_topic(TOPIC, reliable=False)
        with pytest.raises(NotReliable, match="backlog_bytes_max"):
            await client.admin.alter_topic(TOPIC, policies={"backlog_bytes_max": 1})
        with pytest.raises(PolicyInvalid, match="a policy of namespaces"):
            await client.admin.alter_topic(TOPIC, policies={"namespace_bytes_max": 1})
        await limit(client, retention_seconds=1, ttl_seconds=1)  # of those topics that keep something
        async with client.producer(TOPIC, reliable=False) as producer:
            await producer.send(b"x")

    run(tmp_path, life)


# -- publish rate ------------------------------------------------------------------------------------------------------


def test_publishing_beyond_the_rate_is_answered_late_and_in_order(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await limit(client, publish_messages_per_second=100)
        loop = asyncio.get_running_loop()
        async with client.producer(TOPIC) as producer:
            began = loop.time()
            for first in range(0, 150, 10):
                await producer.send_many([b"%d" % number for number in range(first, first + 10)])
            assert 0.4 <= loop.time() - began <= 5
        async with client.reader(TOPIC, start=0) as reader:
            assert [(await reader.receive()).payload for _ in range(150)] == [b"%d" % number for number in range(150)]

    run(tmp_path, life)


def test_far_beyond_the_rate_is_an_error_and_other_channels_go_on(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"publish_messages_per_second": 10})
        frames = await Client.connect(server.address)
        await frames.ask("open_producer", channel=1, topic=TOPIC)
        await frames.ask("open_consumer", channel=2, topic=TOPIC, subscription="s")
        frames.send(Grant(2, 1000))
        for request in range(1, 5):
            publish(frames, request, messages=30)
        found = await answers(frames, 4)
        assert [each.code for each in found if isinstance(each, Error)] == ["rate_exceeded"] * 2
        assert sum(isinstance(each, Deliver) for each in found) == 2  # they are there, only the answers are late
        assert "topic" in await frames.ask("topic", topic=TOPIC)
        await client.admin.alter_topic(TOPIC, policies={"publish_messages_per_second": None})
        later = await answers(frames, 2)
        assert [each.request for each in later] == [1, 2]

    run(tmp_path, life)


def test_a_client_that_floods_slows_down_and_loses_nothing(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"publish_bytes_per_second": 20_000})
        async with client.producer(TOPIC, batch_messages=50) as producer:
            for number in range(1000):
                producer.send(b"%0100d" % number)
            async with asyncio.timeout(20):
                while (await client.bounds(TOPIC))[1] < 900:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await client.admin.alter_topic(TOPIC, policies={"publish_bytes_per_second": None})
                await producer.flush()
        async with client.reader(TOPIC, start=0) as reader:
            found = [int((await reader.receive()).payload or b"") for _ in range(1000)]
        assert found == list(range(1000))

    run(tmp_path, life)


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_a_namespace_that_is_full_refuses_and_still_does_after_a_restart(tmp_path: Path) -> None:
    async def first(server: Server, client: pydanube.Client) -> None:
        await client.admin.create_namespace("small", policies={"namespace_bytes_max": 10_000})
        async with client.producer("/small/a") as one, client.producer("/small/b") as two:
            with pytest.raises(QuotaReached):
                await fill(one, 20)
            with pytest.raises(QuotaReached):
                await two.send(b"x")
        async with client.producer("/default/other") as other:
            await other.send(b"x" * 1000)

    async def second(server: Server, client: pydanube.Client) -> None:
        async with client.producer("/small/b") as producer:
            with pytest.raises(QuotaReached):
                await producer.send(b"x")
            await limit(client, "small", namespace_bytes_max=20_000)
            await producer.send(b"x" * 1000)
            await limit(client, "small", namespace_bytes_max=9_000)
            with pytest.raises(QuotaReached):
                await producer.send(b"x")
            await client.admin.delete_topic("/small/a")
            await producer.send(b"x")

    run(tmp_path, first, second)


def test_what_all_have_acknowledged_makes_room_in_its_namespace(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await limit(client, namespace_bytes_max=50_000)
        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
        ):
            with pytest.raises(QuotaReached):
                await fill(producer, 100)
            while message := await consumer.receive(timeout=5):
                await consumer.ack(message)
                if message.offset >= (await client.bounds(TOPIC))[1] - 1:
                    break
            async with asyncio.timeout(10):
                while True:
                    try:
                        await producer.send(b"room")
                        return
                    except QuotaReached:
                        await asyncio.sleep(0.05)

    run(tmp_path, life)


def test_a_full_backlog_is_an_error_with_its_reason_and_ends_when_consumers_catch_up(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"backlog_bytes_max": 5_000})
        await client.admin.create_subscription(TOPIC, "s")
        async with client.producer(TOPIC, send_timeout=0.3) as producer:
            with pytest.raises(BacklogFull):
                await fill(producer, 20)
        async with client.producer(TOPIC, send_timeout=20) as producer:
            waiting = asyncio.ensure_future(_sent(producer))
            async with client.consumer(TOPIC, subscription="s") as consumer:
                for _ in range(4):
                    await consumer.ack(await consumer.receive(timeout=5))
                assert (await waiting).offset is not None

    run(tmp_path, life)


async def _sent(producer: Any) -> Any:
    return await producer.send(b"held back")


def test_dropping_the_oldest_takes_everything_and_is_visible(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        policies = {"backlog_bytes_max": 5_000, "backlog_policy": "drop_oldest"}
        await client.admin.create_topic(TOPIC, policies=policies)
        await client.admin.create_subscription(TOPIC, "s")
        async with client.producer(TOPIC) as producer:
            await fill(producer, 30)
        [found] = await client.admin.subscriptions(TOPIC)
        assert found["floor"] >= 24
        assert found["backlog"] <= 6

    run(tmp_path, life)


# -- dispatch rate -----------------------------------------------------------------------------------------------------


def test_a_namespace_that_changes_its_dispatch_rate_changes_it_for_who_is_connected(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        await limit(client, dispatch_messages_per_second=1)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 100)
        frames = await Client.connect(server.address)
        await frames.ask("open_consumer", channel=1, topic=TOPIC, subscription="s", start="earliest")
        frames.send(Grant(1, 1000))
        first = await frames.receive()
        assert isinstance(first, Deliver)
        assert first.last < 5
        sentence = await client.admin.explain(TOPIC, "s", offset=99)
        assert "dispatch rate" in sentence
        await limit(client, dispatch_messages_per_second=None)
        last = first.last
        while last < 99:
            deliver = await frames.receive()
            assert isinstance(deliver, Deliver)
            last = deliver.last

    run(tmp_path, life)


def test_a_topic_that_keeps_nothing_drops_what_is_beyond_its_dispatch_rate(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        policies = {"dispatch_messages_per_second": 10}
        await client.admin.create_topic(TOPIC, reliable=False, policies=policies)
        frames = await Client.connect(server.address)
        await frames.ask("open_producer", channel=1, topic=TOPIC, reliable=False)
        await frames.ask("open_consumer", channel=2, topic=TOPIC, subscription="s")
        frames.send(Grant(2, 1000))
        for request in range(1, 6):
            publish(frames, request, messages=8)
        found = await answers(frames, 5 + 2)
        assert sum(isinstance(each, Published) for each in found) == 5
        assert sum(isinstance(each, Deliver) for each in found) == 2

    run(tmp_path, life)


# -- what is not confirmed yet -----------------------------------------------------------------------------------------


def test_a_connection_is_not_read_while_much_of_it_is_not_written(tmp_path: Path) -> None:
    async def life(server: Server, client: pydanube.Client) -> None:
        frames = await Client.connect(server.address)
        await frames.ask("open_producer", channel=1, topic=TOPIC)
        payload = b"x" * 64 * KIB
        count = 2 * UNCONFIRMED_ALONE_BYTES_MAX // len(payload)
        for request in range(1, count + 1):
            publish(frames, request, payload)
        found = await answers(frames, count)
        assert all(isinstance(each, Published) for each in found)
        assert [each.request for each in found] == list(range(1, count + 1))

    run(tmp_path, life)
