"""One side of one connection between nodes: received bytes in, messages out, and what has to be answered.

It owns no socket and no clock. The owner of the socket writes `take_outgoing()` after each call, also a failed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydanube.base.errors import PeerRefused
from pydanube.wire.peer.frames import NO_TARGET, Buffer, Frame, FrameDecoder, FrameKind, encode_frame
from pydanube.wire.peer.hello import Handshake, Node, Role
from pydanube.wire.peer.messages import MessageTable, unknown_request


class PeerConnection:
    """Begins with a greeting. Once `peer` is known, it carries messages."""

    def __init__(
        self,
        role: Role,
        own: Node,
        secret: bytes,
        nonce: bytes,
        table: MessageTable,
        *,
        expected: str = "",
        binding: bytes = b"",
    ) -> None:
        self.peer: Node | None = None  # once it has proved itself
        self.pongs = 0  # received
        self.unknown = 0  # messages that were dropped, because their kind is not known here
        self._handshake = Handshake(role, own, secret, nonce, expected=expected, binding=binding)
        self._outgoing = self._handshake.outgoing
        self._table = table
        self._decoder = FrameDecoder(bytes.fromhex(own.identity), preface=role is Role.ACCEPTOR)
        self._was_refused = False

    @property
    def is_introduction(self) -> bool:
        """Whether the dialler only asks who is here. Such a connection carries no messages."""
        return self._handshake.target == NO_TARGET

    @property
    def version(self) -> int:
        """The newest that both sides speak."""
        return self._handshake.version

    def take_outgoing(self) -> bytes:
        outgoing = b"".join(self._outgoing)
        self._outgoing.clear()
        return outgoing

    def ping(self) -> None:
        self._answer(FrameKind.PING, 0)

    def refuse(self, error: PeerRefused) -> None:
        """Tells the other side why the connection is about to be closed."""
        self._outgoing.append(self._handshake.refusal(error))

    def receive(self, data: Buffer) -> Iterator[Any]:
        """Yields the messages that these bytes complete. Raises `PeerRefused` if the connection must be closed."""
        try:
            for frame in self._decoder.feed(data):
                if frame.kind == FrameKind.REFUSED:
                    self._was_refused = True
                    raise PeerRefused.of(frame.body[0] if frame.body else 0)
                if self.peer is None:
                    self._greet(frame)
                elif self._table.knows(frame):
                    yield self._table.decode(frame)
                elif frame.kind == FrameKind.UNKNOWN:
                    yield unknown_request(frame)
                else:
                    self._take(frame)
        except PeerRefused as error:
            if not self._was_refused:
                self.refuse(error)
            raise

    def _greet(self, frame: Frame) -> None:
        self._handshake.receive(frame)
        self.peer = self._handshake.peer
        if self.is_introduction:
            self._table = MessageTable(())
        if self.peer is not None:
            self._decoder.open(self._table.bounds)

    def _take(self, frame: Frame) -> None:
        """Takes what belongs to the link itself, and what this version does not know."""
        if frame.kind == FrameKind.PING:
            self._answer(FrameKind.PONG, frame.request)
        elif frame.kind == FrameKind.PONG:
            self.pongs += 1
        else:
            self.unknown += 1
            if frame.request:
                self._answer(FrameKind.UNKNOWN, frame.request, bytes((frame.kind,)))

    def _answer(self, kind: FrameKind, request: int, body: bytes = b"") -> None:
        assert self.peer is not None
        self._outgoing.append(encode_frame(kind, request, bytes.fromhex(self.peer.identity), body))
