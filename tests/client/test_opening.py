"""Opening: once, as a whole or not at all, and nothing is left at the broker of what was given up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import pydanube
import pydanube.sync
from client.broker import TOPIC, Door, running, with_client, with_door
from pydanube.base.errors import AlreadyOpened, ArgumentInvalid, ConsumerBusy, DanubeError, NotAnswered
from pydanube.client import Client, Consumer, Producer


async def held(client: Client) -> tuple[int, int]:
    """Producers and consumers that the broker has."""
    found = await client.admin.describe_topic(TOPIC)
    return int(found["producers"]), int(found["consumers"])


async def nobody_is_held(client: Client) -> None:
    async with asyncio.timeout(5):
        while await held(client) != (0, 0):
            pass


@pytest.mark.parametrize("verb", ["open_producer", "open_consumer"])
def test_an_opening_that_is_cancelled_leaves_nobody_at_the_broker(tmp_path: Path, verb: str) -> None:
    async def run(client: Client, door: Door) -> None:
        async with pydanube.connect(door.server.url) as direct:
            await direct.admin.create_topic(TOPIC)
            member: Producer | Consumer = client.producer(TOPIC)
            if verb == "open_consumer":
                member = client.consumer(TOPIC, subscription="s")
            door.lose_after(verb)
            opening = asyncio.ensure_future(member.open())
            await door.lost_some.wait()
            assert sum(await held(direct)) == 1
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await nobody_is_held(direct)
            door.silent = False
            async with member:  # nothing is in its way
                assert sum(await held(direct)) == 1

    with_door(tmp_path, run)


def test_openings_given_up_at_any_moment_leave_nobody(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC)
        for turns in range(60):
            for member in (client.producer(TOPIC), client.consumer(TOPIC, subscription="s")):
                opening = asyncio.ensure_future(member.open())  # type: ignore[attr-defined]
                for _ in range(turns):
                    await asyncio.sleep(0)
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
                if not opening.cancelled():
                    await member.close()  # type: ignore[attr-defined]
            await nobody_is_held(client)

    with_client(tmp_path, run)


def test_an_opening_that_is_not_answered_in_time_is_taken_back(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with pydanube.connect(door.server.url) as direct:
            await direct.admin.create_topic(TOPIC)
            door.lose_after("open_consumer")
            with pytest.raises(NotAnswered, match="open_consumer"):
                await client.consumer(TOPIC, subscription="s").open()
            await nobody_is_held(direct)

    with_door(tmp_path, run, request_timeout=0.2)


def test_what_is_open_is_not_opened_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        producer = client.producer(TOPIC, name="ours")
        consumer = client.consumer(TOPIC, subscription="s", type="shared", start="earliest")
        both = await asyncio.gather(producer.open(), producer.open(), return_exceptions=True)
        assert [type(each) for each in both] == [Producer, AlreadyOpened]
        await consumer.open()
        for member in (producer, consumer, client):
            with pytest.raises(AlreadyOpened):
                await member.open()  # type: ignore[attr-defined]
        assert await held(client) == (1, 1)
        assert (await producer.send(b"one")).offset == 0
        assert (await consumer.receive(5)).payload == b"one"
        await producer.close()
        await consumer.close()
        with pytest.raises(AlreadyOpened):
            await producer.open()
        assert await held(client) == (0, 0)

    with_client(tmp_path, run)


def test_a_client_of_a_thread_that_is_open_stays_as_it_is(tmp_path: Path) -> None:
    def story(url: str) -> None:
        with pydanube.sync.connect(url) as client:
            with pytest.raises(AlreadyOpened):
                client.open()
            with client.producer(TOPIC) as producer:
                with pytest.raises(AlreadyOpened):
                    producer.open()
                assert producer.send(b"one").result(5).offset == 0

    async def run() -> None:
        async with asyncio.timeout(20), running(tmp_path) as server:
            await asyncio.to_thread(story, server.url)

    asyncio.run(run())


def test_an_opening_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=3)
        last = await client.consumer(f"{TOPIC}-part-2", subscription="s").open()
        consumer = client.consumer(TOPIC, subscription="s")
        with pytest.raises(ConsumerBusy):
            await consumer.open()
        await last.close()
        async with consumer, client.producer(TOPIC) as producer:
            await producer.send_many([b"a", b"b", b"c"], keys=["1", "2", "3"])
            assert len(await consumer.fetch(3, timeout=5)) == 3

    with_client(tmp_path, run)


@pytest.mark.parametrize("start", [-1, 1 << 63, True, 1.5, None, "first", [0]])
def test_a_start_that_is_none_is_refused_by_the_call(tmp_path: Path, start: Any) -> None:
    async def run(client: Client) -> None:
        with pytest.raises(ArgumentInvalid, match="start must be"):
            client.consumer(TOPIC, subscription="s", start=start)
        async with client.consumer(TOPIC, subscription="s") as consumer:
            with pytest.raises(ArgumentInvalid, match="start must be"):
                await consumer.seek(start)
            with pytest.raises(ArgumentInvalid, match="start must be"):
                await client.reader(TOPIC, start=start).open()

    with_client(tmp_path, run)


def test_a_consumer_of_nothing_and_a_time_that_is_none_are_refused_by_the_call(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for nothing in ([], (), ""):
            with pytest.raises(ArgumentInvalid, match="at least one topic"):
                client.consumer(nothing, subscription="s")
        async with client.producer(TOPIC) as producer:
            good = producer.send(b"good", delivery_time=datetime(2026, 1, 1, tzinfo=UTC))
            times: list[Any] = ["x", 1.5, object()]
            for time in times:
                with pytest.raises(ArgumentInvalid, match="a time must be microseconds since 1970"):
                    producer.send(b"x", delivery_time=time)
                with pytest.raises(DanubeError):
                    producer.send(b"x", event_time=time)
            assert (await good).offset == 0

    with_client(tmp_path, run)
