"""The constants of RFC 9113, and encoders of frames that need no state.

Whether a frame may be received or sent is decided in `reading` and `sending`.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from pydanube.base.errors import Http2ConnectionError
from pydanube.base.limits import HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_HEADER_LIST_BYTES_MAX, HTTP2_STREAMS_MAX

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

HEADER = Struct(">IBI")  # length and type as one number, flags, stream
HEADER_BYTES = 9
FRAME_BYTES = 16_384  # of a payload: the least that every peer accepts, and the most that we do
WINDOW_BYTES = 65_535  # the initial window of streams and connections
TABLE_BYTES = 4096  # the initial size of the dynamic header table
NUMBER_MAX = (1 << 31) - 1  # the highest stream number, and the largest window


class FrameType(IntEnum):
    """The types of frames, with their numbers on the wire."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class ErrorCode(IntEnum):
    """Why a stream or a connection ended."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    """The settings that one side announces to the other."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


# Plain numbers, for code that runs once per frame: a member of an enum costs a look-up in its class.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

_SETTING = Struct(">HI")
_NUMBER = Struct(">I")
_TWO_NUMBERS = Struct(">II")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings_frame(settings: dict[int, int]) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream, _NUMBER.pack(size))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last: int, code: int, reason: str = "") -> bytes:
    return frame(FrameType.GOAWAY, 0, 0, _TWO_NUMBERS.pack(last, code) + reason.encode())


def number_of(payload: bytes) -> int:
    """The number in a WINDOW_UPDATE or RST_STREAM, or the first one in a GOAWAY."""
    number: int = _NUMBER.unpack_from(payload)[0]
    return number


def settings_of(payload: bytes) -> dict[int, int]:
    """The settings in a SETTINGS frame. If one is repeated, the last one counts."""
    return dict(_SETTING.iter_unpack(payload))


def content_of(flags: int, payload: bytes) -> bytes:
    """A payload without its padding, and without the priority that RFC 9113 (5.3.2) lets a server ignore."""
    padded = flags & PADDED
    start = (1 if padded else 0) + (5 if flags & PRIORITISED else 0)
    if start > len(payload):
        raise Http2ConnectionError("the frame is shorter than its fields", ErrorCode.FRAME_SIZE_ERROR)
    stop = len(payload) - payload[0] if padded else len(payload)
    if start > stop:
        raise Http2ConnectionError("the frame is shorter than its padding", ErrorCode.PROTOCOL_ERROR)
    return payload[start:stop]


# What a server sends first. The windows of streams keep the default, so that a client cannot send more than we allow
# before it has read this.
GREETING = settings_frame(
    {Setting.MAX_CONCURRENT_STREAMS: HTTP2_STREAMS_MAX, Setting.MAX_HEADER_LIST_SIZE: HTTP2_HEADER_LIST_BYTES_MAX}
) + window_update(0, HTTP2_CONNECTION_WINDOW_BYTES - WINDOW_BYTES)
SETTINGS_ACK = frame(FrameType.SETTINGS, ACK, 0, b"")
