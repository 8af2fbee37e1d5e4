"""The one listener: the first bytes of a connection tell TLS, the native protocol, HTTP/2 and HTTP/1 apart.

Owns the socket, its connections, and who of them is still there. Never decides what a peer may do.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Server, TimerHandle
from collections.abc import Iterator
from itertools import islice

from pydanube.api.grpc.entrance import GrpcEntrance
from pydanube.api.http.connection import Web
from pydanube.api.listening.doorway import Doorway
from pydanube.api.listening.tls import Certificate, Handshakes
from pydanube.api.native.unfinished import Unfinished
from pydanube.base.addresses import HostPort
from pydanube.base.errors import TopicClosed
from pydanube.base.limits import (
    ACCEPTED_AT_ONCE,
    CERTIFICATE_CHECK_SECONDS,
    CONNECTIONS_GREETING_MAX,
    CONNECTIONS_LINGERING_MAX,
    CONNECTIONS_MAX,
    FRAME_BYTES_MAX,
    KEEPALIVE_SECONDS,
    LINGER_SECONDS,
    REFUSED_HANDSHAKES_MAX,
    SEND_BUFFERS_BYTES_MAX,
    SWEEP_CONNECTIONS,
)
from pydanube.broker.door.door import Door
from pydanube.broker.door.presence import Connection
from pydanube.wire.commands import Welcome

log = logging.getLogger(__name__)
BACKLOG = 1024  # connections that the system takes before we do
GOODBYE_SECONDS = 0.5  # for peers to take what was written to them, before the sockets are closed


class Listener:
    """`start`, then `stop`. `connections` are all there are, `greeting` those that have not said what they want."""

    def __init__(
        self,
        door: Door,
        web: Web,
        grpc: GrpcEntrance,
        broker: str,
        *,
        serves_data: bool = True,
        certificate: Certificate | None = None,
        connections_max: int = CONNECTIONS_MAX,
        keepalive_seconds: int = KEEPALIVE_SECONDS,
    ) -> None:
        self.door = door
        door.presence.listed.append(self._listed)
        self.web = web
        self.grpc = grpc
        self.serves_data = serves_data  # else only what manages the broker
        self.certificate = certificate
        self.connections: dict[Doorway, None] = {}
        self.greeting: dict[Doorway, None] = {}
        self.unfinished = Unfinished()
        self.handshakes = Handshakes()
        self._lingering: dict[Doorway, None] = {}  # one too many each, and soon told so
        self._handshakes = 0  # of such, begun a moment ago
        self._stuck: dict[Doorway, int] = {}  # bytes that wait for whoever takes nothing, the longest first
        self._stuck_bytes = 0
        self.welcome = Welcome(broker, FRAME_BYTES_MAX, keepalive_seconds)
        self.refused = 0  # connections, because there were too many
        self._connections_max = connections_max
        self._full = False
        self._server: Server | None = None
        self._emptied = asyncio.Event()
        self._timers: dict[str, TimerHandle] = {}

    async def start(self, listen: HostPort, advertise: HostPort | None = None) -> HostPort:
        """Serves from now on; the address it got, which clients are told unless another one is for them."""
        loop = asyncio.get_running_loop()
        few = ACCEPTED_AT_ONCE
        self._server = await loop.create_server(lambda: Doorway(self), listen.host, listen.port, backlog=few)
        for taking in self._server.sockets:
            with taking.dup() as socket:  # the loop means both by one number
                socket.listen(BACKLOG)
        host, port, *_ = self._server.sockets[0].getsockname()
        bound = HostPort(host, port)
        self.welcome = self.welcome._replace(address=str(advertise or bound))
        self._sweep(iter(()))
        if self.certificate is not None:
            self._watch(self.certificate)
        return bound

    async def stop(self) -> None:
        """Takes no more connections, and tells those there are that it goes."""
        for timer in self._timers.values():
            timer.cancel()
        if self._server is not None:
            self._server.close()
        for doorway in list(self._lingering):
            doorway.abort()
        for doorway in list(self.connections):
            doorway.refuse(TopicClosed("the broker is stopping"))
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                while self.connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            for doorway in list(self.connections):
                doorway.abort()

    def _listed(self) -> Iterator[Connection]:
        return (each.described() for each in self.connections)

    # -- who is there --------------------------------------------------------------------------------------------------

    def admit(self, doorway: Doorway) -> bool:
        """Whether there is room. Of too many that say nothing, the one that has done so longest makes it."""
        if len(self.connections) >= self._connections_max:
            if not self._full:
                log.warning("refusing new connections: the limit of %d is reached", len(self.connections))
            self._full = True
            self.refused += 1
            return False
        self._full = False
        if len(self.greeting) >= CONNECTIONS_GREETING_MAX:
            oldest = next(iter(self.greeting))
            self.forget(oldest)
            oldest.abort()
        self.connections[doorway] = self.greeting[doorway] = None
        return True

    def greeted(self, doorway: Doorway) -> None:
        self.greeting.pop(doorway, None)

    def linger(self, doorway: Doorway) -> bool:
        """Whether one that is not admitted may stay until it was told so. Of too many, the longest there goes."""
        if len(self._lingering) >= CONNECTIONS_LINGERING_MAX:
            oldest = next(iter(self._lingering))
            self.forget(oldest)
            oldest.abort()
        if self.certificate is not None:
            if self._handshakes >= REFUSED_HANDSHAKES_MAX:
                return False
            self._handshakes += 1
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._handshake_past)
        self._lingering[doorway] = None
        return True

    def _handshake_past(self) -> None:
        self._handshakes -= 1

    def stuck(self, doorway: Doorway, bytes: int) -> None:
        """It takes nothing, and so much waits for it. What waits for all such has a bound."""
        self._stuck_bytes += bytes - self._stuck.get(doorway, 0)
        self._stuck[doorway] = bytes
        while self._stuck_bytes > SEND_BUFFERS_BYTES_MAX:
            longest = next(iter(self._stuck))
            self.unstuck(longest)
            longest.abort()

    def recount(self, doorway: Doorway, bytes: int) -> None:
        """What it had asked for before may have been answered since."""
        if doorway in self._stuck:
            self.stuck(doorway, bytes)

    def unstuck(self, doorway: Doorway) -> None:
        self._stuck_bytes -= self._stuck.pop(doorway, 0)

    def forget(self, doorway: Doorway) -> None:
        self.unstuck(doorway)
        self._lingering.pop(doorway, None)
        self.greeting.pop(doorway, None)
        self.connections.pop(doorway, None)
        if not self.connections:
            self._emptied.set()

    def _sweep(self, round_: Iterator[Doorway]) -> None:
        """Looks at the next few connections. All come up once in half a keepalive, never many in one turn."""
        few = list(islice(round_, SWEEP_CONNECTIONS))
        if len(few) < SWEEP_CONNECTIONS:
            round_ = iter(list(self.connections))
        turns = len(self.connections) // SWEEP_CONNECTIONS + 1
        delay = self.welcome.keepalive_seconds / 2 / turns
        self._timers["sweep"] = asyncio.get_running_loop().call_later(delay, self._sweep, round_)
        for doorway in few:  # last: if one fails, the others are looked at all the same
            doorway.look()

    def _watch(self, certificate: Certificate) -> None:
        loop = asyncio.get_running_loop()
        self._timers["certificate"] = loop.call_later(CERTIFICATE_CHECK_SECONDS, self._watch, certificate)
        certificate.refresh()
