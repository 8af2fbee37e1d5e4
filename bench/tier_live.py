"""How uploads and a reader of cold messages affect live traffic. Run as part `live` of `make bench-tier`.

The broker has its own process. This one sends and receives 1,000 durable messages per second: alone, while the broker
uploads two million messages, and while another process reads them from object storage. Figures are medians of runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from statistics import median
from struct import pack, unpack_from
from time import perf_counter

import pydanube
from broker import Process
from figures import Figures
from probes import percentile, probing

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
ROWS = 2_000_000
A_SECOND, SECONDS = 1_000, 4
CALM_SECONDS = 3.0  # until the system has written out the bulk of messages
RATIO_GOAL = 2.0
CATCH_UP_GOAL = 1_500_000
BULK, LIVE = "/default/bulk", "/default/live"


async def live_p99(client: pydanube.Client, run: str) -> float:
    """Milliseconds from when a message was due until it was received."""
    latencies: list[float] = []
    topic = f"{LIVE}-{run}"

    async def send() -> None:
        async with client.producer(topic, linger=0) as producer:
            due = perf_counter()
            for _ in range(SECONDS * A_SECOND):
                due += 1 / A_SECOND
                if (ahead := due - perf_counter()) > 0:
                    await asyncio.sleep(ahead)
                producer.send(pack("<d92x", due))

    async with client.consumer(topic, subscription="s", start="earliest") as consumer:
        sending = asyncio.create_task(send())
        async for batch in consumer.batches():
            now = perf_counter()
            latencies += [(now - unpack_from("<d", payload or b"")[0]) * 1000 for payload in batch.payloads]
            consumer.ack(batch)
            if len(latencies) >= SECONDS * A_SECOND:
                break
        await sending
    return percentile(latencies, 0.99)


async def fill(client: pydanube.Client, topic: str) -> None:
    payloads = [b"%08d" % number + os.urandom(42) + b"x" * 50 for number in range(10_000)]
    async with client.producer(topic) as producer:
        for _ in range(ROWS // len(payloads)):
            await producer.ready()
            producer.send_many(payloads)
        await producer.flush()


async def beside(client: pydanube.Client, run: str, work: Awaitable[object]) -> float:
    """The 99th percentile during `work`."""
    other = asyncio.ensure_future(work)
    found = await live_p99(client, run)
    await other
    return found


async def upload(client: pydanube.Client, topic: str) -> None:
    await client.admin.upload_topic(topic)


async def read_cold(url: str) -> None:
    """Reads in another process with low priority, as if it ran on another machine."""
    reader = await asyncio.create_subprocess_exec("nice", "-n", "15", sys.executable, __file__, url)
    await reader.wait()


async def read_all(url: str) -> float:
    """Messages per second to one native consumer with `batches()`."""
    start, left = perf_counter(), ROWS
    async with pydanube.connect(url) as client, client.reader(f"{BULK}-0", start="earliest") as reader:
        async for batch in reader.batches():
            left -= len(batch)
            if left <= 0:
                break
    return ROWS / (perf_counter() - start)


async def measure(directory: Path, figures: Figures) -> None:
    objects = ("--objects", f"file://{directory}/objects", "--storage-objects-local-seconds", "0")
    process = Process(directory, *objects, "--limits-cache-bytes", "0")
    try:
        url = await process.url()
        async with pydanube.connect(url) as client:
            alone, uploading, reading = [], [], []
            await live_p99(client, "warm")
            with probing(directory) as probes:
                for run in range(RUNS):
                    probes.take()
                    alone.append(await live_p99(client, f"alone-{run}"))
                figures.latency("live p99 alone", median(alone) / 1e3, probes, durable=True)
            for run in range(RUNS):
                await fill(client, f"{BULK}-{run}")
                os.sync()
                await asyncio.sleep(CALM_SECONDS)
                uploading.append(await beside(client, f"uploading-{run}", upload(client, f"{BULK}-{run}")))
            while (await client.admin.storage_usage(f"{BULK}-0"))["local_bytes"]:  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.2)
            for run in range(RUNS):
                reading.append(await beside(client, f"reading-{run}", read_cold(url)))
        figures.report("catch up from segments, one native reader", await read_all(url), "messages/s", CATCH_UP_GOAL)
        name = "live p99 while uploading, against alone"
        figures.report(name, median(uploading) / median(alone), "x", RATIO_GOAL, at_least=False)
        name = "live p99 beside a cold reader, against alone"
        figures.report(name, median(reading) / median(alone), "x", RATIO_GOAL, at_least=False)
    finally:
        process.end()


def live(figures: Figures) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), figures))


if __name__ == "__main__":
    asyncio.run(read_all(sys.argv[1]))
