"""What the listener asks of a protocol that it serves, and of a connection that speaks it.

A face recognises its protocol by the first bytes and makes the connection; the listener passes the bytes on, measures
the silence, and stops it. The listener knows no protocol, and no face knows another.
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
    UNDECIDED = auto()  # more bytes have to come
    MALFORMED = auto()  # it is meant, but cannot be answered: the connection is closed without a word


class Summary(NamedTuple):
    """What is known about the peer of a connection, for people who look."""

    client: str = ""  # what it calls itself
    producers: int | None = None  # None if its protocol keeps none
    consumers: int | None = None


class Face(Protocol):
    """One protocol, for all connections of a listener."""

    @property
    def name(self) -> str:
        """In lists of connections."""

    @property
    def title(self) -> str:
        """In sentences."""

    @property
    def needs_tls(self) -> bytes:
        """The answer to a client that speaks this protocol in plain text where TLS is expected."""

    def sniff(self, first: bytes) -> Sniffed: ...

    def connect(self, transport: Transport) -> FaceConnection: ...

    def turn_away(self, transport: Transport, error: DanubeError) -> FaceConnection | None:
        """There are too many connections. What tells the client so, if that takes more than to close the socket."""


class FaceConnection(Protocol):
    """One connection, from its first bytes on."""

    @property
    def greeted(self) -> bool:
        """The client has said what it wants."""

    @property
    def waiting(self) -> bool:
        """The client waits for the broker, so its silence means nothing."""

    heard: bool  # something came from the client; the listener clears it when it looks

    def receive(self, data: bytes) -> None: ...

    def pause(self) -> None:
        """The socket takes no more for now."""

    def resume(self) -> None: ...

    def ask(self) -> None:
        """Nothing was heard for a while: asks whether the client is there, or closes if the protocol cannot ask."""

    def too_slow(self, seconds: float) -> None:
        """The client did not say in time what it wants."""

    def stop(self, error: DanubeError) -> None:
        """Says why, if the protocol can, and closes."""

    def lost(self) -> None:
        """The socket is gone."""

    def summary(self) -> Summary: ...


def beginning(preface: bytes, first: bytes) -> Sniffed:
    """Of a protocol whose connections all begin with the same bytes."""
    if first.startswith(preface):
        return Sniffed.YES
    return Sniffed.UNDECIDED if preface.startswith(first) else Sniffed.NO
