"""Dead letters over the wire: where they may go, where they end up, and what a consumer that stops reading costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api.frame_client import Client, close_all, payloads
from pydanube.api.native.consumers import ConsumerChannel
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import MIB, SEND_BUFFER_BYTES_MAX
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import build
from pydanube.wire.commands import Deliver, Grant, Nack, Publish

TOPIC = "/default/orders"


def run(tmp_path: Path, scenario: Any) -> None:
    async def life() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0, node=NodeSettings(file_bytes=4 * MIB)))
        await server.start()
        try:
            await scenario(server)
        finally:
            await close_all()
            await server.stop()

    asyncio.run(life())


def options(topic: object) -> dict[str, Any]:
    return {"failure": {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": topic}}


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        (options(TOPIC), "subscription_option_invalid"),
        (options(5), "subscription_option_invalid"),
        (options("shop/nowhere"), "name_invalid"),
        ({"failure": {"base_delay": "soon"}}, "subscription_option_invalid"),
        ({"failure": {"ack_timeout": True}}, "subscription_option_invalid"),
        ({"dispatch": {"unacked_max": 2.5}}, "subscription_option_invalid"),
        ({"dispatch": {"unacked_max": None}}, "subscription_option_invalid"),
    ],
)
def test_options_that_would_stop_a_subscription_are_refused(tmp_path: Path, chosen: dict[str, Any], code: str) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        fields = {"channel": 1, "topic": TOPIC, "subscription": "s", "options": chosen}
        assert await client.refused("open_consumer", **fields) == code

    run(tmp_path, life)


def test_a_dead_letter_finds_its_partition(tmp_path: Path) -> None:
    async def life(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("topic.create", topic="/default/dead", partitions=2)
        await client.ask("open_producer", channel=1, topic=TOPIC)
        chosen = options("/default/dead")
        await client.ask("open_consumer", channel=2, topic=TOPIC, subscription="s", start=0, options=chosen)
        for partition in range(2):
            dead = f"/default/dead-part-{partition}"
            await client.ask("open_consumer", channel=3 + partition, topic=dead, subscription="d", start=0)
            client.send(Grant(3 + partition, 10))
        await client.publish(1, b"bad", keys=["k"])
        client.send(Grant(2, 10))
        deliver = await client.receive()
        assert isinstance(deliver, Deliver)
        client.send(Nack(2, 0, 0, [(0, 0)], 0, "no"))
        letter = await client.receive()
        assert isinstance(letter, Deliver)
        assert letter.channel in (3, 4)
        assert payloads(letter) == [b"bad"]

    run(tmp_path, life)


def test_a_consumer_that_stops_reading_is_not_sent_for_ever(tmp_path: Path) -> None:
    """Its permits are taken back when its socket is full, however small the messages were before."""

    async def life(server: Server) -> None:
        reader, producer = await Client.connect(server.address), await Client.connect(server.address)
        await reader.ask("open_consumer", channel=1, topic=TOPIC, subscription="s", type="shared", start=0)
        await producer.ask("open_producer", channel=1, topic=TOPIC)
        reader.send(Grant(1, 1_000_000))
        await producer.publish(1, *[b"x"] * 5000)
        assert isinstance(await reader.receive(), Deliver)
        reader.stop_reading()
        large = build([b"x" * MIB], publish_time=1).to_bytes()
        for _ in range(40):
            producer.send(Publish(1, 7, large))
            await producer.receive()
        [doorway] = [
            each for each in server._listener.connections if each._connection and not each._connection.writable
        ]
        waiting = doorway._transport.get_write_buffer_size()
        assert waiting < SEND_BUFFER_BYTES_MAX + 8 * MIB
        [channel] = [each for each in doorway._connection.channels.values() if isinstance(each, ConsumerChannel)]
        assert channel.handle is not None
        assert not channel._connection.writable
        assert channel._ahead == 0

    run(tmp_path, life)
