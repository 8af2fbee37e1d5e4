"""Measures the storage node on this machine's disk: durable appends, latency, recovery, memory, bytes on disk.

Others may use the disk at the same time. So a raw probe (write + fdatasync of groups of the same size, one after the
other, nothing else) runs in slices between the slices of the node, and the ratio of the two is a figure too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from figures import Figures
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.base.durability import Durability
from pydanube.base.ids import Epoch, LedgerId
from pydanube.base.limits import MIB
from pydanube.storage.local import LocalNodes
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.writer import LedgerWriter
from pydanube.stream.record import Copies, new_ledger
from pydanube.wire.batch import Batch, build

SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))  # how long throughput is measured
SLICE = 4.0
EPOCH = Epoch(1)


@asynccontextmanager
async def opened(directory: Path, settings: NodeSettings | None = None) -> AsyncIterator[DiskNode]:
    disk = PosixDisk(directory)
    node = await DiskNode.open([disk], settings or NodeSettings(), SystemRandomness())
    try:
        yield node
    finally:
        await node.close()
        disk.close()


class Load:
    """A closed loop: each of `waiters` sends its next batch when the last one is durable."""

    def __init__(self, node: DiskNode, batch: Batch, waiters: int, ledgers: int = 1) -> None:
        self._node = node
        self._batch = batch
        self._waiters = waiters
        self._offsets = dict.fromkeys(range(1, ledgers + 1), 0)
        self._order = list(self._offsets)
        self._turn = 0
        self._until = 0.0
        self.done = 0

    async def prepare(self) -> None:
        for start in range(0, len(self._order), 1000):
            ids = self._order[start : start + 1000]
            await asyncio.gather(*(self._node.create(LedgerId(i), EPOCH, Durability.FSYNC) for i in ids))

    async def run(self, seconds: float) -> float:
        """Appends per second."""
        before, started = self.done, time.perf_counter()
        self._until = started + seconds
        await asyncio.gather(*(self._wait() for _ in range(self._waiters)))
        return (self.done - before) / (time.perf_counter() - started)

    async def _wait(self) -> None:
        node, batch, offsets, order = self._node, self._batch, self._offsets, self._order
        count = len(order)
        while time.perf_counter() < self._until:
            ledger = order[self._turn % count]
            self._turn += 1
            offset = offsets[ledger]
            offsets[ledger] = offset + 1
            await node.append(LedgerId(ledger), EPOCH, batch.stamped(offset, EPOCH, 1), offset - 1)
            self.done += 1

    async def drop_and_renew(self) -> None:
        """Replaces all ledgers by new ones, so that the disk does not fill up."""
        for ledger in self._order:
            await self._node.delete(LedgerId(ledger))
        first = max(self._order) + 1
        self._offsets = dict.fromkeys(range(first, first + len(self._order)), 0)
        self._order = list(self._offsets)
        await self.prepare()


def raw_probe(directory: Path, group_bytes: int, seconds: float) -> float:
    """Groups that are written and synced per second without a storage node."""
    path = directory / "probe"
    data = os.urandom(group_bytes)
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, 128 * MIB)
    count, position, started = 0, 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        os.pwrite(fd, data, position)
        os.fdatasync(fd)
        count += 1
        position = (position + group_bytes) % (128 * MIB - group_bytes)
    elapsed = time.perf_counter() - started
    os.close(fd)
    path.unlink()
    return count / elapsed


def _bytes_to_disk() -> int:
    """How many bytes this process has caused to be written, according to the kernel."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["write_bytes"])


