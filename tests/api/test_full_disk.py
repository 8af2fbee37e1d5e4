"""A full disk, as producers and consumers meet it: nothing is published, acks go on and make room, and all goes on."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

import pydanube
from api.test_standalone import Process
from pydanube.base.limits import KIB, MIB
from pydanube.client import Client, ClientEvent
from pydanube.errors import DiskFull, TopicRecovering
from pydanube.testing.broker import broker
from small_disk import small_disk
from waiting import until

TOPIC, OTHER, DEAD = "/default/big", "/default/other", "/default/dead"
DISK_BYTES = 72 * MIB
FILE_BYTES = 2 * MIB
MESSAGE = bytes(8 * KIB)
SINGLE_ACKS = 3_000  # of a block each: three times what the journal has set aside and free
PATIENCE_SECONDS = 20.0
STOP_SECONDS = 5.0


@pytest.fixture(name="small_disk")
def small_disk_fixture(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as place:
        yield place


@pytest.fixture
def started(small_disk: Path, tmp_path: Path) -> Iterator[list[Process]]:
    """The broker's lives on the small disk; `start` adds one."""
    lives: list[Process] = []
    yield lives
    for each in lives:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def start(lives: list[Process], disk: Path, *flags: str) -> str:
    directory = disk.parent / f"life-{len(lives)}"
    directory.mkdir()
    size = () if flags else ("--journal-file-bytes", str(FILE_BYTES))
    lives.append(Process(directory, "--data-dir", str(disk / "data"), *size, *flags))
    return f"danube://{lives[-1].address()}"


