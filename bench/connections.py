"""S4 at full size: how 10,000 idle connections and 100 slow readers affect a normal client, and the cost of each.

There are three processes: a broker, the peers, and this one with the normal client. Run `python bench/connections.py`;
the environment variables IDLE and SLOW set other numbers.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import cast

import uvloop

import pydanube
from figures import Figures
from pydanube.wire.commands import Grant, Hello, Ping, Pong, RequestFrame, decode
from pydanube.wire.frames import PREFACE, FrameReader, Side

IDLE = int(os.environ.get("IDLE", "10000"))
SLOW = int(os.environ.get("SLOW", "100"))
RUNS = int(os.environ.get("BENCH_RUNS", "3"))
SENDS = 4_000
KEEPALIVE_SECONDS = 10  # shorter than usual, so that there are pings in every run
SLOW_TOPIC = "/default/slow"
SLOW_BYTES, SLOW_SECONDS = 4096, 0.25  # a slow reader reads this much at a time
GREETING = b"".join([PREFACE, *Hello("bench").encode()])


# -- the peers, in their own process -----------------------------------------------------------------------------------


class Idle(asyncio.Protocol):
    """Sends HELLO and answers pings."""

    def __init__(self, greeted: asyncio.Semaphore) -> None:
        self._frames = FrameReader(Side.CLIENT)
        self._greeted: asyncio.Semaphore | None = greeted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own classes
        self.transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        if self._greeted is not None:
            self._greeted.release()
            self._greeted = None
        for frame in self._frames.feed(data):
            if isinstance(decode(frame), Ping):
                self.transport.writelines(Pong().encode())


async def read_slowly(host: str, port: int, number: int) -> None:
    loop = asyncio.get_running_loop()
    peer = socket.socket()
    peer.setblocking(False)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * SLOW_BYTES)  # so that the broker notices it is slow
    await loop.sock_connect(peer, (host, port))
    await loop.sock_sendall(peer, GREETING)
    await loop.sock_recv(peer, SLOW_BYTES)
    fields = {"channel": 1, "topic": SLOW_TOPIC, "subscription": f"slow-{number}", "start": "earliest"}
    asked = [*RequestFrame(1, "open_consumer", fields).encode(), *Grant(1, 1_000_000).encode()]
    await loop.sock_sendall(peer, b"".join(asked[:2]))
    await loop.sock_recv(peer, SLOW_BYTES)  # the channel is open: permits may be sent
    await loop.sock_sendall(peer, b"".join(asked[2:]))
    while await loop.sock_recv(peer, SLOW_BYTES):  # noqa: ASYNC110 - it is slow on purpose
        await asyncio.sleep(SLOW_SECONDS)


async def peers(host: str, port: int, idle: int, slow: int) -> None:
    loop = asyncio.get_running_loop()
    at_once = asyncio.Semaphore(200)
    kept = []
    for _ in range(idle):
        await at_once.acquire()
        kept.append(await loop.create_connection(lambda: Idle(at_once), host, port))
    for _ in range(200):
        await at_once.acquire()  # until all have received WELCOME
    reading = [loop.create_task(read_slowly(host, port, number)) for number in range(slow)]
    await asyncio.sleep(2)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the other side is done
    closed = sum(transport.is_closing() for transport, _ in kept)
    print(
        f"{closed} of {idle} idle connections were closed, {sum(each.done() for each in reading)} slow readers",
        flush=True,
    )


# -- the normal client -------------------------------------------------------------------------------------------------


def start_broker(directory: Path) -> tuple[subprocess.Popen[bytes], Path]:
    ready = directory / "ready"
    command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(directory / "data")]
    command += ["--listen", "127.0.0.1:0", "--ready-file", str(ready), "--keepalive-seconds", str(KEEPALIVE_SECONDS)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL), ready


async def start_peers(address: str, idle: int, slow: int) -> asyncio.subprocess.Process:
    command = [sys.executable, __file__, "peers", *address.rsplit(":", 1), str(idle), str(slow)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == b"ready"
    return process


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def tail(client: pydanube.Client, reliable: bool, run: int) -> tuple[float, float]:
    """The median and the 99th percentile of sends, one after the other, in microseconds."""
    found = []
    async with client.producer(f"/default/good-{reliable}-{run}", reliable=reliable) as producer:
        for _ in range(SENDS):
            began = perf_counter()
            await producer.send(b"x" * 100)
            found.append((perf_counter() - began) * 1e6)
    found.sort()
    return found[len(found) // 2], found[len(found) * 99 // 100]


async def tails(client: pydanube.Client, reliable: bool, first: int) -> tuple[float, float]:
    runs = [await tail(client, reliable, first + run) for run in range(RUNS)]
    return median(p50 for p50, _ in runs), median(p99 for _, p99 in runs)


async def measure(figures: Figures, address: str, pid: int) -> None:
    async with pydanube.connect(f"danube://{address}") as client:
        async with client.producer(SLOW_TOPIC) as producer:
            await producer.send_many([b"x" * 1024] * 60_000)
        before = {reliable: await tails(client, reliable, 0) for reliable in (False, True)}
        memory = resident_bytes(pid)
        idle_only = await start_peers(address, IDLE, 0)
        figures.report("memory of an idle connection", (resident_bytes(pid) - memory) / IDLE, "bytes")
        used, began = processor_seconds(pid), perf_counter()
        await asyncio.sleep(2 * KEEPALIVE_SECONDS)
        share = (processor_seconds(pid) - used) / (perf_counter() - began)
        figures.report(f"processor of {IDLE} idle connections", share * 100, "%")
        with_slow = await start_peers(address, 0, SLOW)
        after = {reliable: await tails(client, reliable, 100) for reliable in (False, True)}
    for reliable in (False, True):
        name = "reliable" if reliable else "not reliable"
        figures.report(f"send, {name}, alone: p50", before[reliable][0], "µs")
        figures.report(f"send, {name}, among peers: p50", after[reliable][0], "µs")
        figures.report(f"send, {name}, alone: p99", before[reliable][1], "µs")
        goal = 2 * before[reliable][1]
        figures.report(f"send, {name}, among peers: p99", after[reliable][1], "µs", goal, at_least=False)
    for process in (idle_only, with_slow):
        output, _ = await process.communicate(b"")
        print(output.decode().strip())


async def main() -> None:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="danube-") as temporary:
        broker, ready = start_broker(Path(temporary))
        try:
            while not ready.exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
            await measure(figures, json.loads(ready.read_text())["listen"], broker.pid)
        finally:
            broker.terminate()
            broker.wait(10)
    figures.table()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1:2] == ["peers"]:
        _, _, host, port, idle, slow = sys.argv
        uvloop.run(peers(host, int(port), int(idle), int(slow)))
    else:
        uvloop.run(main())
