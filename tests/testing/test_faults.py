"""What a user of the testing kit can do to a broker: stop it, kill it, fill its disk, read from it slowly."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import pydanube
import pydanube.sync
from pydanube.base.errors import DiskFull, TopicRecovering
from pydanube.client import Client
from pydanube.client.transport import Address
from pydanube.testing import SlowDialer, VirtualClock
from pydanube.testing.broker import BrokerBeside, RunningBroker, broker, broker_beside

TOPIC = "/default/orders"
pytest_plugins = ["pydanube.testing.fixtures"]


def with_broker(test: Callable[[RunningBroker, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), broker() as running, pydanube.connect(running.url) as client:
            await test(running, client)

    asyncio.run(run())


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_what_was_acknowledged_is_there_after(way: str) -> None:
    async def run(running: RunningBroker, client: Client) -> None:
        url = running.url
        async with client.producer(TOPIC) as producer, client.consumer(TOPIC, subscription="s") as consumer:
            for number in range(3):
                await producer.send(b"%d" % number)
                message = await consumer.receive(5)
                assert message.payload == b"%d" % number
                await consumer.ack(message)
                await getattr(running, way)()
            assert running.url == url
            assert (await client.admin.subscriptions(TOPIC))[0]["backlog"] == 0

    with_broker(run)


def test_a_crash_tells_nobody_and_a_restart_does() -> None:
    async def run() -> list[str]:
        reasons: list[str] = []

        def note(event: pydanube.ClientEvent) -> None:
            if event.what == "disconnected" and event.error is not None:
                reasons.append(event.error.code)

        async with broker() as running, pydanube.connect(running.url, on_event=note) as client:
            await running.crash()
            await client.admin.namespaces()
            await running.restart()
            await client.admin.namespaces()
        return reasons

    assert asyncio.run(run()) == ["connection_lost", "topic_closed"]


def test_after_a_crash_no_send_is_lost_or_doubled() -> None:
    async def run(running: RunningBroker, client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            for life in range(5):
                sent = [producer.send(b"%d %d" % (life, number)) for number in range(500)]
                await running.crash()
                for each in sent:
                    await each
        found = [message.payload for message in await client.admin.peek(TOPIC, 10_000)]
        assert found == [b"%d %d" % (life, number) for life in range(5) for number in range(500)]

    with_broker(run)


def test_crashes_leave_no_files_open() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with broker_beside() as beside:
        beside.crash()
        before = files()
        for _ in range(20):
            beside.crash()
        for _ in range(200):  # what a life before had open may be closed a little later on a busy machine
            if files() < before + 10:  # a broker has now some more, now some less
                return
            time.sleep(0.05)
        raise AssertionError(f"{files()} files are open, and {before} were before twenty crashes")


def test_on_a_full_disk_no_message_is_taken_and_reading_and_acknowledging_go_on() -> None:
    async def run(running: RunningBroker, client: Client) -> None:
        async with client.producer(TOPIC, send_timeout=0.3) as producer, client.producer(TOPIC) as patient:
            await producer.send(b"before")
            await client.admin.create_subscription(TOPIC, "s", start="earliest")
            await running.fill_disk()
            with pytest.raises(DiskFull) as caught:
                await producer.send(b"too much")
            assert caught.value.retriable
            async with client.consumer(TOPIC, subscription="s") as consumer:
                await consumer.ack(await consumer.receive(5))
            await running.free_disk()
            await patient.send(b"after")
        found = await client.admin.peek(TOPIC, 10)
        assert found[-1].payload == b"after"

    with_broker(run)


def test_where_others_take_the_reserve_too_nothing_is_promised_and_reading_goes_on() -> None:
    async def run(running: RunningBroker, client: Client) -> None:
        async with client.producer(TOPIC, send_timeout=0.3) as producer, client.producer(TOPIC) as patient:
            await producer.send(b"before")
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                await running.fill_disk(reserve=True)
                message = await consumer.receive(5)
                assert message.payload == b"before"
                with pytest.raises((DiskFull, TopicRecovering)):
                    await consumer.ack(message)
            with pytest.raises((DiskFull, TopicRecovering)) as caught:
                await producer.send(b"too much")
            assert caught.value.retriable
            await running.free_disk()
            await patient.send(b"after")
        found = await client.admin.peek(TOPIC, 10)
        assert found[-1].payload == b"after"

    with_broker(run)


def test_a_send_that_waits_for_room_is_stored_once_there_is_some() -> None:
    async def run(running: RunningBroker, client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"before")
            await running.fill_disk()
            waiting = asyncio.create_task(_receipt(producer.send(b"waits")))
            await asyncio.sleep(0)
            await running.free_disk()
            assert (await waiting).durability == "fsynced"
            await running.fill_disk()  # and again
            await running.restart()  # finds room
            await producer.send(b"after")
        assert [each.payload for each in await client.admin.peek(TOPIC, 9)] == [b"before", b"waits", b"after"]

    with_broker(run)


async def _receipt(sent: Awaitable[pydanube.Receipt]) -> pydanube.Receipt:
    return await sent


def test_a_broker_that_ends_with_a_full_disk_ends() -> None:
    with broker_beside() as beside, pydanube.sync.connect(beside.url) as client:
        with client.producer(TOPIC) as producer:
            producer.send(b"x").result()
        beside.fill_disk()


def test_faults_in_a_test_without_a_loop(danube_broker: BrokerBeside) -> None:
    with pydanube.sync.connect(danube_broker.url) as client, client.producer(TOPIC) as producer:
        for way in (danube_broker.restart, danube_broker.crash, danube_broker.fill_disk, danube_broker.free_disk):
            way()
            client.admin.namespaces()  # answered, so it is connected again
        producer.send(b"x").result()
        assert [message.payload for message in client.admin.peek(TOPIC, 9)] == [b"x"]


def test_the_fixture_gives_an_address(danube_url: str) -> None:
    with pydanube.sync.connect(danube_url) as client:
        assert "default" in client.admin.namespaces()


def test_the_clock_goes_on_across_a_crash() -> None:
    clock = VirtualClock()

    async def run() -> None:
        async with broker(clock=clock) as running, pydanube.connect(running.url, clock=clock) as client:
            async with client.producer(TOPIC) as producer:
                await producer.send(b"later", delivery_time=clock.wall() + 3_600_000_000)
            await running.crash()
            async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
                assert await consumer.fetch(1, timeout=0.02) == []
                clock.advance(3600)
                assert (await consumer.receive(5)).payload == b"later"

    asyncio.run(run())


def test_a_data_directory_outlives_its_broker(tmp_path: Path) -> None:
    for number in range(2):
        with (
            broker_beside(tmp_path) as beside,
            pydanube.sync.connect(beside.url) as client,
            client.producer(TOPIC) as producer,
        ):
            assert producer.send(b"x").result().offset == number


# -- slow readers ------------------------------------------------------------------------------------------------------


def test_a_slow_consumer_gets_everything_in_order_and_holds_nobody_up() -> None:
    async def run(running: RunningBroker, client: Client) -> None:
        loop = asyncio.get_running_loop()
        async with (
            pydanube.connect(running.url, dialer=SlowDialer(200_000)) as slow_client,
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="fast") as fast,
            slow_client.consumer(TOPIC, subscription="slow") as slow,
        ):
            begun = loop.time()
            payloads = [b"%05d" % number + bytes(1000) for number in range(100)]
            for payload in payloads:
                await producer.send(payload)
            assert [message.payload for message in await fast.fetch(100)] == payloads
            fast_took = loop.time() - begun
            assert [message.payload for message in await slow.fetch(100)] == payloads
            slow_took = loop.time() - begun
            assert slow_took >= 100_000 / 200_000 * 0.9
            assert fast_took < slow_took

    with_broker(run)


def test_of_a_slow_reader_the_system_keeps_little() -> None:
    async def run() -> int:
        taken = 0
        written = asyncio.Event()

        async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal taken
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            writer.transport.set_write_buffer_limits(0)
            try:
                while True:
                    writer.write(bytes(1000))
                    async with asyncio.timeout(0.3):
                        await writer.drain()
                    taken += 1000
            except TimeoutError:
                writer.transport.abort()
                written.set()

        class Receiver:
            def received(self, data: bytes) -> None: ...

            def lost(self, error: Exception | None) -> None: ...

        server = await asyncio.start_server(flood, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            link = await SlowDialer(100).dial(Address(host, port), Receiver())
            await written.wait()
            link.abort()
            await asyncio.sleep(0)
        return taken

    assert asyncio.run(run()) < 100_000


@pytest.mark.parametrize("rate", [0, -5])
def test_a_reader_that_never_reads_is_refused(rate: int) -> None:
    with pytest.raises(ValueError, match="never"):
        SlowDialer(rate)
