"""Producers against a real broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from client.broker import TOPIC, Door, unaware, until, with_client, with_door
from pydanube.base.errors import (
    BatchInvalid,
    BatchTooLarge,
    ClientClosed,
    DanubeError,
    MessageTooLarge,
    ProducerBusy,
    ProducerFenced,
    TopicKindDiffers,
)
from pydanube.base.keys import fnv1a64
from pydanube.base.limits import BATCH_BYTES_MAX
from pydanube.client import Client
from pydanube.client.arguments import codec_of
from pydanube.operations.channels import Read
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches


async def payloads_of(client: Client, topic: str = TOPIC, count: int = 1) -> list[bytes | None]:
    """The first `count` messages that the topic has."""
    async with client.reader(topic) as reader:
        return [(await reader.receive(5)).payload for _ in range(count)]


def test_a_receipt_says_where_a_message_is_and_how_safe(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            receipt = await producer.send(b"one", key="k", attributes={"a": "1"})
            assert (receipt.topic, receipt.partition, receipt.offset, receipt.durability) == (TOPIC, None, 0, "fsynced")
            receipts = await producer.send_many([b"two", b"three"])
            assert [each.offset for each in receipts] == receipts.offsets == [1, 2]
            assert (len(receipts), receipts[-1].offset, receipts[0:1][0].offset) == (2, 2, 1)
            with pytest.raises(IndexError):
                receipts[2]

    with_client(tmp_path, run)


def test_what_nobody_awaits_is_published_within_milliseconds_and_in_order(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            for number in range(100):
                producer.send(b"%d" % number)
            assert await payloads_of(client, count=100) == [b"%d" % number for number in range(100)]

    with_client(tmp_path, run)


def test_closing_sends_what_waits(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, linger=60) as producer:
            sent = producer.send(b"last")
        assert (await sent).offset == 0
        with pytest.raises(ClientClosed):
            producer.send(b"too late")

    with_client(tmp_path, run)


def test_send_and_send_many_keep_their_order(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, batch_bytes=500) as producer:
            producer.send(b"0")
            producer.send_many(b"%d" % number for number in range(1, 50))
            producer.send(b"50", key="k")
            await producer.flush()
        assert await payloads_of(client, count=51) == [b"%d" % number for number in range(51)]

    with_client(tmp_path, run)


def test_messages_of_very_different_sizes_go_in_several_batches(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        values = [b"s", b"m" * 300_000, b"t", None, bytes(6 << 20), b"u", bytes(11 << 20)]
        async with client.producer(TOPIC) as producer:
            receipts = await producer.send_many(values)
            assert receipts.offsets == list(range(7))
            for value in values:
                producer.send(value)
            await producer.flush()
        assert await payloads_of(client, count=14) == values * 2

    with_client(tmp_path, run)


def test_a_bad_message_is_refused_by_the_call_and_spoils_no_other(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            good = producer.send(b"good")
            for bad in (1, ["list"], {"a": 1}):
                with pytest.raises(TypeError):
                    producer.send(bad)
            with pytest.raises(TypeError):
                producer.send(b"x", key=1)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                producer.send(b"x", attributes={"a": 1})  # type: ignore[dict-item]
            with pytest.raises(UnicodeEncodeError):
                producer.send(b"x", attributes={"a": "\ud800"})
            with pytest.raises(BatchInvalid):
                producer.send(b"x", event_time=1 << 63)
            with pytest.raises(TypeError, match="zone"):
                producer.send(b"x", event_time=datetime(2026, 1, 1))
            with pytest.raises(BatchTooLarge):
                producer.send(bytes(17 << 20))
            with pytest.raises(BatchTooLarge):
                producer.send_many([b"x", bytes(17 << 20)])
            for bad in (1, ["list"], {"a": 1}):
                with pytest.raises(TypeError):
                    producer.send_many([b"x", bad])
                with pytest.raises(TypeError):
                    producer.send_many([b"x" * 200_000, b"x" * 200_000, bad])
            for one in (b"one", "one", {"a": 1}):
                with pytest.raises(TypeError, match="list of payloads"):
                    producer.send_many(one)
            with pytest.raises(BatchInvalid):
                producer.send_many([b"x"], keys=["a", "b"])
            assert ((await good).offset, (await producer.send(b"next")).offset) == (0, 1)

    with_client(tmp_path, run)


def test_a_full_buffer_is_busy_and_ready_waits_for_room(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, buffer_bytes=100_000, batch_bytes=10_000) as producer:
            sent = 0
            while producer.buffered_bytes < 100_000:
                producer.send(bytes(1000))
                sent += 1
            assert 90 <= sent <= 110
            with pytest.raises(ProducerBusy):
                producer.send_nowait(b"x")
            await producer.ready()
            assert producer.buffered_bytes <= 75_000
            assert (await producer.send(b"next")).offset == sent

    with_client(tmp_path, run)


def test_text_is_sent_as_utf_8_alone_and_in_lists(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send("grün")
            await producer.send_many(["grün", b"x", None])
            await producer.send_many(["grün" * 100_000, "grün"])
            with pytest.raises(UnicodeEncodeError):
                producer.send("\ud800")
            with pytest.raises(UnicodeEncodeError):
                producer.send_many([b"x", "\ud800"])
        green = "grün".encode()
        assert await payloads_of(client, count=6) == [green, green, b"x", None, green * 100_000, green]

    with_client(tmp_path, run)


def test_a_list_that_cannot_be_sent_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=2)
        async with client.producer(TOPIC, name="ours") as producer:
            before = producer.next_sequences
            large = bytes(BATCH_BYTES_MAX - 4_000)  # with its key it does not fit a batch
            with pytest.raises(BatchTooLarge):
                producer.send_many([bytes(200_000)] * 10 + [large], keys=["k"] * 5 + [None] * 5 + ["K" * 4_096])
            assert producer.next_sequences == before
            receipts = await producer.send_many([b"a", b"b"])
            assert receipts.offsets == [0, 1]
            assert sum((await client.admin.describe_topic(TOPIC))["ends"]) == 2

    with_client(tmp_path, run)


def test_a_cancelled_send_takes_nobody_elses_receipt(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:

            async def send(number: int) -> int | None:
                return (await producer.send(b"%d" % number)).offset

            tasks = [asyncio.create_task(send(number)) for number in range(10)]
            await asyncio.sleep(0)
            tasks[3].cancel()
            offsets = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(offsets.pop(3), asyncio.CancelledError)
            assert offsets == [0, 1, 2, 4, 5, 6, 7, 8, 9]

    with_client(tmp_path, run)


def test_failures_nobody_awaited_surface_at_flush_and_in_on_error(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        heard: list[tuple[DanubeError, int]] = []
        async with client.producer(TOPIC, on_error=lambda error, count: heard.append((error, count))) as producer:
            unaware(producer).send(bytes(2000))
            with pytest.raises(MessageTooLarge) as failed:
                await producer.flush()
            assert "sending 1 message failed" in failed.value.__notes__[0]
            assert [(type(error), count) for error, count in heard] == [(MessageTooLarge, 1)]
            with pytest.raises(MessageTooLarge):
                await producer.send(bytes(2000))
            await producer.flush()  # the awaited one is not said again
            assert len(heard) == 1

    with_client(tmp_path, run)


def test_a_callback_that_fails_harms_nobody(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        reported: list[object] = []
        client.loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        error = ValueError("of the program")

        def fail(*_: object) -> None:
            raise error

        async with client.producer(TOPIC, on_error=fail) as producer:
            unaware(producer).send(bytes(2000))
            with pytest.raises(MessageTooLarge):
                await producer.flush()
            assert reported == [error]
            assert (await producer.send(b"next")).offset == 0

    with_client(tmp_path, run)


def test_closing_the_client_closes_all_and_says_what_failed(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        bad, good = await client.producer(TOPIC).open(), await client.producer(TOPIC).open()
        unaware(bad).send(bytes(2000))
        sent = good.send(b"good")
        with pytest.raises(MessageTooLarge):
            await client.close()
        assert (await sent).offset == 0

    with_client(tmp_path, run)


def test_failures_nobody_awaited_surface_at_close(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        with pytest.raises(MessageTooLarge):
            async with client.producer(TOPIC) as producer:
                unaware(producer).send(bytes(2000))

    with_client(tmp_path, run)


def test_what_follows_a_refused_batch_is_published_all_the_same(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        async with client.producer(TOPIC, batch_messages=1) as producer:
            unaware(producer)
            sent = [producer.send(bytes(2000) if number == 3 else b"%d" % number) for number in range(8)]
            offsets: list[int | None] = []
            for number, each in enumerate(sent):
                if number == 3:
                    with pytest.raises(MessageTooLarge):
                        await each
                else:
                    offsets.append((await each).offset)
            assert offsets == list(range(7))
        assert await payloads_of(client, count=7) == [b"%d" % number for number in range(8) if number != 3]

    with_client(tmp_path, run)


def test_keys_choose_partitions_and_keyless_batches_rotate(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic(TOPIC, partitions=3)
        async with client.producer(TOPIC) as producer:
            for key in ("a", "b", "c", "d"):
                receipt = await producer.send(b"x", key=key)
                assert receipt.partition == fnv1a64(key.encode()) % 3
            receipts = await producer.send_many([b"x"] * 6, keys=["a", "a", "b", "c", "d", "a"])
            assert [each.partition for each in receipts] == [
                fnv1a64(key) % 3 for key in (b"a", b"a", b"b", b"c", b"d", b"a")
            ]
            rotated = [(await producer.send(b"x")).partition for _ in range(6)]
            assert sorted(rotated) == [0, 0, 1, 1, 2, 2]

    with_client(tmp_path, run)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compressed_messages_come_back_as_they_were(tmp_path: Path, compression: str) -> None:
    async def run(client: Client) -> None:
        values = [b"abc" * number for number in range(200)]
        async with client.producer(TOPIC, compression=compression) as producer:
            await producer.send_many(values)
        assert await payloads_of(client, count=200) == values

    with_client(tmp_path, run)


def test_an_unknown_compression_is_named() -> None:
    with pytest.raises(BatchInvalid, match="zstd"):
        codec_of("gzip")


def test_a_serializer_makes_payloads_and_a_deserializer_reads_them(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, serializer=str.encode) as producer:
            await producer.send("one")
            await producer.send_many(["two", "three"])
        async with client.reader(TOPIC, deserializer=bytes.decode) as reader:
            messages = [await reader.receive(5) for _ in range(3)]
        assert [message.value for message in messages] == ["one", "two", "three"]
        assert messages[0].payload == b"one"

    with_client(tmp_path, run)


def test_everything_of_a_message_arrives(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        happened = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"plain")
            await producer.send(b"rich", key="schlüssel", attributes={"ä": "ö"}, event_time=happened)
            await producer.send(None, key=b"\xff\x00")
        async with client.reader(TOPIC) as reader:
            plain, rich, tombstone = [await reader.receive(5) for _ in range(3)]
        assert (plain.key, plain.attributes, plain.event_time, plain.partition) == (None, {}, None, None)
        assert (rich.key, rich.attributes, rich.offset) == ("schlüssel", {"ä": "ö"}, 1)
        assert rich.event_time == int(happened.timestamp()) * 1_000_000
        assert 0 < rich.publish_time <= rich.append_time + 1_000_000
        assert (rich.sequence, tombstone.sequence) == (1, 2)
        assert rich.producer > 0
        assert (tombstone.payload, tombstone.key_bytes) == (None, b"\xff\x00")
        assert tombstone.key is not None
        assert tombstone.key.encode("utf-8", "surrogateescape") == b"\xff\x00"

    with_client(tmp_path, run)


def test_a_second_producer_of_a_name_fences_the_first(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, name="ours") as first:
            await first.send(b"one")
            async with client.producer(TOPIC, name="ours") as second:
                assert second.next_sequences == [1]
                await second.send(b"two")
                with pytest.raises(ProducerFenced):
                    await first.send(b"three")
                with pytest.raises(ProducerFenced):
                    first.send(b"four")
                assert (await second.send(b"five")).offset == 2

    with_client(tmp_path, run)


def test_a_topic_of_the_other_kind_is_a_typed_error(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, reliable=False) as producer:
            receipt = await producer.send(b"dropped")
            assert (receipt.offset, receipt.durability) == (None, "none")
        with pytest.raises(TopicKindDiffers):
            async with client.producer(TOPIC):
                pass

    with_client(tmp_path, run)


async def batches_of(client: Client) -> list[int]:
    """How many messages each batch of the topic has."""
    answer = await client.ask_any(Read(TOPIC, 0, 1 << 20))
    assert isinstance(answer, Batches)
    return [Batch.parse(data).count for data in answer.batches]


def test_a_message_goes_at_once_and_what_follows_fills_a_batch_until_it_is_answered(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC) as producer:
            door.stall()
            sent = [producer.send(b"first")]
            await until(lambda: bool(producer._partitions[0]._in_flight))  # though nobody awaits it
            for number in range(10):
                sent.append(producer.send(b"%d" % number))
                await asyncio.sleep(0)  # each in a turn of its own
            awaited = asyncio.gather(*sent)
            await asyncio.sleep(0)
            door.flow()
            assert [receipt.offset for receipt in await awaited] == list(range(11))
        assert await batches_of(client) == [1, 10]

    with_door(tmp_path, run)


def test_whoever_waited_for_a_batch_joins_the_next(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC) as producer:

            async def send_two() -> None:
                await producer.send(b"first")
                await producer.send(b"third")

            door.stall()
            two = asyncio.create_task(send_two())
            await until(lambda: bool(producer._partitions[0]._in_flight))
            second = producer.send(b"second")
            door.flow()
            await two
            await second
        assert await batches_of(client) == [1, 2]

    with_door(tmp_path, run)


def test_full_batches_wait_for_nothing_that_is_under_way(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, batch_messages=2) as producer:
            await producer.send(b"the name is known")
            door.stall()
            sent = [producer.send(b"%d" % number) for number in range(7)]
            await asyncio.sleep(0)
            assert len(producer._partitions[0]._in_flight) == 3
            door.flow()
            await sent[-1]
        assert await batches_of(client) == [1, 2, 2, 2, 1]

    with_door(tmp_path, run)
