"""How a client reaches a broker: broker addresses, a port for byte streams, and its implementation with sockets.

Only bytes: `connection` knows what they mean, and the client decides when to dial again.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import BaseTransport, Protocol, WriteTransport
from collections.abc import Sequence
from typing import NamedTuple, cast
from typing import Protocol as Port
from urllib.parse import urlsplit

from pydanube.base.errors import AddressInvalid, TlsFailed

DEFAULT_PORT = 6650
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")  # of OpenSSL


class Address(NamedTuple):
    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"danube{'s' if self.tls else ''}://{host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """Parses `danube://host:port`, with several hosts separated by commas; `danubes://` for TLS."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("danube", "danubes") or not rest:
        raise AddressInvalid(f"{without_userinfo(text)[:200]!r} is not a valid broker address")
    if "@" in rest:
        raise AddressInvalid(
            f"{without_userinfo(text)[:200]!r}: a broker address must not contain a user name or password"
        )
    return [_parse_address(each, scheme == "danubes") for each in rest.rstrip("/").split(",")]


def without_userinfo(text: str) -> str:
    """The address for error messages, without what may be a password: anything before the last `@` and after `?`."""
    text, options, _ = text.partition("?")
    text += "?***" if options else ""
    hidden, _, host = text.rpartition("@")
    if not hidden:
        return text
    scheme, there, _ = hidden.partition("://")
    return f"{scheme}{there}***@{host}" if there else f"***@{host}"


def _parse_address(text: str, tls: bool) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    else:
        if parts.path or parts.query or parts.fragment:
            host = None
    if not host:
        raise AddressInvalid(f"{without_userinfo(text)[:200]!r} is not a valid host:port")
    return Address(host, DEFAULT_PORT if port is None else port, tls)


class Receiver(Port):
    """Receives what arrives on a link."""

    def received(self, data: bytes) -> None: ...

    def lost(self, error: Exception | None) -> None:
        """Called once, at the end. Without an error, one of the two sides closed the link."""
        ...


class Link(Port):
    """An open stream of bytes to a broker."""

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Queues the data and returns at once. The protocol limits how much can be unanswered, and so queued."""
        ...

    def close(self) -> None:
        """Sends what is queued, then closes."""
        ...

    def abort(self) -> None: ...


class Dialer(Port):
    async def dial(self, address: Address, receiver: Receiver) -> Link:
        """Raises `OSError` if the address cannot be reached, `TlsFailed` if TLS fails."""
        ...


class SocketLink(Protocol):
    """A TCP or TLS connection of the running loop."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: WriteTransport | None = None
        self.data_received = receiver.received  # type: ignore[method-assign]  # saves a call per read

    def connection_made(self, transport: BaseTransport) -> None:
        self._transport = cast(WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._receiver.lost(error)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._transport is not None and not self._transport.is_closing():  # the event loop would log a warning
            self._transport.writelines(parts)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class SocketDialer:
    """For `danubes://`, the broker needs a certificate from `ca_file`, or from an authority that the system trusts."""

    def __init__(self, ca_file: str | None = None) -> None:
        self._ca_file = ca_file

    async def dial(self, address: Address, receiver: Receiver) -> Link:
        context = self._context() if address.tls else None
        loop = asyncio.get_running_loop()
        try:
            made = await loop.create_connection(lambda: SocketLink(receiver), address.host, address.port, ssl=context)
        except ssl.SSLError as error:
            raise TlsFailed(f"{address}: {_explain(error)}") from error
        return made[1]

    def _context(self) -> ssl.SSLContext:
        """Verifies host names. Reads the file for each connection, so that it can be replaced."""
        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise TlsFailed(f"the CA certificates in {self._ca_file} cannot be read: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def _explain(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if error.reason in _NOT_TLS:
        return "it does not speak TLS; use danube:// if that is intended"
    return f"the TLS handshake failed: {error.reason or error}"
