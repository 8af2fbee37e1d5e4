"""Measures a broker in a process of its own with the Python client in this one. Run by `make bench-broker`.

Medians of several runs; durable topics unless the figure says otherwise. Peers and their figures are in the README.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import uvloop

import pydanube
from figures import Figures

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
MESSAGES = 1_000_000
SMALL, KIB = b"x" * 100, b"x" * 1024


class Process:
    def __init__(self, directory: Path) -> None:
        self._ready = directory / "ready"
        command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(directory / "data")]
        command += ["--listen", "127.0.0.1:0", "--ready-file", str(self._ready)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    async def url(self) -> str:
        while not self._ready.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        return "danube://" + str(json.loads(self._ready.read_text())["listen"])

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(10)


async def rate(count: int, work: Callable[[int], Awaitable[None]]) -> float:
    """Messages a second, median of the runs; `work` is told the number of the run."""
    found = []
    for run in range(RUNS):
        began = perf_counter()
        await work(run)
        found.append(count / (perf_counter() - began))
    return median(found)


async def publishing(client: pydanube.Client, figures: Figures) -> None:
    many = [SMALL] * 10_000

    async def send_many(run: int) -> None:
        async with client.producer(f"/default/many-{run}") as producer:
            waiting = []
            for _ in range(MESSAGES // len(many)):
                await producer.ready()
                waiting.append(producer.send_many(many))
            for receipts in waiting:
                await receipts

    figures.report("publish 100 B through send_many", await rate(MESSAGES, send_many), "messages/s", 3e6)

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

    figures.report("publish 1 KiB", await rate(200_000, large) * 1024 / 1e6, "MB/s", 300)


async def consuming(client: pydanube.Client, figures: Figures) -> None:
    async def batches(run: int) -> None:
        async with client.consumer("/default/many-0", subscription=f"b{run}", start="earliest") as consumer:
            left = MESSAGES
            async for batch in consumer.batches():
                left -= len(batch.payloads)
                consumer.ack(batch)
                if left <= 0:
                    return

    figures.report("consume with batches()", await rate(MESSAGES, batches), "messages/s", 3e6)

    async def singly(run: int) -> None:
        async with client.consumer("/default/many-0", subscription=f"s{run}", start="earliest") as consumer:
            left = MESSAGES // 4
            async for message in consumer:
                consumer.ack(message)
                left -= 1
                if not left:
                    return

    figures.report("consume and ack message by message", await rate(MESSAGES // 4, singly), "messages/s", 500e3)


async def latency(client: pydanube.Client, figures: Figures) -> None:
    for reliable, goal in ((True, 1000.0), (False, 250.0)):
        name = "reliable with fsync" if reliable else "not reliable"
        async with client.producer(f"/default/one-{reliable}", reliable=reliable) as producer:
            found = []
            for _ in range(1000):
                began = perf_counter()
                await producer.send(SMALL)
                found.append((perf_counter() - began) * 1e6)
        figures.report(f"one in flight, {name}, p50", median(found), "µs", goal, at_least=False)


async def measure(figures: Figures) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        process = Process(Path(directory))
        try:
            async with pydanube.connect(await process.url()) as client:
                await publishing(client, figures)
                await consuming(client, figures)
                await latency(client, figures)
        finally:
            process.end()


def main() -> None:
    figures = Figures()
    uvloop.run(measure(figures))
    figures.table()


if __name__ == "__main__":
    main()
