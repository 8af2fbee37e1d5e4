"""What gRPC demands of a server, seen from a plain gRPC client: statuses, deadlines, sizes, tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import pydanube
from grpc_face.rig import (
    SECONDS,
    Broker,
    Consumers,
    Discovery,
    Producers,
    api,
    ask,
    channel,
    message,
    refused,
    until_allowed,
)
from pydanube.api.grpc.messages import message_class
from pydanube.api.server import Server
from pydanube.base.errors import NotServed
from pydanube.base.limits import HTTP2_STREAM_QUEUE_BYTES_MAX
from pydanube.broker.standalone import StandaloneSettings

LOOKUP = "/danube.Discovery/TopicLookup"


def raw(opened: grpc.aio.Channel, path: str) -> Any:
    return opened.unary_unary(path, request_serializer=lambda body: body, response_deserializer=lambda body: body)


async def made(opened: grpc.aio.Channel, topic: str, name: str = "p", *, reliable: bool = True) -> int:
    request = api.ProducerRequest(producer_name=name, topic_name=topic, dispatch_strategy=int(reliable))
    number: int = (await Producers(opened).CreateProducer(request)).producer_id
    return number


async def subscribed(opened: grpc.aio.Channel, topic: str, **fields: Any) -> int:
    request = {"topic_name": topic, "consumer_name": "c", "subscription": "s"} | fields
    number: int = (await Consumers(opened).Subscribe(api.ConsumerRequest(**request))).consumer_id
    return number


def test_a_method_that_is_not_there_is_unimplemented(broker: Broker) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            status, details = await refused(raw(opened, "/danube.Discovery/Nothing")(b""))
            assert status is grpc.StatusCode.UNIMPLEMENTED
            assert details == f"unknown method /danube.Discovery/Nothing ({NotServed.help})"

    asyncio.run(run())


@pytest.mark.parametrize(
    "path",
    [
        "danube_schema.SchemaRegistry/ConfigureTopicSchema",
        "danube_schema.SchemaRegistry/GetTopicSchemaConfig",
        "danube_admin.ClusterAdmin/ClusterStatus",
        "danube_admin.BrokerAdmin/TriggerRebalance",
        "danube_admin.TopicAdmin/UnloadTopic",
    ],
)
def test_what_is_not_served_yet_says_so_in_a_sentence(broker: Broker, path: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            status, details = await refused(ask(opened, path))
            assert status is grpc.StatusCode.UNIMPLEMENTED
            assert "docs/clients.md" in details

    asyncio.run(run())


def test_a_message_that_is_none_is_refused(broker: Broker) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            status, details = await refused(raw(opened, LOOKUP)(b"\xff\xff"))
            assert status is grpc.StatusCode.INTERNAL
            assert "danube.TopicLookupRequest" in details

    asyncio.run(run())


def test_compression_is_refused_cleanly(broker: Broker) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            request = api.TopicLookupRequest(topic="/default/" + "a" * 2_000)
            call = Discovery(opened).TopicLookup(request, compression=grpc.Compression.Gzip)
            assert (await refused(call))[0] is grpc.StatusCode.UNIMPLEMENTED
            known = await Discovery(opened).TopicPartitions(api.TopicLookupRequest(topic="/default/none"))
            assert list(known.partitions) == []  # the connection lives on

    asyncio.run(run())


def test_a_message_beyond_4_mib_is_refused_and_the_connection_lives(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            number = await made(opened, topic)
            status, _ = await refused(Producers(opened).SendMessage(message(topic, bytes(5 << 20), number)))
            assert status is grpc.StatusCode.OUT_OF_RANGE
            await Producers(opened).SendMessage(message(topic, bytes(3 << 20), number))

    asyncio.run(run())


def test_a_deadline_ends_a_call_and_its_consumer(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            await made(opened, topic)
            number = await subscribed(opened, topic)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number), timeout=0.2)
            assert (await refused(stream.read()))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
            # Another name may have the exclusive subscription as soon as the broker knows.
            await until_allowed(lambda: subscribed(opened, topic, consumer_name="other"))

    asyncio.run(run())


def test_a_second_stream_of_a_consumer_takes_over_from_the_first(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            sender, number = await made(opened, topic), await subscribed(opened, topic)
            first = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number))
            await Producers(opened).SendMessage(message(topic, b"x", sender))
            assert (await first.read()).payload == b"x"
            second = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number))
            assert await first.read() is grpc.aio.EOF
            assert await first.code() is grpc.StatusCode.OK
            assert (await second.read()).payload == b"x"  # it was not acknowledged
            assert await subscribed(opened, topic) == number  # subscribing again does the same
            assert await second.read() is grpc.aio.EOF

    asyncio.run(run())


def test_a_slow_reader_holds_little_and_stalls_nobody(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened, channel(broker.target) as other:
            sender, number = await made(opened, topic), await subscribed(opened, topic)
            slow = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number))
            for each in range(40):
                await Producers(opened).SendMessage(message(topic, bytes([each]) * 500_000, sender))
            quick_number = await subscribed(other, topic, subscription="quick")
            quick = Consumers(other).ReceiveMessages(api.ReceiveRequest(consumer_id=quick_number))
            await Producers(opened).SendMessage(message(topic, b"last", sender))
            assert (await asyncio.wait_for(quick.read(), SECONDS)).payload == b"last"
            for each in range(40):
                got = await asyncio.wait_for(slow.read(), SECONDS)
                assert got.payload == bytes([each]) * 500_000
                await Consumers(opened).Ack(api.AckRequest(request_id=each, msg_id=got.msg_id, subscription_name="s"))
            slow.cancel()
            quick.cancel()

    asyncio.run(run())


def test_what_waits_for_a_reader_that_never_reads_is_bounded(tmp_path: Path) -> None:
    topic, size, count = "/default/x", 10_000, 2_000

    async def run() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0))
        host, port = await server.start()
        async with channel(f"{host}:{port}") as opened, pydanube.connect(server.url) as native:
            await made(opened, topic)
            number = await subscribed(opened, topic)
            wide = {"topic": topic, "subscription": "s", "dispatch_config": {"max_unacked_messages": 50_000}}
            await ask(opened, "danube_admin.TopicAdmin/SetSubscriptionDispatchConfig", **wide)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number))
            await stream.initial_metadata()
            async with native.producer(topic) as sender:
                await sender.send_many([bytes(size)] * count)
            assert (await ask(opened, "grpc.health.v1.Health/Check")).status == 1  # others are served
            async with asyncio.timeout(SECONDS):
                while not (in_flight := (await native.admin.describe_subscription(topic, "s"))["in_flight"]):
                    continue  # what was confirmed is handed out a moment later
            taken = count * size // 2  # by the client's own windows, at most
            assert in_flight * size < 4 * HTTP2_STREAM_QUEUE_BYTES_MAX + taken
            for _ in range(count):
                assert len((await stream.read()).payload) == size
            stream.cancel()
        await server.stop()

    asyncio.run(run())


# -- tools -------------------------------------------------------------------------------------------------------------


def test_common_tools_find_the_health_of_the_server(broker: Broker) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            for name in ("", "danube.ProducerService", "danube_admin.TopicAdmin"):
                assert (await ask(opened, "grpc.health.v1.Health/Check", service=name)).status == 1
            unknown = ask(opened, "grpc.health.v1.Health/Check", service="nobody")
            assert (await refused(unknown))[0] is grpc.StatusCode.NOT_FOUND
            request, response = (message_class(f"grpc.health.v1.HealthCheck{kind}") for kind in ("Request", "Response"))
            watch = opened.unary_stream(
                "/grpc.health.v1.Health/Watch",
                request_serializer=lambda body: body.SerializeToString(),
                response_deserializer=response.FromString,
            )(request())
            assert (await watch.read()).status == 1
            watch.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_common_tools_can_ask_what_is_served(broker: Broker, version: str) -> None:
    package = f"grpc.reflection.{version}"
    request, response = (message_class(f"{package}.ServerReflection{kind}") for kind in ("Request", "Response"))

    async def run() -> None:
        async with channel(broker.target) as opened:
            stream = opened.stream_stream(
                f"/{package}.ServerReflection/ServerReflectionInfo",
                request_serializer=lambda body: body.SerializeToString(),
                response_deserializer=response.FromString,
            )()
            await stream.write(request(list_services=""))
            names = {each.name for each in (await stream.read()).list_services_response.service}
            assert {"danube.ProducerService", "danube_admin.TopicAdmin", f"{package}.ServerReflection"} <= names
            await stream.write(request(file_containing_symbol="danube.ProducerService.SendMessage"))
            [file] = (await stream.read()).file_descriptor_response.file_descriptor_proto
            assert b"StreamMessage" in file
            await stream.write(request(file_by_filename="danube_admin.proto"))
            assert (await stream.read()).HasField("file_descriptor_response")
            await stream.write(request(file_containing_symbol="danube.Nothing"))
            assert (await stream.read()).error_response.error_code == 5
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF

    asyncio.run(run())


def test_tools_are_told_of_what_an_address_serves_and_of_nothing_else(broker: Broker) -> None:
    package = "grpc.reflection.v1"
    request, response = (message_class(f"{package}.ServerReflection{kind}") for kind in ("Request", "Response"))

    async def run() -> None:
        async with channel(broker.admin_target) as opened:
            stream = opened.stream_stream(
                f"/{package}.ServerReflection/ServerReflectionInfo",
                request_serializer=lambda body: body.SerializeToString(),
                response_deserializer=response.FromString,
            )()
            await stream.write(request(list_services=""))
            names = [each.name for each in (await stream.read()).list_services_response.service]
            await stream.done_writing()
            assert names == [
                "danube_admin.BrokerAdmin",
                "danube_admin.ClusterAdmin",
                "danube_admin.NamespaceAdmin",
                "danube_admin.SecurityAdmin",
                "danube_admin.TopicAdmin",
                "danube_schema.SchemaRegistry",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ]

    asyncio.run(run())
