"""Ack timeouts as a program sees them: they count from when it takes a message, and `prefetch` is what it may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import pydanube
import pydanube.sync
from client.broker import TOPIC, Door, until, with_client, with_door
from pydanube.base.errors import NothingReceived
from pydanube.client import Client, Consumer, Message
from pydanube.client.partition_consumer import PartitionConsumer
from pydanube.testing import VirtualClock
from pydanube.testing.broker import broker, broker_thread

HOUR = 3600
TYPES = ("exclusive", "failover", "shared", "key_shared")
each_type = pytest.mark.parametrize("type", TYPES)


def by_the_clock(test: Callable[[Client, VirtualClock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = VirtualClock()
        async with asyncio.timeout(20), broker(clock=clock) as server, pydanube.connect(server.url) as client:
            await test(client, clock)

    asyncio.run(run())


async def published(client: Client, count: int) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


async def heard(client: Client) -> None:
    """Answered behind everything that the client has said."""
    await client.admin.namespaces()


async def at_once(consumer: Consumer, count: int, how: str) -> list[Message]:
    if how == "fetch":
        return await consumer.fetch(count, timeout=5)
    return list(await anext(consumer.batches()))  # type: ignore[arg-type]


async def done_one_by_one(client: Client, clock: VirtualClock, consumer: Consumer, messages: list[Message]) -> None:
    """All that a program got at once, each nearly as slowly as an ack timeout of 0.32 s allows."""
    [source] = consumer._sources.values()
    await until(lambda: not source._taken)
    for left, message in zip((4, 3, 2, 1, 0), messages, strict=True):
        await heard(client)
        clock.advance(0.3)  # of work
        await consumer.ack(message)
        await until(lambda left=left: [each.left for each in source._handed] == [left] * bool(left))  # type: ignore[misc]
    assert (await client.admin.describe_subscription(TOPIC, "s"))["backlog"] == 0
    assert await consumer.fetch(1, timeout=0.05) == []


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.payload or b"") for message in messages]


def queued(consumer: Consumer) -> int:
    return sum(map(len, consumer.inbox._queue))


@each_type
def test_messages_that_wait_in_the_queue_of_a_slow_program_are_handed_out_once(type: str) -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await published(client, 20)
        async with client.consumer(TOPIC, subscription="s", type=type, start="earliest") as consumer:
            for number in range(20):
                message = await consumer.receive(5)
                assert (int(message.payload or b""), message.redelivery_count) == (number, 0)
                await heard(client)
                clock.advance(25)  # of work; the default timeout is 30 s
                await consumer.ack(message)
            assert (await client.admin.describe_subscription(TOPIC, "s"))["backlog"] == 0

    by_the_clock(run)


@each_type
def test_what_a_program_took_and_forgot_comes_again(type: str) -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await published(client, 3)
        async with client.consumer(TOPIC, subscription="s", type=type, start="earliest") as consumer:
            assert int((await consumer.receive(5)).payload or b"") == 0
            await heard(client)
            for seconds in (31, 31, *[2] * 30):  # of the message, of what waits of its key if that counts, and retries
                clock.advance(seconds)
                for _ in range(5):
                    await heard(client)
                if seconds == 2 and queued(consumer) == 3:
                    break
            found = await consumer.fetch(3, timeout=5)
            assert sorted(numbers(found)) == [0, 1, 2]
            assert [int(each.payload or b"") for each in found if each.redelivery_count] == [0]

    by_the_clock(run)


def test_batches_count_from_when_they_are_taken() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        for _ in range(3):
            await published(client, 5)
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            batches = consumer.batches()
            for _ in range(3):
                batch = await anext(batches)  # type: ignore[arg-type]
                assert (len(batch), batch.redelivery_count) == (5, 0)
                await heard(client)
                clock.advance(25)
                await consumer.ack(batch)

    by_the_clock(run)


@each_type
@pytest.mark.parametrize("how", ["batches", "fetch"])
def test_a_program_that_gets_many_at_once_and_does_them_one_by_one_gets_each_once(type: str, how: str) -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await published(client, 5)
        options = {"failure": {"ack_timeout": 0.32}}
        async with client.consumer(TOPIC, subscription="s", type=type, start="earliest", options=options) as consumer:
            await done_one_by_one(client, clock, consumer, await at_once(consumer, 5, how))

    by_the_clock(run)


@each_type
@pytest.mark.parametrize("before", [None, HOUR])
def test_a_program_has_the_new_ack_timeout_for_each_of_many_when_the_subscription_is_altered(
    type: str, before: int | None
) -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await published(client, 5)
        options = {"failure": {"ack_timeout": before}}
        async with client.consumer(TOPIC, subscription="s", type=type, start="earliest", options=options) as consumer:
            messages = await consumer.fetch(5, timeout=5)
            await heard(client)
            await client.admin.alter_subscription(TOPIC, "s", options={"failure": {"ack_timeout": 0.32}})
            await done_one_by_one(client, clock, consumer, messages)

    by_the_clock(run)


def test_a_consumer_rests_again_when_its_subscription_has_no_ack_timeout_any_more(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await published(client, 9)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert len(await consumer.fetch(9)) == 9
            [source] = consumer._sources.values()
            await client.admin.alter_subscription(TOPIC, "s", options={"failure": {"ack_timeout": None}})
            await until(lambda: source._notice_timer is None)

    with_client(tmp_path, run)


def test_an_ack_timeout_that_was_altered_while_a_consumer_is_opened_is_the_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = PartitionConsumer.opened

    def altered_meanwhile(source: PartitionConsumer, reply: Mapping[str, Any]) -> None:
        """Both were read from the socket before the answer is looked at."""
        source.ack_timeout_changed(320_000)
        opened(source, reply)

    async def run(client: Client) -> None:
        monkeypatch.setattr(PartitionConsumer, "opened", altered_meanwhile)
        async with client.consumer(TOPIC, subscription="s") as consumer:
            [source] = consumer._sources.values()
            assert source._notice_seconds == 0.01

    with_client(tmp_path, run)


def test_a_program_that_gets_many_at_once_and_does_no_more_of_them_gets_the_rest_again() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await published(client, 5)
        options = {"failure": {"ack_timeout": 0.32, "base_delay": 0.016}}
        async with client.consumer(TOPIC, subscription="s", start="earliest", options=options) as consumer:
            [first, *_] = await consumer.fetch(5, timeout=5)
            [source] = consumer._sources.values()
            await consumer.ack(first)
            await until(lambda: [each.left for each in source._handed] == [4])
            await heard(client)
            clock.advance(0.4)
            await until(lambda: not source._handed)
            clock.advance(1)
            again = await consumer.fetch(4, timeout=5)
            assert sorted(numbers(again)) == [1, 2, 3, 4]
            assert again[0].redelivery_count == 1

    by_the_clock(run)


def test_a_fetch_that_waits_for_more_has_taken_nothing_yet() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await published(client, 2)
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            fetching = asyncio.ensure_future(consumer.fetch(3))
            await until(lambda: any(len(found) == 2 for found in consumer.inbox._fetching))
            await heard(client)
            clock.advance(HOUR)
            await heard(client)
            await published(client, 1)
            assert [message.redelivery_count for message in await fetching] == [0, 0, 0]

    by_the_clock(run)


def test_a_thread_has_its_time_from_when_it_takes_a_message() -> None:
    clock = VirtualClock()
    with broker_thread(clock=clock) as url, pydanube.sync.connect(url) as client:
        with client.producer(TOPIC) as producer:
            producer.send_many([b"%d" % number for number in range(10)]).result(5)
        with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            for number in range(10):
                message = consumer.receive(5)
                assert (message.payload, message.redelivery_count) == (b"%d" % number, 0)
                client.admin.namespaces()
                clock.advance(25)
                consumer.ack(message).result(5)


def test_what_was_rewound_is_not_handed_out_from_the_queue_as_well() -> None:
    async def run(client: Client, clock: VirtualClock) -> None:
        await published(client, 10)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            first = await consumer.receive(5)
            consumer.nack(first)
            await heard(client)
            await heard(client)  # what was recalled has come before the answer
            assert consumer.inbox.arrived(10) == []
            clock.advance(2)
            assert numbers(await consumer.fetch(10, timeout=5)) == list(range(10))

    by_the_clock(run)


def test_a_worker_with_a_prefetch_of_one_holds_one_job(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        options = {"subscription": "s", "type": "shared", "start": "earliest", "prefetch": 1}
        async with client.consumer(TOPIC, **options) as slow, client.consumer(TOPIC, **options) as quick:  # type: ignore[arg-type]
            await published(client, 6)
            job = await slow.receive(5)
            done = []
            for _ in range(5):
                other = await quick.receive(5)
                done.append(int(other.payload or b""))
                await quick.ack(other)
            assert sorted([*done, int(job.payload or b"")]) == list(range(6))
            assert queued(slow) == 0

    with_client(tmp_path, run)


@pytest.mark.parametrize("prefetch", [1, 2, 5, 10, 1000])
def test_a_program_that_acknowledges_late_is_given_all_that_fits_its_prefetch(tmp_path: Path, prefetch: int) -> None:
    async def run(client: Client) -> None:
        await published(client, 50)
        async with client.consumer(
            TOPIC, subscription="s", type="shared", start="earliest", prefetch=prefetch
        ) as consumer:
            got: list[int] = []
            while len(got) < 50:
                some = [await consumer.receive(5) for _ in range(min(prefetch, 50 - len(got)))]
                got += numbers(some)
                for message in some:
                    consumer.ack(message)  # not awaited
            assert got == list(range(50))

    with_client(tmp_path, run)


def test_a_program_that_keeps_all_it_may_hold_is_told_why_nothing_comes(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await published(client, 3)
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest", prefetch=2) as consumer:
            held = [await consumer.receive(5) for _ in range(2)]
            with pytest.raises(
                NothingReceived, match=r"has sent 2 messages \(prefetch\) that are not acknowledged yet"
            ):
                await consumer.receive(timeout=0.02)
            why = await client.admin.explain(TOPIC, "s", offset=2)
            assert why == "No connected consumer has room for more: 2 delivered messages are not acknowledged yet."
            consumer.ack(held[0])
            assert (await consumer.receive(5)).payload == b"2"

    with_client(tmp_path, run)


def test_refused_messages_give_room_too(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await published(client, 4)
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest", prefetch=1) as consumer:
            for number in range(4):
                message = await consumer.receive(5)
                assert int(message.payload or b"") == number
                consumer.nack(message, delay=60)

    with_client(tmp_path, run)


def test_messages_of_a_topic_that_is_not_reliable_need_no_acks_to_flow(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with (
            client.producer(TOPIC, reliable=False) as producer,
            client.consumer(TOPIC, subscription="s", reliable=False, prefetch=4) as consumer,
        ):
            for number in range(40):
                await producer.send(b"%d" % number)
                assert (await consumer.receive(5)).payload == b"%d" % number

    with_client(tmp_path, run)


def test_what_was_in_hand_when_the_connection_broke_is_not_handed_out_once_it_is_done(tmp_path: Path) -> None:
    async def run(client: Client, door: Door) -> None:
        await published(client, 3)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            first = await consumer.receive(5)
            door.cut()
            await until(lambda: not client.connected)
            await until(lambda: queued(consumer) == 3)  # it came again
            await consumer.ack(first)
            assert numbers(await consumer.fetch(3, timeout=0.1)) == [1, 2]

    with_door(tmp_path, run)


def test_tasks_that_share_a_consumer_lose_nothing_when_one_of_them_leaves(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC, batch_messages=10) as producer:
            for number in range(200):
                producer.send(b"%d" % number)
            await producer.flush()
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            got: list[int] = []

            async def work(count: int) -> None:
                async for message in consumer:
                    got.append(int(message.payload or b""))
                    consumer.ack(message)
                    await asyncio.sleep(0)
                    count -= 1
                    if not count:
                        return

            async def ask() -> None:
                for _ in range(33):
                    got.append(int((await consumer.receive()).payload or b""))
                    await asyncio.sleep(0)

            others = asyncio.gather(work(13), work(27), ask())
            await others
            await work(200 - 13 - 27 - 33)
            assert sorted(got) == list(range(200))

    with_client(tmp_path, run)


def test_a_consumer_of_a_subscription_without_ack_timeout_rests_while_the_program_works(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await published(client, 9)
        options = {"failure": {"ack_timeout": None}}
        async with client.consumer(TOPIC, subscription="s", start="earliest", options=options) as consumer:
            assert len(await consumer.fetch(9)) == 9
            [source] = consumer._sources.values()
            await until(lambda: source._notice_timer is None)

    with_client(tmp_path, run)
