"""The face of gRPC. Its services, and protobuf with them, are loaded when they are first needed."""

from __future__ import annotations

from asyncio import Transport
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from pydanube.api.listening.face import Sniffed, beginning
from pydanube.api.listening.turns import Turns
from pydanube.base.errors import DanubeError
from pydanube.broker.door.entrance import Entrance
from pydanube.wire.http2.frames import PREFACE

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.api.grpc.services import GrpcServices


class LoadedLater:
    """The services of one broker, for all its listeners, loaded when they are first used.

    `urls` are those of clients and of operators, known once the broker listens.
    """

    def __init__(self, door: Entrance, turns: Turns, urls: Callable[[], tuple[str, str]]) -> None:
        self._door = door
        self._turns = turns
        self._urls = urls

    @cached_property
    def services(self) -> GrpcServices:
        """Loads them, which takes a tenth of a second. A server does so before it is ready, a test only when needed."""
        from pydanube.api.grpc.services import GrpcServices

        return GrpcServices(self._door, self._turns, *self._urls())


class GrpcFace:
    """The face at one address: all services, or only those that manage the broker."""

    name = "grpc"
    title = "gRPC"
    needs_tls = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nThis port speaks TLS.\r\n"

    def __init__(self, shared: LoadedLater, *, admin_only: bool = False) -> None:
        self._shared = shared
        self._admin_only = admin_only

    def sniff(self, first: bytes) -> Sniffed:
        return beginning(PREFACE, first)

    def connect(self, transport: Transport) -> GrpcConnection:
        return self._shared.services.connect(transport, admin_only=self._admin_only)

    def turn_away(self, transport: Transport, error: DanubeError) -> None:
        """Closes the connection, which gRPC clients understand: they try again later."""
