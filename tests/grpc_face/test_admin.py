"""The admin services: namespaces, topics, subscriptions and their options, and what takes effect at once."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import pydanube
from grpc_face.rig import Broker, Consumers, Producers, api, ask, channel, message, refused, until_allowed
from grpc_face.test_calls import made, subscribed
from pydanube.api.grpc.operations import _topics
from pydanube.api.server import Server, load
from pydanube.base.addresses import HostPort
from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import GRPC_UNACKED_DEFAULT, TOPICS_A_TURN
from pydanube.broker.standalone import StandaloneSettings

TOPICS = "danube_admin.TopicAdmin"
NAMESPACES = "danube_admin.NamespaceAdmin"
BROKERS = "danube_admin.BrokerAdmin"
POLICY = {
    "max_redelivery_count": 3,
    "ack_timeout_ms": 5_000,
    "base_redelivery_delay_ms": 100,
    "max_redelivery_delay_ms": 2_000,
    "backoff_strategy": 0,
    "poison_policy": 2,
}


async def status_of(work: Any) -> grpc.StatusCode:
    return (await refused(work))[0]


def test_namespaces_come_and_go(broker: Broker) -> None:
    async def run() -> None:
        async with channel(broker.admin_target) as opened:
            assert (await ask(opened, f"{NAMESPACES}/CreateNamespace", name="shop")).success
            assert await status_of(ask(opened, f"{NAMESPACES}/CreateNamespace", name="shop")) is EXISTS
            assert {"default", "system", "shop"} <= set((await ask(opened, f"{BROKERS}/ListNamespaces")).namespaces)
            policies = json.loads((await ask(opened, f"{NAMESPACES}/GetNamespacePolicies", name="shop")).policies)
            assert len(policies) == 7
            await ask(opened, f"{TOPICS}/CreatePartitionedTopic", base_name="/shop/x", partitions=2)
            topics = (await ask(opened, f"{NAMESPACES}/GetNamespaceTopics", name="shop")).topics
            assert list(topics) == ["shop/x-part-0", "shop/x-part-1"]
            full = ask(opened, f"{NAMESPACES}/DeleteNamespace", name="shop")
            assert await status_of(full) is grpc.StatusCode.FAILED_PRECONDITION
            assert await status_of(ask(opened, f"{TOPICS}/DeleteTopic", name="/shop/x-part-1")) is INVALID
            await ask(opened, f"{TOPICS}/DeleteTopic", name="/shop/x")
            assert (await ask(opened, f"{NAMESPACES}/DeleteNamespace", name="shop")).success
            assert await status_of(ask(opened, f"{NAMESPACES}/GetNamespacePolicies", name="shop")) is MISSING

    asyncio.run(run())


EXISTS, MISSING = grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_created_over_grpc_has_the_bounds_of_all_faces(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.admin_target) as opened:
            many = ask(opened, f"{TOPICS}/CreatePartitionedTopic", base_name=topic, partitions=99_999)
            status, details = await refused(many)
            assert status is INVALID
            assert details.startswith("partitions must be 1024 or less, got 99999")

    asyncio.run(run())


def test_topics_are_made_described_listed_and_deleted(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.admin_target) as opened, channel(broker.target) as data:
            assert (await ask(opened, f"{TOPICS}/CreateTopic", name=topic, dispatch_strategy=1)).success
            assert await status_of(ask(opened, f"{TOPICS}/CreateTopic", name=topic)) is EXISTS
            assert await status_of(ask(opened, f"{TOPICS}/CreateTopic", name="bad")) is INVALID
            assert (
                await status_of(ask(opened, f"{TOPICS}/CreateTopic", name=f"{topic}2", dispatch_strategy=7)) is INVALID
            )
            await subscribed(data, topic)
            found = await ask(opened, f"{TOPICS}/DescribeTopic", name=topic)
            assert (found.name, list(found.subscriptions), found.delivery) == (topic, ["s"], "Reliable")
            listed = (await ask(opened, f"{TOPICS}/ListNamespaceTopics", name="default")).topics
            assert topic in {each.name for each in listed}
            [alone] = (await ask(opened, f"{BROKERS}/ListBrokers")).brokers
            assert (alone.broker_addr, alone.admin_addr) == (broker.url, f"http://{broker.admin_target}")
            served = (await ask(opened, f"{TOPICS}/ListBrokerTopics", broker_id=alone.broker_id)).topics
            assert topic in {each.name for each in served}
            assert not (await ask(opened, f"{TOPICS}/ListBrokerTopics", broker_id="none")).topics
            await ask(opened, f"{TOPICS}/DeleteTopic", name=topic)
            assert await status_of(ask(opened, f"{TOPICS}/DescribeTopic", name=topic)) is MISSING

    asyncio.run(run())


def test_the_only_broker_leads_and_no_other_can_be_activated(broker: Broker) -> None:
    async def run() -> None:
        async with channel(broker.admin_target) as opened:
            [alone] = (await ask(opened, f"{BROKERS}/ListBrokers")).brokers
            assert (alone.broker_role, alone.broker_status) == ("Cluster_Leader", "active")
            assert alone.metrics_addr == broker.url
            assert (await ask(opened, f"{BROKERS}/GetLeaderBroker")).leader == alone.broker_id
            assert (await ask(opened, f"{BROKERS}/ActivateBroker", broker_id=alone.broker_id)).success
            for other in ("2", ""):
                assert await status_of(ask(opened, f"{BROKERS}/ActivateBroker", broker_id=other)) is MISSING

    asyncio.run(run())


def test_a_subscription_is_deleted_when_nobody_uses_it(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            await made(opened, topic)
            async with channel(broker.target) as other:
                await subscribed(other, topic)
                used = ask(opened, f"{TOPICS}/Unsubscribe", topic=topic, subscription="s")
                assert await status_of(used) is grpc.StatusCode.PERMISSION_DENIED
            for _ in range(1_000):  # until the broker has seen that it left
                try:
                    await ask(opened, f"{TOPICS}/Unsubscribe", topic=topic, subscription="s")
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)
            assert not (await ask(opened, f"{TOPICS}/ListSubscriptions", name=topic)).subscriptions

    asyncio.run(run())


def test_a_window_holds_for_a_running_subscription(broker: Broker, topic: str) -> None:
    name = {"topic": topic, "subscription": "s"}

    async def run() -> None:
        async with channel(broker.target) as opened:
            sender, number = await made(opened, topic), await subscribed(opened, topic, subscription_type=1)
            found = await ask(opened, f"{TOPICS}/GetSubscriptionDispatchConfig", **name)
            assert found.dispatch_config.max_unacked_messages == 10
            setting = {"dispatch_config": {"max_unacked_messages": 3}}
            await ask(opened, f"{TOPICS}/SetSubscriptionDispatchConfig", **name, **setting)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number))
            for each in range(5):
                await Producers(opened).SendMessage(message(topic, b"%d" % each, sender))
            three = [await stream.read() for _ in range(3)]
            reading = asyncio.ensure_future(stream.read())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(reading), 0.3)
            await Consumers(opened).Ack(api.AckRequest(msg_id=three[0].msg_id, subscription_name="s"))
            assert (await reading).payload == b"3"
            setting = {"dispatch_config": {"max_unacked_messages": 0}}
            assert await status_of(ask(opened, f"{TOPICS}/SetSubscriptionDispatchConfig", **name, **setting)) is INVALID
            stream.cancel()

    asyncio.run(run())


def test_a_failure_policy_reaches_a_running_subscription(broker: Broker, topic: str) -> None:
    name = {"topic": topic, "subscription": "s"}

    async def run() -> None:
        async with channel(broker.target) as opened:
            sender, number = await made(opened, topic), await subscribed(opened, topic, subscription_type=1)
            policy = POLICY | {"max_redelivery_count": 0}  # dropped at the first failure
            await ask(opened, f"{TOPICS}/SetSubscriptionFailurePolicy", **name, failure_policy=policy)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number))
            for payload in (b"bad", b"good"):
                await Producers(opened).SendMessage(message(topic, payload, sender))
            bad = await stream.read()
            await Consumers(opened).Nack(api.NackRequest(msg_id=bad.msg_id, subscription_name="s"))
            assert (await stream.read()).payload == b"good"
            found = await ask(opened, f"{TOPICS}/GetSubscriptionFailurePolicy", **name)
            assert found.failure_policy.poison_policy == 2
            assert found.failure_policy.ack_timeout_ms == 5_000
            assert found.subscription_type == 1
            for wrong in (
                POLICY | {"poison_policy": 0},  # a dead letter topic is missing
                POLICY | {"base_redelivery_delay_ms": 10_000},
                POLICY | {"backoff_strategy": 9},
            ):
                refusal = ask(opened, f"{TOPICS}/SetSubscriptionFailurePolicy", **name, failure_policy=wrong)
                assert await status_of(refusal) is INVALID
            stream.cancel()

    asyncio.run(run())


def test_options_may_be_set_before_the_subscription_is_made(own_broker: Broker, topic: str) -> None:
    name = {"topic": topic, "subscription": "s"}

    async def run() -> None:
        async with channel(own_broker.target) as opened:
            await made(opened, topic)
            empty = await ask(opened, f"{TOPICS}/GetSubscriptionFailurePolicy", **name)
            assert not empty.HasField("failure_policy")
            await ask(opened, f"{TOPICS}/SetSubscriptionFailurePolicy", **name, failure_policy=POLICY)
            setting = {"dispatch_config": {"max_unacked_messages": 7}}
            await ask(opened, f"{TOPICS}/SetSubscriptionDispatchConfig", **name, **setting)
        own_broker.kill()
        own_broker.start()
        async with channel(own_broker.target) as opened:
            await subscribed(opened, topic)
            found = await ask(opened, f"{TOPICS}/GetSubscriptionFailurePolicy", **name)
            assert found.failure_policy.max_redelivery_count == 3
            window = await ask(opened, f"{TOPICS}/GetSubscriptionDispatchConfig", **name)
            assert window.dispatch_config.max_unacked_messages == 7

    asyncio.run(run())


def test_a_partition_that_is_added_has_the_options_that_were_set_last(broker: Broker, topic: str) -> None:
    name = {"topic": topic, "subscription": "s"}

    async def run() -> None:
        async with channel(broker.target) as opened:
            await ask(opened, f"{TOPICS}/CreatePartitionedTopic", base_name=topic, partitions=2, dispatch_strategy=1)
            for window in (3, 7):
                await set_window(opened, window, **name)
                for each in range(2):
                    await subscribed(opened, f"{topic}-part-{each}")
            await set_window(opened, 9, topic=f"{topic}-part-0", subscription="s")  # of this one alone
            await made(opened, f"{topic}-part-2")
            await subscribed(opened, f"{topic}-part-2")
            windows = [await window_of(opened, topic=f"{topic}-part-{each}", subscription="s") for each in range(3)]
            assert windows == [9, 7, 7]

    asyncio.run(run())


@pytest.mark.parametrize("through", ["gRPC", "native"])
@pytest.mark.parametrize("deleted", ["topic", "subscription"])
def test_options_go_with_what_they_are_of(broker: Broker, topic: str, deleted: str, through: str) -> None:
    name = {"topic": topic, "subscription": "s"}
    other = {"topic": topic, "subscription": "other"}

    async def run() -> None:
        async with channel(broker.target) as opened:
            create = {"base_name": topic, "partitions": 2, "dispatch_strategy": 1}
            await ask(opened, f"{TOPICS}/CreatePartitionedTopic", **create)
            await set_window(opened, 3, **name)
            await set_window(opened, 4, **other)
            async with channel(broker.target) as consumers:
                await subscribed(consumers, f"{topic}-part-0")
            if through == "native":
                async with pydanube.connect(f"danube://{broker.target}") as client:
                    if deleted == "topic":
                        await client.admin.delete_topic(topic)
                    else:
                        await client.admin.delete_subscription(topic, "s")
            elif deleted == "topic":
                await ask(opened, f"{TOPICS}/DeleteTopic", name=topic)
            else:
                await until_allowed(lambda: ask(opened, f"{TOPICS}/Unsubscribe", **name))
            if deleted == "topic":
                await ask(opened, f"{TOPICS}/CreatePartitionedTopic", **create)
            assert await window_of(opened, **name) == 0
            assert await window_of(opened, **other) == (0 if deleted == "topic" else 4)
            await subscribed(opened, f"{topic}-part-0")
            assert await window_of(opened, topic=f"{topic}-part-0", subscription="s") == GRPC_UNACKED_DEFAULT

    asyncio.run(run())


async def set_window(opened: grpc.aio.Channel, window: int, **name: str) -> None:
    setting = {"dispatch_config": {"max_unacked_messages": window}}
    await ask(opened, f"{TOPICS}/SetSubscriptionDispatchConfig", **name, **setting)


async def window_of(opened: grpc.aio.Channel, **name: str) -> int:
    found = await ask(opened, f"{TOPICS}/GetSubscriptionDispatchConfig", **name)
    number: int = found.dispatch_config.max_unacked_messages
    return number


def test_a_topic_that_keeps_nothing_has_no_failure_policy(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            await made(opened, topic, reliable=False)
            name = {"topic": topic, "subscription": "s"}
            refusal = ask(opened, f"{TOPICS}/SetSubscriptionFailurePolicy", **name, failure_policy=POLICY)
            assert await status_of(refusal) is grpc.StatusCode.FAILED_PRECONDITION
            nowhere = {"topic": f"{topic}2", "subscription": "s"}
            assert await status_of(ask(opened, f"{TOPICS}/GetSubscriptionFailurePolicy", **nowhere)) is MISSING

    asyncio.run(run())


def test_segments_are_listed_from_the_first_one_on(own_broker: Broker, topic: str) -> None:
    async def run() -> None:
        path = "danube.StorageService/ListSegmentDescriptors"
        for _ in range(2):  # each start of a broker opens another ledger
            async with channel(own_broker.target) as opened:
                sender = await made(opened, topic)
                for each in range(5):
                    await Producers(opened).SendMessage(message(topic, b"%d" % each, sender))
            own_broker.kill()
            own_broker.start()
        async with channel(own_broker.target) as opened:
            segments = (await ask(opened, path, topic=topic.removeprefix("/"))).segments
            assert [(each.start_offset, each.end_offset) for each in segments] == [(0, 4), (5, 9)]
            later = (await ask(opened, path, topic=topic, after_offset=4)).segments
            assert [each.start_offset for each in later] == [5]
            assert await status_of(ask(opened, path, topic="/default/none")) is MISSING

    asyncio.run(run())


# -- the second address ------------------------------------------------------------------------------------------------


def test_the_admin_address_serves_no_messages(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.admin_target) as opened:
            assert await status_of(made(opened, topic)) is grpc.StatusCode.UNIMPLEMENTED
            assert (await ask(opened, "grpc.health.v1.Health/Check")).status == 1
        host, _, port = broker.admin_target.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"DANUBE1\n" + bytes(64))
        assert b"gRPC" in await reader.read()
        writer.close()

    asyncio.run(run())


def test_an_admin_address_beyond_loopback_must_be_allowed(tmp_path: Path) -> None:
    flags = {"data_dir": str(tmp_path), "admin_listen": "0.0.0.0:50051"}
    with pytest.raises(ConfigInvalid, match=r"0\.0\.0\.0 can be reached"):
        load(None, {}, flags)
    assert load(None, {}, flags | {"allow_unprotected_network": "true"}).config.admin_listen is not None
    assert load(None, {}, flags | {"admin_listen": ""}).config.admin_listen is None


def test_a_default_admin_address_that_is_taken_is_done_without_and_a_chosen_one_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(port: int) -> None:
        chosen = {"port": 0, "admin_listen": HostPort("127.0.0.1", port)}
        server = Server(StandaloneSettings(tmp_path / "one", **chosen, admin_required=False))  # type: ignore[arg-type]
        await server.start()
        assert server.admin_address is None
        await server.stop()
        assert "admin services are not available" in caplog.text
        with pytest.raises(ConfigInvalid, match=str(port)):
            await Server(StandaloneSettings(tmp_path / "two", **chosen)).start()  # type: ignore[arg-type]

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asyncio.run(run(taken.getsockname()[1]))


def test_very_many_topics_are_listed_in_several_turns_of_the_loop() -> None:
    record: Any = SimpleNamespace(partition_names=lambda: range(10 * TOPICS_A_TURN), reliable=True)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> int:
        beside = asyncio.create_task(others())
        found = len((await _topics([record, record])).topics)
        beside.cancel()
        return found

    assert asyncio.run(run()) == 20 * TOPICS_A_TURN
    assert turns >= 20
