"""Measures a broker in its own process with the Python client in this one. Run by `make bench-broker`.

Figures are medians of several runs, for durable topics if not stated otherwise. Peers are compared in the README.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from struct import pack, unpack_from
from time import perf_counter

import uvloop

import pydanube
from figures import Figures
from journal import raw_probe
from peers import redis_streams
from probes import Probes, percentile, probing
from processes import danube
from pydanube.base.limits import MIB

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
MESSAGES = 1_000_000
SMALL, KIB = b"x" * 100, b"x" * 1024
SEND_MANY, BATCHES = "publish 100 B through send_many", "consume with batches()"


class Process:
    def __init__(self, directory: Path, *flags: str) -> None:
        self._ready = directory / "ready"
        self._command = [*danube(), "standalone", "--data-dir", str(directory / "data")]
        self._command += ["--listen", "127.0.0.1:0", "--ready-file", str(self._ready), *flags]
        self.begin()

    def begin(self) -> None:
        self._ready.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        return self._process.pid

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def url(self) -> str:
        while not self._ready.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        return "danube://" + str(json.loads(self._ready.read_text())["listen"])

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(10)


async def rate(count: int, work: Callable[[int], Awaitable[None]]) -> float:
    """Messages per second, the median of the runs; `work` gets the number of the run."""
    found = []
    for run in range(RUNS):
        began = perf_counter()
        await work(run)
        found.append(count / (perf_counter() - began))
    return median(found)


async def publishing(client: pydanube.Client, figures: Figures, directory: Path) -> None:
    many = [SMALL] * 10_000

    async def send_many(run: int) -> None:
        async with client.producer(f"/default/many-{run}") as producer:
            waiting = []
            for _ in range(MESSAGES // len(many)):
                await producer.ready()
                waiting.append(producer.send_many(many))
            for receipts in waiting:
                await receipts

    figures.report(SEND_MANY, await rate(MESSAGES, send_many), "messages/s", 3e6)

    async def send(run: int) -> None:
        async with client.producer(f"/default/single-{run}") as producer:
            for number in range(MESSAGES // 2):
                if not number % 1000:
                    await producer.ready()
                producer.send(SMALL)
            await producer.flush()

    figures.report("publish 100 B through send", await rate(MESSAGES // 2, send), "messages/s", 800e3)

    async def large(run: int) -> None:
        async with client.producer(f"/default/large-{run}") as producer:
            for _ in range(200):
                await producer.ready()
                producer.send_many([KIB] * 1000)
            await producer.flush()

    megabytes = await rate(200_000, large) * 1024 / 1e6
    figures.report("publish 1 KiB", megabytes, "MB/s", 300)
    raw = median(raw_probe(directory, MIB, 1.0) for _ in range(RUNS)) * MIB / 1e6
    figures.report("publish 1 KiB: ratio to raw write + fdatasync of 1 MiB", megabytes / raw, "x", 0.7)


async def consuming(client: pydanube.Client, figures: Figures) -> None:
    async def batches(run: int) -> None:
        async with client.consumer("/default/many-0", subscription=f"b{run}", start="earliest") as consumer:
            left = MESSAGES
            async for batch in consumer.batches():
                left -= len(batch.payloads)
                consumer.ack(batch)
                if left <= 0:
                    return

    figures.report(BATCHES, await rate(MESSAGES, batches), "messages/s", 3e6)

    async def singly(run: int) -> None:
        async with client.consumer("/default/many-0", subscription=f"s{run}", start="earliest") as consumer:
            left = MESSAGES // 4
            async for message in consumer:
                consumer.ack(message)
                left -= 1
                if not left:
                    return

    figures.report("consume and ack message by message", await rate(MESSAGES // 4, singly), "messages/s", 500e3)


async def beside_redis(figures: Figures) -> None:
    found = await redis_streams(RUNS, SMALL)
    if found is None:
        print("Redis Streams: not measured, because redis-server is not installed", flush=True)
        return
    for figure, ours, theirs in zip(("publish", "consume"), (SEND_MANY, BATCHES), found, strict=True):
        figures.report(f"Redis Streams, synced, pipelines of 1,000: {figure} 100 B", theirs, "messages/s")
        figures.report(f"{ours}: ratio to Redis Streams", figures.value(ours) / theirs, "x")


async def latency(client: pydanube.Client, figures: Figures, probes: Probes) -> None:
    for reliable, goal in ((True, 2.5), (False, 8.0)):
        name = "reliable with fsync" if reliable else "not reliable"
        beside = probes.fresh()
        async with client.producer(f"/default/one-{reliable}", reliable=reliable) as producer:
            found = []
            for number in range(1000):
                if not number % 250:
                    beside.take()
                began = perf_counter()
                await producer.send(SMALL)
                found.append(perf_counter() - began)
        figures.latency(f"one in flight, {name}, p50", median(found), beside, goal, durable=reliable)


async def open_loop(client: pydanube.Client, figures: Figures, probes: Probes) -> None:
    """Sends 10,000 messages per second, ten at a time, whatever the answers. Each contains the time it was due."""
    seconds, each = 5, 10
    for reliable, goal in ((True, 15.0), (False, 100.0)):
        topic = f"/default/loop-{reliable}"
        found = []
        beside = probes.fresh()
        for run in range(RUNS):
            latencies: list[float] = []
            beside.take()

            async def send(topic: str = topic, reliable: bool = reliable) -> None:
                async with client.producer(topic, reliable=reliable, linger=0) as producer:
                    due = perf_counter()
                    for _ in range(seconds * 10_000 // each):
                        due += each / 10_000
                        if (ahead := due - perf_counter()) > 0:
                            await asyncio.sleep(ahead)
                        for _ in range(each):
                            producer.send(pack("<d92x", due))

            async with client.consumer(topic, subscription=f"s{run}", reliable=reliable, prefetch=100_000) as consumer:
                sending = asyncio.create_task(send())
                async for batch in consumer.batches():
                    now = perf_counter()
                    latencies += [now - unpack_from("<d", payload or b"")[0] for payload in batch.payloads]
                    consumer.ack(batch)
                    if len(latencies) >= seconds * 10_000:
                        break
                await sending
            found.append(percentile(latencies, 0.99))
        name = "reliable with fsync" if reliable else "not reliable"
        figures.latency(f"end to end at 10,000/s, {name}, p99", median(found), beside, goal, durable=reliable)


async def fan_out(client: pydanube.Client, figures: Figures) -> None:
    subscriptions, messages = 10, 500_000

    async def spread(run: int) -> None:
        topic = f"/default/fan-{run}"

        async def consume(consumer: pydanube.Consumer) -> None:
            left = messages
            async for batch in consumer.batches():
                left -= len(batch)
                consumer.ack(batch)
                if left <= 0:
                    return

        async with AsyncExitStack() as opened:
            consumers = [
                await opened.enter_async_context(client.consumer(topic, subscription=f"s{number}"))
                for number in range(subscriptions)
            ]
            producer = await opened.enter_async_context(client.producer(topic))
            consuming = [asyncio.create_task(consume(consumer)) for consumer in consumers]
            for _ in range(messages // 10_000):
                await producer.ready()
                producer.send_many([SMALL] * 10_000)
            await asyncio.gather(*consuming)

    figures.report("deliveries to 10 subscriptions", await rate(messages * subscriptions, spread), "messages/s", 4e6)


async def many_topics(process: Process, client: pydanube.Client, figures: Figures) -> None:
    """Ten thousand topics, each with a producer, compared with one topic and the same batches."""
    topics, rounds, batch = 10_000, 10, [SMALL] * 100
    before = process.resident_bytes()
    await client.admin.create_namespace("many")
    producers: list[pydanube.Producer] = []
    for first in range(0, topics, 500):
        opening = [client.producer(f"/many/t{number}") for number in range(first, first + 500)]
        producers += await asyncio.gather(*(producer.__aenter__() for producer in opening))
    used = (process.resident_bytes() - before) / topics / 1024
    figures.report("memory of an idle topic with a producer", used, "KiB", 20, at_least=False)

    async def spread(run: int) -> None:
        for _ in range(rounds):
            for first in range(0, topics, 100):
                await asyncio.gather(*(producer.send_many(batch) for producer in producers[first : first + 100]))

    async def alone(run: int) -> None:
        async with client.producer(f"/many/alone-{run}") as producer:
            for _ in range(rounds * topics // 100):
                await asyncio.gather(*(producer.send_many(batch) for _ in range(100)))

    count = topics * rounds * len(batch)
    one = await rate(count, alone)
    figures.report("one topic, batches of 100", one, "messages/s")
    figures.report("10,000 topics against one", await rate(count, spread) / one, "x", 0.7)
    for producer in producers:
        await producer.close()


async def restart(process: Process, figures: Figures) -> None:
    process.end()
    began = perf_counter()
    process.begin()
    await process.url()
    figures.report("start with 10,000 topics", perf_counter() - began, "s", 5, at_least=False)


async def measure(figures: Figures) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        process = Process(Path(directory))
        try:
            async with pydanube.connect(await process.url()) as client:
                await publishing(client, figures, Path(directory))
                await consuming(client, figures)
                await beside_redis(figures)
                with probing(Path(directory)) as probes:
                    await latency(client, figures, probes)
                    await open_loop(client, figures, probes)
                await fan_out(client, figures)
                await many_topics(process, client, figures)
            await restart(process, figures)
        finally:
            process.end()


def main() -> None:
    figures = Figures()
    uvloop.run(measure(figures))
    figures.table()


if __name__ == "__main__":
    main()
