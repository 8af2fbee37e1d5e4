"""Acks and nacks when things go wrong: nothing is lost without a word, and a delay is a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydanube
from client.broker import TOPIC, Door, until, with_door
from pydanube.base.errors import AckInvalid, ArgumentInvalid, ConnectionLost, DanubeError
from pydanube.client import Client, ClientEvent, Consumer
from pydanube.client.acks import AckGroup, Nacked, Postponed
from pydanube.client.partition_consumer import PartitionConsumer
from pydanube.testing import VirtualClock
from pydanube.testing.broker import broker

Test = Callable[[Client, Door, VirtualClock], Awaitable[None]]
AT_ONCE = {"failure": {"base_delay": 0, "max_delay": 100}}


def through_a_door(test: Test, events: list[ClientEvent] | None = None) -> None:
    async def run() -> None:
        clock = VirtualClock()
        async with asyncio.timeout(20), broker(clock=clock) as server:
            door = Door(server)
            await door.start()
            heard = events if events is not None else []
            try:
                async with pydanube.connect(door.url, clock=clock, on_event=heard.append) as client:
                    await test(client, door, clock)
            finally:
                await door.stop()

    asyncio.run(run())


async def publish(client: Client, count: int) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


def shared(client: Client, **options: object) -> Consumer:
    return client.consumer(TOPIC, subscription="s", type="shared", start="earliest", options=AT_ONCE, **options)


async def disconnected(client: Client, door: Door) -> None:
    door.cut()
    await until(lambda: not client.connected)


def test_a_failed_ack_that_nobody_awaits_is_heard_of() -> None:
    events: list[ClientEvent] = []

    async def run(client: Client, door: Door, clock: VirtualClock) -> None:
        await publish(client, 3)
        heard: list[tuple[type[DanubeError], int]] = []
        told = asyncio.Event()

        def on_error(error: DanubeError, count: int) -> None:
            heard.append((type(error), count))
            told.set()

        async with shared(client, on_error=on_error) as consumer:
            messages = await consumer.fetch(3, timeout=5)
            consumer.ack_all(messages[2])  # a shared subscription has none of these
            await told.wait()
            assert heard == [(AckInvalid, 1)]
            assert [event.what for event in events] == ["connected", "ack_failed"]
            with pytest.raises(AckInvalid):
                await consumer.ack_all(messages[2])
            assert len(heard) == 1  # who awaits is told, and nobody else

    through_a_door(run, events)


async def noticed(consumer: Consumer) -> PartitionConsumer:
    """Waits for the notice of what the program has taken, which sends acks too, and allows no other."""
    [source] = consumer._sources.values()
    await until(lambda: not source._taken)
    source._stop_notices()
    return source


def frames_of(source: PartitionConsumer) -> int:
    """Requests so far; those of an open consumer are its acks."""
    assert source.connection is not None
    return source.connection._last_request


def test_an_ack_goes_at_the_end_of_the_turn_and_what_follows_waits_for_its_answer(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await publish(client, 13)
        async with shared(client) as consumer:
            messages = await consumer.fetch(13, timeout=5)
            source = await noticed(consumer)
            before = frames_of(source)

            async def ack_two() -> AckGroup:
                await consumer.ack(messages[1])
                return consumer.ack(messages[12])

            door.stall()
            two = asyncio.create_task(ack_two())
            acks = [consumer.ack(messages[0])]  # nobody awaits it
            assert not source._in_flight
            await asyncio.sleep(0)
            assert len(source._in_flight) == 1
            for message in messages[2:12]:
                acks.append(consumer.ack(message))
                await asyncio.sleep(0)  # each in a turn of its own
            assert len(source._in_flight) == 1
            door.flow()
            acks.append(await two)  # whoever waited for the first frame joins the second
            for ack in acks:
                await ack
            assert frames_of(source) - before == 2
            assert (await client.admin.describe_subscription(TOPIC, "s")).backlog == 0

    with_door(tmp_path, run)


def test_acks_behind_one_that_is_refused_are_sent(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await publish(client, 3)
        async with shared(client) as consumer:
            messages = await consumer.fetch(3, timeout=5)
            await noticed(consumer)
            refused = consumer.ack_all(messages[2])  # a shared subscription has none of these
            later = consumer.ack(messages[0])
            with pytest.raises(AckInvalid):
                await refused
            async with asyncio.timeout(5):
                await later

    with_door(tmp_path, run)


def test_acks_that_free_a_full_window_wait_for_no_answer(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        async with client.producer(TOPIC) as producer:
            for number in range(4):
                await producer.send(b"%d" % number)
        async with shared(client, prefetch=4) as consumer:
            [source] = consumer._sources.values()
            await until(lambda: source.unacked == 4)
            door.stall()
            consumer.ack(await consumer.receive(5))
            await until(lambda: len(source._in_flight) == 1)
            consumer.ack(await consumer.receive(5))
            assert len(source._in_flight) == 1
            await consumer.receive(5)
            assert len(source._in_flight) == 2
            door.flow()

    with_door(tmp_path, run)


def test_acks_given_without_a_connection_are_sent_with_the_next() -> None:
    async def run(client: Client, door: Door, clock: VirtualClock) -> None:
        await publish(client, 10)
        async with shared(client) as consumer:
            messages = await consumer.fetch(10, timeout=5)
            await disconnected(client, door)
            acks = [consumer.ack(message) for message in messages if message.offset % 2]
            for ack in acks:
                await ack
            again = await consumer.fetch(5, timeout=5)
            assert [message.offset for message in again] == [0, 2, 4, 6, 8]

    through_a_door(run)


def test_acks_on_their_way_when_somebody_seeks_do_not_undo_the_seek_after_a_break() -> None:
    async def run(client: Client, door: Door, clock: VirtualClock) -> None:
        await publish(client, 10)
        async with shared(client) as consumer, pydanube.connect(door.server.url) as another:
            door.deaf = True
            for message in await consumer.fetch(10, 5):
                consumer.ack(message)
            await asyncio.wait_for(door.lost_some.wait(), 5)
            await another.admin.seek_subscription(TOPIC, "s", "earliest")
            [source] = consumer._sources.values()
            await until(lambda: source.generation == 1)
            door.deaf = False
            await disconnected(client, door)
            got = [await consumer.receive(5) for _ in range(10)]
            assert [message.offset for message in got] == list(range(10))

    through_a_door(run)


def test_acks_that_a_closing_consumer_could_not_send_are_heard_of() -> None:
    async def run(client: Client, door: Door, clock: VirtualClock) -> None:
        await publish(client, 4)
        heard: list[tuple[type[DanubeError], int]] = []
        consumer = await shared(client, on_error=lambda error, count: heard.append((type(error), count))).open()
        messages = await consumer.fetch(4, timeout=5)
        await disconnected(client, door)
        for message in messages[:3]:
            consumer.ack(message)
        await consumer.close()
        assert heard == [(ConnectionLost, 3)]

    through_a_door(run)


def test_closing_does_not_wait_for_a_broker_that_went_away_meanwhile() -> None:
    async def run(client: Client, door: Door, clock: VirtualClock) -> None:
        await publish(client, 2)
        heard: list[tuple[type[DanubeError], int]] = []
        consumer = await shared(client, on_error=lambda error, count: heard.append((type(error), count))).open()
        first, second = await consumer.fetch(2, timeout=5)
        door.silent = True
        consumer.ack(first)
        awaited = asyncio.create_task(settled(consumer.ack(second)))
        closing = asyncio.create_task(consumer.close())
        await door.lost_some.wait()
        door.cut()
        await closing
        assert isinstance(await awaited, ConnectionLost)
        assert heard == []  # one of the group was awaited, and is told

    through_a_door(run)


async def settled(ack: AckGroup) -> DanubeError | None:
    try:
        await ack
    except DanubeError as error:
        return error
    return None


def test_the_delay_of_a_nack_outlives_the_connection() -> None:
    async def run(client: Client, door: Door, clock: VirtualClock) -> None:
        await publish(client, 6)
        async with shared(client) as consumer:
            messages = await consumer.fetch(6, timeout=5)
            consumer.nack(messages[1], delay=50)  # perhaps on its way when the connection breaks
            await disconnected(client, door)
            consumer.nack(messages[4], delay=20)  # and this one never
            consumer.nack(messages[5])
            got = await consumer.fetch(4, timeout=5)
            assert sorted(message.offset for message in got) == [0, 2, 3, 5]
            for message in got:
                await consumer.ack(message)
            assert await consumer.fetch(1, timeout=0.02) == []
            clock.advance(20)
            four = await consumer.receive(5)
            assert four.offset == 4
            await consumer.ack(four)
            clock.advance(29)
            assert await consumer.fetch(1, timeout=0.02) == []
            clock.advance(1)
            last = await consumer.receive(5)
            assert last.offset == 1
            assert last.redelivery_count >= 1

    through_a_door(run)


def test_a_delay_that_nobody_can_wait_for_is_refused() -> None:
    async def run(client: Client, door: Door, clock: VirtualClock) -> None:
        await publish(client, 1)
        async with shared(client) as consumer:
            message = await consumer.receive(5)
            for delay in (-1.0, 1e9, float("nan")):
                with pytest.raises(ArgumentInvalid):
                    consumer.nack(message, delay=delay)

    through_a_door(run)


@given(
    nacks=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.integers(1, 9)), max_size=8),
    deliveries=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 9)), max_size=8),
)
def test_what_comes_too_soon_after_a_break_is_held_back_once(
    nacks: list[tuple[int, int, int]], deliveries: list[tuple[int, int, int]]
) -> None:
    """Against a set of offsets for each time. Overlapping nacks are a program's mistake: the earlier one counts."""
    postponed, wanted = Postponed(), dict[int, int]()
    for first, more, due in nacks:
        if not any(offset in wanted for offset in range(first, first + more + 1)):
            postponed.add(Nacked(first, first + more, due, ""), sent=bool(due % 2))
            wanted.update(dict.fromkeys(range(first, first + more + 1), due))
    postponed.connection_broke(0)
    for first, more, now in sorted(deliveries, key=lambda each: each[2]):
        found = [
            offset
            for nacked in postponed.take(first, first + more, now)
            for offset in range(nacked.first, nacked.last + 1)
        ]
        expected = [offset for offset in range(first, first + more + 1) if wanted.get(offset, 0) > now]
        assert found == expected
        for offset in expected:
            del wanted[offset]
