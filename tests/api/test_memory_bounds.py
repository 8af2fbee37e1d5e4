"""S4: what live peers of ill will can make a broker hold has one bound for all of them, and they are told so."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydanube
from api.frame_client import Client, close_all
from api.http_client import Http
from pydanube.api.listening import buffers as buffers_module
from pydanube.api.listening import doorway as doorway_module
from pydanube.api.listening import listener as listener_module
from pydanube.api.listening.buffers import SMALL_BYTES, coalesced
from pydanube.api.listening.doorway import Doorway
from pydanube.api.native import unfinished as unfinished_module
from pydanube.api.native.connection import FLUSH_BYTES
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.errors import TooManyConnections
from pydanube.base.limits import KIB, MIB
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import build
from pydanube.wire.commands import Closed, Error, Ping, Publish, Published, RequestFrame
from pydanube.wire.frames import FRAME_HEADER_BYTES
from waiting import until

TOPIC = "/default/orders"
BATCH = build([b"x" * 400 * KIB], publish_time=1).to_bytes()
HALF = 200 * KIB
RACE = (EOFError, ConnectionError)  # a broken socket, seen from this or that side


def with_broker(directory: Path, story: Callable[[Server], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        server = Server(StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=4 * MIB), **options))
        await server.start()
        try:
            async with asyncio.timeout(20):
                await story(server)
        finally:
            await close_all()
            await server.stop()

    asyncio.run(run())


def narrow(transport: asyncio.BaseTransport, direction: int) -> None:
    """So that little is in the system's own buffers."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, direction, 16 * KIB)


def doorways(server: Server) -> list[Doorway]:
    return list(server._listener.connections)


# -- frames that do not end --------------------------------------------------------------------------------------------


async def begun(server: Server, channel: int = 1) -> tuple[Client, bytes]:
    """A client that has sent half of a PUBLISH, and the other half."""
    client = await Client.connect(server.address)
    await client.ask("open_producer", channel=channel, topic=TOPIC)
    native: Any = doorways(server)[-1]._connection
    frame = b"".join(Publish(channel, 7, BATCH).encode())
    client.write(frame[:HALF])
    await until(lambda: native._reader.held == HALF - FRAME_HEADER_BYTES)
    return client, frame[HALF:]


def test_frames_that_never_end_share_one_bound_and_the_first_begun_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished_module, "FRAMES_UNFINISHED_BYTES_MAX", MIB)

    async def story(server: Server) -> None:
        peers = [await begun(server) for _ in range(10)]
        natives: list[Any] = [doorway._connection for doorway in doorways(server)]
        assert sum(native._reader.held for native in natives) == server._native.unfinished.bytes <= MIB
        closed = await peers[0][0].receive()
        assert isinstance(closed, Closed)
        assert (closed.code, closed.retriable) == ("frames_busy", True)
        last, rest = peers[-1]
        last.write(rest)
        assert isinstance(await last.receive(), Published)
        for client, _ in peers:
            await client.close()
        await until(lambda: not server._listener.connections)
        assert server._native.unfinished.bytes == 0

    with_broker(tmp_path, story)


