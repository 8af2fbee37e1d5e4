"""One connection of the listener: which protocol it speaks, its bytes from then on, and whether the peer is alive.

It translates nothing itself. Its memory is bounded: a peer that does not read is not read from.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task, Transport
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from pydanube.api.listening.deadlines import Deadline
from pydanube.api.listening.face import Face, FaceConnection, Sniffed, Summary
from pydanube.api.listening.peer import peer_of
from pydanube.api.listening.tls import TLS_FIRST, secure
from pydanube.base.errors import ConnectionLost, DanubeError, TooManyConnections
from pydanube.base.limits import HELLO_SECONDS, LINGER_SECONDS, SEND_BUFFER_BYTES_MAX
from pydanube.operations.broker import Connection

if TYPE_CHECKING:
    from pydanube.api.listening.listener import Listener

log = logging.getLogger(__name__)
# Each connection is checked twice per keepalive.
_ASKED_LOOKS = 2  # checks without a sign of life before the peer is asked for one
_GONE_LOOKS = 4  # checks without a sign of life before the peer counts as gone


def _ignore(data: bytes) -> None:
    """Ignores data from a connection that is closed."""


class Doorway(asyncio.Protocol):
    """Created by the loop for each connection."""

    __slots__ = (
        "_connection",
        "_face",
        "_first",
        "_heard",
        "_listener",
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
        self._number = next(listener.numbers)
        self._since = listener.door.clock.wall()
        self._first = b""
        self._speak: Callable[[bytes], None] = self._sniff  # gets the first bytes, with or without TLS
        self._receive: Callable[[bytes], None] = self._speak if listener.certificate is None else self._sniff_tls
        self._face: Face | None = None
        self._connection: FaceConnection | None = None
        self._timer: Deadline | None = None
        self._securing: Task[None] | None = None
        self._heard = False  # whether there was a sign of life since the last check
        self._silent = 0  # checks since the last sign of life
        self._waiting_bytes = 0  # for the socket, at the last check

    def described(self) -> Connection:
        face = None if self._face is None else self._face.name
        summary = Summary() if self._connection is None else self._connection.summary()
        client, producers, consumers = summary
        return Connection(self._number, peer_of(self._transport), face, client, self._since, producers, consumers)

    # -- the loop's calls ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        if not self._listener.admit(self):
            self._linger()
            return
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES_MAX)
        self._timer = Deadline(self._listener.turns, HELLO_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            self._connection.lost()
        self._connection = None
        self._receive = self._speak = _ignore  # breaks reference cycles, so that memory is freed at once
        self._first = b""

    def pause_writing(self) -> None:
        """The peer does not read what it was sent, so its requests, which would need answers, are not read either."""
        self._listener.stuck(self, self._transport.get_write_buffer_size())
        if self._connection is not None:
            self._connection.pause()
        elif not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._heard = True
        self._listener.unstuck(self)
        if self._connection is not None:
            self._connection.resume()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    # -- the listener's calls ------------------------------------------------------------------------------------------

    def stop(self, error: DanubeError) -> None:
        """Tells the peer why, if the protocol allows it, and closes."""
        if self._connection is not None:
            self._connection.stop(error)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """Closes a connection whose protocol is not known yet."""
        if self._securing is not None:
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def look(self) -> None:
        """Called twice per keepalive. A silent peer is asked for a sign of life, and later disconnected, even if TCP
        considers it connected."""
        transport = self._transport
        if transport.is_closing():
            transport.abort()  # it had enough time to read what was left for it
            return
        if self._timer is not None:
            return
        waiting_bytes = transport.get_write_buffer_size()
        self._listener.recount(self, waiting_bytes)
        heard = self._heard or waiting_bytes < self._waiting_bytes  # it reads, even if slowly
        connection = self._connection
        if connection is not None:
            heard = heard or connection.heard or connection.waiting
            connection.heard = False
        self._silent = 0 if heard else self._silent + 1
        self._heard, self._waiting_bytes = False, waiting_bytes
        if self._silent < _ASKED_LOOKS:
            return
        if connection is None:
            transport.close()
        elif self._silent >= _GONE_LOOKS:
            seconds = self._listener.keepalive_seconds * _GONE_LOOKS / 2
            connection.stop(ConnectionLost(f"the client sent nothing for {seconds:g} seconds"))
        else:
            connection.ask()

    # -- when there are too many -------------------------------------------------------------------------------------

    def _linger(self) -> None:
        """Waits for the first bytes (with TLS, those after the handshake), which show how to answer the peer."""
        if self._listener.linger(self):
            self._speak = self._turn_away
            if self._listener.certificate is None:
                self._receive = self._speak
            self._timer = Deadline(self._listener.turns, LINGER_SECONDS, self.abort)
        else:
            self._transport.abort()

    def _turn_away(self, data: bytes) -> None:
        first = self._first = self._first + data
        face, sniffed = self._listener.sniff(first)
        if sniffed is Sniffed.UNDECIDED:
            return
        self._receive, self._first = _ignore, b""
        error = TooManyConnections(f"{len(self._listener.connections)} connections are already open")
        connection = None if face is None else face.turn_away(self._transport, error)
        if connection is None:
            self._transport.close()
        else:
            self._connection, self._receive = connection, connection.receive
            connection.receive(first)

    # -- what it speaks ------------------------------------------------------------------------------------------------

    def _sniff_tls(self, data: bytes) -> None:
        if data.startswith(TLS_FIRST):
            self._transport.pause_reading()
            self._receive = self._keep
            self._securing = asyncio.get_running_loop().create_task(self._secure(data))
        else:
            face = self._listener.likely_face(data)
            self._transport.write(b"This port speaks TLS.\r\n" if face is None else face.needs_tls)
            self._transport.close()

    async def _secure(self, hello: bytes) -> None:
        listener = self._listener
        assert listener.certificate is not None
        try:
            context, turns = listener.certificate.context, listener.turns
            self._transport = await secure(self._transport, self, context, hello, listener.handshakes, turns)
        except OSError as error:
            log.debug("a TLS handshake failed: %s", error)
            self.connection_lost(error)
            return
        except BaseException:
            self.connection_lost(None)  # the loop does not call it if the connection was never made
            raise
        finally:
            self._securing = None
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES_MAX)
        self._receive = self._speak
        if self._first:
            self._speak(b"")

    def _keep(self, data: bytes) -> None:
        """Keeps data that arrives right after the handshake, before this end knows that it is complete."""
        self._first += data

    def _sniff(self, data: bytes) -> None:
        first = self._first = self._first + data
        face, sniffed = self._listener.sniff(first)
        if face is not None:
            self._face, self._connection = face, face.connect(self._transport)
            self._receive, self._first = self._greeting_bytes, b""
            self._greeting_bytes(first)
        elif sniffed is not Sniffed.UNDECIDED:
            if sniffed is Sniffed.NO:
                self._transport.write(self._listener.spoken_here)
            self._transport.close()

    def _greeting_bytes(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.receive(data)
        if self._timer is not None and self._connection.greeted:
            self._greeted()
            self._receive = self._connection.receive

    def _greeted(self) -> None:
        self._listener.greeted(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        """Closes a connection that has not said in time what it wants."""
        if self._connection is not None and self._connection.greeted:
            self._greeted()  # its greeting has arrived, but waits for its turn
            return
        self._timer = None
        self._listener.greeted(self)
        if self._connection is not None:
            self._connection.too_slow(HELLO_SECONDS)
        else:
            self._hang_up()
