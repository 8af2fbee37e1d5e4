"""Compares what two versions of the broker cost: processor seconds of its process for a million messages.

`make bench-compare BEFORE=path/to/other/src` runs brokers of the two sources side by side. This process drives them by
turns with the same client, so that a busy machine disturbs both alike. It prints medians, and the ratios of the pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles

import uvloop

import pydanube
from grpc_face import IN_FLIGHT, SEND, Connection, message_for
from processes import Broker, broker, spent

MESSAGES = 1_000_000  # of each round and side
SINGLES = 300_000
CALLS = 40_000
READS = 3  # of what was published: to read once takes too little time to measure
SMALL = b"x" * 100
TITLE = "processor seconds of the broker for a million messages"


async def publish_many(client: pydanube.Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        for _ in range(MESSAGES // 10_000):
            await producer.ready()
            producer.send_many([SMALL] * 10_000)
        await producer.flush()


async def publish_singly(client: pydanube.Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        for number in range(SINGLES):
            if not number % 100:
                await producer.ready()
                await asyncio.sleep(0)  # so that batches stay small, as with many producers
            producer.send(SMALL)
        await producer.flush()


async def consume_batches(client: pydanube.Client, topic: str) -> None:
    for reading in range(READS):
        async with client.consumer(topic, subscription=f"batches-{reading}", start="earliest") as consumer:
            left = MESSAGES
            async for batch in consumer.batches():
                left -= len(batch)
                consumer.ack(batch)
                if left <= 0:
                    break


async def consume_singly(client: pydanube.Client, topic: str) -> None:
    """The topic has small batches, and each message is acknowledged by itself."""
    for reading in range(READS):
        name = f"singly-{reading}"
        async with client.consumer(topic, subscription=name, type="shared", start="earliest") as consumer:
            left = SINGLES
            async for message in consumer:
                consumer.ack(message)
                left -= 1
                if not left:
                    break


async def cool(client: pydanube.Client, topic: str) -> None:
    """Uploads a topic, until none of it is on the local disk."""
    await client.admin.upload_topic(topic)
    while (await client.admin.storage_usage(topic))["local_bytes"]:  # noqa: ASYNC110 - nothing reports it
        await asyncio.sleep(0.1)


async def read_batches(client: pydanube.Client, topic: str, count: int) -> None:
    for _ in range(READS):
        left = count
        async with client.reader(topic, start="earliest") as reader:
            async for batch in reader.batches():
                left -= len(batch)
                if left <= 0:
                    break


async def send_calls(running: Broker, topic: str) -> None:
    connection = Connection(running.port)
    producing = {"producer_name": "bench", "topic_name": topic, "dispatch_strategy": 1}
    made = connection.ask("danube.ProducerService/CreateProducer", **producing)
    connection.ask("danube.ConsumerService/Subscribe", topic_name=topic, consumer_name="bench", subscription="s")
    connection.flood(SEND, message_for(topic, made.producer_id), CALLS, IN_FLIGHT)
    connection.close()


async def receive_calls(running: Broker, topic: str) -> None:
    connection = Connection(running.port)
    consuming = {"topic_name": topic, "consumer_name": "bench", "subscription": "s"}
    consumer = connection.ask("danube.ConsumerService/Subscribe", **consuming)
    wide = {"topic": topic, "subscription": "s", "dispatch_config": {"max_unacked_messages": CALLS}}
    connection.ask("danube_admin.TopicAdmin/SetSubscriptionDispatchConfig", **wide)
    connection.stream(consumer.consumer_id, CALLS)
    connection.close()


async def measured(running: Broker, round_: int) -> dict[str, float]:
    """Each kind of work once, on topics of this round."""
    many, single, calls = (f"/default/{name}-{round_}" for name in ("many", "single", "calls"))
    found: dict[str, float] = {}

    async def measure(name: str, count: int, work: Awaitable[None]) -> None:
        before = spent(running.pid)
        await work
        found[name] = (spent(running.pid) - before) / count * 1e6

    async with pydanube.connect(running.url) as client:
        await measure("publish with send_many", MESSAGES, publish_many(client, many))
        await measure("publish with send", SINGLES, publish_singly(client, single))
        await measure("consume with batches()", READS * MESSAGES, consume_batches(client, many))
        await measure("consume and ack singly", READS * SINGLES, consume_singly(client, single))
        await measure("gRPC SendMessage, reliable", CALLS, send_calls(running, calls))
        await measure("gRPC ReceiveMessages", CALLS, receive_calls(running, calls))
        for topic in (many, single, calls):
            await client.admin.delete_topic(topic)
    return found


async def measured_cold(running: Broker, round_: int) -> dict[str, float]:
    """Reading from segments, in large batches and in small ones."""
    found: dict[str, float] = {}
    async with pydanube.connect(running.url) as client:
        for name, count, publish in (("large", MESSAGES, publish_many), ("small", SINGLES, publish_singly)):
            topic = f"/default/cold-{name}-{round_}"
            await publish(client, topic)
            await cool(client, topic)
            before = spent(running.pid)
            await read_batches(client, topic, count)
            found[f"read {name} batches from segments"] = (spent(running.pid) - before) / (READS * count) * 1e6
            await client.admin.delete_topic(topic)
    return found


Measure = Callable[[Broker, int], Awaitable[dict[str, float]]]


async def compared(before: Broker, after: Broker, pairs: int, measure: Measure) -> dict[str, list[tuple[float, float]]]:
    """Both sides run all the time and take turns, the one that goes first changing with each pair."""
    found: dict[str, list[tuple[float, float]]] = {}
    for pair in range(pairs):
        order = (before, after) if pair % 2 == 0 else (after, before)
        results = {running.pid: await measure(running, pair) for running in order}
        for name, spent_before in results[before.pid].items():
            found.setdefault(name, []).append((spent_before, results[after.pid][name]))
        print(f"pair {pair + 1} of {pairs}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("before", type=Path)
    arguments.add_argument("after", type=Path)
    arguments.add_argument("--pairs", type=int, default=10)
    arguments.add_argument("--cold", action="store_true", help="measure what is read from object storage instead")
    given = arguments.parse_args()
    measure, tiered = (measured_cold, True) if given.cold else (measured, False)
    sources = given.before.resolve(), given.after.resolve()
    with broker(sources[0], tiered=tiered) as before, broker(sources[1], tiered=tiered) as after:
        found = uvloop.run(compared(before, after, given.pairs, measure))
    print(f"{TITLE:<56} {'before':>8} {'after':>8} {'ratio':>7}   middle half")
    for name, pairs in found.items():
        low, middle, high = quantiles((after / before for before, after in pairs), n=4, method="inclusive")
        sides = (median(side) for side in zip(*pairs, strict=True))
        print(f"{name:<56} {next(sides):8.3f} {next(sides):8.3f} {middle:7.3f}   {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
