"""The face of the native protocol: recognises it, and has what its connections share."""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Callable

from pydanube.api.listening.face import Sniffed, beginning
from pydanube.api.listening.turns import Turns
from pydanube.api.native.connection import NativeConnection
from pydanube.api.native.unfinished import Unfinished
from pydanube.base.errors import DanubeError, TlsFailed
from pydanube.base.limits import FRAME_BYTES_MAX
from pydanube.broker.door.entrance import Entrance
from pydanube.wire.commands import Closed, Welcome
from pydanube.wire.frames import PREFACE


class NativeFace:
    """The native face of one listener. `address` is where clients reach the broker, known once it listens."""

    name = "native"
    title = "its native protocol"
    needs_tls = b"".join(Closed.of(TlsFailed("this port speaks TLS: use danubes://")).encode())

    def __init__(
        self, door: Entrance, turns: Turns, broker: str, keepalive_seconds: int, address: Callable[[], str]
    ) -> None:
        self.door = door
        self.turns = turns
        self.unfinished = Unfinished()
        self._broker = broker
        self._keepalive_seconds = keepalive_seconds
        self._address = address

    def sniff(self, first: bytes) -> Sniffed:
        return beginning(PREFACE, first)

    def connect(self, transport: Transport) -> NativeConnection:
        return NativeConnection(self, transport)

    def turn_away(self, transport: Transport, error: DanubeError) -> None:
        transport.writelines(Closed.of(error).encode())

    def welcome(self) -> Welcome:
        """The present answer to a client's greeting."""
        now = max(0, self.door.clock.wall())
        return Welcome(self._broker, FRAME_BYTES_MAX, self._keepalive_seconds, address=self._address(), time=now)
