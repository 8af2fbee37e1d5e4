"""S4: slow, silent, greedy and rude peers by the hundred, on real sockets. Their cost is bounded; others are served."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import pydanube
from api.frame_client import Client, close_all
from pydanube.api.listening import doorway as doorway_module
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import KIB, MIB
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import build
from pydanube.wire.commands import Ack, Closed, Grant, Hello, Ping, Publish
from pydanube.wire.frames import PREFACE

TOPIC = "/default/orders"
PEERS = 150  # of each sort
READ_BYTES = 256 * KIB  # that a loop reads at once, and so may answer before it stops
RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends RST


def with_broker(directory: Path, story: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Server(StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=4 * MIB)))
        await server.start()
        try:
            async with asyncio.timeout(20):
                await story(server)
        finally:
            await close_all()
            await server.stop()

    asyncio.run(run())


async def good_client(server: Server, count: int = 200) -> None:
    """Publishes and consumes as if nobody else were there."""
    async with pydanube.connect(server.url) as client:
        async with client.producer("/default/good") as producer:
            for number in range(count):
                await producer.send(b"%d" % number)
        async with client.consumer("/default/good", subscription="s", start="earliest") as consumer:
            messages = await consumer.fetch(count, timeout=5)
            await consumer.ack_all(messages[-1])
            assert len(messages) == count


async def rest(server: Server, count: int) -> None:
    while len(server._listener.connections) != count:  # noqa: ASYNC110 - sockets of this loop
        await asyncio.sleep(0.001)


def test_idle_silent_and_dribbling_peers_do_not_keep_others_from_being_served(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        idle = [await Client.connect(server.address) for _ in range(PEERS)]
        silent = [await Client.connect(server.address, hello=False) for _ in range(PEERS)]
        dribbling = [await Client.connect(server.address, hello=False) for _ in range(PEERS)]
        greeting = b"".join([PREFACE, *Hello("slow").encode()])
        for byte in greeting[:30]:
            for each in dribbling:
                each.write(bytes([byte]))
            await asyncio.sleep(0)
        await good_client(server)
        await rest(server, 3 * PEERS)
        assert len(server._listener.greeting) == 2 * PEERS
        for doorway in list(server._listener.greeting):  # as the five seconds of each would
            doorway._too_slow()
        await rest(server, PEERS)
        for each in dribbling:
            closed = await each.receive()
            assert isinstance(closed, Closed)
            assert closed.code == "protocol_error"
        for each in silent:
            with pytest.raises(EOFError):
                await each.receive()
        assert "default" in (await idle[0].ask("namespace.list"))["namespaces"]

    with_broker(tmp_path, story)


def test_a_storm_of_resets_leaves_nothing(tmp_path: Path) -> None:
    beginnings = [b"", b"D", PREFACE, b"".join([PREFACE, *Hello("rude").encode()]), b"GET / HTTP/1.1\r\n", b"\x16\x03"]

    async def story(server: Server) -> None:
        loop = asyncio.get_running_loop()
        for number in range(PEERS * 4):
            peer = socket.socket()
            peer.setblocking(False)
            await loop.sock_connect(peer, server.address)
            await loop.sock_sendall(peer, beginnings[number % len(beginnings)])
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            peer.close()
        await good_client(server)
        await rest(server, 0)
        assert not server._listener.greeting

    with_broker(tmp_path, story)


@pytest.mark.parametrize("what", ["pings", "acks"])
def test_whoever_floods_without_reading_is_not_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(doorway_module, "SEND_BUFFER_BYTES_MAX", 64 * KIB)

    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        (doorway,) = server._listener.connections
        opened = await client.ask("open_consumer", channel=1, topic=TOPIC, subscription="s")
        client.stop_reading()
        flood = Ping(1) if what == "pings" else Ack(1, 1, opened["generation"], [(0, 0)])
        chunk = b"".join(flood.encode()) * 5_000
        largest = 0
        try:
            for _ in range(400):
                client.write(chunk)
                await asyncio.sleep(0)
                largest = max(largest, doorway._transport.get_write_buffer_size())
            assert doorway._connection is not None
            while doorway._connection.writable:  # it works off in turns what came
                await asyncio.sleep(0)
                largest = max(largest, doorway._transport.get_write_buffer_size())
            assert largest < 64 * KIB + 2 * READ_BYTES
            await good_client(server)
        finally:
            client.abort()  # it would wait forever to have sent the rest

    with_broker(tmp_path, story)


def test_consumers_that_never_read_hold_little_and_the_others_get_all(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        stuck = [await Client.connect(server.address) for _ in range(20)]
        for number, each in enumerate(stuck):
            await each.ask("open_consumer", channel=1, topic=TOPIC, subscription=f"s{number}", start="earliest")
            each.stop_reading()
            each.send(Grant(1, 1_000_000))
        producer = await Client.connect(server.address)
        await producer.ask("open_producer", channel=1, topic=TOPIC)
        batch = build([b"x" * 64 * KIB] * 16, publish_time=1).to_bytes()
        for _ in range(30):
            producer.send(Publish(1, 1, batch))
            await producer.receive()
        await good_client(server)
        for doorway in server._listener.connections:
            assert doorway._transport.get_write_buffer_size() < 8 * MIB + 4 * MIB

    with_broker(tmp_path, story)
