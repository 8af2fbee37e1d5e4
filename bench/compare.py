"""Compares what two versions of the broker cost: processor seconds of its process for a million messages.

`make bench-compare BEFORE=path/to/other/src` runs brokers of the two sources in interleaved pairs. This process drives
both with the same client, so that a busy machine disturbs both alike. It prints medians and their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import clock_gettime, sleep

import uvloop

import pydanube
from grpc_face import IN_FLIGHT, SEND, Connection, message_for

MESSAGES = 2_000_000
SINGLES = 300_000
CALLS = 60_000
SMALL = b"x" * 100


class Broker:
    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.pid = process.pid
        self.port = int(address.rpartition(":")[2])
        self.url = f"danube://{address}"


@contextmanager
def broker(source: Path) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="danube-bench-", dir=os.environ.get("BENCH_DIR")) as directory:
        ready = Path(directory) / "ready"
        command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", f"{directory}/data"]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "", "--ready-file", str(ready)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(source)})
        try:
            while not ready.exists():
                sleep(0.01)
            yield Broker(process, json.loads(ready.read_text())["listen"])
        finally:
            process.terminate()
            process.wait(10)


def spent(pid: int) -> float:
    """Processor seconds that a process has used so far, to the nanosecond: Linux derives a clock from its number."""
    return clock_gettime((~pid << 3) | 2)


async def publish_many(client: pydanube.Client) -> None:
    async with client.producer("/default/many") as producer:
        for _ in range(MESSAGES // 10_000):
            await producer.ready()
            producer.send_many([SMALL] * 10_000)
        await producer.flush()


async def publish_singly(client: pydanube.Client) -> None:
    async with client.producer("/default/single") as producer:
        for number in range(SINGLES):
            if not number % 100:
                await producer.ready()
                await asyncio.sleep(0)  # so that batches stay small, as with many producers
            producer.send(SMALL)
        await producer.flush()


async def consume_batches(client: pydanube.Client) -> None:
    async with client.consumer("/default/many", subscription="batches", start="earliest") as consumer:
        left = MESSAGES
        async for batch in consumer.batches():
            left -= len(batch)
            consumer.ack(batch)
            if left <= 0:
                break


async def consume_singly(client: pydanube.Client) -> None:
    """The topic has small batches, and each message is acknowledged by itself."""
    async with client.consumer("/default/single", subscription="singly", type="shared", start="earliest") as consumer:
        left = SINGLES
        async for message in consumer:
            consumer.ack(message)
            left -= 1
            if not left:
                break


async def measured(source: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    with broker(source) as running:

        async def measure(name: str, count: int, work: Callable[[], Awaitable[None]]) -> None:
            before = spent(running.pid)
            await work()
            found[name] = (spent(running.pid) - before) / count * 1e6

        async with pydanube.connect(running.url) as client:
            await measure("publish with send_many", MESSAGES, lambda: publish_many(client))
            await measure("publish with send", SINGLES, lambda: publish_singly(client))
            await measure("consume with batches()", MESSAGES, lambda: consume_batches(client))
            await measure("consume and ack singly", SINGLES, lambda: consume_singly(client))
        await grpc(running, measure)
    return found


async def grpc(running: Broker, measure: Callable[[str, int, Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
    topic = "/default/calls"
    connection = Connection(running.port)
    producing = {"producer_name": "bench", "topic_name": topic, "dispatch_strategy": 1}
    made = connection.ask("danube.ProducerService/CreateProducer", **producing)
    consuming = {"topic_name": topic, "consumer_name": "bench", "subscription": "s"}
    consumer = connection.ask("danube.ConsumerService/Subscribe", **consuming)
    wide = {"topic": topic, "subscription": "s", "dispatch_config": {"max_unacked_messages": CALLS}}
    connection.ask("danube_admin.TopicAdmin/SetSubscriptionDispatchConfig", **wide)

    async def send() -> None:
        connection.flood(SEND, message_for(topic, made.producer_id), CALLS, IN_FLIGHT)

    async def receive() -> None:
        reader = Connection(running.port)
        reader.stream(consumer.consumer_id, CALLS)
        reader.close()

    await measure("gRPC SendMessage, reliable", CALLS, send)
    await measure("gRPC ReceiveMessages", CALLS, receive)
    connection.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("before", type=Path)
    arguments.add_argument("after", type=Path)
    arguments.add_argument("--pairs", type=int, default=10)
    given = arguments.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    for pair in range(given.pairs):
        order = (given.before, given.after) if pair % 2 == 0 else (given.after, given.before)
        results = {source: uvloop.run(measured(source.resolve())) for source in order}
        for name, before in results[given.before].items():
            found.setdefault(name, []).append((before, results[given.after][name]))
        print(f"pair {pair + 1} of {given.pairs}", file=sys.stderr, flush=True)
    print(f"{'processor seconds of the broker for a million messages':<56} {'before':>8} {'after':>8} {'ratio':>7}")
    for name, pairs in found.items():
        before, after = (median(pair[side] for pair in pairs) for side in (0, 1))
        ratio = median(pair[1] / pair[0] for pair in pairs)
        print(f"{name:<56} {before:8.3f} {after:8.3f} {ratio:7.3f}")


if __name__ == "__main__":
    main()
