"""The address of a connection's peer, as the socket knows it."""

from __future__ import annotations

from asyncio import BaseTransport

from pydanube.base.addresses import HostPort


def peer_of(transport: BaseTransport) -> str:
    """`host:port`; "" if the transport has none, as in tests."""
    name = transport.get_extra_info("peername")
    return str(HostPort(*name[:2])) if isinstance(name, tuple) and len(name) >= 2 else ""
