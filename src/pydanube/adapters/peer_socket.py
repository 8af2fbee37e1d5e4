"""One TCP or TLS connection between two nodes: an `asyncio.Protocol` around the core in `wire/peer/connection.py`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import BaseTransport, Future, Protocol, TimerHandle, Transport
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from pydanube.base.errors import DanubeError, NodeUnreachable, PeerRefused, TlsFailed
from pydanube.base.limits import LINGER_SECONDS, PEER_PING_SECONDS, PEER_SILENT_PINGS, PEER_WRITE_BUFFER_BYTES
from pydanube.wire.peer.connection import PeerConnection
from pydanube.wire.peer.hello import Node

_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)  # Linux and macOS


class PeerSocket(Protocol):
    """Greets, then passes messages on. The side that connected sends pings; each side notices the other's silence.

    `begin` makes the connection's core of the TLS binding. `on_message` is called for each message.
    """

    def __init__(
        self,
        begin: Callable[[bytes], PeerConnection],
        on_open: Callable[[PeerSocket], None],
        on_message: Callable[[PeerSocket, Any], None],
        *,
        pings: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: Future[None] = loop.create_future()  # done when it is open, or has ended before
        self.ended: Future[None] = loop.create_future()
        self.error: Exception | None = None  # why it has ended; without one, the other side closed it
        self.writable = False
        self.on_writable: Callable[[], None] = _nothing
        self.core: PeerConnection
        self._begin = begin
        self._on_open = on_open
        self._on_message = on_message
        self._pings = pings
        self._loop = loop
        self._transport: Transport | None = None
        self._closing = False
        self._silent = 0  # ticks without a byte
        self._timer: TimerHandle | None = None

    @property
    def peer(self) -> Node | None:
        """The other node, once it has proved itself."""
        return self.core.peer if self._transport is not None else None

    @property
    def was_reset(self) -> bool:
        """Whether the other side, or its system, has ended the connection."""
        return not self._closing and (self.error is None or isinstance(self.error, ConnectionError))

    # -- the loop's calls ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        self._transport = made = cast(Transport, transport)
        made.set_write_buffer_limits(high=PEER_WRITE_BUFFER_BYTES)
        with suppress(OSError):  # without it, only the system's buffer is larger
            if _UNSENT is not None:
                made.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _UNSENT, PEER_WRITE_BUFFER_BYTES)
        try:
            self.core = self._begin(_binding(made))
        except DanubeError as error:
            self._transport = None
            self.error = error
            made.abort()
            return
        self._write_answers()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._silent = 0
        try:
            for message in self.core.receive(data):
                if self._open() and not self._closing:
                    self._on_message(self, message)
            self._write_answers()
            self._open()
        except PeerRefused as error:
            self.end(error)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        self.writable = False
        if self.error is None:
            self.error = error
        if self._timer is not None:
            self._timer.cancel()
        for future in (self.greeted, self.ended):
            if not future.done():
                future.set_result(None)

    # -- its owner's calls ---------------------------------------------------------------------------------------------

    def write(self, frames: Iterable[bytes]) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(b"".join(frames))

    def end(self, error: DanubeError | None = None) -> None:
        """Sends what is queued, then closes; gives up if the other side does not take it."""
        if self._closing or self._transport is None:
            return
        if self.error is None:
            self.error = error
        self._write_answers()
        self._closing, self.writable = True, False
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self, error: DanubeError | None = None) -> None:
        self._closing, self.writable = True, False
        if self.error is None:
            self.error = error
        if self._transport is not None:
            self._transport.abort()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        if not self.greeted.done() and self.core.peer is not None:
            self.writable = True
            self.greeted.set_result(None)
            self._on_open(self)
            self._tick()
        return self.greeted.done()

    def _tick(self) -> None:
        """Counts intervals rather than time, so that a process that was suspended first reads what has arrived."""
        if self._closing:
            return
        if self._silent > PEER_SILENT_PINGS:
            silence = PEER_SILENT_PINGS * PEER_PING_SECONDS
            self.abort(NodeUnreachable(f"the other node sent nothing for {silence:g} s"))
            return
        self._silent += 1
        if self._pings:
            self.core.ping()
            self._write_answers()
        self._timer = self._loop.call_later(PEER_PING_SECONDS, self._tick)

    def _write_answers(self) -> None:
        """A peer that does not read gets no answers, until it ends the connection because of their absence."""
        answers = self.core.take_outgoing()
        if answers and (self.writable or not self.greeted.done()):
            self.write((answers,))


def _nothing() -> None: ...


def _binding(transport: Transport) -> bytes:
    """Bytes that both ends of a TLS connection know, and no one else; empty without TLS. Over TLS 1.3 OpenSSL gives the
    client's Finished, which covers the keys and certificates of both sides."""
    secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    if secured is None:
        return b""
    found = secured.get_channel_binding("tls-unique")
    if not found:
        raise TlsFailed("TLS does not identify its connection, so a greeting cannot be bound to it")
    return found
