"""Whether one client can take the broker from another. Run by `make bench-fair`.

The victim sends and receives 1,000 durable messages per second: alone, beside a publish flood, beside an upload to the
cold tier, and beside a reader of cold messages. Printed beside its latencies: two probes that do not know the broker,
the share of a core that each process used, and the longest turn of the broker's loop. Medians of runs, taken in turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from asyncio import Event
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from struct import pack, unpack_from
from time import perf_counter
from typing import NamedTuple
from urllib.request import urlopen

import uvloop

import pydanube
from broker import Process
from figures import Figures
from probes import percentile
from probes_beside import ProbesBeside

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "5"))
A_SECOND = 1_000
ROWS = 2_000_000
CALM_SECONDS = 2.0  # until the system has written out what was written before
RATIO_GOAL = 2.0
TURN_GOAL_MS = 5.0
ALONE, COLD = "alone", "/default/cold"


class Found(NamedTuple):
    p50: float  # all in milliseconds
    p99: float
    longest_turn: float
    probes: dict[str, tuple[float, float]]
    shares: dict[str, float]  # of one core, by process


# -- the processes -----------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def busy_seconds() -> float:
    """Processor time of the whole machine since it started."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:10])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


class Shares:
    """The processor time of each process from now on, and of all others, which disturb what is measured."""

    def __init__(self, broker: int, load: int | None, probes: int) -> None:
        self._pids = {"broker": broker, "victim": os.getpid(), "probes": probes}
        if load is not None:
            self._pids["load"] = load
        tiers = children(broker)
        self._pids |= {f"tier {number}": pid for number, pid in enumerate(tiers, 1)}
        self._began = perf_counter()
        self._before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        self._busy = busy_seconds()

    def end(self) -> dict[str, float]:
        wall = perf_counter() - self._began
        alive = {name: pid for name, pid in self._pids.items() if Path(f"/proc/{pid}").exists()}
        found = {name: (cpu_seconds(pid) - self._before[name]) / wall for name, pid in alive.items()}
        others = (busy_seconds() - self._busy) / wall - sum(found.values())
        return {**found, "all others": max(0.0, others)}


