"""Frames of the native protocol, read from a stream of bytes and written to one: a header of 20 bytes and a body.

Every header is checked before a byte of its body is kept: whether its sender may send this kind now, and how long it
may be. Bodies are left to `commands`. The bytes are specified in `docs/internals/protocol.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from functools import cache, partial
from io import BytesIO
from struct import Struct
from typing import Any, NamedTuple

from pydanube.base.errors import BrokerProtocolError, ProtocolError
from pydanube.base.limits import (
    ACK_RANGES_MAX,
    CONTROL_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    HELLO_FRAME_BYTES_MAX,
    REASON_BYTES_MAX,
)

PREFACE = b"DANUBE1\n"  # the first bytes of a connection, so that one port can serve HTTP/1 and HTTP/2 too
FRAME_HEADER_BYTES = 20

# u32 body length, u8 kind, u8 flags, u16 reserved, u32 channel, u64 request. Kind, flags and reserved are read as one
# number, which equals the kind as long as the others are zero.
HEADER = Struct("<IIIQ")

Buffer = bytes | memoryview
FRAMES_ANY = 1 << 62  # no limit


class FrameKind(IntEnum):
    """The kinds of frames, with their numbers on the wire."""

    HELLO = 1
    WELCOME = 2
    REQUEST = 3
    REPLY = 4
    ERROR = 5
    PUBLISH = 6
    PUBLISHED = 7
    DELIVER = 8
    GRANT = 9
    ACK = 10
    ACKED = 11
    NACK = 12
    RESET = 13
    PING = 14
    PONG = 15
    CLOSED = 16
    BATCHES = 17
    TAKEN = 18
    RECALL = 19
    LIMIT = 20
    ACK_TIMEOUT = 21


class Side(Enum):
    """One end of a connection."""

    CLIENT = "client"
    BROKER = "broker"


class Frame(NamedTuple):
    """One received frame. The body is a copy, so that it does not keep a larger buffer alive."""

    kind: int
    channel: int
    request: int
    body: bytes


_FRAME_OF: Callable[[tuple[int, int, int, bytes]], Frame] = partial(tuple.__new__, Frame)  # twice as fast as Frame(…)

_ANY = FRAME_BYTES_MAX  # limited only by the frame
_BODY_BYTES_MAX: dict[Side, dict[FrameKind, int]] = {  # by sender, once the connection is open
    Side.CLIENT: {
        FrameKind.REQUEST: CONTROL_BYTES_MAX,
        FrameKind.PUBLISH: _ANY,
        FrameKind.GRANT: 8,
        FrameKind.ACK: 16 + 16 * ACK_RANGES_MAX,
        FrameKind.NACK: 20 + 16 * ACK_RANGES_MAX + REASON_BYTES_MAX,
        FrameKind.TAKEN: 12 + 16 * ACK_RANGES_MAX,
        FrameKind.PING: 0,
        FrameKind.PONG: 0,
    },
    Side.BROKER: {
        FrameKind.REPLY: CONTROL_BYTES_MAX,
        FrameKind.ERROR: CONTROL_BYTES_MAX,
        FrameKind.PUBLISHED: 10,
        FrameKind.DELIVER: _ANY,
        FrameKind.ACKED: 0,
        FrameKind.RESET: 8,
        FrameKind.RECALL: 12 + 16 * ACK_RANGES_MAX,
        FrameKind.LIMIT: 8,
        FrameKind.ACK_TIMEOUT: 8,
        FrameKind.PING: 0,
        FrameKind.PONG: 0,
        FrameKind.CLOSED: CONTROL_BYTES_MAX,
        FrameKind.BATCHES: _ANY,
    },
}
_EARLY_BYTES_MAX = HELLO_FRAME_BYTES_MAX - FRAME_HEADER_BYTES
_EARLY: dict[Side, dict[int, int]] = {  # before WELCOME
    Side.CLIENT: {FrameKind.HELLO: _EARLY_BYTES_MAX},
    Side.BROKER: {
        FrameKind.WELCOME: _EARLY_BYTES_MAX,
        FrameKind.ERROR: _EARLY_BYTES_MAX,
        FrameKind.CLOSED: _EARLY_BYTES_MAX,
    },
}
_SENDER = {Side.CLIENT: Side.BROKER, Side.BROKER: Side.CLIENT}  # the side whose frames each side reads


def fault_of(sender: Side) -> type[ProtocolError]:
    """The error class for something that this side sent or was about to send."""
    return ProtocolError if sender is Side.CLIENT else BrokerProtocolError


def sender_of(kind: int) -> Side:
    """The side that sends frames of this kind; the client, if both do."""
    early, opened = _EARLY[Side.CLIENT], _BODY_BYTES_MAX[Side.CLIENT]
    return Side.CLIENT if kind in early or kind in opened else Side.BROKER


@cache
def _bounds(sender: Side, frame_bytes_max: int) -> dict[int, int]:
    """The maximum size of a body by kind. All connections of a broker share one table."""
    limit = frame_bytes_max - FRAME_HEADER_BYTES
    return {kind.value: min(most, limit) for kind, most in _BODY_BYTES_MAX[sender].items()}


class FrameReader:
    """Splits the bytes that one side receives into frames, however the network has divided them.

    It keeps at most one incomplete frame, and of that only the bytes received so far. The broker's reader expects the
    preface, then HELLO, then nothing until `welcome` is called; the client's is open once WELCOME has arrived.
    """

    __slots__ = (
        "_allowed",
        "_begun",
        "_body",
        "_fault",
        "_missing",
        "_opened",
        "_preface",
        "_rest",
        "_sender",
        "_skipping",
        "before_fault",
    )

    def __init__(self, side: Side, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        if not FRAME_BYTES_MIN <= frame_bytes_max <= FRAME_BYTES_MAX:
            raise ValueError(f"frames must have {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX} bytes, not {frame_bytes_max}")
        self._sender = _SENDER[side]
        self._preface = PREFACE if side is Side.BROKER else b""  # what is still missing of it
        self._allowed = _EARLY[self._sender]  # kind -> maximum size of its body; other kinds are not allowed now
        self._opened = _bounds(self._sender, frame_bytes_max)
        self._begun = b""  # a part of a header, or the whole header while `_body` is being received
        self._body: BytesIO | None = None  # grows with the bytes received, not with the announced length
        self._missing = 0
        self._skipping = False
        self._rest = b""  # bytes received but not read, because `feed` returned enough frames
        self._fault: ProtocolError | None = None
        self.before_fault: list[Frame] = []  # valid frames before the error in the bytes that `feed` refused

    @property
    def midway(self) -> bool:
        """Whether the stream would end within a frame or the preface."""
        return bool(self._begun or self._preface)

    @property
    def held(self) -> int:
        """How many bytes it keeps of an incomplete body."""
        return 0 if self._body is None else self._body.tell()

    @property
    def unfinished(self) -> tuple[int, int, int] | None:
        """Kind, channel and request of the frame with an incomplete body, if there is one."""
        return None if self._body is None else HEADER.unpack(self._begun)[1:]

    def skip(self) -> None:
        """Discards the unfinished frame: its bytes so far, and those still to come."""
        self._body, self._skipping = BytesIO(), True

    def welcome(self) -> None:
        """Call it after WELCOME was sent: from now on the client may send everything."""
        self._allowed = self._opened

    @property
    def more(self) -> bool:
        """Whether `feed` has left bytes that were received."""
        return bool(self._rest)

    def keep(self, data: bytes) -> None:
        """Stores received bytes for the next call of `feed`."""
        self._rest += data

    def feed(self, data: bytes | bytearray | memoryview = b"", most: int = FRAMES_ANY) -> list[Frame]:
        """Returns the frames that these bytes complete, in order, at most `most`. `data` may be reused afterwards.

        Raises `ProtocolError` at the first invalid byte, and on every call after that.
        """
        if self._fault is not None:
            raise type(self._fault)(*self._fault.args)
        if self._rest:
            data, self._rest = self._rest + data, b""
        frames: list[Frame] = []
        try:
            at = self._skip_preface(data) if self._preface else 0
            if self._begun:
                at = self._resume(data, at, frames)
            self._cut(data, at, frames, most)
        except ProtocolError as fault:
            self._fault = type(fault)(*fault.args)  # a new one: the traceback of the raised error refers to this reader
            self.before_fault = frames
            self._begun, self._body, self._rest = b"", None, b""
            raise
        return frames

    def _skip_preface(self, data: bytes | bytearray | memoryview) -> int:
        got = bytes(data[: len(self._preface)])
        if not self._preface.startswith(got):
            raise fault_of(self._sender)("the connection does not begin with the native protocol's preface")
        self._preface = self._preface[len(got) :]
        return len(got)

    def _cut(self, data: bytes | bytearray | memoryview, at: int, frames: list[Frame], most: int) -> None:
        """Appends the complete frames from `at` on, and keeps what follows them."""
        size = len(data)
        plain = type(data) is bytes
        source: Any = data if plain else memoryview(data)  # slicing either does not copy the rest
        allowed, opened, unpack, frame_of = self._allowed, self._opened, HEADER.unpack_from, _FRAME_OF
        last = size - FRAME_HEADER_BYTES  # where the last whole header may start
        while at <= last:
            length, kind, channel, request = unpack(source, at)
            if length > allowed.get(kind, -1):
                raise self._refusal(length, kind)
            start = at + FRAME_HEADER_BYTES
            end = start + length
            if end > size:
                self._begun, self._missing = bytes(source[at:start]), end - size
                self._body = BytesIO()
                self._body.write(memoryview(source)[start:])
                return
            body = source[start:end]
            frames.append(frame_of((kind, channel, request, body if plain else bytes(body))))
            at = end
            if allowed is not opened:
                self._advance(kind)
                allowed = self._allowed
            if len(frames) >= most:
                self._rest = bytes(source[at:])
                return
        if at < size:
            self._begun = bytes(source[at:])

    def _resume(self, data: bytes | bytearray | memoryview, at: int, frames: list[Frame]) -> int:
        """Continues the incomplete frame; returns where the next one starts."""
        if self._body is None:
            wanted = FRAME_HEADER_BYTES - len(self._begun)
            self._begun += bytes(data[at : at + wanted])
            at = min(at + wanted, len(data))
            if len(self._begun) < FRAME_HEADER_BYTES:
                return at
            length, kind, _, _ = HEADER.unpack(self._begun)
            if length > self._allowed.get(kind, -1):
                raise self._refusal(length, kind)
            self._missing, self._body = length, BytesIO()
        end = min(at + self._missing, len(data))
        if not self._skipping:
            self._body.write(memoryview(data)[at:end])
        self._missing -= end - at
        if not self._missing:
            _, kind, channel, request = HEADER.unpack(self._begun)
            if not self._skipping:
                frames.append(Frame(kind, channel, request, self._body.getvalue()))  # does not copy
            self._begun, self._body, self._skipping = b"", None, False
            self._advance(kind)
        return end

    def _advance(self, kind: int) -> None:
        if kind == FrameKind.HELLO:
            self._allowed = {}  # nothing until the broker has answered
        elif kind == FrameKind.WELCOME:
            self._allowed = self._opened

    def _refusal(self, length: int, word: int) -> ProtocolError:
        kind, rest = word & 0xFF, word >> 8
        fault, who = fault_of(self._sender), self._sender.value
        if rest:
            return fault(f"a reserved field of a frame header is not zero: {rest:#x}")
        if kind not in _NAMES:
            return fault(f"unknown frame kind {kind}")
        if kind in self._allowed:
            return fault(f"{_NAMES[kind]} has a body of {length} bytes; the maximum is {self._allowed[kind]}")
        if kind not in _BODY_BYTES_MAX[self._sender] and kind not in _EARLY[self._sender]:
            return fault(f"a {who} never sends {_NAMES[kind]}")
        when = "after" if self._allowed is self._opened else "before"
        return fault(f"{_NAMES[kind]} must not come {when} WELCOME")


_NAMES: dict[int, str] = {kind.value: kind.name for kind in FrameKind}


def encode_frame(kind: int, channel: int, request: int, *parts: Buffer) -> list[Buffer]:
    """The header and the parts of the body, to be written one after the other without copying them."""
    length = sum(map(len, parts))
    if length > FRAME_BYTES_MAX - FRAME_HEADER_BYTES:
        raise fault_of(sender_of(kind))(f"{_NAMES.get(kind, kind)} with a body of {length} bytes does not fit a frame")
    return [HEADER.pack(length, kind, channel, request), *parts]
