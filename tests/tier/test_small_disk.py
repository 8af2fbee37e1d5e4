"""A topic that is many times larger than the disk: messages go to object storage as they come, and all can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import pydanube
from api.test_standalone import Process
from pydanube.base.limits import KIB, MIB
from pydanube.errors import DiskFull
from small_disk import small_disk

DISK_BYTES = 64 * MIB
MESSAGE = bytes(range(256)) * 40  # 10 KiB
MESSAGES = 50_000  # 500 MB
TOPIC = "/default/large"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as place:
        yield place


async def publish(url: str) -> None:
    """All of them; what is refused for want of room is sent again by its producer."""
    async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
        for start in range(0, MESSAGES, 200):
            payloads = [b"%d/" % number + MESSAGE for number in range(start, start + 200)]
            while True:
                try:
                    await producer.send_many(payloads)
                    break
                except DiskFull:
                    await asyncio.sleep(0.05)  # object storage takes what makes room


async def read(url: str) -> None:
    expected = 0
    async with pydanube.connect(url) as client, client.reader(TOPIC, start="earliest") as reader:
        async for batch in reader.batches():
            for offset, payload in zip(batch.offsets, batch.payloads, strict=True):
                assert (offset, payload) == (expected, b"%d/" % expected + MESSAGE)
                expected += 1
            if expected == MESSAGES:
                return


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_topic_of_500_mb_on_a_disk_of_64_mb_is_read_from_its_first_message(disk: Path, tmp_path: Path) -> None:
    flags = [
        *("--data-dir", str(disk / "data"), "--journal-file-bytes", str(4 * MIB)),
        *("--objects", f"file://{tmp_path}/objects", "--storage-objects-segment-bytes", str(4 * MIB)),
        *("--limits-cache-bytes", str(256 * KIB)),
    ]
    broker = Process(tmp_path, *flags)
    try:
        asyncio.run(publish(f"danube://{broker.address()}"))
        stored = sum(file.stat().st_size for file in (tmp_path / "objects").rglob("*.parquet"))
        assert stored > 0
        asyncio.run(read(f"danube://{broker.address()}"))
    finally:
        broker.process.kill()
        broker.process.communicate()
    (tmp_path / "again").mkdir()
    again = Process(tmp_path / "again", *flags)
    try:
        asyncio.run(read(f"danube://{again.address()}"))
    finally:
        again.process.kill()
        again.process.communicate()
