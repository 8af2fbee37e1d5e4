"""The public client across `kill -9` and restarts of the broker: it goes on, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import grpc

from grpc_face.rig import (
    SECONDS,
    TYPES,
    Broker,
    Consumers,
    Health,
    Producers,
    api,
    channel,
    connect,
    consumer,
    message,
    producer,
    refused,
)


def test_producers_and_consumers_go_on_after_a_kill(own_broker: Broker, topic: str) -> None:
    """Of every type at once: nothing is lost, and little comes twice."""
    broker = own_broker
    killed, up = asyncio.Event(), asyncio.Event()

    async def one(client: Any, kind: str, ready: asyncio.Semaphore) -> None:
        place = f"{topic}_{kind}"
        sender = await producer(client, place)
        async with consumer(client, place, kind) as receiver:
            for number in range(20):
                await sender.send_with_key(b"%d" % number, None, f"k{number % 3}")
            acked = {int(each.payload) for each in await receiver.take_all(10)}
            ready.release()
            await killed.wait()
            async with asyncio.timeout(SECONDS):
                await sender.send_with_key(b"20", None, "k0")
            assert up.is_set()
            seen: set[int] = set()
            while seen | acked != set(range(21)):
                [each] = await receiver.take_all(1)
                seen.add(int(each.payload))
            buffered = 10  # what came before the kill and waited in the client is handed out all the same
            assert len(seen & acked) <= buffered

    async def run() -> None:
        client, ready = await connect(broker.url), asyncio.Semaphore(0)
        kinds = [asyncio.create_task(one(client, kind, ready)) for kind in TYPES]
        for _ in kinds:
            await ready.acquire()
        broker.kill()
        killed.set()
        await asyncio.sleep(0.05)  # they try, and find nobody
        broker.start()
        up.set()
        await asyncio.gather(*kinds)

    asyncio.run(run())


def test_an_ack_of_what_came_before_a_kill_counts(own_broker: Broker, topic: str) -> None:
    broker = own_broker

    async def run() -> None:
        async with channel(broker.target) as opened:
            made = await Producers(opened).CreateProducer(
                api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=1)
            )
            subscribed = await Consumers(opened).Subscribe(
                api.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="s")
            )
            for payload in (b"0", b"1", b"2"):
                await Producers(opened).SendMessage(message(topic, payload, made.producer_id))
            receive = api.ReceiveRequest(consumer_id=subscribed.consumer_id)
            stream = Consumers(opened).ReceiveMessages(receive)
            taken = [await stream.read() for _ in range(3)]
        broker.kill()
        broker.start()
        async with channel(broker.target) as opened:
            for each in taken[:2]:
                await Consumers(opened).Ack(api.AckRequest(msg_id=each.msg_id, subscription_name="s"))
            assert (await Consumers(opened).ReceiveMessages(receive).read()).payload == b"2"

    asyncio.run(run())


def test_an_acknowledged_message_does_not_come_back_after_a_kill(own_broker: Broker, topic: str) -> None:
    broker = own_broker

    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic)
        async with consumer(client, topic) as receiver:
            for number in range(30):
                await sender.send(b"%d" % number)
            await receiver.take_all(12)
        broker.kill()
        broker.start()
        client = await connect(broker.url)
        async with consumer(client, topic) as receiver:  # no new message is needed to get the old ones
            assert [int(each.payload) for each in await receiver.take_all(18)] == list(range(12, 30))

    asyncio.run(run())


def test_old_ids_are_good_after_a_restart_and_others_are_to_look_again(own_broker: Broker, topic: str) -> None:
    broker = own_broker

    async def run() -> None:
        async with channel(broker.target) as opened:
            made = await Producers(opened).CreateProducer(
                api.ProducerRequest(request_id=1, producer_name="p", topic_name=topic, dispatch_strategy=1)
            )
            subscribed = await Consumers(opened).Subscribe(
                api.ConsumerRequest(request_id=2, topic_name=topic, consumer_name="c", subscription="s")
            )
            await Producers(opened).SendMessage(message(topic, b"before", made.producer_id))
        broker.end(signal.SIGTERM)
        broker.start()
        async with channel(broker.target) as opened:
            await Producers(opened).SendMessage(message(topic, b"after", made.producer_id))
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=subscribed.consumer_id))
            payloads = [(await stream.read()).payload for _ in range(2)]
            assert payloads == [b"before", b"after"]
            checked = api.HealthCheckRequest(client=1, id=subscribed.consumer_id)
            assert (await Health(opened).HealthCheck(checked)).status == api.HealthCheckResponse.OK
            status, details = await refused(Producers(opened).SendMessage(message(topic, b"x", made.producer_id ^ 1)))
            assert status is grpc.StatusCode.UNAVAILABLE
            assert "Create the producer again" in details
            lost = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=subscribed.consumer_id ^ 1))
            assert (await refused(lost.read()))[0] is grpc.StatusCode.UNAVAILABLE
            stream.cancel()

    asyncio.run(run())


def test_what_was_answered_while_the_broker_stopped_is_there_afterwards(own_broker: Broker, topic: str) -> None:
    broker = own_broker

    async def run() -> None:
        async with channel(broker.target) as opened:
            made = await Producers(opened).CreateProducer(
                api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=1)
            )
            reader = await Consumers(opened).Subscribe(
                api.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="s")
            )
            bodies = [message(topic, b"%d" % number, made.producer_id) for number in range(90)]
            sends = [Producers(opened).SendMessage(body) for body in bodies]
            answers = asyncio.gather(*sends, return_exceptions=True)
            await sends[0]
            broker.end(signal.SIGTERM)
            failed = [answer for answer in await answers if isinstance(answer, grpc.aio.AioRpcError)]
            assert {error.code() for error in failed} <= {grpc.StatusCode.UNAVAILABLE}
            safe = {number for number, answer in enumerate(await answers) if not isinstance(answer, BaseException)}
        broker.start()
        async with channel(broker.target) as opened:
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader.consumer_id))
            seen: set[int] = set()
            while not safe <= seen:
                got = await asyncio.wait_for(stream.read(), SECONDS)
                seen.add(int(got.payload))
                await Consumers(opened).Ack(api.AckRequest(msg_id=got.msg_id, subscription_name="s"))
            stream.cancel()

    asyncio.run(run())


def test_a_stop_ends_streams_so_that_clients_ask_again(own_broker: Broker, topic: str) -> None:
    broker = own_broker

    async def run() -> None:
        async with channel(broker.target) as opened:
            await Producers(opened).CreateProducer(
                api.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=1)
            )
            subscribed = await Consumers(opened).Subscribe(
                api.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="s")
            )
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=subscribed.consumer_id))
            await stream.initial_metadata()
            broker.end(signal.SIGTERM)
            status, details = await refused(stream.read())
            assert status is grpc.StatusCode.UNAVAILABLE
            assert "stopping" in details
        broker.start()

    asyncio.run(run())


def test_a_consumer_of_a_topic_that_keeps_nothing_comes_back_after_a_kill(own_broker: Broker, topic: str) -> None:
    broker = own_broker

    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic, reliable=False)
        async with consumer(client, topic, "shared") as receiver:
            await sender.send(b"before")
            assert (await receiver.take()).payload == b"before"
            broker.kill()
            broker.start()
            async with asyncio.timeout(SECONDS):
                while True:  # what nobody hears is lost
                    await sender.send(b"after")
                    try:
                        assert (await receiver.take(0.1)).payload == b"after"
                        break
                    except TimeoutError:
                        continue

    asyncio.run(run())
