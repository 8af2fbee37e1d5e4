"""TLS of the listener: the certificate for new connections, which is read again when its files change.

A certificate and key that cannot be used never replace valid ones. It owns no socket; `secure` puts TLS between a
socket and its protocol.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import BufferedProtocol, Future, Protocol, Transport
from pathlib import Path
from struct import Struct
from typing import cast

from pydanube.api.listening.turns import Turns, Worker
from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import HANDSHAKES_BEGUN_PER_TURN, HELLO_SECONDS, TLS_READ_BYTES, TLS_RECORDS_AT_ONCE

log = logging.getLogger(__name__)
TLS_FIRST = b"\x16"  # a handshake record; neither HTTP nor the native protocol begins with this byte
# For ALPN. A client that names no protocol is told apart by its first bytes. One that names both wants REST, because
# gRPC names only h2.
PROTOCOLS = ["http/1.1", "h2"]

_HEADER = Struct(">3xH")  # of a record: type and version, then how many bytes follow

Seen = tuple[tuple[int, int, int], ...]


class Certificate:
    """The certificate. `context` is for new connections; existing ones keep theirs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        for setting, file in (("tls.certificate", certificate), ("tls.key", key)):
            try:
                file.open("rb").close()
            except OSError as error:  # OpenSSL would not say which of the two files it is
                raise ConfigInvalid(f"{setting} is {file}, which cannot be read: {error.strerror}") from None
        self._seen = self._look()
        try:
            self.context = self._read()
        except OSError as error:
            raise ConfigInvalid(f"the certificate {certificate} cannot be loaded with the key {key}: {error}") from None

    def refresh(self) -> None:
        """Reads the files again if they have changed."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.context = self._read()
        except OSError as error:
            log.error("the new certificate cannot be used, keeping the old one: %s", error)
        else:
            log.info("new connections use the new certificate of %s", self._files[0])

    def _look(self) -> Seen:
        """A fingerprint of the files, which changes with them; empty for a missing file."""
        found = []
        for file in self._files:
            try:
                state = file.stat()
            except OSError:
                continue
            found.append((state.st_ino, state.st_size, state.st_mtime_ns))
        return tuple(found)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # otherwise a client could make the broker compute endlessly
        context.set_alpn_protocols(PROTOCOLS)
        certificate, key = self._files
        context.load_cert_chain(certificate, key, password="")  # without it, OpenSSL would ask at the terminal
        return context


class Handshakes:
    """Which connections of a listener may begin a handshake: a few in each turn of the loop, the newest first.

    When there are more than the broker can handle, most clients that have waited long have given up anyway.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(TLS_READ_BYTES))  # shared by all their sockets, which are read one at a time
        self._waiting: list[Future[None]] = []
        self._begun = 0  # in this turn
        self._scheduled = False

    async def begin(self) -> None:
        self._schedule()
        if self._begun < HANDSHAKES_BEGUN_PER_TURN and not self._waiting:
            self._begun += 1
            return
        turn: Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._scheduled, self._begun = False, 0
        while self._waiting and self._begun < HANDSHAKES_BEGUN_PER_TURN:
            turn = self._waiting.pop()
            if not turn.done():  # otherwise it was cancelled
                turn.set_result(None)
                self._begun += 1
        if self._waiting:
            self._schedule()


class Ciphertext(Worker, BufferedProtocol):
    """Between a socket and TLS: passes on a few records at a time, in turns, because their cost cannot be foreseen.

    A handshake takes about a millisecond, and 10 MB may contain 400,000 key changes before the first greeting.
    """

    def __init__(self, turns: Turns, transport: Transport, layer: BufferedProtocol, buffer: memoryview) -> None:
        super().__init__(turns)
        self._transport = transport
        self._layer = layer
        self._buffer = buffer
        self._held = b""  # received data
        self._done = 0  # how many bytes of it were passed on
        self._begun = 0  # bytes still to come of a record that was passed on in part
        self._paused = False  # paused by this object; if TLS itself has paused, it also resumes

    def receive(self, data: bytes | memoryview) -> None:
        self._held, self._done = b"".join((self._held[self._done :], data)), 0
        self.work(len(data))
        self._read_or_not()

    # -- the loop's calls ----------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self.receive(self._buffer[:count])

    def eof_received(self) -> bool | None:
        while self._step():
            pass
        return self._layer.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._held, self._done = b"", 0
        self._layer.connection_lost(error)

    def pause_writing(self) -> None:
        self._layer.pause_writing()

    def resume_writing(self) -> None:
        self._layer.resume_writing()

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _turn(self, end: float) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()  # so that TLS can pause it again if it has enough
        super()._turn(end)
        self._read_or_not()

    def _step(self) -> bool:
        if self._transport.is_closing():
            self._held, self._done = b"", 0
        end = self._next_end()
        piece, self._done = memoryview(self._held)[self._done : end], end
        while piece:
            buffer = memoryview(self._layer.get_buffer(len(piece)))
            count = min(len(buffer), len(piece))
            buffer[:count] = piece[:count]
            self._layer.buffer_updated(count)
            piece = piece[count:]
        return len(self._held) - self._done >= _HEADER.size

    def _next_end(self) -> int:
        """The end of the next few records, as far as received; an incomplete header waits for its rest."""
        held, end = self._held, self._done + self._begun
        for _ in range(TLS_RECORDS_AT_ONCE):
            if end + _HEADER.size > len(held):
                break
            end += _HEADER.size + _HEADER.unpack_from(held, end)[0]
        self._begun = max(0, end - len(held))
        return min(end, len(held))

    def _read_or_not(self) -> None:
        if self.lagging and not self._transport.is_closing() and self._transport.is_reading():
            self._paused = True
            self._transport.pause_reading()


async def secure(
    transport: Transport,
    protocol: Protocol,
    context: ssl.SSLContext,
    first: bytes,
    handshakes: Handshakes,
    turns: Turns,
) -> Transport:
    """Does the broker's part of a handshake whose first bytes have arrived, when its turn comes. Raises `OSError`.

    The transport is paused. `protocol` may get data before this returns, but is not told that it is connected.
    """
    await handshakes.begin()
    if transport.is_closing():
        raise ConnectionResetError("closed before the handshake")
    loop = asyncio.get_running_loop()
    upgrade = loop.start_tls(transport, protocol, context, server_side=True, ssl_handshake_timeout=HELLO_SECONDS)
    handshake = loop.create_task(upgrade)
    await asyncio.sleep(0)  # afterwards TLS is the transport's protocol
    await asyncio.sleep(0)  # afterwards TLS knows its transport
    layer = cast(BufferedProtocol, transport.get_protocol())
    ciphertext = Ciphertext(turns, transport, layer, handshakes.buffer)
    transport.set_protocol(ciphertext)
    ciphertext.receive(first)
    secured = await handshake
    if secured is None or secured.is_closing():
        raise ConnectionResetError("closed in the handshake")
    return secured