async def throughput(
    figures: Figures, directory: Path, name: str, size: int, waiters: int, goal: float, unit: str
) -> None:
    """Durable appends for SECONDS, in slices, each next to a slice of the raw probe."""
    batch = build([b"x" * size], publish_time=1)
    scale = 1.0 if unit == "appends/s" else batch.size / 1e6
    rates, probes, amplification = [], [], []
    async with opened(directory) as node:
        load = Load(node, batch, waiters)
        await load.prepare()
        ended = time.perf_counter() + SECONDS
        while time.perf_counter() < ended:
            done, written, groups = load.done, _bytes_to_disk(), node.groups_written
            rates.append(await load.run(SLICE) * scale)
            appended = (load.done - done) * batch.size
            amplification.append((_bytes_to_disk() - written) / appended)
            group = max(4096, appended // max(node.groups_written - groups, 1))
            probes.append(raw_probe(directory, group, SLICE / 4) * group / batch.size * scale)
            await load.drop_and_renew()
    rate, probe = statistics.median(rates), statistics.median(probes)
    figures.report(f"durable {name}, {waiters} waiters, {SECONDS:.0f} s", rate, unit, goal)
    figures.report(f"durable {name}: ratio to raw write + fdatasync beside it", rate / probe, "x", 0.7)
    written = statistics.median(amplification)
    figures.report(f"durable {name}: bytes on disk per byte appended", written, "x", 1.2, at_least=False)


async def many_ledgers(figures: Figures, directory: Path) -> None:
    """The CPU time of an append with 1 and with 10,000 ledgers, in interleaved slices; the disk does not matter."""
    batch = build([b"x" * 1024], publish_time=1)
    costs: dict[int, list[float]] = {1: [], 10_000: []}
    async with opened(directory / "one") as one, opened(directory / "many") as many:
        loads = {1: Load(one, batch, 256), 10_000: Load(many, batch, 256, 10_000)}
        for load in loads.values():
            await load.prepare()
            await load.run(1.0)
        for _ in range(5):
            for ledgers, load in loads.items():
                done, cpu = load.done, time.process_time()
                await load.run(1.5)
                costs[ledgers].append((time.process_time() - cpu) / (load.done - done))
    ratio = statistics.median(costs[10_000]) / statistics.median(costs[1])
    figures.report("CPU per append, 10,000 ledgers against 1", ratio, "x", 1.3, at_least=False)


async def latency(figures: Figures, directory: Path) -> None:
    """One writer with 10 appends/s: how much longer it takes than an fdatasync of the same size on the same disk."""
    batch = build([b"x" * 1024], publish_time=1)
    nodes, raws = [], []
    path = directory / "latency-probe"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, 16 * MIB)
    data = os.urandom(4096)
    async with opened(directory / "latency") as node:
        await node.create(LedgerId(1), EPOCH, Durability.FSYNC)
        for count in range(100):
            await asyncio.sleep(0.1)
            started = time.perf_counter()
            await node.append(LedgerId(1), EPOCH, batch.stamped(count, EPOCH, 1), count - 1)
            nodes.append(time.perf_counter() - started)
            await asyncio.sleep(0.1)
            started = time.perf_counter()
            os.pwrite(fd, data, 4096 * count)
            os.fdatasync(fd)
            raws.append(time.perf_counter() - started)
    os.close(fd)
    node_seconds, raw_seconds = statistics.median(nodes), statistics.median(raws)
    figures.report("one writer, 10 appends/s: p50", node_seconds * 1e6, "µs")
    figures.report("  one fdatasync of 4 KiB beside it, p50", raw_seconds * 1e6, "µs")
    ratio = node_seconds / raw_seconds
    figures.report("  one writer, 10 appends/s, p50: ratio to it", ratio, "x", 2, at_least=False)


async def recovery(figures: Figures, directory: Path) -> None:
    """The time to recover 1 GiB of 1 KiB records at a start, with stored indexes and without."""
    batch = build([b"x" * 1024], publish_time=1)
    folder = directory / "recovery"
    async with opened(folder) as node:
        load = Load(node, batch, 1024)
        await load.prepare()
        while load.done * batch.size < 1024 * MIB:
            await load.run(0.5)
        last = load.done - 1
    for name, prepare in (("without indexes", _drop_indexes), ("with indexes", _keep_indexes)):
        times = []
        for _ in range(3):
            prepare(folder)
            started = time.perf_counter()
            async with opened(folder) as node:
                times.append(time.perf_counter() - started)
                batches = await node.read(LedgerId(1), last, 1)
                assert batches[0].base_offset == last
        goal = 5.0 if name == "without indexes" else None
        figures.report(f"recovery of a 1 GiB journal, {name}", statistics.median(times), "s", goal, at_least=False)


