"""The links between this node and the others, over TCP or TLS: it listens, greets, connects again, and sends.

Each node connects to those that it sends to, so two nodes have up to two connections, one for each direction. It knows
nothing of what messages mean.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from asyncio import Task
from functools import partial
from typing import Any, NamedTuple

from pydanube.adapters.peer_socket import PeerSocket
from pydanube.base.addresses import HostPort
from pydanube.base.errors import DanubeError, NodeUnreachable, PeerOutdated
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import (
    HELLO_SECONDS,
    PEER_COMPLAINTS_MAX,
    PEER_FRAME_BODY_BYTES_MAX,
    PEER_GREETING_MAX,
    PEER_LINKS_MAX,
    PEER_RETRY_SECONDS_MAX,
    PEER_RETRY_SECONDS_MIN,
    PEER_WRITTEN_PER_TURN,
    WARNING_REPEAT_SECONDS,
)
from pydanube.base.retry import Backoff
from pydanube.ports.peers import PeerHost
from pydanube.ports.randomness import Randomness
from pydanube.wire.peer.connection import PeerConnection
from pydanube.wire.peer.hello import NONCE_BYTES, Node, Role, check_secret
from pydanube.wire.peer.messages import Encoded, MessageTable
from pydanube.wire.peer.outbox import Outbox

log = logging.getLogger(__name__)
BACKLOG = 128  # connections that the system accepts before this process does
RETRY = Backoff(PEER_RETRY_SECONDS_MIN, PEER_RETRY_SECONDS_MAX)


class PeerTls(NamedTuple):
    """Each side shows its certificate and checks the other's, if the contexts say so."""

    connecting: ssl.SSLContext
    accepting: ssl.SSLContext


