"""gRPC's framing on HTTP/2: what a call is, where its messages begin and end, deadlines, and how a call ends.

It knows neither services nor protobuf: a message is bytes. It never keeps more of a message than the limit, whatever
the prefix claims.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct

from pydanube.base.errors import GrpcCallInvalid, GrpcEncodingUnknown, GrpcMessageTooLarge
from pydanube.base.errors.root import GrpcStatus
from pydanube.base.limits import GRPC_REQUEST_BYTES_MAX, GRPC_STATUS_MESSAGE_BYTES_MAX
from pydanube.wire.http2.fields import Head, block_of

_PREFIX = Struct(">BI")  # whether the message is compressed, and its length
PREFIX_BYTES = _PREFIX.size

_CONTENT_TYPE = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE | re.DOTALL)
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_NANOSECONDS = {b"H": 3_600 * 10**9, b"M": 60 * 10**9, b"S": 10**9, b"m": 10**6, b"u": 10**3, b"n": 1}
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}  # bytes of a status message that need no escaping

# Constant header blocks. `HEAD`, messages and `OK` make a whole response.
_HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
HEAD = block_of(_HEAD)
OK = block_of([(b"grpc-status", b"0")])
NOT_GRPC_TEXT = b"HTTP/2 is for gRPC here. Use HTTP/1.1 for everything else.\n"
NOT_GRPC = block_of(  # for requests that are not calls
    [(b":status", b"415"), (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(NOT_GRPC_TEXT))]
)


def is_call(head: Head) -> bool:
    """Whether a request is a gRPC call."""
    content_type = head.fields.get(b"content-type")
    return head.method == b"POST" and content_type is not None and _CONTENT_TYPE.fullmatch(content_type) is not None


def timeout_of(head: Head) -> int | None:
    """How long the client waits for the response, in microseconds; None for any time."""
    text = head.fields.get(b"grpc-timeout")
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise GrpcCallInvalid(f"grpc-timeout is {text[:20]!r}; it must have up to eight digits and one of HMSmun")
    return int(match[1]) * _NANOSECONDS[match[2]] // 1_000


# -- messages --------------------------------------------------------------------------------------------------------


def framed(message: bytes) -> bytes:
    """A message with its prefix."""
    return _PREFIX.pack(0, len(message)) + message


def only_message(body: bytes, most: int = GRPC_REQUEST_BYTES_MAX) -> bytes:
    """The message in a body that must contain exactly one."""
    size = _size(body, most)
    if size is None or len(body) != PREFIX_BYTES + size:
        raise GrpcCallInvalid("the body is not exactly one message")
    return body[PREFIX_BYTES:]


class MessageReader:
    """Splits the body of a call into messages while it is received."""

    __slots__ = ("_most", "_rest")

    def __init__(self, most: int = GRPC_REQUEST_BYTES_MAX) -> None:
        self._most = most
        self._rest = bytearray()  # an incomplete message

    @property
    def missing(self) -> int:
        """How many bytes are missing of the incomplete message; 0 if there is none, or its length is not known yet."""
        size = _size(self._rest, self._most)
        return 0 if size is None else PREFIX_BYTES + size - len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete."""
        self._rest += data
        messages = []
        at = 0
        while (size := _size(self._rest, self._most, at)) is not None:
            stop = at + PREFIX_BYTES + size
            if stop > len(self._rest):
                break
            messages.append(bytes(self._rest[at + PREFIX_BYTES : stop]))
            at = stop
        del self._rest[:at]
        return messages

    def end(self) -> None:
        """Raises if the body ended within a message."""
        if self._rest:
            raise GrpcCallInvalid("the body ends within a message")


def _size(body: bytes | bytearray, most: int, at: int = 0) -> int | None:
    """The length of the message that begins at `at`, or None if its prefix is incomplete."""
    if len(body) < at + PREFIX_BYTES:
        return None
    compressed, size = _PREFIX.unpack_from(body, at)
    if compressed:
        raise GrpcEncodingUnknown("compressed messages are not supported")
    if size > most:
        raise GrpcMessageTooLarge(f"the message has {size} bytes; the maximum is {most}")
    return int(size)


# -- how a call ends -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def trailers(status: GrpcStatus, message: str = "") -> bytes:
    """The header block that ends a call after `HEAD`."""
    return block_of(_status_fields(status, message))


@lru_cache(maxsize=256)
def refusal(status: GrpcStatus, message: str = "") -> bytes:
    """The only header block of a response that consists of a status."""
    return block_of([*_HEAD, *_status_fields(status, message), (b"grpc-accept-encoding", b"identity")])


def _status_fields(status: GrpcStatus, message: str) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", b"%d" % status)]
    if message:
        fields.append((b"grpc-message", escaped(message)))
    return fields


def escaped(message: str) -> bytes:
    """Percent-encoded, and cut between two characters if it is too long."""
    text = message.encode("utf-8", "replace")
    if len(text) > GRPC_STATUS_MESSAGE_BYTES_MAX:
        text = text[:GRPC_STATUS_MESSAGE_BYTES_MAX].decode("utf-8", "ignore").encode()
    return b"".join(bytes([byte]) if byte in _PLAIN else b"%%%02X" % byte for byte in text)
