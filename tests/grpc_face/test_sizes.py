"""The largest messages that these clients can send and receive, and what becomes of larger ones."""

from __future__ import annotations

import asyncio

import pytest

import pydanube
from grpc_face.rig import (
    SECONDS,
    TYPES,
    Broker,
    Consumers,
    Producers,
    api,
    ask,
    channel,
    connect,
    consumer,
    message,
    producer,
)
from grpc_face.test_calls import made, subscribed
from pydanube.api.grpc.encoding import Encoder
from pydanube.base.errors import GrpcMessageTooLarge
from pydanube.base.limits import GRPC_MESSAGE_BYTES_MAX, GRPC_REQUEST_BYTES_MAX
from pydanube.wire.batch import build


def test_a_message_that_no_client_takes_is_not_encoded() -> None:
    batch = build([b"a", bytes(GRPC_MESSAGE_BYTES_MAX), b"b"], publish_time=1, keys=["k", "k", None]).stamped(0, 1, 1)
    encoder = Encoder("/default/x", "http://here", True, lambda producer: "")
    with pytest.raises(GrpcMessageTooLarge):
        encoder.encode(batch, 0, 2)
    got = api.StreamMessage.FromString(encoder.encode(batch, 2, 2)[5:])
    assert (got.payload, got.HasField("routing_key")) == (b"b", False)


def test_the_largest_request_can_be_received(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            number, reader = await made(opened, topic), await subscribed(opened, topic)
            request = message(topic, bytes(GRPC_REQUEST_BYTES_MAX - 200), number)
            request.payload += bytes(GRPC_REQUEST_BYTES_MAX - request.ByteSize())
            assert request.ByteSize() == GRPC_REQUEST_BYTES_MAX
            await Producers(opened).SendMessage(request)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
            assert (await stream.read()).payload == request.payload

    asyncio.run(run())


def test_the_public_client_says_that_a_message_is_too_large(broker: Broker, topic: str) -> None:
    async def run() -> None:
        sender = await producer(await connect(broker.url), topic)
        async with asyncio.timeout(SECONDS):
            with pytest.raises(Exception, match=f"the maximum is {GRPC_REQUEST_BYTES_MAX}"):
                await sender.send(bytes(GRPC_MESSAGE_BYTES_MAX))

    asyncio.run(run())


@pytest.mark.parametrize("kind", TYPES)
def test_a_message_too_large_for_a_client_fails_and_the_others_come_once(broker: Broker, topic: str, kind: str) -> None:
    policy = {
        "max_redelivery_count": 2,
        "ack_timeout_ms": 30_000,
        "base_redelivery_delay_ms": 10,
        "max_redelivery_delay_ms": 10,
        "poison_policy": 2,
    }
    setting = "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy"

    async def run() -> None:
        client = await connect(broker.url)
        await producer(client, topic)
        async with (
            channel(broker.target) as opened,
            pydanube.connect(f"danube://{broker.target}") as native,
            consumer(client, topic, kind) as receiver,
        ):
            await ask(opened, setting, topic=topic, subscription="s", failure_policy=policy)
            async with native.producer(topic) as sender:
                await sender.send_many([b"0", bytes(5 << 20), b"1", b"2"])
                await sender.send(b"3")
            taken = [each.payload for each in await receiver.take_all(4)]
            assert sorted(taken) == [b"0", b"1", b"2", b"3"]
            if kind != "shared":
                assert taken == sorted(taken)
            async with asyncio.timeout(SECONDS):
                while True:  # the broker gives it up in its time
                    if not (await native.admin.describe_subscription(topic, "s"))["backlog"]:
                        break
                    await asyncio.sleep(0.01)
            assert receiver.queue.empty()

    asyncio.run(run())
