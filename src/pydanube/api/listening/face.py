"""What the listener requires of a protocol that it serves, and of a connection that speaks it.

A face recognises its protocol by the first bytes and creates the connection; the listener passes the bytes on, watches
for silence, and stops it. The listener knows no protocol, and no face knows another.
"""

from __future__ import annotations

from asyncio import Transport
from enum import Enum, auto
from typing import NamedTuple, Protocol

from pydanube.base.errors import DanubeError


class Sniffed(Enum):
    """What the first bytes of a connection say about one protocol."""

    YES = auto()
    NO = auto()
    UNDECIDED = auto()  # more bytes are needed
    MALFORMED = auto()  # it is this protocol, but cannot be answered: the connection is closed without an answer


class Summary(NamedTuple):
    """What is known about the peer of a connection, for display."""

    client: str = ""  # the name that the client gives itself
    producers: int | None = None  # None if the protocol does not tie them to a connection
    consumers: int | None = None


class Face(Protocol):
    """One protocol, for all connections of a listener."""

    @property
    def name(self) -> str:
        """Its name in lists of connections."""

    @property
    def title(self) -> str:
        """Its name in sentences."""

    @property
    def needs_tls(self) -> bytes:
        """The answer to a client that speaks this protocol in plain text where TLS is expected."""

    def sniff(self, first: bytes) -> Sniffed: ...

    def connect(self, transport: Transport) -> FaceConnection: ...

    def turn_away(self, transport: Transport, error: DanubeError) -> FaceConnection | None:
        """Tells a client that there are too many connections. Returns a connection if closing it is not enough."""


class FaceConnection(Protocol):
    """One connection, from its first bytes on."""

    @property
    def greeted(self) -> bool:
        """Whether the client has said what it wants."""

    @property
    def waiting(self) -> bool:
        """Whether the client is waiting for the broker, so that its silence means nothing."""

    heard: bool  # whether something has arrived from the client; the listener clears it with each check

    def receive(self, data: bytes) -> None: ...

    def pause(self) -> None:
        """The socket accepts no more for now."""

    def resume(self) -> None: ...

    def ask(self) -> None:
        """Asks a silent client for a sign of life; closes if the protocol cannot ask."""

    def too_slow(self, seconds: float) -> None:
        """Closes, because the client did not say in time what it wants."""

    def stop(self, error: DanubeError) -> None:
        """Tells the client why, if the protocol can, and closes."""

    def lost(self) -> None:
        """The socket is gone."""

    def summary(self) -> Summary: ...


def beginning(preface: bytes, first: bytes) -> Sniffed:
    """Compares the first bytes with those that all connections of a protocol begin with."""
    if first.startswith(preface):
        return Sniffed.YES
    return Sniffed.UNDECIDED if preface.startswith(first) else Sniffed.NO
