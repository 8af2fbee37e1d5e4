"""A client for tests of HTTP/2 that sends raw bytes, valid or not, and parses what the server writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pydanube.wire.http2.connection import ServerConnection
from pydanube.wire.http2.events import ConnectionEnded, Event, StreamReset
from pydanube.wire.http2.fields import block_of
from pydanube.wire.http2.frames import HEADER, PREFACE, ErrorCode, FrameType

Fields = Iterable[tuple[bytes, bytes]]

EMPTY_SETTINGS = bytes.fromhex("000000040000000000")
GET = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]
POST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/m"), (b":authority", b"a")]
OK_BLOCK = b"\x88"  # :status 200
END_STREAM, END_HEADERS, PADDED, PRIORITISED, ACK = 0x1, 0x4, 0x8, 0x20, 0x1


class Sent(NamedTuple):
    """One frame that the server wrote."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def raw(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, valid or not."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(stream: int, fields: Fields | bytes = GET, *, end: bool = True, flags: int = END_HEADERS) -> bytes:
    block = fields if isinstance(fields, bytes) else block_of(fields)
    return raw(FrameType.HEADERS, flags | (END_STREAM if end else 0), stream, block)


def data(stream: int, payload: bytes = b"", *, end: bool = False, flags: int = 0) -> bytes:
    return raw(FrameType.DATA, flags | (END_STREAM if end else 0), stream, payload)


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def window_update(stream: int, size: int) -> bytes:
    return raw(FrameType.WINDOW_UPDATE, 0, stream, number(size))


def rst_stream(stream: int, code: int = ErrorCode.CANCEL) -> bytes:
    return raw(FrameType.RST_STREAM, 0, stream, number(code))


def settings(*pairs: tuple[int, int]) -> bytes:
    return raw(FrameType.SETTINGS, 0, 0, b"".join(key.to_bytes(2, "big") + number(value) for key, value in pairs))


def frames_of(output: bytes) -> list[Sent]:
    sent, at = [], 0
    while at < len(output):
        word, flags, stream = HEADER.unpack_from(output, at)
        stop = at + 9 + (word >> 8)
        assert stop <= len(output), "the server writes whole frames"
        assert word >> 8 <= 16_384, "no larger than every client takes"
        sent.append(Sent(word & 0xFF, flags, stream, output[at + 9 : stop]))
        at = stop
    return sent


class Peer:
    """A client and the connection to its server. By default the handshake is over."""

    def __init__(self, *, greeted: bool = True) -> None:
        self.server = ServerConnection()
        self.now = 0
        self.written = b""  # everything that the server wrote
        if greeted:
            assert self.say(PREFACE, EMPTY_SETTINGS) == []
            self.heard()

    def say(self, *parts: bytes) -> list[Event]:
        return self.server.receive(b"".join(parts), self.now)

    def heard(self) -> list[Sent]:
        """The frames that the server wrote since the last call."""
        output = b"".join(self.server.take_output())
        self.written += output
        return frames_of(output)

    def fails(self, *parts: bytes) -> ErrorCode:
        """Sends bytes that must end the connection, checks that both sides know, and returns the error code."""
        events = self.say(*parts)
        assert events, "nothing happened"
        last = events[-1]
        assert isinstance(last, ConnectionEnded), events
        goaway = self.heard()[-1]
        assert (goaway.kind, goaway.stream) == (FrameType.GOAWAY, 0)
        assert goaway.payload[4:8] == number(last.error.error_code)
        assert self.server.ended
        assert self.server.streams == 0
        assert self.say(EMPTY_SETTINGS) == []
        return ErrorCode(last.error.error_code)

    def resets(self, stream: int, *parts: bytes) -> ErrorCode:
        """Sends bytes that must end one stream and not the connection, and returns the code of the reset."""
        events = self.say(*parts)
        assert not self.server.ended, events
        sent = [frame for frame in self.heard() if frame.kind == FrameType.RST_STREAM]
        assert [frame.stream for frame in sent] == [stream], sent
        code = int.from_bytes(sent[0].payload, "big")
        told = [event.code for event in events if isinstance(event, StreamReset)]
        assert told in ([], [code])
        assert self.server.room(stream) == 0
        self.is_alive()
        return ErrorCode(code)

    def is_alive(self) -> None:
        assert self.say(raw(FrameType.PING, 0, 0, b"01234567")) == []
        assert self.heard()[-1] == Sent(FrameType.PING, ACK, 0, b"01234567")
