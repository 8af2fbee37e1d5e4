"""What users would pick instead, measured beside the broker: Redis Streams, where `redis-server` is installed.

The peer runs with the same promise (each write on disk before it is answered) and the best way of its protocol to send
many messages: pipelines of a thousand. A peer that is not there is said to be missing.
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


async def seen(reader: StreamReader, mark: bytes, count: int) -> None:
    """Reads until the mark has come so often: cheaper than any parser, so that the client is not what is measured."""
    came = b""
    while came.count(mark) < count:
        more = await reader.read(1 << 20)
        if not more or more.startswith(b"-"):
            raise RuntimeError(f"the server answered {more[:100]!r}")
        came += more


@asynccontextmanager
async def redis(directory: Path) -> AsyncIterator[Path]:
    """A server of our own on a Unix socket, which writes and syncs before it answers."""
    place = directory / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(place), "--dir", str(directory), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    process = await asyncio.create_subprocess_exec("redis-server", *options, stdout=subprocess.DEVNULL)
    try:
        while not place.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)
        yield place
    finally:
        process.terminate()
        await process.wait()


async def redis_streams(runs: int, payload: bytes) -> tuple[float, float] | None:
    """Messages a second published, and read; None without a server."""
    if shutil.which("redis-server") is None:
        return None
    published, consumed = [], []
    with tempfile.TemporaryDirectory() as directory:
        async with redis(Path(directory)) as place:
            reader, writer = await asyncio.open_unix_connection(str(place), limit=1 << 24)
            for run in range(runs):
                stream = b"s%d" % run
                many = command(b"XADD", stream, b"*", b"v", payload) * PIPELINE
                began = perf_counter()
                for _ in range(MESSAGES // PIPELINE):
                    writer.write(many)
                    await seen(reader, b"\r\n", 2 * PIPELINE)
                published.append(MESSAGES / (perf_counter() - began))
                writer.write(command(b"XGROUP", b"CREATE", stream, b"g", b"0"))
                await seen(reader, b"\r\n", 1)
                began = perf_counter()
                for _ in range(MESSAGES // PIPELINE):
                    take = (b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"%d" % PIPELINE, b"STREAMS", stream, b">")
                    writer.write(command(*take))
                    await seen(reader, payload + b"\r\n", PIPELINE)
                consumed.append(MESSAGES / (perf_counter() - began))
            writer.close()
    return median(published), median(consumed)
