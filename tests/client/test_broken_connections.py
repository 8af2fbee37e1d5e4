"""A connection that breaks says nothing of the messages that were on it: none of them counts as failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

import pydanube
from client.broker import TOPIC, Door, running, until
from pydanube.client.transport import Address, Link, Receiver, SocketDialer
from pydanube.wire.commands import Welcome


class Fickle(SocketDialer):
    """The second broker it finds says welcome and is gone in the same moment."""

    def __init__(self) -> None:
        super().__init__()
        self.dialed = 0

    async def dial(self, address: Address, receiver: Receiver) -> Link:
        self.dialed += 1
        if self.dialed != 2:
            return await super().dial(address, receiver)
        loop = asyncio.get_running_loop()
        welcome = b"".join(map(bytes, Welcome("danube", 1 << 20, 30).encode()))
        loop.call_soon(receiver.received, welcome)
        loop.call_soon(receiver.lost, None)
        return Nowhere()


class Nowhere:
    def write(self, parts: Sequence[bytes | memoryview]) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


def test_a_broker_that_goes_right_after_its_welcome_is_looked_for_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        dialer = Fickle()
        async with asyncio.timeout(20), running(tmp_path) as server:
            door = Door(server)
            await door.start()
            async with pydanube.connect(door.url, dialer=dialer) as client:
                door.cut()
                await until(lambda: dialer.dialed == 3)
                assert await client.admin.topics() == []
            await door.stop()

    asyncio.run(scenario())


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
