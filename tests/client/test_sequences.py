"""Sequences that the application gives: what it repeats after a restart is published once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import pydanube
from broker.door_world import served
from client.broker import TOPIC, Door, running, unaware, with_client, with_door
from pydanube.base.errors import (
    ArgumentInvalid,
    DanubeError,
    MessageTooLarge,
    SequenceGap,
    SequenceInvalid,
    SequenceUnknown,
)
from pydanube.base.limits import DEDUP_WINDOW_BATCHES
from pydanube.broker.topic.topic import Topic
from pydanube.client import Client


async def stored(client: Client, topic: str = TOPIC) -> list[bytes | None]:
    found: list[bytes | None] = (await client.read_arrow(topic)).column("payload").to_pylist()
    return found


def lines(first: int, end: int) -> list[bytes]:
    return [b"line %d" % number for number in range(first, end)]


def test_an_application_goes_on_where_the_broker_says_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            running(tmp_path) as server,
            pydanube.connect(server.url) as client,
            client.producer(TOPIC, name="import") as producer,
        ):
            assert producer.last_sequence is None
            for number in range(5):
                producer.send(b"line %d" % number, sequence=number)
            await producer.flush()
            assert producer.last_sequence == 4
        async with running(tmp_path) as server, pydanube.connect(server.url) as client:
            async with client.producer(TOPIC, name="import") as producer:
                assert producer.last_sequence == 4
                receipt = await producer.send(b"line 5", sequence=5)
                assert (receipt.offset, receipt.duplicate) == (5, False)
            assert await stored(client) == lines(0, 6)

    asyncio.run(run())


def test_what_is_repeated_after_a_restart_has_its_first_offset_however_it_was_batched(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, name="import") as producer:
            await producer.send_many(lines(0, 7), sequence=0)
            await producer.send(b"from elsewhere")
            await producer.send_many(lines(8, 10), sequence=8)
        async with client.producer(TOPIC, name="import") as producer:
            again = [producer.send(b"line %d" % number, sequence=number) for number in (3, 4, 9)]
            receipts = [await each for each in again]
            assert [(each.offset, each.duplicate, each.durability) for each in receipts] == [
                (3, True, "fsynced"),
                (4, True, "fsynced"),
                (9, True, "fsynced"),
            ]
            many = await producer.send_many(lines(6, 14), sequence=6)
            assert many.offsets == list(range(6, 14))
            assert [each.duplicate for each in many] == [True] * 4 + [False] * 4
        assert len(await stored(client)) == 14

    with_client(tmp_path, run)


def test_a_repeat_of_long_ago_is_known_and_its_offset_is_not(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, name="import", batch_messages=1) as producer:
            for number in range(DEDUP_WINDOW_BATCHES + 5):
                producer.send(b"x", sequence=number)
        async with client.producer(TOPIC, name="import") as producer:
            receipt = await producer.send(b"x", sequence=0)
            assert (receipt.offset, receipt.durability, receipt.duplicate) == (None, "fsynced", True)
            many = await producer.send_many([b"x"] * (DEDUP_WINDOW_BATCHES + 6), sequence=0)
            assert many.offsets == [*[None] * 5, *range(5, DEDUP_WINDOW_BATCHES + 6)]

    with_client(tmp_path, run)


def test_a_sequence_that_is_left_out_is_refused_by_the_call(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, name="import") as producer:
            with pytest.raises(SequenceInvalid):
                producer.send(b"x", sequence=-1)
            await producer.send(b"x", sequence=100)  # a new name begins anywhere
            with pytest.raises(SequenceGap, match="expected 101"):
                producer.send(b"x", sequence=102)
            with pytest.raises(SequenceGap):
                producer.send_many([b"x"], sequence=102)
            with pytest.raises(SequenceGap):  # it began at 100: nobody has published this
                await producer.send(b"x", sequence=99)
            assert (await producer.send(b"x", sequence=101)).offset == 1

    with_client(tmp_path, run)


def test_behind_a_message_that_failed_nothing_gets_another_number(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        async with client.producer(TOPIC, name="import", batch_messages=1) as producer:
            unaware(producer)
            sent = [producer.send(bytes(2000) if number == 2 else b"x", sequence=number) for number in range(5)]
            outcomes = await asyncio.gather(*map(awaited, sent), return_exceptions=True)
            assert outcomes[:2] == [0, 1]
            assert list(map(type, outcomes[2:])) == [MessageTooLarge, SequenceGap, SequenceGap]
            assert producer.last_sequence == 1
            assert [(await producer.send(b"x", sequence=number)).offset for number in (2, 3, 4)] == [2, 3, 4]

    with_client(tmp_path, run)


async def awaited(sent: object) -> int | None:
    offset: int | None = (await sent).offset  # type: ignore[misc]
    return offset


def test_what_waits_unsent_keeps_its_number_too(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        async with client.producer(TOPIC, name="import", linger=60) as producer:
            first = unaware(producer).send_many([bytes(2000)], sequence=0)
            later = producer.send(b"x", sequence=1)  # being filled while the first fails
            with pytest.raises(MessageTooLarge):
                await first
            with pytest.raises(SequenceGap):
                await later

    with_client(tmp_path, run)


def test_a_cut_neither_loses_nor_doubles_nor_calls_its_own_repeats_duplicates(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, name="import", batch_messages=3) as producer:
            sent = []
            for number in range(60):
                sent.append(producer.send(b"line %d" % number, sequence=number))
                if number % 20 == 10:
                    door.asked.clear()
                    await door.asked.wait()
                    door.cut()
            receipts = [await each for each in sent]
            assert [each.offset for each in receipts] == list(range(60))
            assert not any(each.duplicate for each in receipts)
        assert await stored(client) == lines(0, 60)

    with_door(tmp_path, run)


@pytest.mark.parametrize("seed", range(6))
def test_an_import_that_dies_again_and_again_publishes_every_line_once(tmp_path: Path, seed: int) -> None:
    """Each life begins anywhere before its end is known, cuts its lines into other batches, and breaks off."""
    chance, count = Random(seed), 400

    async def live(door: Door, last: bool) -> None:
        door.silent = False
        batch = chance.randint(1, 20)
        async with pydanube.connect(door.url) as client:
            producer = client.producer(TOPIC, name="import", batch_messages=batch, send_timeout=5 if last else 0.03)
            await producer.open()
            known = -1 if producer.last_sequence is None else producer.last_sequence
            first = max(0, known + 1 - chance.randint(0, 30))
            end = count if last else min(count, first + chance.randint(1, 120))
            at = chance.randint(first, end)
            try:
                for number in range(first, end):
                    producer.send(b"line %d" % number, sequence=number)
                    if number == at:
                        await asyncio.sleep(0)
                        door.silent = not last and chance.random() < 0.5
                        door.cut()
                await producer.close()
            except DanubeError:
                assert not last

    async def run(_: Client, door: Door) -> None:
        for _life in range(6):
            await live(door, last=False)
        await live(door, last=True)
        async with pydanube.connect(door.server.url) as client:
            assert await stored(client) == lines(0, count)

    with_door(tmp_path, run)


def test_sequences_need_a_name_and_a_partition(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=2)
        async with client.producer(TOPIC) as nameless:
            with pytest.raises(ArgumentInvalid):
                nameless.send(b"x", key="k", sequence=0)
        async with client.producer(TOPIC, name="import") as producer:
            with pytest.raises(ArgumentInvalid):
                producer.send(b"x", sequence=0)
            with pytest.raises(ArgumentInvalid):
                _ = producer.last_sequence
            partition = (await producer.send(b"x", key="k", sequence=7)).partition
            assert partition is not None
            expected: list[int | None] = [None, None]
            expected[partition] = 7
            assert producer.last_sequences == expected

    with_client(tmp_path, run)


def test_a_named_producer_that_starts_afresh_is_taken_where_names_have_been_forgotten(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as server, pydanube.connect(server.url) as client:
            await client.topic(TOPIC, create=True)
            opened = await served(server._broker.door, TOPIC)
            assert isinstance(opened.topic, Topic)
            opened.topic.state.producers.forgotten = 1
            async with client.producer(TOPIC, name="import") as producer:
                with pytest.raises(SequenceUnknown, match="may have been forgotten") as refused:
                    await producer.send(b"line 0", sequence=0)
                assert "fresh=True" in refused.value.help
            async with client.producer(TOPIC, name="import", fresh=True) as producer:
                assert (await producer.send(b"line 0", sequence=0)).offset == 0
            async with client.producer(TOPIC, name="import", fresh=True) as producer:
                assert (await producer.send(b"line 0", sequence=0)).duplicate, "what is known stays known"

    asyncio.run(run())


def test_producers_without_a_name_leave_nothing_behind(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as server, pydanube.connect(server.url) as client:
            for _ in range(20):
                async with client.producer(TOPIC) as producer:
                    await producer.send(b"x")
            opened = await served(server._broker.door, TOPIC)
            assert isinstance(opened.topic, Topic)
            await opened.topic.tick()
            assert len(opened.topic.state.producers) == 0

    asyncio.run(run())
