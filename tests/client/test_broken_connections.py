"""A connection that breaks says nothing of the messages that were on it: none of them counts as failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pydanube
from client.broker import TOPIC, Door, running, until

BREAKS = 8  # more than the deliveries after which a message is given up


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
def test_broken_connections_give_up_no_message(tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20), running(tmp_path) as server, pydanube.connect(server.url) as steady:
            options = {"failure": {"poison": "drop", "max_redelivery_count": 2}}
            await steady.admin.create_topic(TOPIC)
            await steady.admin.create_subscription(TOPIC, "s", type=kind, options=options)
            async with steady.producer(TOPIC) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
            door = Door(server)
            await door.start()
            events: list[str] = []
            async with (
                pydanube.connect(door.url, on_event=lambda event: events.append(event.what)) as client,
                client.consumer(TOPIC, subscription="s", type=kind) as consumer,
            ):
                for number in range(1, BREAKS + 1):
                    assert (await consumer.receive(timeout=5)).payload == b"0"
                    door.cut()
                    await until(lambda number=number: events.count("disconnected") == number)
                found = await consumer.fetch(10, timeout=5)
                assert [message.payload for message in found] == [b"%d" % number for number in range(10)]
            await door.stop()

    asyncio.run(scenario())
