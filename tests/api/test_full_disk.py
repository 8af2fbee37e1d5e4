"""A full disk, as producers and consumers meet it: what is acknowledged makes room, and all goes on by itself."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pydanube
from pydanube.base.limits import MIB
from pydanube.errors import DiskFull
from pydanube.testing.broker import broker

TOPIC, OTHER = "/default/big", "/default/other"
PATIENCE_SECONDS = 20.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={32 * MIB}", "danube-test", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    yield tmp_path
    for _ in range(50):  # the last descriptors are closed by the disk's threads
        done = subprocess.run(["umount", str(tmp_path)], capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


async def fill(producer: pydanube.Producer) -> int:
    for count in range(1000):
        try:
            await producer.send(bytes(500_000))
        except DiskFull:
            return count
    raise AssertionError("the disk never became full")


@pytest.mark.parametrize("restart", [False, True])
def test_acknowledging_makes_room_by_itself(small_disk: Path, caplog: pytest.LogCaptureFixture, restart: bool) -> None:
    async def main() -> None:
        async with broker(small_disk) as danube, pydanube.connect(danube.url) as client:
            async with client.producer(OTHER) as other:
                await other.send(b"small")
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                async with client.producer(TOPIC, send_timeout=0.3) as producer:
                    count = await fill(producer)
                    for _ in range(3):
                        with pytest.raises(DiskFull):  # and nothing less clear
                            await producer.send(bytes(500_000))
                if restart:
                    await danube.restart()
                for message in await consumer.fetch(count, timeout=10):
                    await consumer.ack(message)
                async with client.producer(TOPIC, send_timeout=PATIENCE_SECONDS) as producer:
                    for _ in range(count // 2):
                        await producer.send(bytes(500_000))

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith(TOPIC)]
    assert 2 <= len(told) <= 6, told  # a change is told once, with the name that people know


def test_everything_that_can_make_room_works_on_a_full_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as danube, pydanube.connect(danube.url) as client:
            admin = client.admin
            async with client.producer(TOPIC, send_timeout=1) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
                for name in ("a", "b", "c"):
                    await admin.create_subscription(TOPIC, name, start="earliest")
                await danube.fill_disk()
                with pytest.raises(DiskFull):
                    await producer.send(b"one more")
                async with client.consumer(TOPIC, subscription="a") as consumer:
                    for message in await consumer.fetch(5, timeout=5):
                        await consumer.ack(message)
                await admin.seek_subscription(TOPIC, "b", "latest")
                await admin.delete_subscription(TOPIC, "c")
                await admin.truncate_topic(TOPIC)
                assert (await admin.describe_topic(TOPIC))["first"] == 10
                await danube.free_disk()
            async with client.producer(TOPIC, send_timeout=PATIENCE_SECONDS) as producer:
                await producer.send(b"one more")

    asyncio.run(main())
