"""`danube bench`: measures quickly how fast a broker accepts and delivers messages; `make bench-broker` is thorough."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

import click
from msgspec import UNSET, UnsetType

from pydanube.base.limits import SECOND
from pydanube.cli.shell import values
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Output, Throughput, prints, progress, throughput
from pydanube.cli.shell.running import client_of, connected
from pydanube.client import Client, Consumer, Producer

SAMPLES_MAX = 100_000  # latencies to keep
CLIENTS_MAX = 1_000  # connections of one process
DUE_SECONDS = 0.01  # with --rate, a batch holds the messages of at most this time
SILENCE_SECONDS = 2.0  # after which no more messages are expected


class Measurement(Throughput):
    """Without latencies if none was measured."""

    megabytes_per_second: float
    p50_ms: float | UnsetType = UNSET
    p90_ms: float | UnsetType = UNSET
    p99_ms: float | UnsetType = UNSET
    max_ms: float | UnsetType = UNSET


@click.group(cls=CommandGroup, epilog="Example: danube bench publish trial")
def bench() -> None:
    """Measure how fast a broker accepts and delivers messages."""


@bench.command("publish", epilog="Example: danube bench publish bench --count 1000000 --size 100")
@click.argument("topic", type=values.topic)
@click.option("--count", "-n", type=values.Integer(min=1), default=100_000, show_default=True)
@click.option("--size", type=values.size, default=100, show_default=True, help="Payload size of a message: 100, 64KiB.")
@click.option(
    "--producers", type=values.Integer(1, CLIENTS_MAX), default=1, show_default=True, help="Connections to use."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Messages per second in total.")
@click.option("--batch", type=values.Integer(1, 100_000), default=1000, show_default=True, help="Messages per batch.")
@click.option("--in-flight", type=values.Integer(min=1), default=8, show_default=True, help="Batches in flight.")
@click.option(
    "--reliable/--no-reliable", default=True, show_default=True, help="Kind of the topic, if it has to be created."
)
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none", show_default=True)
@prints(Measurement)
@connected
async def publish(
    client: Client,
    output: Output,
    topic: str,
    count: int,
    size: int,
    producers: int,
    rate: float | None,
    batch: int,
    in_flight: int,
    reliable: bool,
    compression: str,
) -> None:
    """Publish random messages, with one or more producers.

    With --rate, each batch is due at a certain time, and its latency counts from then, so a stall of the broker also
    delays the batches after it. Without --rate, latency is the time from sending a batch to its receipt.
    """
    latencies: list[float] = []
    options = {"reliable": reliable, "compression": compression}
    async with AsyncExitStack() as stack:
        clients = await _clients(stack, client, producers)
        open_ = [await stack.enter_async_context(each.producer(topic, **options)) for each in clients]
        advance = stack.enter_context(progress(f"publishing to {topic}", count))
        load = _Load(count, os.urandom(size), batch, in_flight, rate, latencies, advance)
        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            for each in open_:
                group.create_task(load.publish(each, began))
        took = perf_counter() - began
    output.record(_measurement(count, count * size, took, latencies))


class _Load:
    """Messages that several producers publish together: each takes the next batch when it is ready."""

    def __init__(
        self,
        count: int,
        payload: bytes,
        batch: int,
        in_flight: int,
        rate: float | None,
        latencies: list[float],
        advance: Callable[[int], None],
    ) -> None:
        self._count = count
        self._payload = payload
        self._batch = batch if rate is None else max(1, min(batch, round(rate * DUE_SECONDS)))
        self._gate = asyncio.Semaphore(in_flight)
        self._rate = rate
        self._latencies = latencies
        self._advance = advance
        self._given = 0

    async def publish(self, producer: Producer, began: float) -> None:
        async with asyncio.TaskGroup() as group:
            while self._given < self._count:
                first, now = self._given, min(self._batch, self._count - self._given)
                self._given += now
                due = None if self._rate is None else began + first / self._rate
                if due is not None and (early := due - perf_counter()) > 0:
                    await asyncio.sleep(early)
                await self._gate.acquire()
                await producer.ready()
                since = perf_counter() if due is None else due
                group.create_task(self._answered(producer.send_many([self._payload] * now), since))
                self._advance(now)

    async def _answered(self, sent: Any, since: float) -> None:
        try:
            await sent
        finally:
            self._gate.release()
        if len(self._latencies) < SAMPLES_MAX:
            self._latencies.append(perf_counter() - since)


async def _clients(stack: AsyncExitStack, first: Client, count: int) -> list[Client]:
    """Opens more clients, for `count` connections in total."""
    context = click.get_current_context()
    return [first, *[await stack.enter_async_context(client_of(context)) for _ in range(count - 1)]]


@bench.command("consume", epilog="Example: danube bench consume bench --count 1000000 --consumers 4")
@click.argument("topic", type=values.topic)
@click.option("--count", "-n", type=values.Integer(min=1), default=100_000, show_default=True)
@click.option(
    "--consumers", type=values.Integer(1, CLIENTS_MAX), default=1, show_default=True, help="Connections to use."
)
@prints(Measurement)
@connected
async def consume(client: Client, output: Output, topic: str, count: int, consumers: int) -> None:
    """Consume stored and new messages, with a Shared subscription that is deleted afterwards.

    Ends early if no message arrives for two seconds. Latency is the time from publishing to receiving; it is measured
    only for messages that are published during the run.
    """
    name = f"bench-{os.urandom(8).hex()}"
    intake = _Intake(count, client.clock.wall())
    try:
        async with AsyncExitStack() as stack:
            clients = await _clients(stack, client, consumers)
            options: dict[str, Any] = {"subscription": name, "type": "shared", "start": "earliest", "create": False}
            open_ = [await stack.enter_async_context(each.consumer(topic, **options)) for each in clients]
            advance = stack.enter_context(progress(f"consuming {topic}", count))
            async with asyncio.TaskGroup() as group:
                for each in open_:
                    group.create_task(intake.consume(each, advance))
    finally:
        await client.admin.delete_subscription(topic, name)
    output.record(_measurement(intake.received, intake.size, intake.last - intake.began, intake.latencies))


class _Intake:
    """The messages that several consumers receive together, until there are enough or none arrive."""

    def __init__(self, count: int, wall: int) -> None:
        self._count = count
        self._wall = wall  # start time: the latency of messages published earlier would only be their age
        self.began = self.last = perf_counter()
        self.received = self.size = 0
        self.latencies: list[float] = []

    async def consume(self, consumer: Consumer, advance: Callable[[int], None]) -> None:
        batches = consumer.batches()
        while self.received < self._count:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    batch = await anext(batches)
            except TimeoutError:
                if perf_counter() - self.last >= SILENCE_SECONDS:
                    return
                continue
            self.last = perf_counter()
            self.received += len(batch)
            self.size += sum(map(len, filter(None, batch.payloads)))
            published = batch.content.publish_time
            if published >= self._wall and len(self.latencies) < SAMPLES_MAX:
                self.latencies.append((consumer.client.clock.wall() - published) / SECOND)
            consumer.ack(batch)
            advance(len(batch))


def _measurement(count: int, size: int, seconds: float, latencies: list[float]) -> Measurement:
    megabytes = round(size / max(seconds, 1e-9) / 1e6, 2)
    moved = {**throughput(count, seconds), **_percentiles(latencies)}
    return Measurement(**moved, megabytes_per_second=megabytes)


def _percentiles(latencies: list[float]) -> dict[str, float]:
    """In milliseconds; empty if nothing was measured."""
    if not latencies:
        return {}
    ordered = sorted(latencies)
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {f"{name}_ms": round(ordered[round(last * at)] * 1000, 3) for name, at in points.items()}
