"""Reads a client's frames, checks them as RFC 9113 says, and turns them into events and changes of streams.

An error ends the stream (5.4.2) or the connection (5.4.1). Frames that cost a client nothing are counted. At most one
incomplete frame and one incomplete header block are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pydanube.base.errors import Http2ConnectionError, Http2StreamError
from pydanube.base.limits import (
    HTTP2_CONTINUATIONS_MAX,
    HTTP2_DATA_BYTES_PER_WORK,
    HTTP2_HEADER_BLOCK_BYTES_MAX,
    HTTP2_HEADER_BYTES_PER_WORK,
    HTTP2_IDLE_FRAMES_MAX,
    HTTP2_IDLE_FRAMES_PER_SECOND,
    HTTP2_RESETS_MAX,
    HTTP2_RESETS_PER_SECOND,
    HTTP2_STREAMS_MAX,
)
from pydanube.wire.http2.allowance import Allowance
from pydanube.wire.http2.events import DataReceived, Event, RequestReceived, StreamReset
from pydanube.wire.http2.fields import Head, HeadDecoder
from pydanube.wire.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    NUMBER_MAX,
    PADDED,
    PREFACE,
    PRIORITISED,
    SETTINGS_ACK,
    TABLE_BYTES,
    ErrorCode,
    FrameType,
    Setting,
    content_of,
    frame,
    goaway,
    number_of,
    settings_of,
)
from pydanube.wire.http2.stream import Stream
from pydanube.wire.http2.table import StreamTable

DRAIN_PING = b"draining"  # its echo shows that the client has read the first GOAWAY

_SETTINGS, _CONTINUATION = 4, 9  # plain numbers are faster than members of `FrameType`
_REQUEST: Callable[[tuple[int, Head, bytes, bool]], RequestReceived] = partial(tuple.__new__, RequestReceived)


class FrameReader:
    """The reading side of one connection."""

    def __init__(self, table: StreamTable) -> None:
        self.last = 0  # the highest stream number of the client
        self.more = False  # `read` has left bytes that were received
        self.accepting = True  # new streams, until the client has read that we drain
        self.events: list[Event] = []
        self._table = table
        self._preface = PREFACE  # what is still missing of it
        self._rest = b""  # bytes not read yet: an incomplete frame, or what exceeded the work
        self._at = 0  # where the next frame begins in it
        self._work = 0  # that is left before `read` stops
        self._settled = False  # the client's first SETTINGS was received
        self._skipped = False  # the client skipped stream numbers
        self._block = b""  # an incomplete header block
        self._block_stream = 0  # the stream of that block; 0 if there is none
        self._block_flags = 0
        self._continuations = 0
        self._decoder = HeadDecoder()
        self._table_bytes = TABLE_BYTES  # size of the table that the client allows our headers; we do not use it
        self._resets = Allowance(HTTP2_RESETS_MAX, HTTP2_RESETS_PER_SECOND)
        self._idle = Allowance(HTTP2_IDLE_FRAMES_MAX, HTTP2_IDLE_FRAMES_PER_SECOND)
        self._frames = 0  # DATA frames that we had sent when the last PING was received
        self._now = 0

    def read(self, data: bytes, now: int, work: int) -> None:
        """Adds the events in the bytes to `events`. Stops when the work is done: 1 for a frame, more for large ones."""
        self._now = now
        self._work = work
        if self._preface:
            data = self._after_preface(data)
        at = self._at
        if self._rest:
            if data:
                data, at = self._rest[at:] + data, 0
            else:
                data = self._rest
        size = len(data)
        self.more = False
        while size - at >= HEADER_BYTES:
            if self._work <= 0:
                self.more = True
                break
            self._work -= 1
            word, flags, number = HEADER.unpack_from(data, at)
            stop = at + HEADER_BYTES + (word >> 8)
            if word >> 8 > FRAME_BYTES:
                raise Http2ConnectionError(f"a frame has {word >> 8} bytes", ErrorCode.FRAME_SIZE_ERROR)
            if stop > size:
                break
            kind = word & 0xFF
            if self._block_stream or not self._settled:
                self._check_turn(kind, flags, number & NUMBER_MAX)
            if kind <= _CONTINUATION:
                _HANDLERS[kind](self, flags, number & NUMBER_MAX, data[at + HEADER_BYTES : stop])
            else:
                self._count_idle()  # RFC 9113 (5.5): unknown types are ignored
            at = stop
        if self.more:
            self._rest, self._at = data, at
        else:
            self._rest, self._at = data[at:], 0

    def _after_preface(self, data: bytes) -> bytes:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise Http2ConnectionError("this is not HTTP/2", ErrorCode.PROTOCOL_ERROR)
        self._preface = self._preface[size:]
        return data[size:]

    def _check_turn(self, kind: int, flags: int, number: int) -> None:
        """Refuses anything but the first SETTINGS at the start, and the rest of a header block within one."""
        if self._block_stream:
            if kind != _CONTINUATION or number != self._block_stream:
                raise _protocol_error("a header block is interrupted")
        elif kind != _SETTINGS or flags & ACK:
            raise _protocol_error("the first frame is not SETTINGS")

    # -- requests ---------------------------------------------------------------------------------------------------

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & (PADDED | PRIORITISED):
            payload = content_of(flags, payload)
        if flags & END_HEADERS:
            self._on_block(flags, number, payload)
            return
        if not number:
            raise _protocol_error("headers on stream 0")
        self._block, self._block_stream, self._block_flags, self._continuations = payload, number, flags, 0

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if not self._block_stream:
            raise _protocol_error("CONTINUATION without a header block")
        self._continuations += 1
        size = len(self._block) + len(payload)
        if self._continuations > HTTP2_CONTINUATIONS_MAX or size > HTTP2_HEADER_BLOCK_BYTES_MAX:
            raise Http2ConnectionError("a header block has too many frames", ErrorCode.ENHANCE_YOUR_CALM)
        self._block += payload
        if flags & END_HEADERS:
            block, self._block, self._block_stream = self._block, b"", 0
            self._on_block(self._block_flags, number, block)

    def _on_block(self, flags: int, number: int, block: bytes) -> None:
        """Handles a complete header block: a new request, or the trailers of one."""
        self._work -= len(block) // HTTP2_HEADER_BYTES_PER_WORK
        if number <= self.last or not number & 1:
            self._on_trailers(flags, number, block)
            return
        if number != self.last + 2 and (self.last or number != 1):
            self._skipped = True
        self.last = number
        try:
            head = self._decoder.request(block)
        except Http2StreamError as error:
            self._reset(number, error.error_code)
            return
        ended = bool(flags & END_STREAM)
        table = self._table
        if len(table.open) >= HTTP2_STREAMS_MAX or not self.accepting:
            self._reset(number, ErrorCode.REFUSED_STREAM)
        elif ended and head.length > 0:
            self._reset(number, ErrorCode.PROTOCOL_ERROR)
        else:
            table.open[number] = Stream(number, head.length, not ended)
            self.events.append(_REQUEST((number, head, b"", ended)))

    def _on_trailers(self, flags: int, number: int, block: bytes) -> None:
        stream = self._table.open.get(number)
        if stream is None and number not in self._table.forgotten:
            if number & 1 and not self._skipped:
                raise Http2ConnectionError("headers on a closed stream", ErrorCode.STREAM_CLOSED)
            raise _protocol_error("headers on a stream that cannot be opened")
        malformed = not flags & END_STREAM
        try:
            self._decoder.trailers(block)
        except Http2StreamError:
            malformed = True
        if stream is None:
            return
        if not stream.receiving:
            self._reset(number, ErrorCode.STREAM_CLOSED)
        elif malformed or stream.expected > 0:
            self._reset(number, ErrorCode.PROTOCOL_ERROR)
        else:
            stream.receiving = False
            self._deliver(number, b"", True)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._work -= size // HTTP2_DATA_BYTES_PER_WORK
        table = self._table
        table.receiving.received(size)
        stream = table.open.get(number)
        if stream is None or not stream.receiving:
            self._on_late_data(number)
            return
        if flags & PADDED:
            payload = content_of(PADDED, payload)
        ended = bool(flags & END_STREAM)
        stream.credit -= size
        stream.held += size
        if stream.credit < 0:
            self._reset(number, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if stream.expected >= 0:
            stream.expected -= len(payload)
            if stream.expected < 0 or (ended and stream.expected):
                self._reset(number, ErrorCode.PROTOCOL_ERROR)
                return
        if ended:
            stream.receiving = False
        elif not payload:
            self._count_idle()
        if size != len(payload):
            table.receiving.give_back(stream, size - len(payload))
        if payload or ended:
            self._deliver(number, payload, ended)

    def _on_late_data(self, number: int) -> None:
        """Handles data on a stream that the client or we have ended."""
        if number in self._table.forgotten:
            return
        self._check_not_idle(number, "DATA")
        self._reset(number, ErrorCode.STREAM_CLOSED)

    def _deliver(self, number: int, data: bytes, ended: bool) -> None:
        """Adds the data to the event of its request if that is the last one, so that most calls are one event."""
        events = self.events
        if events:
            before = events[-1]
            if type(before) is RequestReceived and before[0] == number and not before[2]:
                events[-1] = _REQUEST((number, before[1], data, ended))
                return
        events.append(DataReceived(number, data, ended))

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        _check_size(payload, 4)
        self._check_not_idle(number, "RST_STREAM")
        self._count_reset()
        stream = self._table.open.get(number)
        if stream is not None:
            self._table.close(stream)
            self.events.append(StreamReset(number, number_of(payload)))

    # -- the connection ---------------------------------------------------------------------------------------------

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise _protocol_error("SETTINGS on a stream")
        if len(payload) % 6 or (flags & ACK and payload):
            raise Http2ConnectionError("SETTINGS has the wrong size", ErrorCode.FRAME_SIZE_ERROR)
        self._count_idle()
        if flags & ACK:
            return
        self._settled = True
        settings = settings_of(payload)
        if settings.get(Setting.ENABLE_PUSH, 0) > 1:
            raise _protocol_error("ENABLE_PUSH is neither 0 nor 1")
        if not FRAME_BYTES <= settings.get(Setting.MAX_FRAME_SIZE, FRAME_BYTES) < 1 << 24:
            raise _protocol_error("MAX_FRAME_SIZE is out of bounds")
        self._table.sending.output.append(SETTINGS_ACK)
        table_bytes = settings.get(Setting.HEADER_TABLE_SIZE, self._table_bytes)
        if table_bytes < self._table_bytes:
            self._table.sending.resize = True
        self._table_bytes = table_bytes
        window = settings.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            self._set_window(window)

    def _set_window(self, window: int) -> None:
        """RFC 9113 (6.9.2): a new initial window changes the window of every open stream."""
        _check_window(window)
        self._work -= self._table.sending.stalled
        ended = self._table.sending.set_initial_window(window, self._table.open.values())
        if ended is None:
            raise _window_too_large()
        for stream in ended:
            self._table.finish(stream)

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        _check_size(payload, 4)
        size = number_of(payload) & NUMBER_MAX
        sending = self._table.sending
        if not number:
            if not size:
                raise _protocol_error("a window grows by zero bytes")
            sending.window += size
            _check_window(sending.window)
            self._table.flush()
            return
        stream = self._table.open.get(number)
        if stream is None:
            self._check_not_idle(number, "WINDOW_UPDATE")
            return
        if not size:
            self._reset(number, ErrorCode.PROTOCOL_ERROR)
        elif sending.initial_window + stream.grown + size > NUMBER_MAX:
            self._reset(number, ErrorCode.FLOW_CONTROL_ERROR)
        elif sending.grow(stream, size):
            self._table.finish(stream)

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        _check_size(payload, 8)
        if number:
            raise _protocol_error("PING on a stream")
        sending = self._table.sending
        if sending.frames == self._frames:  # clients measure the bandwidth with PING: one is free after each DATA
            self._count_idle()
        self._frames = sending.frames
        if not flags & ACK:
            sending.output.append(frame(FrameType.PING, ACK, 0, payload))
        elif payload == DRAIN_PING and self.accepting:
            self.accepting = False
            sending.output.append(goaway(self.last, ErrorCode.NO_ERROR))

    def _on_goaway(self, flags: int, number: int, payload: bytes) -> None:
        """The client will open no more streams, and we never do, so nothing changes."""
        if number:
            raise _protocol_error("GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2ConnectionError("GOAWAY has the wrong size", ErrorCode.FRAME_SIZE_ERROR)
        self._count_idle()

    def _on_priority(self, flags: int, number: int, payload: bytes) -> None:
        _check_size(payload, 5)
        if not number:
            raise _protocol_error("PRIORITY on stream 0")
        self._count_idle()

    def _on_push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise _protocol_error("a client cannot push")

    # -- faults -----------------------------------------------------------------------------------------------------

    def _check_not_idle(self, number: int, what: str) -> None:
        if number > self.last or not number & 1:
            raise _protocol_error(f"{what} on a stream that was never opened")

    def _reset(self, number: int, code: int) -> None:
        """Ends a stream with an error. The client caused the reset, so it counts as one of its own."""
        if self._table.reset(number, code):
            self.events.append(StreamReset(number, code))
        self._count_reset()

    def _count_reset(self) -> None:
        if not self._resets.take(self._now):
            raise Http2ConnectionError("too many streams are reset", ErrorCode.ENHANCE_YOUR_CALM)

    def _count_idle(self) -> None:
        if not self._idle.take(self._now):
            raise Http2ConnectionError("too many empty frames", ErrorCode.ENHANCE_YOUR_CALM)


def _protocol_error(reason: str) -> Http2ConnectionError:
    return Http2ConnectionError(reason, ErrorCode.PROTOCOL_ERROR)


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Http2ConnectionError(f"the payload has {len(payload)} bytes, not {size}", ErrorCode.FRAME_SIZE_ERROR)


def _check_window(size: int) -> None:
    if size > NUMBER_MAX:
        raise _window_too_large()


def _window_too_large() -> Http2ConnectionError:
    return Http2ConnectionError("a window reaches 2 GiB", ErrorCode.FLOW_CONTROL_ERROR)


# By type; unbound functions, so that a connection has no reference cycle.
_HANDLERS: tuple[Callable[[FrameReader, int, int, bytes], None], ...] = (
    FrameReader._on_data,
    FrameReader._on_headers,
    FrameReader._on_priority,
    FrameReader._on_rst_stream,
    FrameReader._on_settings,
    FrameReader._on_push_promise,
    FrameReader._on_ping,
    FrameReader._on_goaway,
    FrameReader._on_window_update,
    FrameReader._on_continuation,
)
