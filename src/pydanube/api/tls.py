"""TLS of the one listener: the certificate that new connections are shown, read again when its files change.

A pair that cannot be used never replaces one that can. Owns no socket; `secure` puts TLS between one and its protocol.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio import BufferedProtocol, Protocol, Transport
from pathlib import Path
from typing import cast

from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import HELLO_SECONDS

log = logging.getLogger(__name__)
TLS_FIRST = b"\x16"  # a record of a handshake; neither HTTP nor the native protocol begins so
# By ALPN; whoever names none is told apart by its first bytes all the same. Who can speak both wants REST: gRPC names
# only h2.
PROTOCOLS = ["http/1.1", "h2"]

Seen = tuple[tuple[int, int, int], ...]


class Certificate:
    """`context` is for the next connection; those that there are keep theirs."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        for setting, file in (("tls.certificate", certificate), ("tls.key", key)):
            try:
                file.open("rb").close()
            except OSError as error:  # OpenSSL would not say which of the two
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
        """What changes with the files; nothing for one that is not there."""
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
        context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make the broker compute repeatedly
        context.set_alpn_protocols(PROTOCOLS)
        certificate, key = self._files
        context.load_cert_chain(certificate, key, password="")  # with none OpenSSL would ask at the terminal
        return context


async def secure(transport: Transport, protocol: Protocol, context: ssl.SSLContext, first: bytes) -> Transport:
    """Does the broker's part of a handshake whose first bytes have come. Raises `OSError`.

    The transport is paused. `protocol` may get data before this returns, but is not told that it is connected.
    """
    if transport.is_closing():
        raise ConnectionResetError("closed before the handshake")
    loop = asyncio.get_running_loop()
    upgrade = loop.start_tls(transport, protocol, context, server_side=True, ssl_handshake_timeout=HELLO_SECONDS)
    handshake = loop.create_task(upgrade)
    await asyncio.sleep(0)  # TLS is the transport's protocol now
    await asyncio.sleep(0)  # and knows its transport
    layer = cast(BufferedProtocol, transport.get_protocol())
    while first and not handshake.done():
        buffer = memoryview(layer.get_buffer(len(first)))
        count = min(len(buffer), len(first))
        buffer[:count] = first[:count]
        layer.buffer_updated(count)
        first = first[count:]
    secured = await handshake
    if secured is None or secured.is_closing():
        raise ConnectionResetError("closed in the handshake")
    return secured
