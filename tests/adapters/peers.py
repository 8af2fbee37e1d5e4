"""Nodes with real sockets, for tests of the links between them: a recorder behind each, and strangers who misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from pydanube.adapters.peer_links import PeerLinks, PeerTls
from pydanube.adapters.system import SystemRandomness
from pydanube.base.addresses import HostPort
from pydanube.base.ids import NodeIdentity
from pydanube.raft.entries import EntryKind, Point, next_entry
from pydanube.raft.messages import Append, Heartbeat
from pydanube.wire.peer.hello import Node
from wire.peer.nodes import ANNA, BERT, SECRET, TABLE, End, acceptor

HERE = HostPort("127.0.0.1", 0)
CARL = Node(NodeIdentity("cc" * 16), ANNA.cluster, ANNA.incarnation, 1)
NOWHERE = NodeIdentity("00" * 15 + "01")


def heartbeat(number: int) -> Heartbeat:
    return Heartbeat(1, number, 0)


def bulk(size: int) -> Append:
    """A message of about this size."""
    return Append(1, Point(), (next_entry(Point(), 1, EntryKind.DATA, bytes(size)),), 0)


class Host:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Any]] = []
        self.lost: list[tuple[str, bool]] = []

    def on_message(self, sender: NodeIdentity, message: object) -> None:
        self.messages.append((sender, message))

    def on_lost(self, peer: NodeIdentity, reset: bool) -> None:
        self.lost.append((peer, reset))


class Running:
    """A node that listens."""

    def __init__(self, node: Node, secret: bytes, tls: PeerTls | None) -> None:
        self.host = Host()
        self.node = node
        self.links = PeerLinks(node, secret, TABLE, self.host, SystemRandomness(), tls)
        self.address = HERE

    def knows(self, other: Running) -> None:
        self.links.connect(other.node.identity, other.address)

    def rounds(self) -> list[int]:
        """The numbers of the heartbeats that arrived."""
        return [message.round for _, message in self.host.messages if isinstance(message, Heartbeat)]


@asynccontextmanager
async def running(
    *nodes: Node, secrets: tuple[bytes, ...] = (), tls: PeerTls | None = None
) -> AsyncIterator[list[Running]]:
    found = [Running(node, secret, tls) for node, secret in zip(nodes, secrets or (SECRET,) * len(nodes), strict=True)]
    try:
        for each in found:
            each.address = await each.links.start(HERE)
        yield found
    finally:
        for each in found:
            await each.links.stop()


class Stranger(asyncio.Protocol):
    """Accepts one connection as Bert, greets, and then reads only when it is told to."""

    def __init__(self) -> None:
        self.end: End = acceptor(replace(BERT, boot=1))
        self.greeted = asyncio.Event()
        self.gone = asyncio.Event()
        self.received = 0  # bytes after the greeting
        self.transport: asyncio.Transport
        self.answers = False  # whether it answers pings

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own classes

    def data_received(self, data: bytes) -> None:
        opened = self.end.core.peer is not None
        self.end.receive(data)
        answers = self.end.take()
        if not opened or self.answers:
            self.transport.write(answers)
        self.received += len(data) * opened
        if self.end.core.peer is not None and not opened:
            self.transport.pause_reading()
            self.greeted.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()


@asynccontextmanager
async def stranger() -> AsyncIterator[tuple[Stranger, HostPort]]:
    """Its receive buffer is small, so that what it does not read stays with the sender."""
    made = Stranger()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        listening.bind(tuple(HERE))
        server = await asyncio.get_running_loop().create_server(lambda: made, sock=listening)
        try:
            yield made, HostPort(*server.sockets[0].getsockname())
        finally:
            server.close()
            if hasattr(made, "transport"):
                made.transport.abort()
                await made.gone.wait()
