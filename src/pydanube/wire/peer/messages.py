"""Messages between nodes: a table from the kind of a frame to the type of a value, and the bytes of those of consensus.

Other modules add rows. A codec never looks at the link: it gets a whole body, and raises `PeerProtocolError` for bytes
that it does not write itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

from pydanube.base.errors import PeerMessageTooLarge, PeerProtocolError
from pydanube.base.limits import PEER_MESSAGE_BYTES_MAX
from pydanube.raft.entries import Entry, Point
from pydanube.raft.messages import Alive, Append, Appended, AskVote, Heartbeat, TakeLead, Vote
from pydanube.wire.peer.frames import FIRST_MESSAGE_KIND, Buffer, Frame, FrameKind

_SMALL = 64  # more than a message of consensus without entries has


class Encoded(NamedTuple):
    """A message on its way into frames."""

    kind: int
    request: int
    parts: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class UnknownRequest:
    """The answer of a node that does not know the kind of a request, because its version is older."""

    request: int
    kind: int


@dataclass(frozen=True, slots=True)
class Codec:
    """One row: how values of a type become bytes and back. `request` is the attribute with the number of a request, or
    of the one that the message answers; without it, the message is neither."""

    kind: int
    type: type[Any]
    encode: Callable[[Any], Sequence[Buffer]]
    decode: Callable[[bytes, int], Any]  # the body and the request number
    bytes_max: int = PEER_MESSAGE_BYTES_MAX
    request: str = ""


class MessageTable:
    """The messages that a node understands."""

    def __init__(self, codecs: Iterable[Codec]) -> None:
        self._by_kind: dict[int, Codec] = {}
        self._by_type: dict[type[Any], Codec] = {}
        for codec in codecs:
            assert FIRST_MESSAGE_KIND <= codec.kind <= 255
            assert codec.kind not in self._by_kind, f"two messages have the kind {codec.kind}"
            self._by_kind[codec.kind] = self._by_type[codec.type] = codec
        self.bounds = {kind: codec.bytes_max for kind, codec in self._by_kind.items()}

    def encode(self, message: object) -> Encoded:
        codec = self._by_type[type(message)]
        parts = codec.encode(message)
        size = sum(map(len, parts))
        if size > codec.bytes_max:
            raise PeerMessageTooLarge(f"{codec.type.__name__} has {size} bytes; the maximum is {codec.bytes_max}")
        return Encoded(codec.kind, getattr(message, codec.request) if codec.request else 0, parts)

    def knows(self, frame: Frame) -> bool:
        return frame.kind in self._by_kind

    def decode(self, frame: Frame) -> Any:
        """The message in a frame of a known kind, or `PeerProtocolError`."""
        codec = self._by_kind[frame.kind]
        if frame.request and not codec.request:
            raise PeerProtocolError(f"{codec.type.__name__} must not have a request number")
        try:
            return codec.decode(frame.body, frame.request)
        except struct.error as error:
            raise PeerProtocolError(f"{codec.type.__name__} with {len(frame.body)} bytes: {error}") from None


def unknown_request(frame: Frame) -> UnknownRequest:
    if not frame.request or len(frame.body) != 1:
        raise PeerProtocolError(f"{FrameKind.UNKNOWN.name} must name a request and a kind")
    return UnknownRequest(frame.request, frame.body[0])


# -- consensus ---------------------------------------------------------------------------------------------------------

_ASK_VOTE = Struct("<QQQ16sB")  # term; index, term and chain of the last entry; trial, transfer
_VOTE = Struct("<QB")  # term; granted, trial
_APPEND = Struct("<QQQ16sQI")  # term; index, term and chain of the point before; committed; number of entries
_ENTRY = Struct("<QQ16sIB")  # index, term, chain, bytes of its data, kind; the data follows
_APPENDED = Struct("<QQQB")  # term, index, term of the entry; accepted
_HEARTBEAT = Struct("<QQQ")  # term, round, committed
_ALIVE = Struct("<QQ")  # term, round
_TAKE_LEAD = Struct("<Q")  # term


def _flags(*flags: bool) -> int:
    return sum(flag << at for at, flag in enumerate(flags))


def _flags_in(value: int, count: int) -> list[bool]:
    if value >> count:
        raise PeerProtocolError(f"a field with {count} flags has the value {value:#x}")
    return [bool(value >> at & 1) for at in range(count)]


def _encode_ask_vote(message: AskVote) -> list[Buffer]:
    last = message.last
    flags = _flags(message.trial, message.transfer)
    return [_ASK_VOTE.pack(message.term, last.index, last.term, last.chain, flags)]


def _decode_ask_vote(body: bytes, request: int) -> AskVote:
    term, index, last_term, chain, flags = _ASK_VOTE.unpack(body)
    return AskVote(term, Point(index, last_term, chain), *_flags_in(flags, 2))


def _encode_vote(message: Vote) -> list[Buffer]:
    return [_VOTE.pack(message.term, _flags(message.granted, message.trial))]


def _decode_vote(body: bytes, request: int) -> Vote:
    term, flags = _VOTE.unpack(body)
    return Vote(term, *_flags_in(flags, 2))


def _encode_append(message: Append) -> list[Buffer]:
    before, entries = message.before, message.entries
    head = (message.term, before.index, before.term, before.chain, message.committed, len(entries))
    parts: list[Buffer] = [_APPEND.pack(*head)]
    for entry in entries:
        parts.append(_ENTRY.pack(entry.index, entry.term, entry.chain, len(entry.data), entry.kind))
        parts.append(entry.data)
    return parts


def _decode_append(body: bytes, request: int) -> Append:
    """The number of entries is never trusted: each needs bytes that are there."""
    term, index, before_term, chain, committed, count = _APPEND.unpack_from(body)
    entries = []
    at = _APPEND.size
    for _ in range(count):
        entry_index, entry_term, entry_chain, length, kind = _ENTRY.unpack_from(body, at)
        start = at + _ENTRY.size
        at = start + length
        entries.append(Entry(entry_index, entry_term, kind, body[start:at], entry_chain))
    if at != len(body):
        raise PeerProtocolError(f"{Append.__name__} has {len(body)} bytes, but describes {at}")
    return Append(term, Point(index, before_term, chain), tuple(entries), committed)


def _encode_appended(message: Appended) -> list[Buffer]:
    return [_APPENDED.pack(message.term, message.index, message.entry_term, message.accepted)]


def _decode_appended(body: bytes, request: int) -> Appended:
    term, index, entry_term, flags = _APPENDED.unpack(body)
    return Appended(term, _flags_in(flags, 1)[0], index, entry_term)


def _encode_heartbeat(message: Heartbeat) -> list[Buffer]:
    return [_HEARTBEAT.pack(message.term, message.round, message.committed)]


def _decode_heartbeat(body: bytes, request: int) -> Heartbeat:
    return Heartbeat(*_HEARTBEAT.unpack(body))


def _encode_alive(message: Alive) -> list[Buffer]:
    return [_ALIVE.pack(message.term, message.round)]


def _decode_alive(body: bytes, request: int) -> Alive:
    return Alive(*_ALIVE.unpack(body))


def _encode_take_lead(message: TakeLead) -> list[Buffer]:
    return [_TAKE_LEAD.pack(message.term)]


def _decode_take_lead(body: bytes, request: int) -> TakeLead:
    return TakeLead(*_TAKE_LEAD.unpack(body))


CONSENSUS = (
    Codec(16, AskVote, _encode_ask_vote, _decode_ask_vote, _SMALL),
    Codec(17, Vote, _encode_vote, _decode_vote, _SMALL),
    Codec(18, Append, _encode_append, _decode_append),
    Codec(19, Appended, _encode_appended, _decode_appended, _SMALL),
    Codec(20, Heartbeat, _encode_heartbeat, _decode_heartbeat, _SMALL),
    Codec(21, Alive, _encode_alive, _decode_alive, _SMALL),
    Codec(22, TakeLead, _encode_take_lead, _decode_take_lead, _SMALL),
)