class PeerLinks:
    """Implements `Peers`. Call `start`, then `stop`. `node` may change meanwhile: new links say what is new."""

    def __init__(
        self,
        node: Node,
        secret: bytes,
        table: MessageTable,
        host: PeerHost,
        randomness: Randomness,
        tls: PeerTls | None = None,
    ) -> None:
        check_secret(secret)
        self.node = node
        self.table = table
        self.host = host
        self.randomness = randomness
        self.tls = tls
        self.complain = _Complaints()
        self._secret = secret
        self._loop = asyncio.get_running_loop()
        self._listening: socket.socket | None = None
        self._accepting: Task[None] | None = None
        self._greeting: dict[Task[None], None] = {}  # the oldest first
        self._accepted: dict[PeerSocket, None] = {}
        self._senders: dict[NodeIdentity, PeerSocket] = {}  # of the accepted links, the newest of each node
        self._links: dict[NodeIdentity, _Link] = {}  # that this node keeps up

    # -- beginning and ending ------------------------------------------------------------------------------------------

    async def start(self, listen: HostPort) -> HostPort:
        """Starts to accept other nodes; returns the address."""
        found = await self._loop.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        self._listening = socket.create_server(address, family=family, backlog=BACKLOG)
        self._listening.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(self._listening))
        host, port, *_ = self._listening.getsockname()
        return HostPort(host, port)

    async def stop(self) -> None:
        """Ends all links. What still waits for a peer is dropped."""
        links = list(self._links.values())
        tasks = [*([self._accepting] if self._accepting else []), *self._greeting, *(link.task for link in links)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        sockets = [*self._accepted, *(link.socket for link in links if link.socket is not None)]
        self._links.clear()
        self._senders.clear()
        for each in sockets:
            each.end()
        for each in sockets:
            await asyncio.wait((each.ended,))

    # -- the port ------------------------------------------------------------------------------------------------------

    def connect(self, peer: NodeIdentity, address: HostPort) -> None:
        found = self._links.get(peer)
        if found is not None and found.address == address:
            return
        self.disconnect(peer)
        self._links[peer] = _Link(self, peer, address)

    def disconnect(self, peer: NodeIdentity) -> None:
        found = self._links.pop(peer, None)
        if found is not None:
            found.stop()

    def send(self, peer: NodeIdentity, message: object, *, urgent: bool = False) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.send(self.table.encode(message), urgent)

    def dropped(self, peer: NodeIdentity) -> int:
        """Messages to this node that were dropped since `connect`."""
        link = self._links.get(peer)
        return 0 if link is None else link.outbox.dropped

    # -- connecting ----------------------------------------------------------------------------------------------------

    async def introduce(self, address: HostPort) -> Node:
        """Asks who is at this address. Raises `PeerRefused` or `NodeUnreachable`."""
        try:
            found = await self.dial(address, "")
        except OSError as error:
            raise NodeUnreachable(f"{address}: {_reason(error)}") from error
        assert found.peer is not None
        found.end()
        return found.peer

    async def dial(self, address: HostPort, expected: str) -> PeerSocket:
        """A connection whose other side has proved itself. Raises `OSError` or `DanubeError`."""
        made = self._socket(Role.DIALLER, expected)
        tls = None if self.tls is None else self.tls.connecting
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._loop.create_connection(lambda: made, address.host, address.port, ssl=tls)
                await asyncio.wait((made.greeted,))
        except BaseException:
            made.abort()
            raise
        return _greeted(made)

    def _socket(self, role: Role, expected: str = "") -> PeerSocket:
        def begin(binding: bytes) -> PeerConnection:
            nonce = self.randomness.bytes(NONCE_BYTES)
            return PeerConnection(role, self.node, self._secret, nonce, self.table, expected=expected, binding=binding)

        dials = role is Role.DIALLER
        return PeerSocket(begin, _ignore if dials else self._on_accepted, self._on_message, pings=dials)

    def _on_message(self, made: PeerSocket, message: Any) -> None:
        assert made.peer is not None
        self.host.on_message(made.peer.identity, message)

    # -- accepting -----------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError as error:  # there are too many open files, for example
                self.complain("new connections of other nodes", error)
                await asyncio.sleep(PEER_RETRY_SECONDS_MAX)
                continue
            if len(self._accepted) >= PEER_LINKS_MAX:
                self.complain("new connections of other nodes", NodeUnreachable(f"there are already {PEER_LINKS_MAX}"))
                accepted.close()
                continue
            if len(self._greeting) >= PEER_GREETING_MAX:
                next(iter(self._greeting)).cancel()
            task = self._loop.create_task(self._greet(accepted, address[0]))
            self._greeting[task] = None
            task.add_done_callback(self._greeting.pop)

    async def _greet(self, accepted: socket.socket, host: str) -> None:
        made = self._socket(Role.ACCEPTOR)
        tls = None if self.tls is None else self.tls.accepting
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._loop.connect_accepted_socket(lambda: made, accepted, ssl=tls)
                await asyncio.wait((made.greeted,))
            _greeted(made)
        except (OSError, DanubeError) as error:
            made.abort()
            self.complain(f"a node at {host}", error)
        except BaseException:
            made.abort()
            accepted.close()
            raise

    def _on_accepted(self, made: PeerSocket) -> None:
        assert made.peer is not None
        identity, boot = made.peer.identity, made.peer.boot
        before = self._senders.get(identity)
        self._accepted[made] = None
        made.ended.add_done_callback(lambda _: self._accepted.pop(made))
        if made.core.is_introduction:
            return
        if before is not None and before.peer is not None and before.peer.boot > boot:
            error = PeerOutdated(f"node {identity} is connected with its start {before.peer.boot}; this is {boot}")
            made.core.refuse(error)
            made.end(error)
            self.complain(f"node {identity}", error)
            return
        self._senders[identity] = made
        made.ended.add_done_callback(partial(self._on_sender_lost, made))
        if before is not None:
            before.end()

    def _on_sender_lost(self, made: PeerSocket, _: object) -> None:
        assert made.peer is not None
        identity = made.peer.identity
        if self._senders.get(identity) is made:
            del self._senders[identity]
            self.complain(f"the link from node {identity}", made.error)
            self.host.on_lost(identity, made.was_reset)


class _Link:
    """Keeps up the connection to one peer, and sends what waits for it."""

    def __init__(self, links: PeerLinks, peer: NodeIdentity, address: HostPort) -> None:
        self.outbox = Outbox(peer)
        self.address = address
        self.socket: PeerSocket | None = None
        self._links = links
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self.task = self._loop.create_task(self._keep_up())

    def send(self, message: Encoded, urgent: bool) -> None:
        if self.outbox.put(message, urgent=urgent):
            self._schedule()

    def stop(self) -> None:
        self.task.cancel()
        if self.socket is not None:
            self.socket.end()

    async def _keep_up(self) -> None:
        links, failures = self._links, 0
        about = f"the link to node {self._peer} at {self.address}"
        while True:
            try:
                made = await links.dial(self.address, self._peer)
            except (OSError, DanubeError) as error:
                failures += 1
                links.complain(about, error)
            else:
                await self._use(made)
                failures = 1 if made.core.pongs else failures + 1
                links.complain(about, made.error)
                links.host.on_lost(self._peer, made.was_reset)
            self.outbox.clear()
            await asyncio.sleep(RETRY.after(failures, links.randomness.below))

    async def _use(self, made: PeerSocket) -> None:
        """Sends through it until it ends."""
        self.socket, made.on_writable = made, self._schedule
        self._schedule()
        await asyncio.wait((made.ended,))  # which does not cancel it
        self.socket = None

    def _schedule(self) -> None:
        """All messages of one turn of the loop are written together."""
        if not self._scheduled and self.socket is not None and self.socket.writable:
            self._scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled, left = False, PEER_WRITTEN_PER_TURN
        while left > 0 and self.outbox and self.socket is not None and self.socket.writable:
            frames = self.outbox.take(PEER_FRAME_BODY_BYTES_MAX)
            self.socket.write(frames)
            left -= PEER_FRAME_BODY_BYTES_MAX
        if self.outbox:
            self._schedule()


class _Complaints:
    """Logs why links end, each sentence about the same peer once in a while."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._logged: dict[tuple[str, str], float] = {}

    def __call__(self, about: str, error: Exception | None) -> None:
        if error is None:
            text = "the other side closed the connection"
        elif isinstance(error, DanubeError):
            text = f"{error}. {error.help}"
        else:
            text = _reason(error)
        now = self._loop.time()
        if now - self._logged.get((about, text), -WARNING_REPEAT_SECONDS) < WARNING_REPEAT_SECONDS:
            return
        if len(self._logged) >= PEER_COMPLAINTS_MAX:
            self._logged.clear()
        self._logged[about, text] = now
        log.warning("%s: %s", about, text)


def _reason(error: Exception) -> str:
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


def _greeted(made: PeerSocket) -> PeerSocket:
    if made.peer is None:
        raise made.error or ConnectionResetError("the other side closed the connection before it had greeted")
    return made


def _ignore(_: PeerSocket) -> None: ...
