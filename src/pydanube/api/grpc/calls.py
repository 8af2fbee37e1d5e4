"""One call of a client: how it is answered, and how it ends.

A call knows its stream and its connection, and nothing of what it is about.
"""

from __future__ import annotations

from asyncio import Task, TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.base.errors import DanubeError
from pydanube.base.errors.root import GrpcStatus
from pydanube.wire.http2.grpc import HEAD, OK, framed, trailers

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.broker.door.session import Session


class Method(NamedTuple):
    """What serves a path. `run` answers the call itself, or is a coroutine function that returns the answer."""

    request: Any  # the class of the message
    run: Callable[[Call, Any], Any]
    waits: bool  # it is a coroutine function
    streams_in: bool = False  # `run` is called for each message


class Call:
    """One stream of a connection. Whatever is said on it after its end goes nowhere."""

    __slots__ = ("begun", "connection", "ended", "kept", "stream", "task", "timer")

    def __init__(self, connection: GrpcConnection, stream: int) -> None:
        self.connection = connection
        self.stream = stream
        self.timer: TimerHandle | None = None  # of its deadline
        self.task: Task[None] | None = None
        self.ended: Callable[[bool], None] | None = None  # told when the client is gone; whether it said so itself
        self.begun = False  # its first headers were sent
        self.kept = False  # its connection knows it, as it has a deadline, a task or a stream of answers

    @property
    def session(self) -> Session:
        """What its caller may do."""
        return self.connection.session

    def reply(self, message: bytes) -> None:
        """The one message of the answer, and the end."""
        connection = self.connection
        connection.core.answer(self.stream, HEAD, framed(message), OK)
        if self.kept:
            connection.settle(self)
        else:
            connection.touch()

    def fail(self, error: DanubeError) -> None:
        self.finish(error.grpc_status, f"{error} ({error.help})" if str(error) else error.help)

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """The end, with nothing more than a status."""
        if self.begun:
            self.connection.core.send_trailers(self.stream, trailers(status, message))
        else:
            self.connection.refuse_call(self.stream, status, message)
        self.connection.settle(self)

    def begin(self) -> None:
        """A stream of messages starts: the client sees that it is there."""
        if not self.begun:
            self.begun = True
            self.connection.core.respond(self.stream, HEAD)
            self.connection.touch()

    def send(self, data: bytes) -> None:
        """Framed messages, one or several."""
        self.connection.core.send_data(self.stream, data)
        self.connection.touch()

    def room(self) -> int:
        """How many bytes more may be sent now; after a 0, `connection.woken` has the stream when there is room."""
        return self.connection.core.room(self.stream)
