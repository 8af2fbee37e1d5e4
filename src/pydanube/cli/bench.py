"""`danube bench`: a quick look at how fast a broker takes and gives messages; `make bench-broker` is thorough."""

from __future__ import annotations

import asyncio
import os
from time import perf_counter
from typing import Any

import click

from pydanube.cli import values
from pydanube.cli.lazy import Noun
from pydanube.cli.output import Output, pace, printed, progress
from pydanube.cli.running import connected
from pydanube.client import Client

SAMPLES_MAX = 100_000  # latencies that are kept


@click.group(cls=Noun, epilog="Example: danube bench publish trial")
def bench() -> None:
    """Measure how fast a broker accepts and delivers messages."""


@bench.command("publish", epilog="Example: danube bench publish bench --count 1000000 --size 100")
@click.argument("topic", type=values.topic)
@click.option("--count", "-n", type=values.Whole(min=1), default=100_000, show_default=True)
@click.option(
    "--size", type=values.Whole(min=0), default=100, show_default=True, help="Payload size of a message, in bytes."
)
@click.option("--batch", type=values.Whole(1, 100_000), default=1000, show_default=True, help="Messages per batch.")
@click.option("--in-flight", type=values.Whole(min=1), default=8, show_default=True, help="Batches in flight.")
@click.option(
    "--reliable/--no-reliable", default=True, show_default=True, help="Kind of the topic, if it has to be created."
)
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none", show_default=True)
@printed
@connected
async def publish(
    client: Client,
    output: Output,
    topic: str,
    count: int,
    size: int,
    batch: int,
    in_flight: int,
    reliable: bool,
    compression: str,
) -> None:
    """Publish random messages. Latency is measured from sending a batch to its receipt."""
    payload = os.urandom(size)
    gate = asyncio.Semaphore(in_flight)
    latencies: list[float] = []

    async def answered(sent: Any, at: float) -> None:
        try:
            await sent
        finally:
            gate.release()
        if len(latencies) < SAMPLES_MAX:
            latencies.append(perf_counter() - at)

    async with client.producer(topic, reliable=reliable, compression=compression) as producer:
        with progress(f"publishing to {topic}", count) as advance:
            began = perf_counter()
            async with asyncio.TaskGroup() as group:
                for first in range(0, count, batch):
                    await gate.acquire()
                    await producer.ready()
                    now = min(batch, count - first)
                    group.create_task(answered(producer.send_many([payload] * now), perf_counter()))
                    advance(now)
        took = perf_counter() - began
    output.record({**_rates(count, count * size, took), **_percentiles(latencies)})


@bench.command("consume", epilog="Example: danube bench consume bench --count 1000000")
@click.argument("topic", type=values.topic)
@click.option("--count", "-n", type=values.Whole(min=1), default=100_000, show_default=True)
@printed
@connected
async def consume(client: Client, output: Output, topic: str, count: int) -> None:
    """Consume stored and new messages, through a temporary subscription.

    Stops if nothing arrives for two seconds. Latency is measured from publishing to receiving.
    """
    name = f"bench-{os.urandom(8).hex()}"
    latencies: list[float] = []
    received = size = 0
    began = last = perf_counter()
    try:
        with progress(f"consuming {topic}", count) as advance:
            async with client.consumer(topic, subscription=name, start="earliest", create=False) as consumer:
                batches = consumer.batches()
                while received < count:
                    try:
                        async with asyncio.timeout(2):
                            batch = await anext(batches)
                    except TimeoutError:
                        break
                    last = perf_counter()
                    received += len(batch)
                    size += sum(map(len, filter(None, batch.payloads)))
                    if len(latencies) < SAMPLES_MAX:
                        latencies.append((client.clock.wall() - batch.content.publish_time) / 1_000_000)
                    consumer.ack(batch)
                    advance(len(batch))
    finally:
        await client.admin.delete_subscription(topic, name)
    output.record({**_rates(received, size, last - began), **_percentiles(latencies)})


def _rates(count: int, size: int, seconds: float) -> dict[str, Any]:
    return {**pace(count, seconds), "megabytes_per_second": round(size / max(seconds, 1e-9) / 1e6, 2)}


def _percentiles(latencies: list[float]) -> dict[str, float]:
    """In milliseconds; nothing if nothing was measured."""
    if not latencies:
        return {}
    ordered = sorted(latencies)
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {f"{name}_ms": round(ordered[round(last * at)] * 1000, 3) for name, at in points.items()}
