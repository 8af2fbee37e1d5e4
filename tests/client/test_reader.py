"""Readers skip nothing: however they are read, beside growth, broken connections and each other."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

import pydanube
from client.broker import TOPIC, Door, settings, until, with_client, with_door
from pydanube.api.server import Server
from pydanube.base.errors import ArgumentInvalid, ClientClosed, NothingReceived, NotOpened, TopicNotFound
from pydanube.client import Client, Reader


async def fill(client: Client, batches: int = 2, each: int = 10) -> None:
    async with client.producer(TOPIC) as producer:
        for number in range(batches):
            await producer.send_many([b"%d" % (number * each + row) for row in range(each)])


def test_messages_then_batches_then_messages_skip_nothing(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await fill(client, 3)
        async with client.reader(TOPIC) as reader:
            got = [(await reader.receive(5)).offset]
            batches = reader.batches()
            got += (await anext(batches)).offsets
            got += [(await anext(reader)).offset, (await reader.receive(5)).offset]
            got += (await anext(batches)).offsets
            async for message in reader:
                got.append(message.offset)
                if len(got) == 25:
                    break
            got += (await anext(batches)).offsets
            assert got == list(range(30))

    with_client(tmp_path, run)


def test_tasks_share_a_reader_and_each_message_goes_to_one_of_them(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        got: list[int] = []

        async def work(reader: Reader) -> None:
            async for message in reader:
                got.append(message.offset)
                await asyncio.sleep(0)

        await client.admin.create_topic(TOPIC)
        async with client.reader(TOPIC, end=40) as reader:
            workers = [asyncio.create_task(work(reader)) for _ in range(3)]
            await fill(client, 2)
            while len(got) < 20:
                with suppress(NothingReceived):  # given up in the middle of a read, perhaps
                    got.append((await reader.receive(timeout=0)).offset)
                await asyncio.sleep(0)
            await fill(client, 2)
            await asyncio.gather(*workers)
        assert sorted(got) == list(range(40))

    with_client(tmp_path, run)


def test_its_offsets_are_behind_what_was_handed_out_and_another_goes_on_there(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await fill(client)
        async with client.reader(TOPIC) as reader:
            assert reader.offsets == {None: 0}
            async for message in reader:
                if message.offset == 4:
                    break
            assert reader.offsets == {None: 5}
            async with client.reader(TOPIC, start=reader.offsets) as another:
                assert (await another.receive(5)).offset == 5
            await anext(reader.batches())
            assert reader.offsets == {None: 10}
            await reader.seek({None: 3})
            assert (reader.offsets, (await anext(reader)).offset) == ({None: 3}, 3)

    with_client(tmp_path, run)


def test_offsets_of_partitions_are_a_checkpoint(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=3)
        async with client.producer(TOPIC, batch_messages=5) as producer:
            await producer.send_many([b"%d" % number for number in range(60)])
        seen: list[bytes | None] = []
        offsets = None
        for _ in range(6):
            async with client.reader(TOPIC, start=offsets or "earliest", end="latest") as reader:
                for _ in range(10):
                    seen.append((await anext(reader)).payload)
                offsets = reader.offsets
        assert sorted(seen, key=lambda payload: int(payload or b"")) == [b"%d" % number for number in range(60)]

    with_client(tmp_path, run)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_checkpoint_may_be_kept_as_json(tmp_path: Path, partitions: int) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=partitions)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(4)])
            async with client.reader(TOPIC, end="latest") as reader:
                assert len([message async for message in reader]) == 4
                kept = json.dumps(reader.offsets)
            await producer.send(b"new")
        async with client.reader(TOPIC, start=json.loads(kept), end="latest") as reader:
            assert [message.payload async for message in reader] == [b"new"]
        with pytest.raises(ArgumentInvalid, match="'first' is not a partition"):
            await client.reader(TOPIC, start={"first": 1}).open()

    with_client(tmp_path, run)


def test_a_reader_with_an_end_ends(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await fill(client)
        for end, count in (("latest", 20), (7, 7), (datetime.now(UTC), 20), ("earliest", 0)):
            async with client.reader(TOPIC, end=end) as reader:
                assert [message.offset async for message in reader] == list(range(count))
                assert await anext(reader, None) is None
                with pytest.raises(NothingReceived, match="end"):
                    await reader.receive()
                await reader.seek(0)
                assert sum([len(batch) async for batch in reader.batches()]) == count
        async with client.reader(TOPIC, start=12, end="latest") as reader:
            await client.admin.truncate_topic(TOPIC)
            assert [message.offset async for message in reader] == []

    with_client(tmp_path, run)


def test_what_is_published_while_it_asks_where_the_topic_ends_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(client: Client) -> None:
        await fill(client, 1)
        bounds = client.bounds

        async def slow(topic: str) -> tuple[int, int]:
            monkeypatch.undo()
            await fill(client, 1)
            return await bounds(topic)

        async with client.reader(TOPIC, start=10, end=20) as reader:
            monkeypatch.setattr(client, "bounds", slow)
            assert [message.offset async for message in reader] == list(range(10, 20))

    with_client(tmp_path, run)


def test_reads_are_made_again_after_the_connection_broke(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await fill(client, 1)
        async with client.reader(TOPIC) as reader:
            for round_ in range(5):
                for _ in range(10):
                    await reader.receive(5)
                waiting = asyncio.create_task(reader.receive(5))
                await asyncio.sleep(0)
                door.cut()
                await until(lambda: not client.connected)
                await until(lambda: client.connected)
                await fill(client, 1)
                message = await waiting
                assert message.offset == (round_ + 1) * 10
                await reader.seek(message.offset)

    with_door(tmp_path, run)


def test_a_reader_goes_on_with_a_broker_that_was_started_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            first = Server(settings(tmp_path))
            await first.start()
            async with pydanube.connect(first.url) as client:
                await fill(client)
                async with client.reader(TOPIC) as reader:
                    assert (await reader.receive(5)).offset == 0
                    await first.stop()
                    second = Server(settings(tmp_path, int(first.url.rpartition(":")[2])))
                    await second.start()
                    assert [(await reader.receive(10)).offset for _ in range(19)] == list(range(1, 20))
                    await fill(client, 1)
                    assert (await reader.receive(10)).offset == 20
                await second.stop()

    asyncio.run(run())


def test_new_partitions_join_from_their_beginning_as_soon_as_there_are_any(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=1)
        async with client.reader(TOPIC, start="latest") as reader:
            await client.admin.alter_topic(TOPIC, partitions=4)
            async with client.producer(TOPIC) as producer:
                sent = [await producer.send(b"x") for _ in range(20)]
            got = [await reader.receive(5) for _ in range(20)]
            assert {message.partition for message in got} == {receipt.partition for receipt in sent} == {0, 1, 2, 3}
            assert reader.offsets == dict.fromkeys(range(4), 5)

    with_client(tmp_path, run)


def test_a_reader_that_is_not_open_says_so(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await fill(client)
        reader = client.reader(TOPIC)
        with pytest.raises(NotOpened):
            await reader.receive()
        await reader.open()
        assert (await reader.receive()).offset == 0
        await reader.close()
        with pytest.raises(ClientClosed):
            [message async for message in reader]
        with pytest.raises(ArgumentInvalid):
            await client.reader(TOPIC, start="Tuesday").open()
        async with client.reader(TOPIC, start="latest") as reader:
            waiting = asyncio.create_task(reader.receive())
            await asyncio.sleep(0)
            await client.admin.delete_topic(TOPIC)
            with pytest.raises(TopicNotFound):
                await waiting

    with_client(tmp_path, run)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_reader_of_a_topic_that_was_made_again_is_told_so(tmp_path: Path, partitions: int) -> None:
    """Its offsets mean nothing there: it would wait for the new topic to grow beyond them, and skip what is before."""

    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=partitions)
        await fill(client, 4)
        async with client.reader(TOPIC) as reader:
            for _ in range(40):
                await reader.receive(5)
            await client.admin.delete_topic(TOPIC)
            await client.admin.create_topic(TOPIC, partitions=partitions)
            await fill(client, 1)
            with pytest.raises(TopicNotFound, match="another topic now has its name"):
                await reader.receive(5)

    with_client(tmp_path, run)
