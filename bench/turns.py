"""The longest turn of the broker's loop under each benchmark and each hostile input of the tests, and what caused it.
Run by `make bench-turns`; `python bench/turns.py hostile 'native: pings'` runs only a part.

Each runs with a broker of its own, whose loop is watched (`bench/watched.py`). A turn is judged by its processor time,
because a busy machine makes any turn long; the time of the wall is printed beside it, and what the broker exports.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
import pydanube  # noqa: E402
from api.hostile import Attack, Crowd, Probes  # noqa: E402
from api.hostile_inputs import BYTES, HTTP1, HTTP2, MARKS, NATIVE, got, much  # noqa: E402
from compare import cool, read_batches  # noqa: E402
from processes import Broker, broker  # noqa: E402
from pydanube.wire.frames import PREFACE  # noqa: E402

BENCHMARKS = {"broker": (), "grpc_face": (), "fair": (), "tier": ("live",)}
GOAL_MS = 5.0
SECONDS = 2.0  # of each input: what a broker takes longer for goes on alike
CONNECTIONS = 5_000
SHOWN = 2  # turns of each
INPUTS = {
    f"{face}: {name}": make
    for face, makes in (("native", NATIVE), ("HTTP/2", HTTP2), ("HTTP/1", HTTP1))
    for name, make in makes.items()
}


@contextmanager
def watched(name: str) -> Iterator[None]:
    """Prints what the brokers that were started meanwhile report when they have ended."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BENCH_WATCH"] = folder
        try:
            yield
        finally:
            del os.environ["BENCH_WATCH"]
        for report in sorted(Path(folder).iterdir()):
            show(name, json.loads(report.read_text()))


def show(name: str, report: dict[str, Any]) -> None:
    found = report["found"]
    longest = found[0][0] if found else 0.0
    verdict = "" if longest <= GOAL_MS else "  <<<"
    print(f"{longest:7.2f} ms  {name}: {report['long']} of {report['turns']} turns are too long{verdict}")
    for wall, processor, pause in report["exported"]:
        exported = (
            f"turn {wall * 1e3:.1f} ms, its processor time {processor * 1e3:.1f} ms, collector {pause * 1e3:.1f} ms"
        )
        print(f"            exported: {exported}")
    for processor, wall, collector, switches, dearest, stack in found[:SHOWN]:
        beside = f"wall {wall:.1f}, collector {collector:.1f}, {switches} switches"
        print(f"            {processor:.1f} ms ({beside}): {dearest}")
        print(f"              {stack or '-'}", flush=True)


# -- what is done meanwhile --------------------------------------------------------------------------------------------


def benchmark(name: str) -> None:
    with watched(f"bench {name}"):
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *BENCHMARKS[name]], stdout=subprocess.DEVNULL)


def attacked(name: str, attack: Callable[[Broker, tuple[str, int]], None]) -> None:
    with watched(name), broker() as running:
        address = ("127.0.0.1", running.port)
        asyncio.run(create(running))
        probes = Probes(address)
        attack(running, address)
        probes.stop()
        assert probes.failed is None, probes.failed


async def create(running: Broker) -> None:
    async with pydanube.connect(running.url) as client:
        await client.admin.create_topic("/default/orders")


def send(make: Callable[[], list[bytes]]) -> Callable[[Broker, tuple[str, int]], None]:
    def attack(_: Broker, address: tuple[str, int]) -> None:
        parts = make()
        Attack(address, parts, MARKS if parts[0].startswith(PREFACE) else ()).wait(SECONDS)

    return attack


def crowd(_: Broker, address: tuple[str, int]) -> None:
    silent = Crowd(address, CONNECTIONS // 2, b"")
    silent.send(b"GET /api", 1.0)
    asking = Crowd(address, CONNECTIONS // 2, b"")
    asking.send(much(got("/api/v1/broker"), size=2 * BYTES // CONNECTIONS), 5 * SECONDS)
    silent.close()
    asking.close()


def small_batches(name: str, *, cold: bool) -> None:
    """A reader and two consumers of tens of thousands of messages, each in a batch of its own."""
    with watched(name), broker(tiered=True) as running:
        asyncio.run(read_small(running, cold=cold))


async def read_small(running: Broker, *, cold: bool, topic: str = "/default/orders") -> None:
    parts = NATIVE["small batches"]()
    count = parts[-1].count(b"DNB1")
    await create(running)
    await asyncio.to_thread(Attack(("127.0.0.1", running.port), parts, MARKS).wait)
    async with pydanube.connect(running.url) as client:
        if cold:
            await cool(client, topic)
        await read_batches(client, topic, count)
        for kind in ("exclusive", "key_shared"):
            async with client.consumer(topic, subscription=kind, type=kind, start="earliest") as consumer:
                left = count
                async for batch in consumer.batches():
                    consumer.ack(batch)
                    left -= len(batch)
                    if left <= 0:
                        break


READERS: dict[str, Callable[[str], None]] = {
    "small batches, read from the disk": lambda name: small_batches(name, cold=False),
    "small batches, read from segments": lambda name: small_batches(name, cold=True),
}
HOSTILE: dict[str, Callable[[str], None]] = {
    **{name: lambda name: attacked(name, send(INPUTS[name])) for name in INPUTS},
    "thousands of connections": lambda name: attacked(name, crowd),
}


def main() -> None:
    part, *names = sys.argv[1:] or ["all"]
    if part in ("benchmarks", "all"):
        for name in names or BENCHMARKS:
            benchmark(name)
    for each, works in (("readers", READERS), ("hostile", HOSTILE)):
        if part in (each, "all"):
            for name in names or works:
                works[name](name)


if __name__ == "__main__":
    main()
