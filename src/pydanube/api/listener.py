"""The one listener: the first bytes of a connection tell the native protocol and HTTP/1 apart."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Server, TimerHandle, Transport
from collections.abc import Callable
from typing import cast

from pydanube.api.http.probe import METHODS, Probe, Routes
from pydanube.api.tcp.connection import NativeConnection
from pydanube.base.errors import ProtocolError, TopicClosed
from pydanube.base.limits import CONNECTIONS_MAX, HELLO_SECONDS, SEND_BUFFER_BYTES_MAX
from pydanube.broker.service import Service
from pydanube.wire.frames import PREFACE

log = logging.getLogger(__name__)
SNIFFED_BYTES = max(len(PREFACE), *(len(method) for method in METHODS))


class Listener:
    """Owns the socket and its connections."""

    def __init__(self, service: Service, routes: Routes, broker: str) -> None:
        self.service = service
        self.routes = routes
        self.broker = broker
        self.connections: dict[Doorway, None] = {}
        self._server: Server | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Serves from now on; the address it got."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Doorway(self), host, port, backlog=1024)
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def stop(self) -> None:
        """Takes no more connections, and tells those there are that it goes."""
        if self._server is not None:
            self._server.close()
        for doorway in list(self.connections):
            doorway.say_goodbye()


class Doorway(asyncio.Protocol):
    """One connection, until it is known what it speaks, and its bytes from then on."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: Transport
        self._first = b""
        self._receive: Callable[[bytes], None] = self._sniff
        self._native: NativeConnection | None = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        listener = self._listener
        if len(listener.connections) >= CONNECTIONS_MAX:
            log.warning("a connection is refused: there are %d", CONNECTIONS_MAX)
            self._transport.abort()
            return
        listener.connections[self] = None
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES_MAX)
        self._timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._native is not None:
            self._native.lost()

    def pause_writing(self) -> None:
        if self._native is not None:
            self._native.pause()

    def resume_writing(self) -> None:
        if self._native is not None:
            self._native.resume()

    def say_goodbye(self) -> None:
        if self._native is not None:
            self._native.refuse(TopicClosed("the broker stops"))
        else:
            self._transport.close()

    def _sniff(self, data: bytes) -> None:
        first = self._first = self._first + data
        if first.startswith(PREFACE):
            self._native = NativeConnection(self._listener.service, self._transport, self._listener.broker)
            self._receive = self._native_bytes
            self._native_bytes(first)
        elif first.startswith(METHODS):
            probe = Probe(self._listener.routes)
            self._receive = lambda more: self._answer(probe, more)
            self._answer(probe, first)
        elif len(first) >= SNIFFED_BYTES or not _may_become(first):
            self._transport.write(b"Danube speaks its native protocol and HTTP/1 here.\r\n")
            self._transport.close()

    def _native_bytes(self, data: bytes) -> None:
        assert self._native is not None
        self._native.receive(data)
        if self._timer is not None and self._native.greeted:
            self._timer.cancel()
            self._timer = None

    def _answer(self, probe: Probe, data: bytes) -> None:
        self._transport.write(probe.receive(data))
        if probe.closing:
            self._transport.close()

    def _too_slow(self) -> None:
        """Whoever has not said what it wants by now wants nothing."""
        self._timer = None
        if self._native is not None:
            self._native.refuse(ProtocolError(f"no HELLO within {HELLO_SECONDS:.0f} s"))
        else:
            self._transport.close()


def _may_become(first: bytes) -> bool:
    return any(known.startswith(first) for known in (PREFACE, *METHODS))
