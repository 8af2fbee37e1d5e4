"""The listener serves whatever faces it is given, and tells them apart by their first bytes alone."""

from __future__ import annotations

import asyncio
from asyncio import Transport
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pydanube.api.grpc.face import GrpcFace
from pydanube.api.http.face import HttpFace
from pydanube.api.listening.face import Face, FaceConnection, Sniffed, Summary, beginning
from pydanube.api.listening.listener import Listener
from pydanube.api.listening.turns import Turns
from pydanube.api.native.face import NativeFace
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.addresses import HostPort
from pydanube.base.errors import DanubeError
from pydanube.wire.frames import PREFACE
from pydanube.wire.http2.frames import PREFACE as HTTP2_PREFACE

FACES: dict[str, type[Face]] = {"native": NativeFace, "grpc": GrpcFace, "http": HttpFace}


def sniffed(first: bytes) -> dict[str, Sniffed]:
    return {name: cast(Any, face).sniff(None, first) for name, face in FACES.items()}


@pytest.mark.parametrize(
    ("whole", "whose"),
    [
        (PREFACE, "native"),
        (HTTP2_PREFACE, "grpc"),
        (b"GET / HTTP/1.1\r\n", "http"),
        (b"DELETE /x HTTP/1.1\r\n", "http"),
        (b"BREW /pot HTTP/1.1\r\n", "http"),
    ],
)
def test_first_bytes_are_of_one_face_however_they_are_cut(whole: bytes, whose: str) -> None:
    for end in range(len(whole)):
        found = sniffed(whole[:end])
        assert [name for name, each in found.items() if each is Sniffed.YES] in ([], [whose])
        assert found[whose] in (Sniffed.YES, Sniffed.UNDECIDED)
    assert [name for name, each in sniffed(whole).items() if each is Sniffed.YES] == [whose]


@pytest.mark.parametrize("first", [b"\x00", b"hello\r\n", b"\x16\x03\x01", b"get / HTTP/1.1\r\n"])
def test_what_is_of_no_face_is_known_at_once(first: bytes) -> None:
    assert set(sniffed(first).values()) == {Sniffed.NO}


def test_another_version_of_http_is_not_answered_with_text() -> None:
    assert sniffed(b"GRAB / HTTP/9.9\r\n")["http"] is Sniffed.MALFORMED


class EchoFace:
    """A protocol of its own, of which nothing else knows."""

    name = "echo"
    title = "Echo"
    needs_tls = b"use TLS"

    def sniff(self, first: bytes) -> Sniffed:
        return beginning(b"ECHO\n", first)

    def connect(self, transport: Transport) -> Echo:
        return Echo(transport)

    def turn_away(self, transport: Transport, error: DanubeError) -> FaceConnection | None:
        transport.write(b"full\n")
        return None


class Echo:
    greeted = True
    waiting = False
    heard = False

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def receive(self, data: bytes) -> None:
        self.heard = True
        self._transport.write(data)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def ask(self) -> None:
        self._transport.close()

    def too_slow(self, seconds: float) -> None: ...

    def stop(self, error: DanubeError) -> None:
        self._transport.write(b"goodbye\n")
        self._transport.close()

    def lost(self) -> None: ...

    def summary(self) -> Summary:
        return Summary("somebody", 1, 2)


def with_echo(story: Callable[[Listener, HostPort], Awaitable[None]], **limits: int) -> None:
    async def main() -> None:
        numbers = iter(range(1, 100))
        door = SimpleNamespace(add_connections=lambda listed: numbers, clock=SimpleNamespace(wall=lambda: 0))
        listener = Listener(cast(Any, door), [EchoFace()], Turns(), **limits)
        try:
            async with asyncio.timeout(30):
                await story(listener, await listener.start(HostPort("127.0.0.1", 0)))
        finally:
            await listener.stop()

    asyncio.run(main())


def test_a_face_that_nobody_else_knows_of_is_served_described_and_stopped() -> None:
    async def story(listener: Listener, address: HostPort) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"EC")
        await asyncio.sleep(0.01)
        writer.write(b"HO\nhello")
        assert await reader.readexactly(10) == b"ECHO\nhello"
        [shown] = listener._described()
        assert (shown.protocol, shown.client, shown.producers, shown.consumers) == ("echo", "somebody", 1, 2)
        await listener.stop()
        assert await reader.read() == b"goodbye\n"
        writer.close()

    with_echo(story)


def test_who_speaks_none_of_the_faces_is_told_which_there_are() -> None:
    async def story(listener: Listener, address: HostPort) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b"Danube speaks Echo here.\r\n"
        writer.close()

    with_echo(story)


def test_one_connection_too_many_is_turned_away_as_its_protocol_does() -> None:
    async def story(listener: Listener, address: HostPort) -> None:
        _, first = await asyncio.open_connection(*address)
        first.write(b"ECHO\n")
        while not listener.connections:  # noqa: ASYNC110 - sockets of this loop
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"ECHO\n")
        assert await reader.read() == b"full\n"
        first.close()
        writer.close()

    with_echo(story, connections_max=1)


def test_the_address_for_operators_names_what_is_spoken_there(tmp_path: Path) -> None:
    async def main() -> None:
        settings = StandaloneSettings(tmp_path, port=0, admin_listen=HostPort("127.0.0.1", 0))
        server = Server(settings)
        await server.start()
        try:
            assert server.admin_address is not None
            for address, spoken in (
                (server.address, b"Danube speaks its native protocol, gRPC and HTTP/1 here.\r\n"),
                (server.admin_address, b"Danube speaks gRPC and HTTP/1 here.\r\n"),
            ):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"\x00\x01")
                assert await reader.read() == spoken
                writer.close()
        finally:
            await server.stop()

    asyncio.run(main())
