"""Who is still there: peers that say nothing, take nothing, never say hello. Looks are made by hand, not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.frame_client import Client, close_all
from pydanube.api.listening import listener as listener_module
from pydanube.api.listening.doorway import Doorway
from pydanube.api.listening.listener import Listener
from pydanube.api.listening.turns import Turns
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import MIB, SWEEP_CONNECTIONS
from pydanube.storage.node.settings import NodeSettings
from pydanube.testing import SimLoop
from pydanube.wire.batch import build
from pydanube.wire.commands import Closed, Grant, Hello, Ping, Pong, Publish
from pydanube.wire.frames import PREFACE
from waiting import until

TOPIC = "/default/orders"


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


def look(server: Server) -> None:
    """At everybody, as the sweep does once in half a keepalive."""
    for doorway in list(server._listener.connections):
        doorway.look()


def test_a_silent_client_is_asked_twice_and_then_closed_with_a_reason(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        look(server)  # it has said hello since
        look(server)
        look(server)
        look(server)
        assert [await client.receive(), await client.receive()] == [Ping(), Ping()]
        look(server)
        closed = await client.receive()
        assert isinstance(closed, Closed)
        assert (closed.code, closed.message) == ("connection_lost", "the client sent nothing for 60 seconds")
        with pytest.raises(EOFError):
            await client.receive()
        assert not server._listener.connections

    with_broker(tmp_path, story)


def test_a_client_that_answers_stays(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        for _ in range(10):
            look(server)
            look(server)
            look(server)
            assert await client.receive() == Ping()
            client.send(Pong())
            client.send(Ping(7))
            assert await client.receive() == Pong(7)
        assert len(server._listener.connections) == 1

    with_broker(tmp_path, story)


def test_bytes_that_never_make_a_frame_are_silence(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        client = await Client.connect(server.address)
        await client.ask("open_producer", channel=1, topic="/default/orders")
        (doorway,) = server._listener.connections
        look(server)
        assert doorway._connection is not None
        frame = b"".join(Publish(1, 1, build([b"x" * MIB], publish_time=1).to_bytes()).encode())
        for at in range(4):
            client.write(frame[at * 1000 : (at + 1) * 1000])
            await until(lambda: doorway._connection._reader.midway)  # type: ignore[union-attr]
            look(server)
        commands = [await client.receive() for _ in range(3)]
        assert commands[:2] == [Ping(), Ping()]
        assert isinstance(commands[2], Closed)

    with_broker(tmp_path, story)


def test_an_idle_connection_of_http_is_closed(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: danube\r\n\r\n")
        assert b"ok\n" in await reader.readuntil(b"ok\n")
        look(server)
        look(server)
        assert len(server._listener.connections) == 1
        look(server)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    with_broker(tmp_path, story)


async def stuck_consumer(server: Server) -> tuple[Client, Doorway]:
    """A consumer that does not read, with more on its way than sockets take."""
    producer = await Client.connect(server.address)
    await producer.ask("open_producer", channel=1, topic=TOPIC)
    before = list(server._listener.connections)
    consumer = await Client.connect(server.address)
    (doorway,) = [each for each in server._listener.connections if each not in before]
    await consumer.ask("open_consumer", channel=1, topic=TOPIC, subscription="s", start="earliest")
    consumer.stop_reading()
    consumer.send(Grant(1, 1_000_000))
    for _ in range(40):
        producer.send(Publish(1, 1, build([b"x" * MIB], publish_time=1).to_bytes()))
        await producer.receive()
    await until(lambda: doorway._connection is not None and not doorway._connection.writable)
    await producer.close()
    return consumer, doorway


def test_a_consumer_that_takes_nothing_is_closed_whatever_waits_for_it(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        _, doorway = await stuck_consumer(server)
        doorway.look()  # it has spoken before
        for _ in range(4):
            assert not doorway._transport.is_closing()
            doorway.look()
        assert doorway._transport.is_closing()
        for _ in range(10):
            await asyncio.sleep(0)
        assert doorway._transport.get_write_buffer_size()  # what it was sent would be on its way forever
        doorway.look()
        await until(lambda: doorway not in server._listener.connections)

    with_broker(tmp_path, story)


def test_a_consumer_that_takes_little_by_little_stays(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        await Client.connect(server.address)
        (doorway,) = server._listener.connections

        class Slow:
            """Its transport, as if one byte were taken between every third look."""

            waiting = 300

            def __init__(self, transport: asyncio.Transport) -> None:
                self.is_closing = transport.is_closing
                self.close, self.abort = transport.close, transport.abort

            def get_write_buffer_size(self) -> int:
                self.waiting -= 1
                return self.waiting // 3

        real, doorway._transport = doorway._transport, cast(Any, Slow(doorway._transport))
        for _ in range(100):
            doorway.look()
        assert not real.is_closing()

    with_broker(tmp_path, story)


def test_of_too_many_that_say_nothing_the_oldest_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "CONNECTIONS_GREETING_MAX", 3)

    async def story(server: Server) -> None:
        silent = [await Client.connect(server.address, hello=False) for _ in range(3)]
        await until(lambda: len(server._listener.greeting) == 3)
        good = await Client.connect(server.address)
        with pytest.raises((EOFError, ConnectionError)):
            await silent[0].receive()
        assert "default" in (await good.ask("namespace.list"))["namespaces"]
        assert len(server._listener.connections) == 3

    with_broker(tmp_path, story)


def test_more_connections_than_allowed_are_refused_and_room_is_made_by_leaving(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        first, _ = await Client.connect(server.address), await Client.connect(server.address)
        third = await Client.connect(server.address, hello=False)
        third.write(PREFACE)
        third.send(Hello("test"))
        refused = await third.receive()
        assert isinstance(refused, Closed)
        assert refused.code == "too_many_connections"
        await first.close()
        await until(lambda: len(server._listener.connections) == 1)
        await Client.connect(server.address)

    with_broker(tmp_path, story, connections_max=2)


@pytest.mark.parametrize("count", [1, SWEEP_CONNECTIONS, 1000])
def test_the_sweep_looks_at_all_once_in_half_a_keepalive_and_at_few_in_one_turn(count: int) -> None:
    loop = SimLoop()
    looks: list[tuple[float, int]] = []

    class Silent:
        def __init__(self, number: int) -> None:
            self.number = number

        def look(self) -> None:
            looks.append((loop.time(), self.number))

    async def story() -> None:
        door = SimpleNamespace(add_connections=lambda listed: iter(()))
        listener = Listener(
            cast(Any, door), [cast(Any, SimpleNamespace(title="nothing"))], Turns(), keepalive_seconds=30
        )
        listener.connections = {cast(Any, Silent(number)): None for number in range(count)}
        listener._sweep(iter(()))
        await asyncio.sleep(95)
        for timer in listener._timers.values():
            timer.cancel()

    loop.run_until_complete(story())
    loop.close()
    for number in (0, count // 2, count - 1):
        times = [time for time, looked_at in looks if looked_at == number]
        assert 6 <= len(times) <= 7
        gaps = [late - early for early, late in pairwise(times)]
        assert all(14.9 <= gap <= 15.1 for gap in gaps), gaps
    turns = [time for time, _ in looks]
    assert max(turns.count(turn) for turn in sorted(set(turns))) <= SWEEP_CONNECTIONS
