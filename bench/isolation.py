"""Measures how a namespace under heavy load affects another. Run it with `.venv/bin/python bench/isolation.py`.

The victim sends and receives 100 durable messages per second. The flooder publishes as fast as it can over four
connections from its own process, without and with a publish rate. Figures are medians of several runs, taken in turn.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import uvloop

import pydanube
from broker import RUNS, Process
from figures import Figures
from probes import Probes, probing
from pydanube.operations.topics import GetBounds

MESSAGES = int(os.environ.get("BENCH_MESSAGES", "1000"))
SECONDS_BETWEEN = 0.01
FLOOD_CONNECTIONS = 4
RATE_BYTES = 10_000_000
Latencies = tuple[float, float]  # p50 and p99 in milliseconds


async def victim(url: str, run: str) -> Latencies:
    """From the call of `send` until the message is received."""
    sent: dict[int, float] = {}
    found: list[float] = []
    async with (
        pydanube.connect(url) as client,
        client.producer(f"/victim/{run}") as producer,
        client.consumer(f"/victim/{run}", subscription="s", start="earliest") as consumer,
    ):

        async def receive() -> None:
            async for message in consumer:
                found.append(perf_counter() - sent[int(message.payload or b"")])
                consumer.ack(message)
                if len(found) == MESSAGES:
                    return

        receiving = asyncio.create_task(receive())
        began = perf_counter()
        for number in range(MESSAGES):
            await asyncio.sleep(began + number * SECONDS_BETWEEN - perf_counter())
            sent[number] = perf_counter()
            asyncio.ensure_future(producer.send(b"%d" % number))  # noqa: RUF006 - the result is not needed
        await receiving
    return median(found) * 1e3, quantiles(found, n=100)[98] * 1e3


async def flood(url: str, run: str) -> None:
    payloads = [b"x" * 100] * 1000

    async def one(number: int) -> None:
        async with pydanube.connect(url) as client, client.producer(f"/flood/{run}-{number}") as producer:
            while True:
                await producer.ready()
                producer.send_many(payloads)

    await asyncio.gather(*map(one, range(FLOOD_CONNECTIONS)))


class Flooder:
    def __init__(self, url: str, run: str) -> None:
        self._process = subprocess.Popen([sys.executable, __file__, url, run], stderr=subprocess.DEVNULL)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


async def stored(client: pydanube.Client, run: str) -> int:
    """How many messages the flooder has published so far."""
    names = [name for name in await client.admin.topics("flood") if name.startswith(f"/flood/{run}-")]
    return sum([(await client.ask(GetBounds(name))).end for name in names])


async def flooded(url: str, client: pydanube.Client, run: str) -> tuple[Latencies, float]:
    flooder = Flooder(url, run)
    try:
        while not await stored(client, run):  # noqa: ASYNC110 - another process publishes
            await asyncio.sleep(0.05)
        before, began = await stored(client, run), perf_counter()
        latencies = await victim(url, run)
        return latencies, (await stored(client, run) - before) / (perf_counter() - began)
    finally:
        flooder.end()


async def measure(figures: Figures, probes: Probes) -> None:
    alone: list[Latencies] = []
    freely: list[tuple[Latencies, float]] = []
    limited: list[tuple[Latencies, float]] = []
    for number in range(RUNS):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
            process = Process(Path(directory))
            try:
                url = await process.url()
                async with pydanube.connect(url) as client:
                    for namespace in ("victim", "flood"):
                        await client.admin.create_namespace(namespace)
                    probes.take()
                    alone.append(await victim(url, f"alone-{number}"))
                    freely.append(await flooded(url, client, f"freely-{number}"))
                    rate = {"publish_bytes_per_second": RATE_BYTES // FLOOD_CONNECTIONS}
                    await client.admin.policies("flood", change=rate)
                    limited.append(await flooded(url, client, f"limited-{number}"))
            finally:
                process.end()
    quiet = median(p99 for _, p99 in alone)
    figures.report("victim alone, p50", median(p50 for p50, _ in alone), "ms")
    figures.latency("victim alone, p99", quiet / 1e3, probes, durable=True)
    for name, found in (("a flood", freely), (f"a flood at {RATE_BYTES // 10**6} MB/s", limited)):
        figures.report(f"beside {name}, p50", median(p50 for (p50, _), _ in found), "ms")
        figures.report(f"beside {name}, p99", median(p99 for (_, p99), _ in found), "ms", 2 * quiet, at_least=False)
        figures.report(f"{name}", median(rate for _, rate in found), "messages/s")


def main() -> None:
    if len(sys.argv) == 3:
        uvloop.run(flood(sys.argv[1], sys.argv[2]))
        return
    figures = Figures()
    with probing(Path(os.environ.get("BENCH_DIR") or tempfile.gettempdir())) as probes:
        uvloop.run(measure(figures, probes))
    figures.table()


if __name__ == "__main__":
    main()
