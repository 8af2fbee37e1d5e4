"""Where HTTP/2 connections come in. Loads the gRPC face, and protobuf with it, not before it is told or one comes."""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydanube.api.listening.turns import Turns
from pydanube.broker.door.door import Door

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.api.grpc.face import GrpcFace


class GrpcEntrance:
    """One for a broker, whatever it listens on. `urls` are the clients' and the operators', known once it listens."""

    def __init__(self, door: Door, urls: Callable[[], tuple[str, str]], turns: Turns) -> None:
        self._door = door
        self._turns = turns
        self._urls = urls
        self._face: GrpcFace | None = None

    def connect(self, transport: Transport, *, admin_only: bool) -> GrpcConnection:
        return self.load().connect(transport, admin_only=admin_only)

    def load(self) -> GrpcFace:
        """Takes a tenth of a second, the first time. A process does it before it is ready, a test when it is needed."""
        if self._face is None:
            from pydanube.api.grpc.face import GrpcFace

            self._face = GrpcFace(self._door, self._turns, *self._urls())
        return self._face
