"""An alternative that users would choose, measured next to the broker: Redis Streams, if `redis-server` is installed.

The peer gives the same promise (each write is on disk before it is answered), and uses the fastest way of its protocol
to send many messages: pipelines of a thousand.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from asyncio import StreamReader
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

MESSAGES, PIPELINE = 100_000, 1_000


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


async def read_until(reader: StreamReader, mark: bytes, count: int) -> None:
    """Reads until the mark has occurred `count` times, which is cheaper than a parser: the server is to be measured."""
    received = b""
    while received.count(mark) < count:
        more = await reader.read(1 << 20)
        if not more or more.startswith(b"-"):
            raise RuntimeError(f"the server answered {more[:100]!r}")
        received += more


@asynccontextmanager
async def redis(directory: Path) -> AsyncIterator[Path]:
    """Runs a server on a Unix socket that writes and syncs before it answers."""
    path = directory / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--dir", str(directory), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    process = await asyncio.create_subprocess_exec("redis-server", *options, stdout=subprocess.DEVNULL)
    try:
        while not path.exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.02)
        yield path
    finally:
        process.terminate()
        await process.wait()


async def redis_streams(runs: int, payload: bytes) -> tuple[float, float] | None:
    """Messages published and read per second; None without a server."""
    if shutil.which("redis-server") is None:
        return None
    published, consumed = [], []
    with tempfile.TemporaryDirectory() as directory:
        async with redis(Path(directory)) as path:
            reader, writer = await asyncio.open_unix_connection(str(path), limit=1 << 24)
            for run in range(runs):
                stream = b"s%d" % run
                many = command(b"XADD", stream, b"*", b"v", payload) * PIPELINE
                began = perf_counter()
                for _ in range(MESSAGES // PIPELINE):
                    writer.write(many)
                    await read_until(reader, b"\r\n", 2 * PIPELINE)
                published.append(MESSAGES / (perf_counter() - began))
                writer.write(command(b"XGROUP", b"CREATE", stream, b"g", b"0"))
                await read_until(reader, b"\r\n", 1)
                began = perf_counter()
                for _ in range(MESSAGES // PIPELINE):
                    take = (b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"%d" % PIPELINE, b"STREAMS", stream, b">")
                    writer.write(command(*take))
                    await read_until(reader, payload + b"\r\n", PIPELINE)
                consumed.append(MESSAGES / (perf_counter() - began))
            writer.close()
    return median(published), median(consumed)
