"""A broker that is there and does not answer: time-outs are kept, and nothing that was given up harms what follows.

Time-outs are long enough for the sends that a slow disk answers late, and are meant to succeed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import pydanube
from client.broker import TOPIC, Door, until, with_door
from pydanube.base.errors import ConnectionLost, DanubeError, NotAnswered
from pydanube.base.limits import PRODUCER_IN_FLIGHT_BATCHES_MAX
from pydanube.client import Client, MessageBatch
from pydanube.client.send_results import SentMessage
from pydanube.operations.topics import FindTopic


async def stored(door: Door, topic: str = TOPIC) -> list[bytes | None]:
    async with pydanube.connect(door.server.url) as direct:
        found: list[bytes | None] = (await direct.read_arrow(topic)).column("payload").to_pylist()
    return found


async def outcome(sent: SentMessage) -> int | DanubeError | None:
    try:
        return (await sent).offset
    except DanubeError as error:
        return error


def test_a_send_that_is_not_answered_in_time_fails_and_says_so(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, send_timeout=1.0) as producer:
            await producer.send(b"one")
            door.stall()
            with pytest.raises(NotAnswered, match=r"/default/orders did not answer within 1 seconds"):
                await producer.send(b"two")
            assert producer.buffered_bytes == 0
            assert client.connected
            door.flow()

    with_door(tmp_path, run)


def test_what_was_given_up_and_arrives_all_the_same_keeps_its_place(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, send_timeout=1.0) as producer:
            await producer.send(b"0")
            door.stall()
            with pytest.raises(NotAnswered):
                await producer.send(b"1")
            later = producer.send(b"2")
            door.flow()
            assert (await later).offset == 2
            assert producer.last_sequence == 2
        assert await stored(door) == [b"0", b"1", b"2"]

    with_door(tmp_path, run)


def test_what_was_given_up_and_is_lost_leaves_no_gap(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, send_timeout=1.0) as producer:
            await producer.send(b"0")
            door.stall()
            with pytest.raises(NotAnswered):
                await producer.send(b"1")
            later = producer.send(b"2")
            await asyncio.sleep(0)
            door.cut()
            door.flow()
            assert (await later).offset == 1
        assert await stored(door) == [b"0", b"2"]

    with_door(tmp_path, run)


def test_more_than_may_be_under_way_is_given_up_too_and_leaves_no_gap(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, send_timeout=2.0, batch_messages=1) as producer:
            await producer.send(b"first")
            door.stall()
            sent = [producer.send(b"%d" % number) for number in range(200)]
            assert all([isinstance(await outcome(each), NotAnswered) for each in sent])
            door.flow()
            await producer.send(b"later")
        found = await stored(door)
        assert found == [b"first", *(b"%d" % number for number in range(PRODUCER_IN_FLIGHT_BATCHES_MAX)), b"later"]

    with_door(tmp_path, run)


def test_what_found_no_room_to_be_sent_has_no_more_time_than_the_rest(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, send_timeout=1.0) as producer:
            door.stall()
            first = asyncio.ensure_future(outcome(producer.send(b"0")))  # of a new name: nothing goes before its answer
            await asyncio.sleep(0.01)
            for number in (1, 2):
                async with asyncio.timeout(1.75):
                    assert isinstance(await outcome(producer.send(b"%d" % number)), NotAnswered)
            assert isinstance(await first, NotAnswered)
            waiting = producer.send(b"3")
            await asyncio.sleep(0)
            door.cut()
            door.flow()
            assert (await waiting).offset == 0

    with_door(tmp_path, run)


def test_the_application_repeats_what_was_not_answered_under_its_number(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC, name="import", send_timeout=1.0) as producer:
            for number in range(3):
                door.silent = True
                with pytest.raises(NotAnswered):
                    await producer.send(b"%d" % number, sequence=number)
                door.cut()
                door.silent = False
                receipt = await producer.send(b"%d" % number, sequence=number)
                assert (receipt.offset, receipt.duplicate) == (number, True)
        assert await stored(door) == [b"0", b"1", b"2"]

    with_door(tmp_path, run)


@pytest.mark.parametrize("seed", range(4))
def test_stalls_silences_and_cuts_in_any_order_keep_order_and_double_nothing(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)

    async def run(client: Client, door: Door) -> None:
        sent: list[SentMessage] = []
        async with client.producer(TOPIC, send_timeout=0.03, batch_messages=3) as producer:
            for _ in range(40):
                for _ in range(chance.randrange(1, 12)):
                    sent.append(producer.send(b"%d" % len(sent)))
                await asyncio.sleep(0)
                match chance.randrange(6):
                    case 0:
                        door.stall()
                    case 1:
                        door.silent = True
                    case 2:
                        door.cut()
                        door.silent = False
                        door.flow()
                    case 3 if not door.silent:  # no broker loses answers and stays
                        door.flow()
                    case 4:
                        await outcome(sent[-1])
            door.cut()
            door.silent = False
            door.flow()
            outcomes = [await outcome(each) for each in sent]
        found = await stored(door)
        numbers = [int(payload or b"-1") for payload in found]
        assert numbers == sorted(set(numbers))
        for number, result in enumerate(outcomes):
            if not isinstance(result, DanubeError):
                assert result is not None
                assert numbers[result] == number

    with_door(tmp_path, run)


def test_requests_about_a_consumer_and_openings_have_the_time_of_requests(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        producer = await client.producer(TOPIC).open()
        consumer = await client.consumer(TOPIC, subscription="s").open()
        door.stall()
        for asked in (
            consumer.pause(),
            consumer.seek(0),
            client.producer(TOPIC).open(),
            client.consumer(TOPIC, subscription="other").open(),
        ):
            with pytest.raises(NotAnswered, match=r"no answer to \w+ within 0\.1 seconds"):
                await asked
        consumer.ack(MessageBatch(consumer._sources[TOPIC], None, 0, 0, 0, 0))  # type: ignore[arg-type]
        await consumer.close()
        await producer.close()
        door.flow()

    with_door(tmp_path, run, request_timeout=0.1)


def test_a_seek_without_a_connection_waits_for_one(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC) as producer, client.consumer(TOPIC, subscription="s") as consumer:
            await producer.send(b"one")
            await consumer.ack(await consumer.receive(5))
            door.cut()
            await until(lambda: not client.connected)
            await consumer.pause()
            await consumer.resume()
            door.cut()
            await until(lambda: not client.connected)
            await consumer.seek("earliest")
            assert (await consumer.receive(5)).payload == b"one"

    with_door(tmp_path, run)


def test_a_seek_that_waits_in_vain_says_why(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        consumer = await client.consumer(TOPIC, subscription="s").open()
        await door.server.stop()
        with pytest.raises(DanubeError) as failed:
            await consumer.seek(0)
        assert failed.value.retriable
        assert not isinstance(failed.value, NotAnswered)
        waiting = asyncio.ensure_future(consumer.seek(0))
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(DanubeError, match="closed"):
            await waiting

    with_door(tmp_path, run, request_timeout=0.3)


def test_nothing_is_written_to_a_socket_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run(client: Client, door: Door) -> None:
        connection = await client.connection()
        assert connection._link is not None
        connection._link.abort()
        for _ in range(20):
            connection.request_nowait(FindTopic(TOPIC))
        with pytest.raises(ConnectionLost):
            await connection.request(FindTopic(TOPIC))

    with_door(tmp_path, run)
    assert "socket.send() raised exception" not in caplog.text
