"""One call of a client: how it is answered, and how it ends.

A call knows its stream and its connection, but not what it is about.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.base.errors import DanubeError
from pydanube.base.errors.root import GrpcStatus
from pydanube.wire.http2.grpc import HEAD, OK, framed, trailers

if TYPE_CHECKING:
    from pydanube.api.grpc.connection import GrpcConnection
    from pydanube.api.listening.deadlines import Deadline
    from pydanube.broker.door.session import Session


class Method(NamedTuple):
    """What serves a path. `run` answers the call itself, or is a coroutine function that returns the answer."""

    request: Any  # the class of the message
    run: Callable[[Call, Any], Any]
    waits: bool  # it is a coroutine function
    streams_in: bool = False  # `run` is called for each message


class Call:
    """One stream of a connection. Whatever is sent on it after its end is ignored."""

    __slots__ = ("begun", "connection", "ended", "kept", "session", "stream", "task", "timer")

    def __init__(self, connection: GrpcConnection, stream: int) -> None:
        self.connection = connection
        self.stream = stream
        self.session: Session  # of its caller, before it is run
        self.timer: Deadline | None = None  # of its deadline
        self.task: Task[None] | None = None
        self.ended: Callable[[bool], None] | None = None  # called when the client is gone; true if the client ended it
        self.begun = False  # whether its first headers were sent
        self.kept = False  # whether its connection keeps it: it has a deadline, a task or a stream of answers

    def reply(self, message: bytes) -> None:
        """Sends the only message of the answer, and ends the call."""
        connection = self.connection
        connection.core.answer(self.stream, HEAD, framed(message), OK)
        if self.kept:
            connection.settle(self)
        else:
            connection.touch()

    def fail(self, error: DanubeError) -> None:
        self.finish(error.grpc_status, f"{error} ({error.help})" if str(error) else error.help)

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """Ends the call with a status and nothing else."""
        if self.begun:
            self.connection.core.send_trailers(self.stream, trailers(status, message))
        else:
            self.connection.refuse_call(self.stream, status, message)
        self.connection.settle(self)

    def begin(self) -> None:
        """Starts a stream of messages, so that the client sees that it was accepted."""
        if not self.begun:
            self.begun = True
            self.connection.core.respond(self.stream, HEAD)
            self.connection.touch()

    def send(self, data: bytes) -> None:
        """Sends one or several framed messages."""
        self.connection.core.send_data(self.stream, data)
        self.connection.touch()

    def room(self) -> int:
        """How many more bytes may be sent now. If it is 0, register in `connection.woken` for a call later."""
        return self.connection.core.room(self.stream)
