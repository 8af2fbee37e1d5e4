"""Messages between the metadata stores of nodes: requests to the leader and its answers, and snapshots in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import TypeVar

import msgspec

from pydanube.base.errors import PeerProtocolError
from pydanube.base.limits import (
    KIB,
    METADATA_SNAPSHOT_BYTES_MAX,
    METADATA_SNAPSHOT_PART_BYTES,
    METADATA_TRANSACTION_BYTES_MAX,
    MIB,
)
from pydanube.metadata.operations import Operation
from pydanube.raft.entries import Member, Point
from pydanube.wire.peer.frames import Buffer
from pydanube.wire.peer.messages import Codec

_REQUEST = Struct("<Q")  # term; the operation follows
_ANSWER = Struct("<QHH")  # revision, bytes of the error's code and of its text, which follow
_PART = Struct("<QQQ16sQQI")  # term; index, term, chain of the point; bytes of all parts; position, bytes; those follow
_TAKEN = Struct("<Q")  # bytes that have arrived
_ERROR_BYTES_MAX = 8 * KIB
_REQUEST_BYTES_MAX = METADATA_TRANSACTION_BYTES_MAX + MIB  # keys are not counted there: 128 of 1 KiB, checked twice

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """Asks the leader of that term. No other one carries it out, so a request that comes twice is carried out once."""

    number: int  # never used again by the sender, also not after a restart
    term: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """The sender's reads must show this revision; or the code of an error."""

    number: int
    revision: int = 0
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Some bytes of a snapshot: what a file of the metadata log has after its header."""

    transfer: int  # rises with each snapshot that the sender sends
    term: int
    point: Point
    total: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """So many bytes have arrived without a gap."""

    transfer: int
    received: int


@dataclass(frozen=True, slots=True)
class MemberAddresses:
    """Where the members are, for one that may not know it, so that it can answer."""

    members: tuple[Member, ...]


_members = msgspec.msgpack.Decoder(tuple[Member, ...])
_operation = msgspec.msgpack.Decoder(Operation)
_encoder = msgspec.msgpack.Encoder()


def _strict(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PeerProtocolError(f"a message of the metadata cannot be read: {error}") from None


def _encode_request(message: MetadataRequest) -> list[Buffer]:
    return [_REQUEST.pack(message.term), _encoder.encode(message.operation)]


def _decode_request(body: bytes, request: int) -> MetadataRequest:
    (term,) = _REQUEST.unpack_from(body)
    return MetadataRequest(request, term, _strict(_operation.decode, body[_REQUEST.size :]))


def _encode_answer(message: MetadataAnswer) -> list[Buffer]:
    code = message.code.encode()
    text = message.text.encode(errors="replace")[: _ERROR_BYTES_MAX // 2].decode(errors="ignore").encode()
    return [_ANSWER.pack(message.revision, len(code), len(text)), code, text]


def _decode_answer(body: bytes, request: int) -> MetadataAnswer:
    revision, code_bytes, text_bytes = _ANSWER.unpack_from(body)
    at = _ANSWER.size + code_bytes
    if at + text_bytes != len(body):
        raise PeerProtocolError(f"an answer has {len(body)} bytes, but describes {at + text_bytes}")
    code, text = _strict(bytes.decode, body[_ANSWER.size : at]), _strict(bytes.decode, body[at:])
    return MetadataAnswer(request, revision, code, text)


def _encode_part(message: SnapshotPart) -> list[Buffer]:
    point = message.point
    place = (message.total, message.position, len(message.data))
    return [_PART.pack(message.term, point.index, point.term, point.chain, *place), message.data]


def _decode_part(body: bytes, request: int) -> SnapshotPart:
    term, index, point_term, chain, total, position, length = _PART.unpack_from(body)
    data = body[_PART.size :]
    if total > METADATA_SNAPSHOT_BYTES_MAX or position + length > total or not 0 < length == len(data):
        raise PeerProtocolError(f"{len(data)} bytes at {position} are not a part of a snapshot with {total} bytes")
    return SnapshotPart(request, term, Point(index, point_term, chain), total, position, data)


def _encode_taken(message: SnapshotTaken) -> list[Buffer]:
    return [_TAKEN.pack(message.received)]


def _decode_taken(body: bytes, request: int) -> SnapshotTaken:
    return SnapshotTaken(request, *_TAKEN.unpack(body))


def _encode_addresses(message: MemberAddresses) -> list[Buffer]:
    return [_encoder.encode(message.members)]


def _decode_addresses(body: bytes, request: int) -> MemberAddresses:
    return MemberAddresses(_strict(_members.decode, body))


METADATA = (
    Codec(23, MetadataRequest, _encode_request, _decode_request, _REQUEST_BYTES_MAX, "number"),
    Codec(24, MetadataAnswer, _encode_answer, _decode_answer, _ERROR_BYTES_MAX, "number"),
    Codec(25, SnapshotPart, _encode_part, _decode_part, METADATA_SNAPSHOT_PART_BYTES + KIB, "transfer"),
    Codec(26, SnapshotTaken, _encode_taken, _decode_taken, 64, "transfer"),
    Codec(27, MemberAddresses, _encode_addresses, _decode_addresses, 256 * KIB),
)
