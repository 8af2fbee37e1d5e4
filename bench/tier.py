"""What the cold tier costs: batches to Parquet and back on one core, and both through its processes on disk.

Run by `make bench-tier`; `python bench/tier.py encode decode` runs only some parts. Messages have 100 bytes, in batches
of 4,000. A figure is the median of several runs; the load of the machine is printed first.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import TypeVar

import uvloop

from figures import Figures
from pydanube.base.ids import Epoch
from pydanube.base.limits import MIB
from pydanube.stream.segments import Segment, SegmentPlan
from pydanube.tier.cutting import CutRows
from pydanube.tier.process import SegmentProcesses
from pydanube.tier.rows import rows_of
from pydanube.tier.segment_file import SegmentScan, SegmentWriter, read_footer, read_group
from pydanube.wire.batch import Batch, Codec, build
from tier_live import live

ROWS = 400_000
BATCH_ROWS = 4_000
RUNS = 5
ENCODE_GOAL = 1_500_000
DECODE_GOAL = 3_000_000
CATCH_UP_GOAL = 1_500_000
TURN_GOAL_MS = 5.0
PUBLISH_TIME = 1_700_000_000_000_000
PLAN = SegmentPlan(0, ROWS - 1, Epoch(1))
STREAM = "1/2.0"
Source = TypeVar("Source")


def random_payload(_: Random, __: int) -> bytes:
    return os.urandom(100)


def json_payload(random: Random, number: int) -> bytes:
    event = {
        "user": random.randrange(100_000),
        "event": random.choice(("view", "click", "buy")),
        "item": f"{random.randrange(1_000_000):06d}",
        "at": PUBLISH_TIME + number,
    }
    return json.dumps(event).ljust(100).encode()[:100]


def batches(payload: Callable[[Random, int], bytes], codec: Codec = Codec.NONE) -> list[Batch]:
    random = Random(1)
    found = []
    for first in range(0, ROWS, BATCH_ROWS):
        payloads = [payload(random, number) for number in range(first, first + BATCH_ROWS)]
        batch = build(payloads, publish_time=PUBLISH_TIME + first, producer_id=7, first_sequence=first, codec=codec)
        found.append(batch.stamped(first, 1, PUBLISH_TIME + first + 500))
    return found


KINDS: dict[str, tuple[Callable[[Random, int], bytes], Codec]] = {
    "random": (random_payload, Codec.NONE),
    "JSON": (json_payload, Codec.NONE),
    "JSON, zstd batches": (json_payload, Codec.ZSTD),
}


def rate(work: Callable[[Source], object], source: Source) -> float:
    """Rows per second of CPU time, which does not depend on other load."""
    times = []
    for _ in range(RUNS):
        start = process_time()
        work(source)
        times.append(process_time() - start)
    return ROWS / median(times)


def encoded(source: list[bytes]) -> bytes:
    """Encodes like the process does: parses batches, turns 25 at a time into rows, and writes rows to the file."""
    writer = SegmentWriter(PLAN, STREAM)
    for start in range(0, len(source), 25):
        writer.add(rows_of([Batch.parse(data) for data in source[start : start + 25]]))
    return writer.finish()


def decoded(data: bytes) -> int:
    footer = read_footer(data, len(data))
    rows = 0
    for index, group in enumerate(footer.groups):
        cut = CutRows(read_group(footer, index, data[group.start : group.start + group.length]))
        rows += sum(cut.batch(index).count for index in range(len(cut)))
    return rows


def check_whole(data: bytes) -> None:
    """Decodes a whole object in memory."""
    scan = SegmentScan(data, len(data))
    for start, length in scan.parts():
        scan.take(data[start : start + length])
    scan.finish()


def encode(figures: Figures) -> None:
    for name, (payload, codec) in KINDS.items():
        source = [batch.to_bytes() for batch in batches(payload, codec)]
        figures.report(f"encode, {name}", rate(encoded, source), "messages/s a core", ENCODE_GOAL)
        size = len(encoded(source))
        figures.report(f"object, {name}", size / ROWS, "bytes a message")


def decode(figures: Figures) -> None:
    for name, (payload, codec) in KINDS.items():
        data = encoded([batch.to_bytes() for batch in batches(payload, codec)])
        assert decoded(data) == ROWS
        figures.report(f"decode to batches, {name}", rate(decoded, data), "messages/s a core", DECODE_GOAL)
        figures.report(f"verify, {name}", rate(check_whole, data), "messages/s a core")


def catch_up(figures: Figures) -> None:
    """Writes and reads through the processes, with opendal on the local disk."""
    for name, (payload, codec) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            uvloop.run(_catch_up(figures, name, batches(payload, codec), folder))


class Turns:
    """An upper bound of the longest turn of the loop: the CPU time between two ticks of a timer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = thread_time()
        self.longest = 0.0
        self._timer = self._loop.call_later(0.001, self._tick)

    def _tick(self) -> None:
        now = thread_time()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        self._timer = self._loop.call_later(0.001, self._tick)

    def stop(self) -> float:
        self._timer.cancel()
        return self.longest * 1000


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _catch_up(figures: Figures, name: str, source: list[Batch], folder: str) -> None:
    async def flow() -> AsyncIterator[Batch]:
        for batch in source:
            yield batch

    async def read_all(segment: Segment, key: str) -> int:
        offset = rows = 0
        while offset < ROWS:
            found = await segments.read(key, segment, offset, 4 * MIB)
            rows += sum(batch.count for batch in found)
            offset = found[-1].last_offset + 1
        return rows

    segments = SegmentProcesses("fs", {"root": folder}, "a folder")
    try:
        await asyncio.gather(segments.create("warm/up", b""), segments.list("warm/"))
        written = []
        turns = Turns()
        worker = segments.processes()[0]
        used = processor_seconds(worker)
        for run in range(RUNS):
            start = perf_counter()
            segment = await segments.write(f"{run}/segment", PLAN, STREAM, flow())
            written.append(perf_counter() - start)
        used = processor_seconds(worker) - used
        figures.report(f"write and check, {name}", ROWS / median(written), "messages/s")
        figures.report(f"write and check, {name}", RUNS * ROWS / used, "messages/s of its process's core")
        figures.report(f"longest turn while writing, {name}", turns.stop(), "ms", TURN_GOAL_MS, at_least=False)
        read = []
        turns = Turns()
        worker = segments.processes()[1]
        used, own = processor_seconds(worker), process_time()
        for run in range(RUNS):
            start = perf_counter()
            assert await read_all(segment, f"{run}/segment") == ROWS
            read.append(perf_counter() - start)
        used, own = processor_seconds(worker) - used, process_time() - own
        figures.report(f"catch up, {name}", RUNS * ROWS / used, "messages/s of its process's core")
        figures.report(f"catch up, {name}", RUNS * ROWS / own, "messages/s of the broker's core")
        figures.report(f"catch up, {name}", ROWS / median(read), "messages/s", CATCH_UP_GOAL)
        figures.report(f"longest turn while reading, {name}", turns.stop(), "ms", TURN_GOAL_MS, at_least=False)
    finally:
        await segments.close()


PARTS = {"encode": encode, "decode": decode, "catch-up": catch_up, "live": live}


def main() -> None:
    figures = Figures()
    figures.report("load of the machine before", os.getloadavg()[0], "processes")
    for part in sys.argv[1:] or PARTS:
        PARTS[part](figures)
    figures.table()


if __name__ == "__main__":
    main()
