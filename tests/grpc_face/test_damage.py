"""Messages that are damaged on disk, as a consumer over gRPC hears of them."""

from __future__ import annotations

import asyncio
import signal

import grpc

import pydanube
from grpc_face.rig import SECONDS, Broker, Consumers, Producers, api, channel, message, refused
from pydanube.base.limits import BLOCK_BYTES


def damage(broker: Broker, payload: bytes) -> None:
    """The block of a message, while the broker is down."""
    for file in (broker.directory / "data" / "node").glob("journal-*.log"):
        if (at := file.read_bytes().find(payload)) >= 0:
            with file.open("r+b") as opened:
                opened.seek(at // BLOCK_BYTES * BLOCK_BYTES)
                opened.write(b"\xa5" * BLOCK_BYTES)


def test_the_stream_of_a_consumer_at_damaged_messages_ends_with_data_loss_and_goes_on_after_salvage(
    own_broker: Broker, topic: str
) -> None:
    broker = own_broker

    async def run() -> None:
        async with channel(broker.target) as opened:
            made = await Producers(opened).CreateProducer(
                api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=1)
            )
            subscribed = await Consumers(opened).Subscribe(
                api.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="s")
            )
            for number in range(3):
                await Producers(opened).SendMessage(message(topic, b"payload-%d" % number, made.producer_id))
        broker.end(signal.SIGTERM)
        damage(broker, b"payload-1")
        broker.start()
        receive = api.ReceiveRequest(consumer_id=subscribed.consumer_id)
        async with channel(broker.target) as opened, asyncio.timeout(SECONDS):
            stream = Consumers(opened).ReceiveMessages(receive)
            first = await stream.read()
            assert first.payload == b"payload-0"
            await Consumers(opened).Ack(api.AckRequest(msg_id=first.msg_id, subscription_name="s"))
            code, details = await refused(stream.read())
            assert code is grpc.StatusCode.DATA_LOSS
            assert f"{topic}: offset 1 is damaged on disk" in details
            async with pydanube.connect(f"danube://{broker.target}") as client:
                await client.admin.salvage_topic(topic, accept=True)
            assert (await Consumers(opened).ReceiveMessages(receive).read()).payload == b"payload-2"

    asyncio.run(run())
