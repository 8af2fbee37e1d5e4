"""How much memory the process that writes segments takes, over as many segments as in hours of normal operation.

Run `python bench/tier_memory.py [MILLIONS OF MESSAGES]`; the default is 50. Segments and batches of many sizes are
written two at a time and read again, as a broker does. It prints the largest resident memory of each tenth of the work,
so that a leak shows, and how often the process was replaced.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import uvloop

from figures import Figures
from pydanube.base.ids import Epoch
from pydanube.base.limits import MIB
from pydanube.stream.segments import SegmentPlan
from pydanube.tier.process import SegmentProcesses
from pydanube.wire.batch import Batch, Codec, build

MESSAGES_MILLIONS = 50
SEGMENT_BYTES = 64 * MIB
STREAM = "1/2.0"
PUBLISH_TIME = 1_700_000_000_000_000
PARTS = 10


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


class Source:
    """Batches as producers send them, built once and stamped again, because building them is not to be measured."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._batches = [self._made(count) for count in (1, 20, 200, 1_000, 4_000) for _ in range(4)]

    def _made(self, count: int) -> Batch:
        length = self._random.choice((20, 100, 300))
        keys = [b"key-%d" % self._random.randrange(10_000) for _ in range(count)]
        payloads = [self._random.randbytes(length // 2) * 2 for _ in range(count)]
        codec = self._random.choice((Codec.NONE, Codec.ZSTD))
        return build(
            payloads, keys=self._random.choice((keys, None)), publish_time=PUBLISH_TIME, producer_id=7, codec=codec
        )

    def segment(self) -> tuple[SegmentPlan, list[Batch]]:
        size, offset = 0, 0
        wanted = SEGMENT_BYTES * self._random.choice((0.02, 0.3, 1.0, 1.0, 1.5))
        found = []
        while size < wanted:
            batch = self._random.choice(self._batches).stamped(offset, Epoch(1), PUBLISH_TIME + offset)
            found.append(batch)
            size += batch.size
            offset += batch.count
        return SegmentPlan(0, offset - 1, Epoch(1)), found


class Watched:
    """Watches the resident memory of the process, ten times per second."""

    def __init__(self, segments: SegmentProcesses) -> None:
        self._segments = segments
        self.peak = 0.0
        self.pids: dict[int, None] = {}
        self.task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            for pid in self._segments.processes()[:1]:
                self.pids[pid] = None
                self.peak = max(self.peak, resident_mib(pid))
            await asyncio.sleep(0.1)

    def take(self) -> float:
        peak, self.peak = self.peak, 0.0
        return peak


async def measure(figures: Figures, messages: int) -> None:
    done = 0

    async def write(number: int) -> None:
        nonlocal done
        source = Source(number)
        made = 0
        while done < messages:
            plan, batches = source.segment()
            made += 1
            key = f"{number}/{made}"

            async def flow(batches: list[Batch] = batches) -> AsyncIterator[Batch]:
                for batch in batches:
                    yield batch

            segment = await segments.write(key, plan, STREAM, flow())
            await segments.verify(key, segment)
            await segments.delete(key)
            done += segment.rows

    with tempfile.TemporaryDirectory() as folder:
        segments = SegmentProcesses("fs", {"root": folder}, "a folder")
        try:
            await segments.create("warm/up", b"")
            watched = Watched(segments)
            figures.report("resident when started", resident_mib(segments.processes()[0]), "MiB")
            writing = [asyncio.create_task(write(number)) for number in range(2)]
            for part in range(1, PARTS + 1):
                while done < messages * part / PARTS:
                    await asyncio.wait(writing, timeout=0.2)
                label = f"largest by {messages * part / PARTS / 1e6:.0f} million messages"
                figures.report(label, watched.take(), "MiB")
            await asyncio.gather(*writing)
            watched.task.cancel()
            figures.report("at rest", resident_mib(segments.processes()[0]), "MiB")
            figures.report("processes started", len(watched.pids), "processes")
        finally:
            await segments.close()


def main() -> None:
    figures = Figures()
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES_MILLIONS
    uvloop.run(measure(figures, int(millions * 1e6)))
    figures.table()


if __name__ == "__main__":
    main()