async def fill(client: Client) -> int:
    """Publishes until that is refused; how many messages were acknowledged."""
    async with client.producer(TOPIC, send_timeout=0.5) as producer:
        for count in range(DISK_BYTES // len(MESSAGE)):
            try:
                await producer.send(MESSAGE)
            except DiskFull:
                return count
    raise AssertionError("the disk never became full")


@pytest.mark.slow
def test_on_a_full_disk_thousands_of_acks_go_through_and_all_goes_on_when_there_is_room(
    small_disk: Path, started: list[Process]
) -> None:
    url = start(started, small_disk)

    async def first_life() -> int:
        async with pydanube.connect(url) as client:
            await client.admin.create_topic(TOPIC)
            await client.admin.create_subscription(TOPIC, "keeps", start="earliest")
            await client.admin.create_subscription(TOPIC, "acks", start="earliest", type="shared")
            count = await fill(client)
            assert count * len(MESSAGE) > DISK_BYTES // 4
            assert await asyncio.to_thread(ask, url, "/readyz") == (
                "ready; publishing is refused until the disk has room again\n"
            )
            assert "danube_publishing_refused 1\n" in await asyncio.to_thread(ask, url, "/metrics")
            async with client.consumer(TOPIC, subscription="acks", type="shared") as consumer:
                for _ in range(SINGLE_ACKS):
                    await consumer.ack(await consumer.receive(PATIENCE_SECONDS))
            return count

    count = asyncio.run(first_life())
    seconds, logged = started[0].stop()
    assert seconds < STOP_SECONDS
    assert logged.count(b"the disk is nearly full") == 1
    assert b"journal.reserve_bytes" in logged
    url = start(started, small_disk)

    async def second_life() -> None:
        async with pydanube.connect(url) as client:
            async with client.producer(TOPIC, send_timeout=0.5) as producer:
                with pytest.raises(DiskFull):
                    await producer.send(MESSAGE)
            left = {each["subscription"]: each["backlog"] for each in await client.admin.subscriptions(TOPIC)}
            assert left == {"keeps": count, "acks": count - SINGLE_ACKS}
            async with client.consumer(TOPIC, subscription="keeps") as consumer:
                for offset in range(count):
                    message = await consumer.receive(PATIENCE_SECONDS)
                    assert (message.offset, message.payload) == (offset, MESSAGE)
                await consumer.ack_all(message)
            await client.admin.seek_subscription(TOPIC, "acks", "latest")
            async with client.producer(TOPIC, send_timeout=PATIENCE_SECONDS) as producer:
                for _ in range(count // 2):
                    await producer.send(MESSAGE)
            assert await asyncio.to_thread(ask, url, "/readyz") == "ready\n"

    asyncio.run(second_life())
    _, logged = started[1].stop()
    assert logged.count(b"the disk has room again") == 1


def ask(url: str, path: str) -> str:
    with urlopen(url.replace("danube", "http", 1) + path) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_where_half_of_every_file_is_done_with_the_other_half_is_moved_together(
    small_disk: Path, started: list[Process]
) -> None:
    url = start(started, small_disk)

    async def main() -> None:
        async with pydanube.connect(url) as client:
            places = [TOPIC, OTHER]
            for place in places:
                await client.admin.create_topic(place)
                await client.admin.create_subscription(place, "s", start="earliest")
            count = 0
            async with client.producer(TOPIC, send_timeout=0.5) as one, client.producer(OTHER, send_timeout=0.5) as two:
                with suppress(DiskFull):
                    while count < DISK_BYTES // len(MESSAGE):
                        await one.send(MESSAGE)
                        await two.send(MESSAGE)
                        count += 1
                assert DISK_BYTES // len(MESSAGE) // 8 < count < DISK_BYTES // len(MESSAGE) // 2
            async with client.consumer(OTHER, subscription="s") as consumer:
                for _ in range(count):
                    last = await consumer.receive(PATIENCE_SECONDS)
                await consumer.ack_all(last)
            async with client.producer(TOPIC, send_timeout=PATIENCE_SECONDS) as producer:
                for _ in range(count // 2):
                    await producer.send(MESSAGE)
            async with client.reader(TOPIC, start=0) as reader:
                for _ in range(count + count // 2):
                    assert (await reader.receive(PATIENCE_SECONDS)).payload == MESSAGE

    asyncio.run(main())


def test_a_journal_file_larger_than_the_disk_is_complained_about_by_its_name(
    small_disk: Path, started: list[Process]
) -> None:
    start(started, small_disk)
    started[0].stop()
    url = start(started, small_disk, "--journal-file-bytes", str(2 * DISK_BYTES))

    async def main() -> None:
        async with pydanube.connect(url) as client, client.producer(TOPIC, send_timeout=0.5) as producer:
            with pytest.raises((DiskFull, TopicRecovering), match=r"room|reserved"):
                await producer.send(MESSAGE)

    asyncio.run(main())
    _, logged = started[1].stop()
    assert b"no room for the next journal file" in logged
    assert b"journal.file_bytes" in logged


def test_a_new_broker_on_a_small_disk_is_refused_at_once_and_told_what_would_fit(
    small_disk: Path, started: list[Process]
) -> None:
    command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(small_disk / "data")]
    refused = subprocess.run([*command, "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert f"a new broker needs 518.0 MiB of free disk, and {small_disk / 'data'} has 72.0 MiB" in refused.stderr
    assert not (small_disk / "data").exists()
    named = re.search(r"with --journal-file-bytes (\d+) it would fit", refused.stderr)
    assert named is not None
    url = start(started, small_disk, "--journal-file-bytes", named[1])

    async def main() -> None:
        async with pydanube.connect(url) as client, client.producer(TOPIC, send_timeout=PATIENCE_SECONDS) as producer:
            await producer.send(MESSAGE)

    asyncio.run(main())


def test_a_client_says_at_once_that_the_brokers_disk_is_full() -> None:
    """And once, not with every try."""

    async def main() -> None:
        events: list[ClientEvent] = []
        async with broker() as beside, pydanube.connect(beside.url, on_event=events.append) as client:
            async with client.producer(TOPIC, send_timeout=PATIENCE_SECONDS) as producer:
                await producer.send(b"before")
                await beside.fill_disk()
                sending = producer.send(b"during")
                await until(lambda: bool(full(events)))
                assert not sending.done
                await beside.free_disk()
                await sending
            assert len(full(events)) == 1
            assert isinstance(full(events)[0].error, DiskFull)

    def full(events: list[ClientEvent]) -> list[ClientEvent]:
        return [event for event in events if event.what == "disk_full"]

    asyncio.run(main())


def test_everything_but_publishing_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as danube, pydanube.connect(danube.url) as client:
            admin = client.admin
            await admin.create_topic(TOPIC)
            for name in ("a", "b", "c"):
                await admin.create_subscription(TOPIC, name, start="earliest", type="shared")
            async with client.producer(TOPIC) as patient, client.producer(TOPIC, send_timeout=0.2) as producer:
                await patient.send_many([b"%d" % number for number in range(10)])
                await danube.fill_disk()
                for _ in range(3):
                    with pytest.raises(DiskFull):  # and nothing less clear
                        await producer.send(b"one more")
                waits = patient.send(b"waits")
                async with client.consumer(TOPIC, subscription="a", type="shared") as consumer:
                    for message in await consumer.fetch(5, timeout=5):
                        await consumer.ack(message)
                await admin.create_subscription(TOPIC, "d", start="earliest")
                await admin.seek_subscription(TOPIC, "b", "latest")
                await admin.delete_subscription(TOPIC, "c")
                await admin.alter_topic(TOPIC, policies={"ttl_seconds": 60})
                await admin.truncate_topic(TOPIC)
                await danube.free_disk()
                assert (await waits).offset == 10

    asyncio.run(main())


def test_dead_letters_wait_for_room_where_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with broker(tmp_path) as danube, pydanube.connect(danube.url) as client:
            admin = client.admin
            await admin.create_topic(TOPIC)
            await admin.create_topic(DEAD)
            failure = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": DEAD}
            await admin.create_subscription(TOPIC, "s", type="shared", options={"failure": failure})
            await admin.create_subscription(DEAD, "look", start="earliest")
            async with client.producer(TOPIC) as producer, client.producer(DEAD) as letters:
                await producer.send(b"poison")
                await letters.send(b"before")
                await danube.fill_disk()
                async with client.consumer(TOPIC, subscription="s", type="shared") as consumer:
                    consumer.nack(await consumer.receive(5))
                    async with client.consumer(DEAD, subscription="look") as dead:
                        assert (await dead.receive(5)).payload == b"before"
                        await until(lambda: "could not set aside offset 0" in caplog.text)
                        assert (await admin.subscriptions(TOPIC))[0]["backlog"] == 1
                        await danube.free_disk()
                        assert (await dead.receive(PATIENCE_SECONDS)).payload == b"poison"

    asyncio.run(main())
