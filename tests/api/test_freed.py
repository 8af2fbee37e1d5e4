"""What a connection held is free when it is closed, by counting references: the garbage collector comes too seldom."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from weakref import ref

import pytest
import uvloop

from api.frame_client import Client, close_all
from api.http_client import Http
from grpc_face.rig import Consumers, Producers, api, channel, message
from grpc_face.test_calls import made, subscribed
from pydanube.api.listening.doorway import Doorway
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import KIB, MIB
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import build
from pydanube.wire.commands import Closed, Grant, Publish
from pydanube.wire.http2.frames import PREFACE as HTTP2_PREFACE

TOPIC = "/default/orders"
Story = Callable[[Server], Awaitable[None]]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def idle(server: Server) -> None:
    await Client.connect(server.address)


async def at_work(server: Server) -> None:
    client = await Client.connect(server.address)
    await client.ask("open_producer", channel=1, topic=TOPIC)
    await client.ask("open_consumer", channel=2, topic=TOPIC, subscription="s")
    assert await client.refused("close", channel=9) == "channel_invalid"
    client.send(Grant(2, 100))
    await client.publish(1, b"x")


async def closed_by_the_broker(server: Server) -> None:
    client = await Client.connect(server.address)
    await client.ask("open_producer", channel=1, topic=TOPIC)
    await client.ask("open_consumer", channel=2, topic=TOPIC, subscription="s")
    await client.ask("topic.create", topic="/default/other")
    other = await Client.connect(server.address)
    await other.ask("topic.delete", topic=TOPIC)
    assert isinstance(await client.receive(), Closed)
    assert isinstance(await client.receive(), Closed)


async def half_way_through_a_frame(server: Server) -> None:
    client = await Client.connect(server.address)
    await client.ask("open_producer", channel=1, topic=TOPIC)
    client.write(b"".join(Publish(1, 1, build([b"x" * MIB], publish_time=1).to_bytes()).encode())[: 512 * KIB])


async def at_fault(server: Server) -> None:
    client = await Client.connect(server.address)
    client.write(b"\xff" * 100)
    await client.receive()


async def http(server: Server) -> None:
    client = await Http.connect(server)
    assert (await client.ask("GET", "/metrics")).status == 200
    client.send("PUT", "/api/v1/topics/default/orders", b"x" * KIB)
    await client.reply()
    await client.close()


async def http_half_way(server: Server) -> None:
    client = await Http.connect(server)
    client.writer.write(
        b"POST /api/v1/topics/default/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nx"
    )
    await client.close()


async def http2(server: Server) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(HTTP2_PREFACE + b"\0\0\0\x04\0\0\0\0\0")
    await reader.read(9)
    writer.write(b"\0\0\x03\x01\x04\0\0\0\x01\x82\x84\x86")  # HEADERS that are not ended: GET / http
    writer.write(b"\0\0\x08\x06\0\0\0\0\0" + bytes(8))
    await reader.read(9)
    writer.close()
    await writer.wait_closed()


async def grpc(server: Server) -> None:
    host, port = server.address
    async with channel(f"{host}:{port}") as opened:
        number, reader = await made(opened, TOPIC), await subscribed(opened, TOPIC)
        stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=reader))
        await Producers(opened).SendMessage(message(TOPIC, b"x", number))
        assert (await stream.read()).payload == b"x"


async def nothing_said(server: Server) -> None:
    await Client.connect(server.address, hello=False)


STORIES: list[Story] = [
    idle,
    at_work,
    closed_by_the_broker,
    half_way_through_a_frame,
    at_fault,
    http,
    http_half_way,
    http2,
    grpc,
    nothing_said,
]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("story", STORIES)
def test_a_closed_connection_is_freed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: Story, run: Callable[..., None]
) -> None:
    kept: list[ref[object]] = []
    lost = Doorway.connection_lost

    def note(doorway: Doorway, error: Exception | None) -> None:
        kept.extend(ref(each) for each in (doorway._connection,) if each is not None)
        lost(doorway, error)

    monkeypatch.setattr(Doorway, "connection_lost", note)

    async def whole() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0, node=NodeSettings(file_bytes=4 * MIB)))
        await server.start()
        try:
            async with asyncio.timeout(10):
                await story(server)
                await close_all()
                while server._listener.connections:  # noqa: ASYNC110 - sockets of this loop
                    await asyncio.sleep(0.001)
                for _ in range(10):  # what was on its way ends: cancelled tasks, callbacks of the loop
                    await asyncio.sleep(0)
            assert [each() for each in kept if each() is not None] == []
            assert kept or story is nothing_said
        finally:
            await close_all()
            await server.stop()

    run(whole())
