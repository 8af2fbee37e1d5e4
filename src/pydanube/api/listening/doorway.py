"""One connection of the listener: which protocol it speaks, its bytes from then on, and whether it is still there.

Translates nothing itself. What a peer can make it hold is bounded: nobody is read from who does not read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from asyncio import Task, TimerHandle, Transport
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from pydanube.api.http.connection import HttpConnection
from pydanube.api.listening.peer import peer_of
from pydanube.api.listening.tls import TLS_FIRST, secure
from pydanube.api.native.connection import NativeConnection
from pydanube.base.errors import ConnectionLost, DanubeError, ProtocolError, TlsFailed, TooManyConnections
from pydanube.base.limits import HELLO_SECONDS, HTTP_LINE_BYTES_MAX, LINGER_SECONDS, SEND_BUFFER_BYTES_MAX
from pydanube.broker.door.presence import Connection
from pydanube.wire.commands import Closed
from pydanube.wire.frames import PREFACE
from pydanube.wire.http1 import METHODS
from pydanube.wire.http2.frames import PREFACE as HTTP2_PREFACE

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.api.listening.listener import Listener

log = logging.getLogger(__name__)
_HTTP = tuple(f"{method} ".encode() for method in METHODS)
_KNOWN = (PREFACE, HTTP2_PREFACE, *_HTTP)
_REQUEST = re.compile(rb"[A-Z]{1,16} [!-~]+ HTTP/1\.[01]\r\n")  # a method that is not served is told so as HTTP says it
_WORD = re.compile(rb"[A-Z]{1,16} ")
_BEGINNING = re.compile(rb"[A-Z]{1,16}(?: [ -~]{0,%d}\r?)?" % HTTP_LINE_BYTES_MAX)  # of one
_SNIFFED_BYTES = max(map(len, _KNOWN))
# A look comes once in half a keepalive.
_ASKED_LOOKS = 2  # in silence, before the peer is asked
_GONE_LOOKS = 4  # before it is taken for gone


def _ignore(data: bytes) -> None:
    """From a connection that is gone."""


class Doorway(asyncio.Protocol):
    """Made by the loop for each connection."""

    __slots__ = (
        "_first",
        "_heard",
        "_http",
        "_listener",
        "_native",
        "_number",
        "_receive",
        "_securing",
        "_silent",
        "_since",
        "_speak",
        "_timer",
        "_transport",
        "_waiting_bytes",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: Transport
        self._number = next(listener.door.presence.numbers)
        self._since = listener.door.clock.wall()
        self._first = b""
        self._speak: Callable[[bytes], None] = self._sniff  # what takes its first bytes, in TLS or without
        self._receive: Callable[[bytes], None] = self._speak if listener.certificate is None else self._sniff_tls
        self._native: NativeConnection | GrpcConnection | None = None  # one that carries many calls
        self._http: HttpConnection | None = None
        self._timer: TimerHandle | None = None
        self._securing: Task[None] | None = None
        self._heard = False  # that it takes what it is sent, since the last look
        self._silent = 0  # looks since it was
        self._waiting_bytes = 0  # for the socket, at the last look

    def described(self) -> Connection:
        address, native = peer_of(self._transport), self._native
        if isinstance(native, NativeConnection):
            return Connection(self._number, address, "native", native.client, self._since, *native.holds)
        if native is not None:
            holds = len(native.producers), len(native.consumers)
            return Connection(self._number, address, "grpc", "", self._since, *holds)
        return Connection(self._number, address, None if self._http is None else "http", "", self._since, None, None)

    # -- the loop's calls ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        if not self._listener.admit(self):
            self._linger()
            return
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES_MAX)
        self._timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._native is not None:
            self._native.lost()
        if self._http is not None:
            self._http.lost()
        self._native = self._http = None
        self._receive = self._speak = _ignore  # nothing refers to itself: what it held is free at once
        self._first = b""

    def pause_writing(self) -> None:
        """It does not read what it was sent, so nothing more is read from it: what it asks for would be answered."""
        self._listener.stuck(self, self._transport.get_write_buffer_size())
        if self._native is not None:
            self._native.pause()
        elif self._http is not None:
            self._http.pause()
        elif not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._heard = True
        self._listener.unstuck(self)
        if self._native is not None:
            self._native.resume()
        elif self._http is not None:
            self._http.resume()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    # -- the listener's calls ------------------------------------------------------------------------------------------

    def refuse(self, error: DanubeError) -> None:
        """Says why if there is a way to say it, and closes."""
        if self._native is not None:
            self._native.refuse(error)
        elif self._http is not None:
            self._http.close()
        elif self._securing is not None:
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def look(self) -> None:
        """Once in half a keepalive: whoever is silent is asked, and then gone, whatever TCP believes."""
        transport = self._transport
        if transport.is_closing():
            transport.abort()  # it had its time to take what was left for it
            return
        if self._timer is not None:
            return
        waiting_bytes = transport.get_write_buffer_size()
        self._listener.recount(self, waiting_bytes)
        heard = self._heard or waiting_bytes < self._waiting_bytes  # slowly perhaps, but it reads
        if (native := self._native) is not None:
            heard = heard or native.heard or native.choked  # choked: it may speak, but we do not listen
            native.heard = False
        if (http := self._http) is not None:
            heard = heard or http.heard or http.busy  # busy: it waits for us
            http.heard = False
        self._silent = 0 if heard else self._silent + 1
        self._heard, self._waiting_bytes = False, waiting_bytes
        if self._silent < _ASKED_LOOKS:
            return
        if native is None:
            transport.close()
        elif self._silent >= _GONE_LOOKS:
            seconds = self._listener.welcome.keepalive_seconds * _GONE_LOOKS / 2
            native.refuse(ConnectionLost(f"the client sent nothing for {seconds:g} seconds"))
        else:
            native.ask()

    # -- when there are too many -------------------------------------------------------------------------------------

    def _linger(self) -> None:
        """How to tell it so is known by its first bytes: with TLS, by those after the handshake."""
        if self._listener.linger(self):
            self._speak = self._turn_away
            if self._listener.certificate is None:
                self._receive = self._speak
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)
        else:
            self._transport.abort()

    def _turn_away(self, data: bytes) -> None:
        first = self._first = self._first + data
        if len(first) < _SNIFFED_BYTES and not first.startswith(_KNOWN):
            return
        error = TooManyConnections(f"{len(self._listener.connections)} connections are already open")
        if first.startswith(_HTTP):
            self._http = HttpConnection(self._listener.web, self._transport, refusal=error)
            self._receive, self._first = self._http.receive, b""
            self._http.receive(first)
            return
        if first.startswith(PREFACE):
            self._transport.writelines(Closed.of(error).encode())
        self._receive, self._first = _ignore, b""
        self._transport.close()

    # -- what it speaks ------------------------------------------------------------------------------------------------

    def _sniff_tls(self, data: bytes) -> None:
        if data.startswith(TLS_FIRST):
            self._transport.pause_reading()
            self._receive = self._keep
            self._securing = asyncio.get_running_loop().create_task(self._secure(data))
        elif PREFACE.startswith(data[: len(PREFACE)]):
            self._transport.writelines(Closed.of(TlsFailed("this port speaks TLS: use danubes://")).encode())
            self._transport.close()
        else:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nThis port speaks TLS.\r\n")
            self._transport.close()

    async def _secure(self, hello: bytes) -> None:
        listener = self._listener
        assert listener.certificate is not None
        try:
            context, turns = listener.certificate.context, listener.web.face.turns
            self._transport = await secure(self._transport, self, context, hello, listener.handshakes, turns)
        except OSError as error:
            log.debug("a TLS handshake failed: %s", error)
            self.connection_lost(error)
            return
        except BaseException:
            self.connection_lost(None)  # the loop does not say it of a connection that was never made
            raise
        finally:
            self._securing = None
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES_MAX)
        self._receive = self._speak
        if self._first:
            self._speak(b"")

    def _keep(self, data: bytes) -> None:
        """It may speak at once when the handshake is done, before we are told that it is."""
        self._first += data

    def _sniff(self, data: bytes) -> None:
        first = self._first = self._first + data
        if first.startswith(PREFACE) and self._listener.serves_data:
            listener = self._listener
            self._native = NativeConnection(
                listener.door, self._transport, listener.welcome, listener.unfinished, listener.web.face.turns
            )
            self._receive, self._first = self._native_bytes, b""
            self._native_bytes(first)
        elif first.startswith(HTTP2_PREFACE):
            self._native = self._listener.grpc.connect(self._transport, admin_only=not self._listener.serves_data)
            self._receive, self._first = self._native_bytes, b""
            self._native_bytes(first)
        elif first.startswith(_HTTP) or _REQUEST.match(first):
            self._http = HttpConnection(self._listener.web, self._transport)
            self._receive, self._first = self._http_bytes, b""
            self._http_bytes(first)
        elif not _BEGINNING.fullmatch(first) and not any(known.startswith(first) for known in _KNOWN):
            if not _WORD.match(first):  # else it is another version of HTTP, which would read this as a frame
                self._transport.write(b"Danube speaks its native protocol, gRPC and HTTP/1 here.\r\n")
            self._transport.close()

    def _native_bytes(self, data: bytes) -> None:
        assert self._native is not None
        self._native.receive(data)
        if self._timer is not None and self._native.greeted:
            self._greeted()
            self._receive = self._native.receive

    def _http_bytes(self, data: bytes) -> None:
        assert self._http is not None
        self._http.receive(data)
        if self._timer is not None and self._http.greeted:
            self._greeted()
            self._receive = self._http.receive

    def _greeted(self) -> None:
        self._listener.greeted(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        """Whoever has not said what it wants by now wants nothing."""
        spoken = self._native or self._http
        if spoken is not None and spoken.greeted:
            self._greeted()  # it was behind when it said so
            return
        self._timer = None
        self._listener.greeted(self)
        if self._http is not None:
            self._http.too_slow(HELLO_SECONDS)
            return
        self.refuse(ProtocolError(f"no HELLO within {HELLO_SECONDS:.0f} s"))
