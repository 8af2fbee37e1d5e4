"""Messages that are too large for their topic: refused before anything is sent, as far as the limit is known.

Where it was lowered meanwhile, each fails alone, whatever it was sent with.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import pydanube
from client.broker import TOPIC, Door, unaware, with_client, with_door
from pydanube.base.errors import DanubeError, MessageTooLarge, SequenceGap
from pydanube.client import Client
from pydanube.client.send_results import SentMessage

LIMITED = {"message_bytes_max": 10}
TOO_LARGE: list[list[object]] = [
    [b"fine", b"x" * 11, b"fine"],
    [b"fine", b"fine", b"x" * 11],
    [b"fine", "€€€€"],  # four characters, twelve bytes
    [None, b"x" * 11, b""],
    [bytearray(11), b"fine"],
    [b"x" * 40_000, *[b"fine"] * 5000],  # in several batches
]


async def stored(client: Client) -> list[bytes | None]:
    found: list[bytes | None] = (await client.read_arrow(TOPIC)).column("payload").to_pylist()
    return found


async def outcome(sent: SentMessage) -> int | type[DanubeError] | None:
    try:
        return (await sent).offset
    except DanubeError as error:
        return type(error)


def test_only_the_message_that_is_too_large_fails(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 10})
        async with client.producer(TOPIC) as producer:
            unaware(producer)
            sent = [producer.send(payload) for payload in (b"one", b"x" * 11, b"two")]
            later = producer.send_many([b"three", b"four"])
            assert [await outcome(each) for each in sent] == [0, MessageTooLarge, 1]
            assert all(each.done for each in sent)
            assert (await later).offsets == [2, 3]
            assert producer.buffered_bytes == 0
        assert await stored(client) == [b"one", b"two", b"three", b"four"]

    with_client(tmp_path, run)


def test_of_many_that_are_sent_together_the_others_are_published_and_the_failure_is_said_once(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 10})
        heard: list[tuple[str, int]] = []
        producer = client.producer(TOPIC, on_error=lambda error, count: heard.append((error.code, count)))
        unaware(await producer.open())
        many = producer.send_many([b"1", b"x" * 50, b"2", None, b"x" * 20, b""])
        with pytest.raises(MessageTooLarge):
            await many
        with pytest.raises(MessageTooLarge):
            await many
        await producer.flush()
        assert many.done
        assert heard == []
        assert await stored(client) == [b"1", b"2", None, b""]
        unaware(producer)
        awaited = producer.send(b"awaited")
        producer.send(b"not awaited, and too large")
        await awaited
        with pytest.raises(MessageTooLarge):
            await producer.close()
        assert heard == [("message_too_large", 1)]

    with_client(tmp_path, run)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_sizes_come_in_whatever_batches_order_is_kept(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    compression = chance.choice(("none", "zstd"))
    sizes = [chance.choice((0, 5, 40, 60, 99, 100, 101, 150, 400, 5000)) for _ in range(300)]
    payloads = [b"%04d" % number + bytes(size) for number, size in enumerate(sizes)]

    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 104})
        options = {"batch_messages": chance.choice((2, 7, 1000)), "compression": compression}
        async with client.producer(TOPIC, **options) as producer:
            unaware(producer)
            outcomes = await asyncio.gather(*[outcome(producer.send(payload)) for payload in payloads])
        fine = [payload for payload in payloads if len(payload) <= 104]
        offsets = iter(range(len(fine)))
        assert outcomes == [next(offsets) if len(payload) <= 104 else MessageTooLarge for payload in payloads]
        assert await stored(client) == fine

    with_client(tmp_path, run)


def test_numbers_of_the_application_behind_it_are_not_given_to_others(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 10})
        async with client.producer(TOPIC, name="import") as producer:
            unaware(producer)
            payloads = [b"0", b"1", b"x" * 11, b"3", b"4"]
            sent = [producer.send(payload, sequence=number) for number, payload in enumerate(payloads)]
            assert [await outcome(each) for each in sent] == [0, 1, MessageTooLarge, SequenceGap, SequenceGap]
            assert producer.last_sequence == 1
            await producer.send_many([b"2", b"3", b"4"], sequence=2)
        assert await stored(client) == [b"0", b"1", b"2", b"3", b"4"]

    with_client(tmp_path, run)


def test_on_a_topic_that_keeps_nothing_the_others_of_its_batch_arrive_all_the_same(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, reliable=False, policies={"message_bytes_max": 10})
        payloads = [b"1", b"x" * 50, b"2", b"x" * 20, b"3", b"x" * 11]
        async with client.consumer(TOPIC, subscription="s", reliable=False) as consumer:
            async with client.producer(TOPIC, reliable=False) as producer:
                unaware(producer)
                sent = [producer.send(payload) for payload in payloads]
                with pytest.raises(MessageTooLarge):
                    await producer.send_many([b"4", b"x" * 11, b"5"])
                for payload, each in zip(payloads, sent, strict=True):
                    if len(payload) > 10:
                        with pytest.raises(MessageTooLarge):
                            await each
                    else:
                        assert (await each).durability == "none"
                assert producer.buffered_bytes == 0
            found = await consumer.fetch(5, timeout=5)
        assert sorted(message.payload for message in found) == [b"1", b"2", b"3", b"4", b"5"]

    with_client(tmp_path, run)


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("payloads", TOO_LARGE)
def test_a_list_with_a_message_that_is_too_large_is_refused_as_a_whole(
    tmp_path: Path, payloads: list[object], partitions: int
) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=partitions, policies=LIMITED)
        async with client.producer(TOPIC, batch_bytes=5000) as producer:
            for keys in (None, [f"key {row}" for row in range(len(payloads))]):
                with pytest.raises(MessageTooLarge, match="at most 10 bytes"):
                    producer.send_many(payloads, keys=keys)
            assert (producer.unsent, producer.buffered_bytes) == (0, 0)
            await producer.send_many([b"x" * 10] * 3, keys=["a", "b", "c"])
        assert (await client.read_arrow(TOPIC)).column("payload").to_pylist() == [b"x" * 10] * 3

    with_client(tmp_path, run)


def test_one_message_that_is_too_large_is_refused_by_the_call(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.policies("default", change=LIMITED)
        async with client.producer(TOPIC) as producer:
            kept = [producer.send(b"first")]
            for call in (producer.send, producer.send_nowait):
                for options in ({}, {"key": "k"}, {"attributes": {"a": "b"}}):
                    with pytest.raises(MessageTooLarge, match="at most 10 bytes, this one has 11"):
                        call(b"x" * 11, **options)
                kept.append(call(b"x" * 10, key="a key does not count towards it"))
            assert [(await each).offset for each in kept] == [0, 1, 2]

    with_client(tmp_path, run)


def test_what_has_to_wait_for_room_is_refused_by_the_call_too(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await client.admin.create_topic(TOPIC, policies=LIMITED)
        async with client.producer(TOPIC, buffer_bytes=1) as producer:
            door.stall()
            first = producer.send_many([b"fills it"])
            line = producer.send(b"in line")
            with pytest.raises(MessageTooLarge):
                producer.send(b"x" * 11)
            with pytest.raises(MessageTooLarge):
                producer.send_many([b"fine", b"x" * 11])
            door.flow()
            assert ((await first).offsets, (await line).offset) == ([0], 1)

    with_door(tmp_path, run)


@pytest.mark.parametrize("reliable", [True, False])
def test_a_producer_hears_of_another_limit_while_it_is_open(tmp_path: Path, reliable: bool) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, reliable=reliable, policies=LIMITED)
        async with client.producer(TOPIC, reliable=reliable) as producer:
            await client.admin.alter_topic(TOPIC, policies={"message_bytes_max": 20})
            await producer.send_many([b"x" * 20])
            await client.admin.alter_topic(TOPIC, policies={"message_bytes_max": 5})
            with pytest.raises(MessageTooLarge, match="at most 5 bytes"):
                producer.send_many([b"fine", b"x" * 6])
            await client.admin.alter_topic(TOPIC, policies={"message_bytes_max": None})
            await producer.send_many([b"x" * 1000])
            await client.admin.policies("default", change=LIMITED)
            with pytest.raises(MessageTooLarge, match="at most 10 bytes"):
                producer.send_many([b"fine", b"x" * 11])

    with_client(tmp_path, run)


def test_a_producer_learns_the_limit_again_when_it_comes_back(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await client.admin.create_topic(TOPIC, policies=LIMITED)
        async with client.producer(TOPIC) as producer:
            async with pydanube.connect(door.server.url) as other:
                door.stall()
                await other.admin.alter_topic(TOPIC, policies={"message_bytes_max": 20})
            door.cut()
            door.flow()
            await producer.send(b"x")
            await producer.send_many([b"x" * 20])

    with_door(tmp_path, run)
