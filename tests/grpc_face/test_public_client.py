"""The public Python client against a real broker: what its users do every day, unchanged."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest

from grpc_face.rig import Broker, Consumer, ask, channel, connect, consumer, producer, refused
from pydanube.api.grpc.ids import producer_id


@pytest.mark.parametrize("reliable", [False, True], ids=["best-effort", "reliable"])
@pytest.mark.parametrize("partitions", [0, 3], ids=["plain", "partitioned"])
def test_what_is_sent_comes_with_all_that_it_has(broker: Broker, topic: str, reliable: bool, partitions: int) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic, reliable=reliable, partitions=partitions)
        async with consumer(client, topic) as receiver:
            for number in range(30):
                await sender.send_with_key(b"m%d" % number, {"number": str(number)}, f"k{number % 5}")
            messages = await receiver.take_all(30)
        found = {message.payload: message for message in messages}
        assert set(found) == {b"m%d" % number for number in range(30)}
        for number in range(30):
            message = found[b"m%d" % number]
            assert dict(message.attributes) == {"number": str(number)}
            assert message.routing_key == f"k{number % 5}"
            assert message.producer_name == ("p" if not partitions else f"p-{message.msg_id.topic_name[-1]}")
            assert message.publish_time > 1_700_000_000_000
            assert message.msg_id.topic_name.startswith(topic)
            assert not message.HasField("schema_id")

    asyncio.run(run())


def test_one_consumer_of_an_exclusive_subscription_keeps_others_out(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        async with consumer(client, topic, name="first") as receiver:
            with pytest.raises(grpc.aio.AioRpcError) as denied:
                async with consumer(client, topic, name="second"):
                    pass
            assert denied.value.code() is grpc.StatusCode.PERMISSION_DENIED
            for number in range(10):
                await sender.send(b"%d" % number)
            assert [message.payload for message in await receiver.take_all(10)] == [b"%d" % n for n in range(10)]
        async with consumer(client, topic, name="second") as receiver:  # the first has left
            await sender.send(b"more")
            assert [message.payload for message in await receiver.take_all(1)] == [b"more"]

    asyncio.run(run())


def test_a_shared_subscription_gives_each_message_to_one_of_its_consumers(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        counts: Counter[str] = Counter()
        payloads: list[bytes] = []
        all_came = asyncio.Event()

        async def take(name: str, receiver: Consumer) -> None:
            while True:
                [message] = await receiver.take_all(1)
                counts[name] += 1
                payloads.append(message.payload)
                if len(payloads) == 60:
                    all_came.set()

        async with (
            consumer(client, topic, "shared", "one") as one,
            consumer(client, topic, "shared", "two") as two,
        ):
            taking = [asyncio.create_task(take("one", one)), asyncio.create_task(take("two", two))]
            for number in range(60):
                await sender.send(b"%d" % number)
            await asyncio.wait_for(all_came.wait(), 20)
            for task in taking:
                task.cancel()
        assert sorted(map(int, payloads)) == list(range(60))
        assert min(counts["one"], counts["two"]) > 10

    asyncio.run(run())


def test_a_standby_is_promoted_when_the_active_consumer_leaves(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client, other = await connect(broker.url), await connect(broker.url)
        sender = await producer(client, topic)
        async with (
            consumer(other, topic, "failover", "active") as active,
            consumer(client, topic, "failover", "standby") as standby,
        ):
            for number in range(5):
                await sender.send(b"%d" % number)
            assert len(await active.take_all(5)) == 5
            assert standby.queue.empty()
            await active.consumer.close()
            await sender.send(b"after")
            assert [message.payload for message in await standby.take_all(1)] == [b"after"]

    asyncio.run(run())


def test_a_key_goes_to_the_consumers_whose_filter_takes_it(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        async with (
            consumer(client, topic, "key_shared", "payments", filters=["pay-*"]) as payments,
            consumer(client, topic, "key_shared", "orders", filters=["order-?"]) as orders,
        ):
            for number in range(20):
                await sender.send_with_key(
                    b"%d" % number, None, f"pay-{number}" if number % 2 else f"order-{number % 7}"
                )
            paid, ordered = await asyncio.gather(payments.take_all(10), orders.take_all(10))  # they share a window
            assert {message.routing_key[:4] for message in paid} == {"pay-"}
            assert {message.routing_key[:6] for message in ordered} == {"order-"}

    asyncio.run(run())


def test_messages_without_a_key_go_by_the_name_of_their_producer(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        one, two = await producer(client, topic, "cash"), await producer(client, topic, "stock")
        async with (
            consumer(client, topic, "key_shared", "a", filters=["cash"]) as cash,
            consumer(client, topic, "key_shared", "b", filters=["stock"]) as stock,
        ):
            for number in range(10):
                await one.send(b"%d" % number)
                await two.send(b"%d" % number)
            taken = await asyncio.gather(cash.take_all(10), stock.take_all(10))  # they share a window
            for messages, name in zip(taken, ("cash", "stock"), strict=True):
                assert [message.payload for message in messages] == [b"%d" % number for number in range(10)]
                assert {message.producer_name for message in messages} == {name}
                assert not any(message.HasField("routing_key") for message in messages)

    asyncio.run(run())


def test_what_failed_too_often_becomes_a_dead_letter(broker: Broker, topic: str) -> None:
    policy = {
        "max_redelivery_count": 2,
        "ack_timeout_ms": 30_000,
        "base_redelivery_delay_ms": 10,
        "max_redelivery_delay_ms": 100,
        "dead_letter_topic": f"{topic}-dead",
    }

    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        dead_sender = await producer(client, f"{topic}-dead", "other")
        async with (
            consumer(client, topic, "shared") as receiver,
            consumer(client, f"{topic}-dead") as dead,
            channel(broker.target) as opened,
        ):
            await ask(
                opened,
                "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy",
                topic=topic,
                subscription="s",
                failure_policy=policy,
            )
            await sender.send(b"poison", {"a": "b"})
            await sender.send(b"good")
            attempts = 0
            while attempts < 3:
                message = await receiver.take()
                if message.payload == b"good":
                    await receiver.consumer.ack(message)
                else:
                    attempts += 1
                    await receiver.consumer.nack(message, delay_ms=5, reason="no use")
            [letter] = await dead.take_all(1)
            assert letter.payload == b"poison"
            assert letter.attributes["a"] == "b"
            assert letter.attributes["x-original-topic"] == topic
            assert letter.attributes["x-failure-reason"] == "no use"
            assert letter.producer_name == "p"
            assert letter.attributes["x-original-producer-id"] == str(producer_id(topic, "p", reliable=True))
            assert letter.attributes["x-original-broker-addr"] == broker.url
        await dead_sender.close()

    asyncio.run(run())


def test_a_nacked_message_comes_again_and_an_acked_one_does_not(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        async with consumer(client, topic, "shared") as receiver:
            await sender.send(b"x")
            first = await receiver.take()
            await receiver.consumer.nack(first, delay_ms=1)
            again = await receiver.take()
            assert (again.payload, again.msg_id.topic_offset) == (b"x", first.msg_id.topic_offset)
            await receiver.consumer.ack(again)
            await receiver.consumer.ack(again)  # twice does no harm
            await sender.send(b"y")
            assert (await receiver.take()).payload == b"y"

    asyncio.run(run())


def test_consumers_that_come_and_go_lose_nothing(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        async with consumer(client, topic, "shared", "first"):
            pass
        for number in range(100):
            await sender.send(b"%d" % number)
        seen: set[int] = set()
        for turn in range(10):
            async with consumer(client, topic, "shared", f"c{turn % 3}") as receiver:
                seen |= {int(message.payload) for message in await receiver.take_all(10)}
        assert seen == set(range(100))

    asyncio.run(run())


def test_many_producers_send_at_once(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        await producer(client, topic, "maker")
        async with consumer(client, topic) as receiver:
            senders = await asyncio.gather(*(producer(client, topic, f"p{number}") for number in range(20)))

            async def send(number: int) -> None:
                for each in range(10):
                    await senders[number].send(b"%d:%d" % (number, each))

            await asyncio.gather(*map(send, range(20)))
            messages = await receiver.take_all(200)
        for number in range(20):
            own = [message.payload for message in messages if message.producer_name == f"p{number}"]
            assert own == [b"%d:%d" % (number, each) for each in range(10)]

    asyncio.run(run())


@pytest.mark.parametrize("reliable", [False, True], ids=["best-effort", "reliable"])
def test_large_messages_pass_whole(broker: Broker, topic: str, reliable: bool) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic, reliable=reliable)
        async with consumer(client, topic) as receiver:
            for size in (1 << 20, 3_900_000, 0, 16_384, 65_535):
                payload = bytes([size % 251]) * size
                await sender.send(payload)
                assert (await receiver.take_all(1))[0].payload == payload

    asyncio.run(run())


@pytest.mark.parametrize("name", ["orders", "/default", "/default/a/b", "/default/ä", "/default/a b", "//x", ""])
def test_a_bad_name_is_refused_at_once(broker: Broker, name: str) -> None:
    async def run() -> None:
        async with channel(broker.target) as opened:
            for path, field in (
                ("danube.Discovery/TopicLookup", "topic"),
                ("danube.Discovery/TopicPartitions", "topic"),
                ("danube.ProducerService/CreateProducer", "topic_name"),
                ("danube.ConsumerService/Subscribe", "topic_name"),
            ):
                extra = {"producer_name": "p"} if "Producer" in path else {}
                extra |= {"subscription": "s", "consumer_name": "c"} if "Consumer" in path else {}
                status, _ = await refused(ask(opened, path, **{field: name}, **extra))
                assert status is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(run())