def test_a_slow_frame_makes_way_for_no_quick_ones_while_there_is_room(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        slow, rest = await begun(server)
        quick = await Client.connect(server.address)
        await quick.ask("open_producer", channel=1, topic=TOPIC)
        for _ in range(20):
            quick.send(Publish(1, 1, BATCH))
            assert isinstance(await quick.receive(), Published)
        slow.write(rest)
        assert isinstance(await slow.receive(), Published)
        assert server._native.unfinished.bytes == 0

    with_broker(tmp_path, story)


def test_of_what_is_published_on_no_channel_nothing_is_kept(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        (doorway,) = doorways(server)
        frame = b"".join(Publish(9, 7, BATCH).encode())
        client.write(frame[:HALF])
        answer = await client.receive()
        assert isinstance(answer, Error)
        assert (answer.code, answer.channel, answer.request) == ("channel_invalid", 9, 7)
        assert doorway._connection._reader.held == 0  # type: ignore[union-attr]
        assert server._native.unfinished.bytes == 0
        client.write(frame[HALF:])
        assert "default" in (await client.ask("namespace.list"))["namespaces"]  # and no second answer

    with_broker(tmp_path, story)


# -- peers that do not read --------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5).map(lambda size: bytes(size * SMALL_BYTES // 2))))
def test_small_buffers_become_one_and_large_ones_stay(buffers: list[bytes]) -> None:
    made = coalesced(buffers)
    assert b"".join(made) == b"".join(buffers)
    large = [each for each in buffers if len(each) >= SMALL_BYTES]
    assert len(made) <= 2 * len(large) + 1
    assert [id(each) for each in made if any(each is one for one in large)] == [id(each) for each in large]


def test_answers_to_a_flood_of_pings_reach_the_socket_in_few_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        native: Any = doorways(server)[0]._connection
        writelines = native._transport.writelines

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

            def writelines(self, out: list[bytes]) -> None:
                counts.append(len(out))
                writelines(out)

        transport, native._transport = native._transport, Counting()
        client.write(b"".join(Ping(1).encode()) * 5_000)
        for _ in range(5_000):
            await client.receive()
        assert max(counts) == 1

    assert buffers_module.SMALL_BYTES > 20
    with_broker(tmp_path, story)


def test_what_waits_for_those_who_read_nothing_has_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway_module, "SEND_BUFFER_BYTES_MAX", 64 * KIB)
    monkeypatch.setattr(listener_module, "SEND_BUFFERS_BYTES_MAX", MIB)

    async def story(server: Server) -> None:
        good = await Client.connect(server.address)
        flood = b"".join(Ping(1).encode()) * 50_000
        peers = []
        for _ in range(20):
            peers.append(await Client.connect(server.address))
            peers[-1].stop_reading()
            doorway = doorways(server)[-1]
            narrow(peers[-1]._writer.transport, socket.SO_RCVBUF)
            narrow(doorway._transport, socket.SO_SNDBUF)
            peers[-1].write(flood)
            await until(partial(server._listener._stuck.__contains__, doorway))
            waiting = sum(each._transport.get_write_buffer_size() for each in server._listener._stuck)
            assert waiting <= server._listener._stuck_bytes <= MIB
        await until(lambda: len(server._listener.connections) < 20)
        assert "default" in (await good.ask("namespace.list"))["namespaces"]
        for each in peers:
            each.abort()
        await until(lambda: len(server._listener.connections) == 1)
        assert server._listener._stuck_bytes == 0

    with_broker(tmp_path, story)


def test_what_waits_is_counted_again_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway_module, "SEND_BUFFER_BYTES_MAX", 64 * KIB)

    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        (doorway,) = doorways(server)
        narrow(client._writer.transport, socket.SO_RCVBUF)
        narrow(doorway._transport, socket.SO_SNDBUF)
        client.stop_reading()
        client.write(b"".join(Ping(1).encode()) * 50_000)
        await until(partial(server._listener._stuck.__contains__, doorway))
        doorway._transport.write(bytes(MIB))  # as an answer that was being made
        doorway.look()
        waiting = doorway._transport.get_write_buffer_size()
        assert MIB < waiting == server._listener._stuck_bytes
        monkeypatch.setattr(listener_module, "SEND_BUFFERS_BYTES_MAX", MIB)
        doorway.look()
        await until(lambda: not server._listener.connections)
        assert server._listener._stuck_bytes == 0
        client.abort()

    with_broker(tmp_path, story)


def test_reads_are_answered_one_by_one_and_only_to_who_takes_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorway_module, "SEND_BUFFER_BYTES_MAX", 64 * KIB)

    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic=TOPIC)
        client.send(Publish(1, 1, BATCH))
        await client.receive()
        narrow(client._writer.transport, socket.SO_RCVBUF)
        (doorway,) = doorways(server)
        narrow(doorway._transport, socket.SO_SNDBUF)
        client.stop_reading()
        for request in range(1, 201):
            client.send(RequestFrame(request, "read", {"topic": TOPIC, "offset": 0}))
        await until(partial(server._listener._stuck.__contains__, doorway))
        for _ in range(100):
            await asyncio.sleep(0)
        assert doorway._transport.get_write_buffer_size() < FLUSH_BYTES + 2 * len(BATCH)
        client._writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert sorted([(await client.receive()).request for _ in range(200)]) == list(range(1, 201))  # type: ignore[union-attr]

    with_broker(tmp_path, story)


# -- too many connections ----------------------------------------------------------------------------------------------


def test_one_connection_too_many_is_told_so_in_its_own_protocol(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        for _ in range(2):
            await Client.connect(server.address)
        with pytest.raises(TooManyConnections):
            async with pydanube.connect(server.url):
                pass
        http = await Http.connect(server)
        reply = await http.ask("GET", "/health")
        assert (reply.status, reply.json["code"]) == (503, "too_many_connections")
        assert await http.ended()
        await http.close()
        assert len(server._listener.connections) == 2
        assert server._listener.refused >= 2

    with_broker(tmp_path, story, connections_max=2)


def test_few_that_are_too_many_are_waited_for_and_not_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "CONNECTIONS_LINGERING_MAX", 2)
    monkeypatch.setattr(doorway_module, "LINGER_SECONDS", 0.05)

    async def story(server: Server) -> None:
        await Client.connect(server.address)
        silent = [await Client.connect(server.address, hello=False) for _ in range(5)]
        for each in silent:
            with pytest.raises(RACE):
                await each.receive()
        await until(lambda: not server._listener._lingering)
        assert server._listener.refused == 5

    with_broker(tmp_path, story, connections_max=1)
