"""What waits in a consumer has a bound in bytes too: large messages do not fill the memory of a slow program."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import pydanube
from client.broker import TOPIC, Door, settings, until, with_client, with_door
from pydanube.api.server import Server
from pydanube.base.errors import ArgumentInvalid
from pydanube.base.limits import KIB, MIB
from pydanube.client import Client, Consumer

SIZE = 200 * KIB
COUNT = 40
BOUND = 1 * MIB  # of the 8 MiB that there are
KINDS = ["exclusive", "shared", "key_shared"]


async def fill(client: Client, partitions: int = 0) -> None:
    await client.admin.create_topic(TOPIC, partitions=partitions)
    async with client.producer(TOPIC, linger=0) as producer:
        for number in range(COUNT):
            await producer.send(bytes([number]) * SIZE, key=b"%d" % number)


def waiting(consumer: Consumer) -> int:
    """Bytes that wait in it, each batch counted once."""
    return sum({id(batch.content): batch.content.size for batch in consumer.inbox._queue}.values())


async def full(client: Client, consumer: Consumer, *, beyond: int = SIZE + KIB) -> None:
    """Until no more comes: the broker answers a ping only after what it has to send."""
    last = -1
    while (now := waiting(consumer)) != last or not now:
        last = now
        for _ in range(3):
            await client.bounds(next(iter(consumer._sources)))
    assert last <= consumer.prefetch_bytes + beyond * len(consumer.partitions)
    assert last == sum(source.waiting for source in consumer._sources.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partitions", [0, 3])
def test_what_waits_in_a_consumer_is_bounded_in_bytes(tmp_path: Path, kind: str, partitions: int) -> None:
    async def run(client: Client) -> None:
        await fill(client, partitions)
        options: dict[str, Any] = {"subscription": "s", "start": "earliest", "type": kind, "prefetch_bytes": BOUND}
        async with client.consumer(TOPIC, **options) as consumer:
            got = []
            for _ in range(COUNT):
                await full(client, consumer) if len(got) < 3 else None
                got.append(await consumer.receive(5))  # and acknowledges none before it has all
            assert sorted(message.value[0] for message in got) == list(range(COUNT))
            for message in got:
                await consumer.ack(message)

    with_client(tmp_path, run)


def test_each_way_of_receiving_gets_all(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        await fill(client)
        for bound in (1, BOUND):  # at least one message fits
            async with client.consumer(
                TOPIC, subscription=f"fetch-{bound}", start="earliest", prefetch_bytes=bound
            ) as consumer:
                assert len(await consumer.fetch(COUNT, timeout=10)) == COUNT
            async with client.consumer(
                TOPIC, subscription=f"batches-{bound}", start="earliest", prefetch_bytes=bound
            ) as consumer:
                count = 0
                async for batch in consumer.batches():
                    count += len(batch)
                    consumer.ack(batch)
                    if count == COUNT:
                        break

    with_client(tmp_path, run)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_after_a_seek_a_nack_and_a_broken_connection(tmp_path: Path, kind: str) -> None:
    async def run(client: Client, door: Door) -> None:
        await fill(client)
        options = {"failure": {"base_delay": 0}}
        async with client.consumer(
            TOPIC, subscription="s", start="earliest", type=kind, prefetch_bytes=BOUND, options=options
        ) as consumer:
            await full(client, consumer)
            consumer.nack(await consumer.receive(5))
            await full(client, consumer, beyond=10 * SIZE)  # what was decided before it was full comes too
            await consumer.seek("earliest")
            await full(client, consumer, beyond=10 * SIZE)
            door.cut()
            await until(lambda: not client.connected)
            await full(client, consumer, beyond=10 * SIZE)
            seen = set()
            while len(seen) < COUNT:
                message = await consumer.receive(5)
                seen.add(message.offset)
                consumer.ack(message)

    with_door(tmp_path, run)


@pytest.mark.parametrize("kind", ["shared", "key_shared"])
def test_delayed_messages_that_a_restarted_broker_sends_too_soon_do_not_use_up_the_bound(
    tmp_path: Path, kind: str
) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), AsyncExitStack() as stack:
            first = Server(settings(tmp_path))
            _, port = await first.start()
            stack.push_async_callback(first.stop)
            client = await stack.enter_async_context(pydanube.connect(first.url))
            await fill(client)
            options: dict[str, Any] = {"subscription": "s", "start": "earliest", "type": kind, "prefetch_bytes": BOUND}
            consumer = await stack.enter_async_context(client.consumer(TOPIC, **options))
            for message in await consumer.fetch(COUNT, timeout=5):
                consumer.nack(message, delay=600)
            await client.bounds(TOPIC)  # answered after the nacks were
            await first.stop()  # and with it goes what it knew of the delays
            second = Server(settings(tmp_path, port))
            await second.start()
            stack.push_async_callback(second.stop)
            async with client.producer(TOPIC) as producer:
                await producer.send(b"new", key=b"new")
            assert (await consumer.receive(5)).payload == b"new"

    asyncio.run(run())


def test_a_bound_that_is_none_is_refused(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        for wrong in (0, -1, 1 << 32):
            with pytest.raises(ArgumentInvalid, match="prefetch_bytes must be a whole number from 1 to"):
                client.consumer(TOPIC, subscription="s", prefetch_bytes=wrong)
        await asyncio.sleep(0)

    with_client(tmp_path, run)
