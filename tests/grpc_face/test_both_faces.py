"""Messages published through gRPC and through the native protocol are the same messages."""

from __future__ import annotations

import asyncio

import pytest

import pydanube
from api.frame_client import Client, close_all
from grpc_face.rig import Broker, Consumer, Consumers, Producers, api, channel, connect, consumer, message, producer
from pydanube.api.grpc.consumers import encoded
from pydanube.api.grpc.encoding import Encoder
from pydanube.base.errors import BatchUnreadable
from pydanube.broker.subscription.delivery import PRODUCER_ATTRIBUTE, Delivery
from pydanube.wire.batch import Batch, Message, build
from pydanube.wire.commands import Deliver, Error, Grant, Publish


@pytest.mark.parametrize("reliable", [False, True], ids=["best-effort", "reliable"])
def test_a_native_message_reaches_a_public_client(broker: Broker, topic: str, reliable: bool) -> None:
    async def run() -> None:
        native = await Client.connect(("127.0.0.1", broker.port))
        await native.ask("topic.create", topic=topic, reliable=reliable)
        async with consumer(await connect(broker.url), topic) as receiver:
            await native.ask("open_producer", channel=1, topic=topic, reliable=reliable)
            columns = {
                "keys": [None, "k", None],
                "attributes": [None, {"a": "ä"}, {}],
                "schema_ids": [None, 7, 0],
                "schema_versions": [None, None, 3],
            }
            await native.publish(1, b"plain", b"full", b"", **columns)
            plain, full, empty = await receiver.take_all(3)
        await close_all()
        assert (plain.payload, full.payload, empty.payload) == (b"plain", b"full", b"")
        assert [each.HasField("routing_key") for each in (plain, full, empty)] == [False, True, False]
        assert (full.routing_key, dict(full.attributes), full.schema_id) == ("k", {"a": "ä"}, 7)
        assert [each.HasField("schema_version") for each in (plain, full, empty)] == [False, False, True]
        assert (empty.HasField("schema_id"), empty.schema_version, dict(empty.attributes)) == (True, 3, {})
        offsets = [each.msg_id.topic_offset for each in (plain, full, empty)]
        assert offsets == ([0, 1, 2] if reliable else [0, 0, 0])

    asyncio.run(run())


def test_a_native_message_of_before_1970_stops_none_of_the_others(broker: Broker, topic: str) -> None:
    """Times are unsigned here. Of a whole batch it is refused; a column may be compressed, and is not looked at."""

    async def run() -> None:
        native = await Client.connect(("127.0.0.1", broker.port))
        await native.ask("topic.create", topic=topic, reliable=True)
        await native.ask("open_producer", channel=1, topic=topic, reliable=True)
        async with consumer(await connect(broker.url), topic) as receiver:
            native.send(Publish(1, 78, build([b"refused"], publish_time=-1).to_bytes()))
            refused = await native.receive()
            await native.publish(1, b"first", b"odd", b"last", publish_times=[1, -5_000_000, 1])
            got = await receiver.take_all(3)
        await close_all()
        assert isinstance(refused, Error)
        assert refused.code == "batch_invalid"
        assert [(each.payload, each.publish_time) for each in got] == [(b"first", 0), (b"odd", 0), (b"last", 0)]

    asyncio.run(run())


def test_a_message_that_cannot_be_encoded_fails_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("out of range")

    monkeypatch.setattr(Encoder, "_set_rest", fail)
    encoder = Encoder("/default/t", "http://broker", True, lambda _: "")
    odd = build([b"good", b"odd"], publish_time=1, keys=["a", "b"], schema_ids=[1, 2]).stamped(0, 1, 1)
    assert isinstance(encoded(encoder, Delivery(odd, 0, 1, 0, 0)), BatchUnreadable)
    plain = encoded(encoder, Delivery(build([b"plain"], publish_time=1).stamped(2, 1, 1), 2, 2, 0, 0))
    assert isinstance(plain, bytes)
    assert not api.StreamMessage.FromString(plain[5:]).HasField("routing_key")