def _drop_indexes(folder: Path) -> None:
    for index in folder.glob("*.idx"):
        index.unlink()


def _keep_indexes(folder: Path) -> None:
    """Does nothing: the last start has stored them."""


async def memory(figures: Figures, directory: Path) -> None:
    """How much the resident memory grows while 2 GiB are written, beyond the configured index cache."""
    batch = build([b"x" * 1024], publish_time=1)
    settings = NodeSettings(index_cache_bytes=16 * MIB)
    before = _resident()
    peak = before
    async with opened(directory / "memory", settings) as node:
        load = Load(node, batch, 256, 1000)
        await load.prepare()
        while load.done * batch.size < 2048 * MIB:
            await load.run(1.0)
            peak = max(peak, _resident())
        for ledger in range(1, 1001):
            await node.read(LedgerId(ledger), 0, 1)
            peak = max(peak, _resident())
    figures.report(
        "resident memory above the configured cache, 2 GiB in 1,000 ledgers",
        (peak - before - settings.index_cache_bytes) / MIB, "MiB", 64, at_least=False,
    )  # fmt: skip


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def writer_cost(figures: Figures, directory: Path) -> None:
    """The overhead of the quorum writer with one node, compared with the node itself."""
    batch = build([b"x" * 1024], publish_time=1)
    costs: dict[str, list[float]] = {"node": [], "writer": []}
    async with opened(directory / "writer") as node:
        load = Load(node, batch, 256)
        await load.prepare()
        writer = LedgerWriter(EPOCH, 0, LocalNodes(node), print)
        await writer.begin(new_ledger(LedgerId(2), EPOCH, 0, (node.identity,), Copies(), Durability.FSYNC))
        for _ in range(5):
            done, cpu = load.done, time.process_time()
            await load.run(1.5)
            costs["node"].append((time.process_time() - cpu) / (load.done - done))
            sent, cpu, until = 0, time.process_time(), time.perf_counter() + 1.5

            async def wait(until: float = until) -> int:
                count = 0
                while time.perf_counter() < until:
                    await writer.append(batch, 1)[1]
                    count += 1
                return count

            sent = sum(await asyncio.gather(*(wait() for _ in range(256))))
            costs["writer"].append((time.process_time() - cpu) / sent)
    ratio = statistics.median(costs["writer"]) / statistics.median(costs["node"])
    figures.report("CPU per append, quorum writer on one node against the node alone", ratio, "x", 1.1, at_least=False)


async def _all(figures: Figures, directory: Path) -> None:
    kib = ("1 KiB appends", 1024, 256, 150_000.0, "appends/s")
    large = ("256 KiB batches", 256 * 1024, 16, 200.0, "MB/s")
    steps: list[tuple[str, Callable[[Path], Awaitable[None]]]] = [
        ("kib", lambda folder: throughput(figures, folder, *kib)),
        ("large", lambda folder: throughput(figures, folder, *large)),
        ("ledgers", lambda folder: many_ledgers(figures, folder)),
        ("latency", lambda folder: latency(figures, folder)),
        ("writer", lambda folder: writer_cost(figures, folder)),
        ("memory", lambda folder: memory(figures, folder)),
        ("recovery", lambda folder: recovery(figures, folder)),
    ]
    only = os.environ.get("BENCH_ONLY", "").split(",")
    for name, step in steps:
        if only == [""] or name in only:
            folder = directory / name
            folder.mkdir()
            await step(folder)
            shutil.rmtree(folder)


def main(figures: Figures | None = None) -> None:
    figures = figures or Figures()
    directory = Path(tempfile.mkdtemp(prefix="danube-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        uvloop.run(_all(figures, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
