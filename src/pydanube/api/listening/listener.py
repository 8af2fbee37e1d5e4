"""The listener: the first bytes of a connection tell TLS and the protocols of its faces apart.

It owns the socket and its connections, and finds out which of them are still alive. It never decides what a peer may
do.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Server, TimerHandle
from collections.abc import Iterator, Sequence
from itertools import islice

from pydanube.api.listening.doorway import Doorway
from pydanube.api.listening.face import Face, Sniffed
from pydanube.api.listening.tls import Certificate, Handshakes
from pydanube.api.listening.turns import Turns
from pydanube.base.addresses import HostPort
from pydanube.base.errors import TopicClosed
from pydanube.base.limits import (
    ACCEPTED_AT_ONCE,
    CERTIFICATE_CHECK_SECONDS,
    CONNECTIONS_GREETING_MAX,
    CONNECTIONS_LINGERING_MAX,
    CONNECTIONS_MAX,
    KEEPALIVE_SECONDS,
    LINGER_SECONDS,
    REFUSED_HANDSHAKES_MAX,
    SEND_BUFFERS_BYTES_MAX,
    SWEEP_CONNECTIONS,
)
from pydanube.broker.door.entrance import Entrance
from pydanube.operations.broker import Connection

log = logging.getLogger(__name__)
BACKLOG = 1024  # connections that the system accepts before we do
GOODBYE_SECONDS = 0.5  # for peers to read what was written to them, before the sockets are closed


class Listener:
    """Call `start`, then `stop`. `connections` has all connections, `greeting` those without a request so far."""

    def __init__(
        self,
        door: Entrance,
        faces: Sequence[Face],
        turns: Turns,
        *,
        certificate: Certificate | None = None,
        connections_max: int = CONNECTIONS_MAX,
        keepalive_seconds: int = KEEPALIVE_SECONDS,
    ) -> None:
        self.door = door
        self.numbers = door.add_connections(self._described)  # of new connections
        self.turns = turns
        self.certificate = certificate
        self.connections: dict[Doorway, None] = {}
        self.greeting: dict[Doorway, None] = {}
        self.handshakes = Handshakes()
        self._lingering: dict[Doorway, None] = {}  # connections beyond the limit, which are about to be told so
        self._handshakes = 0  # recent TLS handshakes of such connections
        self._stuck: dict[Doorway, int] = {}  # bytes that wait for peers that do not read, the longest stuck first
        self._stuck_bytes = 0
        self.keepalive_seconds = keepalive_seconds
        self.spoken_here = f"Danube speaks {_listed([face.title for face in faces])} here.\r\n".encode()
        self._faces = faces
        self.refused = 0  # connections that were refused because there were too many
        self._connections_max = connections_max
        self._full = False
        self._server: Server | None = None
        self._emptied = asyncio.Event()
        self._timers: dict[str, TimerHandle] = {}

    async def start(self, listen: HostPort) -> HostPort:
        """Starts to serve; returns the address."""
        loop = asyncio.get_running_loop()
        few = ACCEPTED_AT_ONCE
        self._server = await loop.create_server(lambda: Doorway(self), listen.host, listen.port, backlog=few)
        for taking in self._server.sockets:
            with taking.dup() as socket:  # the loop identifies sockets by their numbers
                socket.listen(BACKLOG)
        host, port, *_ = self._server.sockets[0].getsockname()
        self._sweep(iter(()))
        if self.certificate is not None:
            self._watch(self.certificate)
        return HostPort(host, port)

    async def stop(self) -> None:
        """Accepts no more connections, and tells the existing ones that the broker is stopping."""
        for timer in self._timers.values():
            timer.cancel()
        if self._server is not None:
            self._server.close()
        for doorway in list(self._lingering):
            doorway.abort()
        for doorway in list(self.connections):
            doorway.stop(TopicClosed("the broker is stopping"))
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                while self.connections:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            for doorway in list(self.connections):
                doorway.abort()

    def _described(self) -> Iterator[Connection]:
        return (each.described() for each in self.connections)

    # -- recognising protocols ---------------------------------------------------------------------------------------

    def sniff(self, first: bytes) -> tuple[Face | None, Sniffed]:
        """The face whose protocol this is; without one, whether more bytes may still tell."""
        found = {face: face.sniff(first) for face in self._faces}
        for face, sniffed in found.items():
            if sniffed is Sniffed.YES:
                return face, sniffed
        return None, next(
            (each for each in (Sniffed.UNDECIDED, Sniffed.MALFORMED) if each in found.values()), Sniffed.NO
        )

    def likely_face(self, first: bytes) -> Face | None:
        """The first face whose protocol it may be."""
        return next((face for face in self._faces if face.sniff(first) is not Sniffed.NO), None)

    # -- the connections ---------------------------------------------------------------------------------------------

    def admit(self, doorway: Doorway) -> bool:
        """Whether there is room. If too many connections are silent, the one that has been so longest is closed."""
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
        """Whether a refused connection may stay until it is told so. If there are too many, the oldest is closed."""
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
        """The peer does not read, and this many bytes wait for it. The sum over all such peers is bounded."""
        self._stuck_bytes += bytes - self._stuck.get(doorway, 0)
        self._stuck[doorway] = bytes
        while self._stuck_bytes > SEND_BUFFERS_BYTES_MAX:
            longest = next(iter(self._stuck))
            self.unstuck(longest)
            longest.abort()

    def recount(self, doorway: Doorway, bytes: int) -> None:
        """Updates the bytes that wait for a stuck peer: earlier requests may have been answered since."""
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
        """Checks the next few connections. Each is checked twice per keepalive, and never many in one turn."""
        few = list(islice(round_, SWEEP_CONNECTIONS))
        if len(few) < SWEEP_CONNECTIONS:
            round_ = iter(list(self.connections))
        turns = len(self.connections) // SWEEP_CONNECTIONS + 1
        delay = self.keepalive_seconds / 2 / turns
        self._timers["sweep"] = asyncio.get_running_loop().call_later(delay, self._sweep, round_)
        for doorway in few:  # last, so that a failure does not keep the next round from being scheduled
            doorway.look()

    def _watch(self, certificate: Certificate) -> None:
        loop = asyncio.get_running_loop()
        self._timers["certificate"] = loop.call_later(CERTIFICATE_CHECK_SECONDS, self._watch, certificate)
        certificate.refresh()


def _listed(titles: Sequence[str]) -> str:
    *most, last = titles
    return f"{', '.join(most)} and {last}" if most else last