def test_a_named_native_producer_is_named_to_public_clients(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with pydanube.connect(f"danube://{broker.target}") as native:
            await native.admin.create_topic(topic)
            async with consumer(await connect(broker.url), topic) as receiver:
                async with native.producer(topic, name="native") as sender:
                    await sender.send(b"x")
                assert [each.producer_name for each in await receiver.take_all(1)] == ["native"]

    asyncio.run(run())


@pytest.mark.parametrize("reliable", [False, True], ids=["best-effort", "reliable"])
def test_a_message_of_a_public_client_reaches_a_native_consumer(broker: Broker, topic: str, reliable: bool) -> None:
    async def run() -> Message:
        native = await Client.connect(("127.0.0.1", broker.port))
        async with channel(broker.target) as opened:
            made = await Producers(opened).CreateProducer(
                api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=int(reliable))
            )
            await native.ask("open_consumer", channel=1, topic=topic, subscription="s")
            native.send(Grant(1, 10))
            await native.ask("topic", topic=topic)  # behind the permits
            fields = {"publish_time": 1_794_000_000_123, "attributes": {"a": "b"}, "routing_key": "k"}
            sent = message(topic, b"x", made.producer_id, schema_id=0, schema_version=3, **fields)
            await Producers(opened).SendMessage(sent)
            delivered = await native.receive()
        await close_all()
        assert isinstance(delivered, Deliver)
        [got] = Batch.parse(delivered.batch).messages()
        return got

    got = asyncio.run(run())
    assert (got.payload, got.key, got.offset) == (b"x", b"k", 0)
    assert got.attributes == {"a": "b", PRODUCER_ATTRIBUTE: "p"}
    assert got.publish_time == 1_794_000_000_123_000
    assert (got.schema_id, got.schema_version) == (0, 3)


def test_one_subscription_is_served_to_both_kinds_of_clients(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        async with (
            pydanube.connect(f"danube://{broker.target}") as native,
            native.consumer(topic, subscription="s", type="shared") as one,
            consumer(client, topic, "shared") as two,
        ):
            for number in range(40):
                await sender.send(b"%d" % number)
            seen = set()
            while len(seen) < 40:
                for taken in (native_take(one), public_take(two)):
                    payload = await taken
                    if payload is not None:
                        seen.add(payload)
        assert seen == {b"%d" % number for number in range(40)}

    asyncio.run(run())


async def native_take(receiver: pydanube.Consumer) -> bytes | None:
    try:
        got = await receiver.receive(timeout=0.2)
    except pydanube.DanubeError:
        return None
    await receiver.ack(got)
    return got.payload


async def public_take(receiver: Consumer) -> bytes | None:
    try:
        got = await receiver.take(0.2)
    except TimeoutError:
        return None
    await receiver.consumer.ack(got)
    payload: bytes = got.payload
    return payload


def test_offsets_are_the_same_through_both(broker: Broker, topic: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened, pydanube.connect(f"danube://{broker.target}") as native:
            made = await Producers(opened).CreateProducer(
                api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=1)
            )
            subscribed = await Consumers(opened).Subscribe(
                api.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="s")
            )
            async with native.producer(topic) as sender:
                for number in range(10):
                    if number % 2:
                        await sender.send(b"%d" % number)
                    else:
                        await Producers(opened).SendMessage(message(topic, b"%d" % number, made.producer_id))
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=subscribed.consumer_id))
            public = [await stream.read() for _ in range(10)]
            async with native.reader(topic, start="earliest") as reader:
                read = [await reader.receive(timeout=10) for _ in range(10)]
            stream.cancel()
        assert [(each.msg_id.topic_offset, each.payload) for each in public] == [
            (each.offset, each.payload) for each in read
        ]

    asyncio.run(run())
