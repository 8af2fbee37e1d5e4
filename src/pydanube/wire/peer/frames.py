"""Frames of the peer protocol: a header of 36 bytes and a body. A long message has several, one for each of its parts.

Every header is checked before a byte of its body is kept: whether this kind may come now, and how long it may be. The
bytes are specified in `docs/internals/peer-protocol.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from pydanube.base.checksum import crc32c, crc32c_extend
from pydanube.base.errors import PeerFrameDamaged, PeerIdentityDiffers, PeerProtocolError
from pydanube.base.limits import PEER_FRAME_BODY_BYTES_MAX, PEER_HELLO_BYTES_MAX, PEER_MESSAGE_BYTES_MAX

PREFACE = b"DANPEER\n"  # the first bytes of the node that connects
IDENTITY_BYTES = 16
NO_TARGET = bytes(IDENTITY_BYTES)  # in the hello of a node that does not know whom it will reach
HEADER_BYTES = 36
FIRST_MESSAGE_KIND = 16  # lower ones belong to the link itself
PART = 1  # a flag: one part of a longer message
LAST = 2  # a flag: its last part

# u32 body length, u8 kind, u8 flags, u16 reserved, u64 request, 16 bytes target; then the CRC32C of these and the body
_HEADER = Struct("<IBBHQ16s")
_CHECKED = Struct("<IBBHQ16sI")

Buffer = bytes | memoryview


class FrameKind(IntEnum):
    """The kinds of frames that belong to the link itself."""

    HELLO = 1
    PROOF = 2
    REFUSED = 3
    PING = 4
    PONG = 5
    UNKNOWN = 6


GREETING: Mapping[int, int] = {FrameKind.HELLO: PEER_HELLO_BYTES_MAX, FrameKind.PROOF: 32, FrameKind.REFUSED: 1}
_UNNAMED = (FrameKind.HELLO, FrameKind.REFUSED)  # whose sender may not know yet whom it has reached
OPEN: Mapping[int, int] = {FrameKind.REFUSED: 1, FrameKind.PING: 0, FrameKind.PONG: 0, FrameKind.UNKNOWN: 1}


class Frame(NamedTuple):
    """One received frame, or all parts of one message. Without a body, if its kind is unknown."""

    kind: int
    request: int  # the sender's number for what it asks; 0 if no answer is expected
    target: bytes
    body: bytes


def encode_frame(kind: int, request: int, target: bytes, body: bytes = b"", flags: int = 0) -> bytes:
    header = _HEADER.pack(len(body), kind, flags, 0, request, target)
    return b"".join((header, crc32c_extend(crc32c(header), body).to_bytes(4, "little"), body))


def divide(parts: Sequence[Buffer]) -> Iterator[tuple[int, bytes]]:
    """The flags and the body of each frame that a message needs. Each byte is copied once, when its turn comes."""
    left = sum(map(len, parts))
    if left <= PEER_FRAME_BODY_BYTES_MAX:
        yield 0, b"".join(parts)
        return
    gathered: list[Buffer] = []
    room = PEER_FRAME_BODY_BYTES_MAX
    for part in parts:
        rest = memoryview(part)
        while len(rest) >= room:
            gathered.append(rest[:room])
            rest, left = rest[room:], left - PEER_FRAME_BODY_BYTES_MAX
            yield PART if left else PART | LAST, b"".join(gathered)
            gathered, room = [], PEER_FRAME_BODY_BYTES_MAX
        gathered.append(rest)
        room -= len(rest)
    if left:
        yield PART | LAST, b"".join(gathered)


class _Message:
    """The parts of a message that have arrived."""

    __slots__ = ("bytes", "kind", "parts", "request")

    def __init__(self, kind: int, request: int) -> None:
        self.kind = kind
        self.request = request
        self.parts: list[bytes] = []
        self.bytes = 0


class FrameDecoder:
    """Cuts the bytes of one connection into frames, however the network has divided them.

    It keeps at most one incomplete frame, and the parts of one incomplete message. After an error it is of no use.
    """

    def __init__(self, own: bytes, *, preface: bool) -> None:
        self._own = own
        self._preface = PREFACE if preface else b""  # what is still missing of it
        self._received = bytearray()
        self._bounds = GREETING  # the most bytes of a message by its kind
        self._skips_unknown = False
        self._message: _Message | None = None  # whose last part has not arrived

    def open(self, bounds: Mapping[int, int]) -> None:
        """From now on these kinds may come too. Kinds of messages that it does not know are cut out without a body."""
        self._bounds, self._skips_unknown = {**OPEN, **bounds}, True

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Yields the frames that these bytes complete. The caller may `open` between two of them."""
        self._received += data
        if self._preface:
            self._skip_preface()
        while not self._preface and len(self._received) >= HEADER_BYTES:
            length, kind, flags, reserved, request, target, checksum = _CHECKED.unpack_from(self._received)
            kept = self._check(length, kind, flags, reserved, request)
            end = HEADER_BYTES + length
            if len(self._received) < end:
                return
            with memoryview(self._received) as received:
                header, body = bytes(received[: _HEADER.size]), bytes(received[HEADER_BYTES:end])
            del self._received[:end]
            if crc32c_extend(crc32c(header), body) != checksum:
                raise PeerFrameDamaged(f"a frame of kind {kind} with {length} bytes has a wrong checksum")
            if target != self._own and kind not in _UNNAMED:
                raise PeerIdentityDiffers(f"a frame for node {target.hex()} arrived at node {self._own.hex()}")
            if flags:
                whole = self._join(kind, flags, request, body if kept else b"")
                if whole is None:
                    continue
                body = whole
            yield Frame(kind, request, target, body if kept else b"")

    def _skip_preface(self) -> None:
        got = bytes(self._received[: len(self._preface)])
        if not self._preface.startswith(got):
            raise PeerProtocolError("the connection does not begin with the peer protocol's preface")
        self._preface = self._preface[len(got) :]
        del self._received[: len(got)]

    def _check(self, length: int, kind: int, flags: int, reserved: int, request: int) -> bool:
        """Raises unless such a frame may come now. Returns whether its body is of use."""
        known = kind in self._bounds
        if not known and not (self._skips_unknown and kind >= FIRST_MESSAGE_KIND):
            raise PeerProtocolError(f"a frame of kind {kind} must not come now")
        if reserved or flags not in (0, PART, PART | LAST) or (flags and kind < FIRST_MESSAGE_KIND):
            raise PeerProtocolError(f"a header of kind {kind} has flags {flags:#x} and reserved bits {reserved:#x}")
        message, before = self._message, 0
        if flags and message is not None:
            if (message.kind, message.request) != (kind, request):
                raise PeerProtocolError(f"parts of kind {kind} came between those of kind {message.kind}")
            before = message.bytes
        if (flags == PART and length != PEER_FRAME_BODY_BYTES_MAX) or (flags & LAST and not length):
            raise PeerProtocolError(f"a part of kind {kind} has {length} bytes")
        most = self._bounds.get(kind, PEER_MESSAGE_BYTES_MAX)
        if length > PEER_FRAME_BODY_BYTES_MAX or before + length > most:
            raise PeerProtocolError(
                f"a message of kind {kind} has at least {before + length} bytes; the maximum is {most}"
            )
        return known

    def _join(self, kind: int, flags: int, request: int, body: bytes) -> bytes | None:
        """The whole message, if this is its last part."""
        if self._message is None:
            if flags & LAST:
                raise PeerProtocolError(f"the last part of a message of kind {kind} came without a first one")
            self._message = _Message(kind, request)
        message = self._message
        message.bytes += PEER_FRAME_BODY_BYTES_MAX
        message.parts.append(body)
        if not flags & LAST:
            return None
        self._message = None
        return b"".join(message.parts)
