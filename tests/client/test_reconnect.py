"""A client whose connection breaks: what it resends, what it forgets, what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import pydanube
from client.broker import TOPIC, Door, running, settings, until, with_door
from pydanube.api.server import Server
from pydanube.base.errors import (
    AddressInvalid,
    ClientClosed,
    ConnectionLost,
    DanubeError,
    ProducerFenced,
    SequenceInvalid,
    TopicNotFound,
)
from pydanube.base.retry import Backoff
from pydanube.client import Client, ClientEvent
from pydanube.client.channel import RETRY
from pydanube.client.transport import Address, parse_addresses
from pydanube.operations.channels import OpenProducer


async def all_payloads(client: Client, topic: str = TOPIC) -> list[bytes | None]:
    table = await client.read_arrow(topic)
    found: list[bytes | None] = table.column("payload").to_pylist()
    return found


def test_sends_without_an_answer_are_resent_and_stored_once(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, batch_messages=10) as producer:
            await producer.send(b"before")
            door.silent = True
            sent = [producer.send(b"%d" % number) for number in range(100)]
            await reached(door, 101)
            assert not any(each.done for each in sent)
            door.cut()
            door.silent = False
            late = producer.send(b"late")
            assert [(await each).offset for each in sent] == list(range(1, 101))
            assert (await late).offset == 101
        assert await all_payloads(client) == [b"before", *(b"%d" % number for number in range(100)), b"late"]

    with_door(tmp_path, run)


async def reached(door: Door, end: int) -> None:
    """Until the broker has so many messages, asked past the door."""
    async with pydanube.connect(door.server.url) as direct, direct.reader(TOPIC) as reader:
        for _ in range(end):
            await reader.receive(5)


def test_connections_that_do_not_stay_are_made_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Noted(Backoff):
        def after(self, failures: int, below: Callable[[int], int] | None = None) -> float:
            asked.append(failures)
            return 0.0

    monkeypatch.setattr("pydanube.client.client.RETRY", Noted(RETRY.first, RETRY.longest))

    async def run(client: Client, door: Door) -> None:
        for stayed in (False, False, False, True, False):
            await client.admin.topics()
            if stayed:
                client._since -= 3
            before = client._connection
            door.cut()
            await until(lambda before=before: client._connection is not before and client.connected)  # type: ignore[misc]

    with_door(tmp_path, run)
    assert asked == [1, 2, 3, 1, 2]


def test_cuts_at_any_moment_neither_lose_nor_repeat(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, batch_messages=3) as producer:
            sent = []
            for number in range(600):
                sent.append(producer.send(b"%d" % number))
                if number % 60 == 10:
                    await sent[-1]  # connected again
                if number % 60 == 30:
                    door.asked.clear()
                    await door.asked.wait()
                    door.cut()
            offsets = [(await each).offset for each in sent]
        assert offsets == list(range(600))
        assert await all_payloads(client) == [b"%d" % number for number in range(600)]

    with_door(tmp_path, run)


def test_sends_outlive_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def run() -> None:
        first = Server(settings(tmp_path))
        _, port = await first.start()
        events: list[ClientEvent] = []
        async with pydanube.connect(first.url, on_event=events.append) as client, client.producer(TOPIC) as producer:
            consumer = await client.consumer(TOPIC, subscription="s").open()
            await producer.send(b"one")
            await consumer.ack(await consumer.receive(5))
            await first.stop()
            waiting = producer.send(b"two")
            second = Server(settings(tmp_path, port))
            await second.start()
            assert (await waiting).offset == 1
            assert (await consumer.receive(5)).payload == b"two"
            assert [event.what for event in events][:2] == ["connected", "disconnected"]
            assert events[-1].what == "connected"
        await second.stop()

    asyncio.run(run())


def test_a_producer_that_comes_back_late_does_not_take_its_name_from_a_newer_one(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with pydanube.connect(door.server.url) as direct:
            older = await client.producer(TOPIC, name="ours").open()
            await older.send(b"one")
            door.cut()
            async with direct.producer(TOPIC, name="ours") as newer:
                await newer.send(b"two")
                with pytest.raises(ProducerFenced):
                    await older.send(b"three")
                with pytest.raises(ProducerFenced):
                    older.send(b"four")
                assert (await newer.send(b"five")).offset == 2
        assert await all_payloads(client) == [b"one", b"two", b"five"]

    with_door(tmp_path, run)


def test_a_session_goes_on_with_a_higher_epoch_or_not_at_all(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        wrong = ({"epoch": 5, "next_epoch": 5}, {"epoch": 1}, {"next_epoch": 1}, {"epoch": -1, "next_epoch": 2})
        for channel, epochs in enumerate(wrong, 1):
            with pytest.raises(SequenceInvalid):
                await client.ask(OpenProducer(channel, TOPIC, name="x", **epochs))

    with_door(tmp_path, run)


def test_a_lost_answer_to_opening_again_is_no_newer_producer(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, name="ours") as producer:
            await producer.send(b"one")
            for _ in range(3):
                door.lose_after("open_producer")  # the broker attaches, and the client never hears of it
                door.cut()
                await door.lost_some.wait()
                door.cut()
            door.silent = False
            assert (await producer.send(b"two")).offset == 1

    with_door(tmp_path, run)


def test_best_effort_sends_are_not_repeated(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, reliable=False) as producer:
            await producer.send(b"one")
            door.silent = True
            door.asked.clear()
            lost = asyncio.ensure_future(_wait(producer.send(b"two")))
            await door.asked.wait()
            door.cut()
            door.silent = False
            with pytest.raises(ConnectionLost):
                await lost
            assert (await producer.send(b"three")).durability == "none"

    with_door(tmp_path, run)


async def _wait(sent: object) -> object:
    return await sent  # type: ignore[misc]


def test_a_send_that_waits_too_long_fails_of_why_it_waits(tmp_path: Path) -> None:
    async def run() -> None:
        server = Server(settings(tmp_path))
        await server.start()
        async with pydanube.connect(server.url) as client:
            heard: list[DanubeError] = []
            producer = client.producer(TOPIC, send_timeout=1.0, on_error=lambda error, count: heard.append(error))
            await producer.open()
            await producer.send(b"one")
            await server.stop()
            with pytest.raises(DanubeError, match=r"stopping|connection|refused"):
                await producer.send(b"two")
            producer.send(b"three")
            with pytest.raises(DanubeError, match=r"stopping|connection|Connect"):
                await producer.close()
            assert len(heard) == 1

    asyncio.run(run())


def test_a_consumer_goes_on_after_a_cut_without_losing_an_ack(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(20)])
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            messages = await consumer.fetch(10, timeout=5)
            door.silent = True
            acks = [consumer.ack(message) for message in messages]
            door.cut()
            door.silent = False
            for ack in acks:
                await ack
            rest = await consumer.fetch(10, timeout=5)
            assert [message.offset for message in rest] == list(range(10, 20))
            await consumer.ack(rest[-1])

    with_door(tmp_path, run)


def test_an_iteration_goes_on_after_a_cut(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(20)])
        seen = []
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            async for message in consumer:
                seen.append(message.offset)
                await consumer.ack(message)
                if message.offset == 7 and seen.count(7) == 1:
                    door.cut()
                if message.offset == 19:
                    break
        assert sorted(set(seen)) == list(range(20))  # at least once each
        assert seen[:8] == list(range(8))
        assert seen[-12:] == list(range(8, 20))

    with_door(tmp_path, run)


def test_requests_fail_of_the_lost_connection_and_work_again(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        door.silent = True
        door.asked.clear()
        asked = asyncio.create_task(client.admin.namespaces())
        await door.asked.wait()
        door.cut()
        door.silent = False
        with pytest.raises(ConnectionLost):
            await asked
        assert "default" in await client.admin.namespaces()

    with_door(tmp_path, run)


def test_a_topic_that_was_deleted_ends_its_producer(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await client.admin.create_topic(TOPIC)
        async with client.producer(TOPIC, create=False) as producer:
            await producer.send(b"one")
            async with pydanube.connect(door.server.url) as direct:
                await direct.admin.delete_topic(TOPIC)
            with pytest.raises(TopicNotFound):
                await producer.send(b"two")

    with_door(tmp_path, run)


def test_nobody_at_the_address_is_said_at_once() -> None:
    async def run() -> None:
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
            async with pydanube.connect("danube://127.0.0.1:1"):
                pass

    asyncio.run(run())


def test_a_closed_client_is_closed_by_us(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as server:
            async with pydanube.connect(server.url) as client:
                producer = await client.producer(TOPIC).open()
                last = producer.send(b"last")
            assert (await last).offset == 0  # closing the client closed the producer, which sent it
            with pytest.raises(ClientClosed):
                await client.admin.namespaces()

    asyncio.run(run())


def test_addresses_are_read_exactly() -> None:
    assert parse_addresses("danube://a:1,[::1]:2,c") == [Address("a", 1), Address("::1", 2), Address("c", 6650)]
    assert parse_addresses("danubes://a:1/") == [Address("a", 1, tls=True)]
    for wrong in (
        "",
        "a:1",
        "http://a:1",
        "danube://",
        "danube://a:x",
        "danube://a:99999",
        "danube://u@a:1",
        "danube://a/b",
    ):
        with pytest.raises(AddressInvalid):
            parse_addresses(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "danube://me:secret@a:1",
        "danube://b:1,me:secret@a:1",
        "danube://me:sec@secret@a:x",
        "http://me:secret@a:1",
        "me:secret@a:1",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(wrong: str) -> None:
    with pytest.raises(AddressInvalid, match=r"\*\*\*@a:") as raised:
        parse_addresses(wrong)
    assert "sec" not in str(raised.value)
