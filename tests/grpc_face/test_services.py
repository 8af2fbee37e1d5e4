"""Producers, consumers, discovery and health through plain stubs: every status that a client acts upon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import pydanube
from grpc_face.rig import (
    Broker,
    Consumers,
    Discovery,
    Health,
    Producers,
    api,
    ask,
    channel,
    message,
    refused,
    until_allowed,
)
from grpc_face.test_calls import made, subscribed
from pydanube.api.grpc import consumers as consumers_module
from pydanube.api.server import Server
from pydanube.base.limits import GRPC_CLOSE_SECONDS
from pydanube.broker.standalone import StandaloneSettings

DENIED = grpc.StatusCode.PERMISSION_DENIED
EXCLUSIVE = api.ProducerAccessMode.Exclusive


async def status_of(work: Any) -> grpc.StatusCode:
    return (await refused(work))[0]


# -- producers ---------------------------------------------------------------------------------------------------------


def test_a_name_is_one_producer_whoever_opens_it(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as one, channel(broker.target) as two:
            assert await made(one, topic) == await made(two, topic)
            assert await made(one, topic) != await made(one, topic, "other")

    asyncio.run(run())


def test_a_producer_of_the_other_kind_is_refused(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            await made(opened, topic, reliable=True)
            assert await status_of(made(opened, topic, reliable=False)) is grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(run())


def test_a_producer_is_not_answered_by_a_topic_that_came_back_as_another(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            kept, partition = await made(opened, topic), await made(opened, f"{topic}p-part-0")
            for name in (topic, f"{topic}p"):
                await ask(opened, "danube_admin.TopicAdmin/DeleteTopic", name=name)
                await ask(opened, "danube_admin.TopicAdmin/CreateTopic", name=name, dispatch_strategy=0)
            late = Producers(opened).SendMessage(message(topic, b"x", kept))
            assert await status_of(late) is grpc.StatusCode.UNAVAILABLE
            late = Producers(opened).SendMessage(message(f"{topic}p-part-0", b"x", partition))
            assert await status_of(late) is grpc.StatusCode.UNAVAILABLE
            assert await status_of(made(opened, topic)) is grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(run())


def test_partitions_and_plain_topics_do_not_share_a_name(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            await made(opened, f"{topic}-part-1")
            assert await status_of(made(opened, topic)) is grpc.StatusCode.ALREADY_EXISTS
            await made(opened, f"{topic}x")
            assert await status_of(made(opened, f"{topic}x-part-0")) is grpc.StatusCode.ALREADY_EXISTS

    asyncio.run(run())


def test_what_cannot_be_created_says_why(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            assert await status_of(made(opened, "/nowhere/x")) is grpc.StatusCode.UNAVAILABLE
            assert await status_of(made(opened, topic, "")) is grpc.StatusCode.INVALID_ARGUMENT
            wrong = api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=5)
            assert await status_of(Producers(opened).CreateProducer(wrong)) is grpc.StatusCode.INVALID_ARGUMENT
            schema = api.SchemaReference(subject="orders", use_latest=True)
            wrong = api.ProducerRequest(producer_name="p", topic_name=topic, schema_ref=schema)
            assert await status_of(Producers(opened).CreateProducer(wrong)) is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(run())


def test_an_exclusive_producer_is_alone_until_it_leaves(broker: Broker, topic: str) -> None:
    async def run() -> None:
        def request(name: str, mode: int = EXCLUSIVE) -> Any:
            return api.ProducerRequest(
                producer_name=name, topic_name=topic, dispatch_strategy=1, producer_access_mode=mode
            )

        async with channel(broker.target) as one, channel(broker.target) as two:
            first = await Producers(one).CreateProducer(request("first"))
            assert await status_of(made(two, topic, "second")) is DENIED
            assert await status_of(Producers(two).CreateProducer(request("second"))) is DENIED
            async with pydanube.connect(f"danube://{broker.target}") as native:
                with pytest.raises(pydanube.DanubeError, match="already has 1 producer"):
                    async with native.producer(topic):
                        pass
            again = await Producers(two).CreateProducer(request("first"))  # it is its name
            assert again.producer_id == first.producer_id
            await Producers(one).SendMessage(message(topic, b"x", first.producer_id, "first"))
        async with channel(broker.target) as three:
            await until_allowed(lambda: made(three, topic, "second"))
            assert await status_of(Producers(three).CreateProducer(request("first"))) is DENIED

    asyncio.run(run())


def test_messages_of_an_exclusive_producer_have_the_id_that_it_got(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            request = api.ProducerRequest(
                producer_name="p", topic_name=topic, dispatch_strategy=1, producer_access_mode=EXCLUSIVE
            )
            number = (await Producers(opened).CreateProducer(request)).producer_id
            reader = await subscribed(opened, topic)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            for attributes in ({}, {"a": "b"}):
                await Producers(opened).SendMessage(message(topic, b"x", number, attributes=attributes))
                got = await stream.read()
                assert (got.msg_id.producer_id, dict(got.attributes)) == (number, attributes)
            stream.cancel()

    asyncio.run(run())


def test_a_message_that_breaks_a_rule_fails_alone(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            number = await made(opened, topic)
            reader = await subscribed(opened, topic)
            good = [Producers(opened).SendMessage(message(topic, b"%d" % each, number)) for each in range(10)]
            bad = Producers(opened).SendMessage(message(topic, b"bad", number, publish_time=(1 << 64) - 1))
            answers = await asyncio.gather(*good, bad, return_exceptions=True)
            assert all(answer.request_id == 7 for answer in answers[:-1])
            assert answers[-1].code() is grpc.StatusCode.INVALID_ARGUMENT
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            assert {(await stream.read()).payload for _ in range(10)} == {b"%d" % each for each in range(10)}
            stream.cancel()
            missing = Producers(opened).SendMessage(api.StreamMessage(payload=b"x"))
            assert await status_of(missing) is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(run())


# -- consumers ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_subscribed_to_says_why(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            assert await status_of(subscribed(opened, topic)) is grpc.StatusCode.NOT_FOUND
            await made(opened, topic)
            for fields in ({"subscription": ""}, {"consumer_name": ""}, {"subscription_type": 9}):
                assert await status_of(subscribed(opened, topic, **fields)) is grpc.StatusCode.INVALID_ARGUMENT
            await made(opened, f"{topic}p-part-0")
            assert await status_of(subscribed(opened, f"{topic}p")) is grpc.StatusCode.NOT_FOUND

    asyncio.run(run())


def test_the_first_consumer_chooses_the_type_for_all(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            await made(opened, topic)
            await subscribed(opened, topic, subscription_type=1)
            await subscribed(opened, topic, subscription_type=0, consumer_name="two")  # joins, as it always did
            found = await ask(
                opened, "danube_admin.TopicAdmin/GetSubscriptionFailurePolicy", topic=topic, subscription="s"
            )
            assert found.subscription_type == 1

    asyncio.run(run())


def test_acks_of_what_is_not_there_are_answered_and_do_nothing(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            number, reader = await made(opened, topic), await subscribed(opened, topic)

            def identity(offset: int) -> Any:
                return api.MsgID(topic_name=topic, topic_offset=offset)

            await Producers(opened).SendMessage(message(topic, b"x", number))
            for offset in (1, 1 << 63):
                acked = await Consumers(opened).Ack(
                    api.AckRequest(request_id=3, msg_id=identity(offset), subscription_name="s")
                )
                assert acked.request_id == 3
                await Consumers(opened).Nack(
                    api.NackRequest(request_id=4, msg_id=identity(offset), subscription_name="s", delay_ms=1 << 63)
                )
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            assert (await stream.read()).payload == b"x"
            stream.cancel()
            nowhere = api.AckRequest(msg_id=identity(0), subscription_name="nobody")
            assert await status_of(Consumers(opened).Ack(nowhere)) is grpc.StatusCode.NOT_FOUND
            assert await status_of(Consumers(opened).Ack(api.AckRequest())) is grpc.StatusCode.INVALID_ARGUMENT
            assert await status_of(Consumers(opened).Nack(api.NackRequest())) is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(run())


async def ack(opened: grpc.aio.Channel, topic: str, offset: int) -> None:
    identity = api.MsgID(topic_name=topic, topic_offset=offset)
    await Consumers(opened).Ack(api.AckRequest(msg_id=identity, subscription_name="s"))


def test_an_ack_that_is_late_counts(broker: Broker, topic: str) -> None:
    """The consumer is gone, so nothing is in flight; the next one gets the rest only."""

    async def run() -> None:
        async with channel(broker.target) as opened:
            number, reader = await made(opened, topic), await subscribed(opened, topic)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            for payload in (b"0", b"1", b"2"):
                await Producers(opened).SendMessage(message(topic, payload, number))
            taken = [await stream.read() for _ in range(3)]
        async with channel(broker.target) as opened:
            for each in taken[:2]:
                await ack(opened, topic, each.msg_id.topic_offset)
            reader = await until_allowed(lambda: subscribed(opened, topic))
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            assert (await stream.read()).payload == b"2"

    asyncio.run(run())


def test_after_a_seek_only_acks_of_what_came_again_count(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened, pydanube.connect(f"danube://{broker.target}") as native:
            number, reader = await made(opened, topic), await subscribed(opened, topic)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            for payload in (b"0", b"1"):
                await Producers(opened).SendMessage(message(topic, payload, number))
                assert (await stream.read()).payload == payload
            stream.cancel()
            async with channel(broker.target) as other:
                reader = await until_allowed(lambda: subscribed(other, topic))  # without a stream: it gets nothing
                await native.admin.seek_subscription(topic, "s", "earliest")
                await ack(opened, topic, 0)
                stream = Consumers(other).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
                assert [(await stream.read()).payload for _ in range(2)] == [b"0", b"1"]
            await ack(opened, topic, 0)  # it came again, and its consumer is gone
            reader = await until_allowed(lambda: subscribed(opened, topic))
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            assert (await stream.read()).payload == b"1"

    asyncio.run(run())


def test_a_deleted_topic_says_close_before_its_streams_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert GRPC_CLOSE_SECONDS > 5, "clients ask every 5 s"
    monkeypatch.setattr(consumers_module, "GRPC_CLOSE_SECONDS", 0.5)
    topic = "/default/x"

    async def run() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0))
        host, port = await server.start()
        async with channel(f"{host}:{port}") as opened:
            number, reader = await made(opened, topic), await subscribed(opened, topic)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            await stream.initial_metadata()
            checks = [api.HealthCheckRequest(client=client, id=id_) for client, id_ in ((0, number), (1, reader))]
            for check in checks:
                assert (await Health(opened).HealthCheck(check)).status == api.HealthCheckResponse.OK
            await ask(opened, "danube_admin.TopicAdmin/DeleteTopic", name=topic)
            ended = asyncio.ensure_future(stream.read())
            for check in checks:
                assert (await Health(opened).HealthCheck(check)).status == api.HealthCheckResponse.CLOSE
            assert not ended.done()
            assert await asyncio.wait_for(ended, 5) is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK
            late = Producers(opened).SendMessage(message(topic, b"x", number))
            assert await status_of(late) is grpc.StatusCode.UNAVAILABLE
        await server.stop()

    asyncio.run(run())


# -- discovery ---------------------------------------------------------------------------------------------------------


def test_a_lookup_says_where_with_a_scheme(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            asked = api.TopicLookupRequest(request_id=5, topic=topic)
            assert await status_of(Discovery(opened).TopicLookup(asked)) is grpc.StatusCode.NOT_FOUND
            await made(opened, topic)
            found = await Discovery(opened).TopicLookup(asked)
            assert (found.request_id, found.response_type) == (5, api.TopicLookupResponse.Connect)
            assert (found.connect_url, found.broker_url, found.proxy) == (broker.url, broker.url, False)

    asyncio.run(run())


def test_partitions_are_found_by_the_exact_name_and_in_order(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:

            async def partitions(name: str) -> list[str]:
                found = await Discovery(opened).TopicPartitions(api.TopicLookupRequest(topic=name))
                return list(found.partitions)

            assert await partitions(topic) == []
            await made(opened, f"{topic}bar")
            assert await partitions(topic) == []
            await made(opened, f"{topic}-part-11")
            await made(opened, f"{topic}-part-2")
            assert await partitions(topic) == [f"{topic}-part-{number}" for number in range(12)]
            assert await partitions(f"{topic}-part-3") == [f"{topic}-part-3"]
            assert await partitions(f"{topic}-part-12") == []
            assert await partitions(f"{topic}bar") == [f"{topic}bar"]

    asyncio.run(run())