def turns(url: str) -> dict[str, float]:
    """How many turns of the loop took at most how long, as the broker exports them; empty if it does not."""
    with urlopen(url.replace("danube://", "http://") + "/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("danube_loop_turn_seconds_bucket")]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in found}


# -- the victim --------------------------------------------------------------------------------------------------------


async def victim(client: pydanube.Client, topic: str, enough: Event) -> list[float]:
    """Milliseconds from when each message was due until it was received."""
    latencies: list[float] = []
    sent = 0

    async def send() -> None:
        nonlocal sent
        async with client.producer(topic, linger=0) as producer:
            due = perf_counter()
            while not enough.is_set():
                due += 1 / A_SECOND
                if (ahead := due - perf_counter()) > 0:
                    await asyncio.sleep(ahead)
                sent += 1
                producer.send(pack("<d92x", due))
            await producer.flush()

    async with client.consumer(topic, subscription="s", start="earliest") as consumer:
        sending = asyncio.create_task(send())
        async for batch in consumer.batches():
            now = perf_counter()
            latencies += [(now - unpack_from("<d", payload or b"")[0]) * 1000 for payload in batch.payloads]
            consumer.ack(batch)
            if enough.is_set() and len(latencies) >= sent:
                break
        await sending
    return latencies


# -- what it is beside -------------------------------------------------------------------------------------------------


async def flood(url: str, topic: str) -> None:
    payloads = [b"x" * 100] * 1000
    async with pydanube.connect(url) as client, client.producer(topic) as producer:
        while True:
            await producer.ready()
            producer.send_many(payloads)


async def read_cold(url: str, topic: str) -> None:
    """Reads from the beginning, again and again."""
    async with pydanube.connect(url) as client:
        while True:
            left = ROWS
            async with client.reader(topic, start="earliest") as reader:
                async for batch in reader.batches():
                    left -= len(batch)
                    if left <= 0:
                        break


async def fill(client: pydanube.Client, topic: str) -> None:
    payloads = [b"%08d" % number + os.urandom(42) + b"x" * 50 for number in range(10_000)]
    async with client.producer(topic) as producer:
        for _ in range(ROWS // len(payloads)):
            await producer.ready()
            producer.send_many(payloads)
        await producer.flush()


class Load:
    """A process with low priority, as if it ran on another machine."""

    def __init__(self, kind: str, url: str, topic: str) -> None:
        self._process = subprocess.Popen(["nice", "-n", "10", sys.executable, __file__, kind, url, topic])

    @property
    def pid(self) -> int:
        return self._process.pid

    async def end(self) -> None:
        self._process.kill()
        self._process.wait()


# -- measuring ---------------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, directory: Path, process: Process, url: str, client: pydanube.Client) -> None:
        self._directory, self._process, self._url, self._client = directory, process, url, client

    async def measure(self, topic: str, load: Load | None, until: Awaitable[object]) -> Found:
        """The victim until `until` is over."""
        enough = Event()
        probes = ProbesBeside(str(self._directory))
        before = await asyncio.to_thread(turns, self._url)
        shares = Shares(self._process.pid, None if load is None else load.pid, probes.pid)
        running = asyncio.create_task(victim(self._client, topic, enough))
        await until
        enough.set()
        latencies = await running
        used = shares.end()
        after = await asyncio.to_thread(turns, self._url)
        new = {bound: count - before[bound] for bound, count in after.items()}
        longest = next((float(bound) * 1e3 for bound, count in new.items() if count == new["+Inf"]), 0.0)
        found = await asyncio.to_thread(probes.end)
        return Found(percentile(latencies, 0.5), percentile(latencies, 0.99), longest, found, used)

    async def alone(self, run: int) -> Found:
        return await self.measure(f"/default/alone-{run}", None, asyncio.sleep(SECONDS))

    async def flooded(self, run: int) -> Found:
        load = Load("flood", self._url, f"/default/flood-{run}")
        try:
            await asyncio.sleep(1.0)
            return await self.measure(f"/default/flooded-{run}", load, asyncio.sleep(SECONDS))
        finally:
            await load.end()

    async def uploading(self, run: int) -> Found:
        await fill(self._client, f"{COLD}-{run}")
        os.sync()
        await asyncio.sleep(CALM_SECONDS)
        upload = asyncio.ensure_future(self._client.admin.upload_topic(f"{COLD}-{run}"))
        return await self.measure(f"/default/uploading-{run}", None, upload)

    async def reading(self, run: int) -> Found:
        while (await self._client.admin.storage_usage(f"{COLD}-{run}"))["local_bytes"]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        load = Load("read", self._url, f"{COLD}-{run}")
        try:
            await asyncio.sleep(1.0)
            return await self.measure(f"/default/reading-{run}", load, asyncio.sleep(SECONDS))
        finally:
            await load.end()


async def measured(directory: Path) -> dict[str, list[Found]]:
    objects = ("--objects", f"file://{directory}/objects", "--storage-objects-local-seconds", "0")
    process = Process(directory, *objects, "--limits-cache-bytes", "0")
    found: dict[str, list[Found]] = {}
    try:
        url = await process.url()
        async with pydanube.connect(url) as client:
            bench = Bench(directory, process, url, client)
            conditions: dict[str, Callable[[int], Awaitable[Found]]] = {
                ALONE: bench.alone,
                "beside a flood": bench.flooded,
                "beside an upload": bench.uploading,
                "beside a cold reader": bench.reading,
            }
            await victim(client, "/default/warm", _after(1.0))
            for run in range(RUNS):
                for name, measure in conditions.items():
                    one = await measure(run)
                    found.setdefault(name, []).append(one)
                    print(json.dumps({"condition": name, "run": run, **one._asdict()}), flush=True)
    finally:
        process.end()
    return found


def _after(seconds: float) -> Event:
    event = Event()
    asyncio.get_running_loop().call_later(seconds, event.set)
    return event


def main() -> None:
    if len(sys.argv) == 4:
        kind, url, topic = sys.argv[1:]
        uvloop.run((flood if kind == "flood" else read_cold)(url, topic))
        return
    figures = Figures()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        found = uvloop.run(measured(Path(directory)))
    alone = median(each.p99 for each in found[ALONE])
    for name, runs in found.items():
        figures.report(f"victim {name}, p50", median(each.p50 for each in runs), "ms")
        p99 = median(each.p99 for each in runs)
        figures.report(f"victim {name}, p99", p99, "ms")
        if name != ALONE:
            figures.report(f"victim {name}, p99: ratio to alone", p99 / alone, "x", RATIO_GOAL, at_least=False)
        beside = [median(each.probes[probe][1] for each in runs) for probe in runs[0].probes]
        for probe, probed in zip(runs[0].probes, beside, strict=True):
            figures.report(f"  {probe}, p99", probed, "ms")
        figures.report("  the victim's p99: multiple of both probes", p99 / sum(beside), "x")
        turn = median(each.longest_turn for each in runs)
        figures.report("  longest turn, at most", turn, "ms", TURN_GOAL_MS, at_least=False)
        for share in runs[0].shares:
            used = median(each.shares.get(share, 0.0) for each in runs)
            figures.report(f"  processor of {share}", used, "cores")
    figures.table()


if __name__ == "__main__":
    main()
