"""Outgoing frames, the client's windows, and the data that waits for them.

Waiting streams take turns, a frame each, so that a large response does not stall small ones. Queues are limited per
stream and per connection: the host checks `room` before it sends. No byte is sent that a window does not allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pydanube.base.limits import HTTP2_QUEUE_BYTES_MAX, HTTP2_STREAM_QUEUE_BYTES_MAX
from pydanube.wire.http2.frames import END_HEADERS, END_STREAM, FRAME_BYTES, HEADER, NUMBER_MAX, WINDOW_BYTES
from pydanube.wire.http2.stream import Stream

_HEADERS = 1
_RESIZE_TO_NOTHING = b"\x20"  # RFC 7541 (6.3): we use no dynamic table, so any limit of the client is kept


class Sending:
    """The outgoing half of one connection. Methods that end a stream return so, and its owner then closes it."""

    __slots__ = (
        "_grown_max",
        "_ready",
        "_stalled",
        "_starving",
        "frames",
        "initial_window",
        "output",
        "paused",
        "queued",
        "resize",
        "window",
        "woken",
    )

    def __init__(self) -> None:
        self.output: list[bytes] = []
        self.frames = 0  # DATA frames sent so far
        self.window = WINDOW_BYTES  # of the connection
        self.initial_window = WINDOW_BYTES  # of every stream, which may send this plus what it has `grown`
        self.paused = False  # the socket's buffer is full; data waits as if there were no window
        self.resize = False  # the next header block must acknowledge the client's smaller table
        self.queued = 0  # bytes waiting in all streams
        self.woken: list[int] = []  # streams that had no room, and have some again
        self._ready: dict[int, Stream] = {}  # streams with data that waits for the window of the connection
        self._stalled: dict[int, Stream] = {}  # streams with data that waits for their own window
        self._grown_max = 0  # an upper bound of `grown` of all streams
        self._starving: dict[int, None] = {}  # streams that had no room because all queues together were full

    # -- sending ----------------------------------------------------------------------------------------------------

    def headers(self, stream: Stream, block: bytes, end: bool) -> None:
        """Sends one HEADERS frame, which needs no window."""
        if self.resize:
            block, self.resize = _RESIZE_TO_NOTHING + block, False
        assert len(block) <= FRAME_BYTES, "our own headers fit into one frame"
        flags = END_HEADERS | END_STREAM if end else END_HEADERS
        self.output.append(HEADER.pack(len(block) << 8 | _HEADERS, flags, stream.number) + block)

    def data(self, stream: Stream, data: bytes, end: bool) -> bool:
        """Sends what the windows allow and queues the rest. Returns whether the stream has ended."""
        size = len(data)
        own = self.initial_window + stream.grown
        allowed = size <= own and size <= self.window and size <= FRAME_BYTES and not self.paused
        if not stream.queued and (allowed or not size):  # an empty frame needs no window
            stream.grown -= size
            self.window -= size
            self.frames += 1
            self.output.append(HEADER.pack(size << 8, end, stream.number) + data)
            return end
        if stream.queue is None:
            stream.queue = deque()
        stream.queue.append(data)
        stream.queued += size
        self.queued += size
        if end:
            stream.ending = b""
        return self._push(stream)

    def trailers(self, stream: Stream, block: bytes) -> bool:
        """Sends headers that end the stream, after the queued data. Returns whether the stream has ended."""
        if stream.queued:
            stream.ending = block
            return False
        self.headers(stream, block, True)
        return True

    def answer(self, stream: Stream, head: bytes, data: bytes, trailers: bytes) -> bool:
        """Sends a whole response, as one buffer if the windows allow it. Returns whether the stream has ended."""
        size = len(data)
        own = self.initial_window + stream.grown
        if size > own or size > self.window or size > FRAME_BYTES or self.paused or self.resize:
            self.headers(stream, head, False)
            self.data(stream, data, False)
            return self.trailers(stream, trailers)
        self.window -= size
        self.frames += 1
        number = stream.number
        self.output.append(
            HEADER.pack(len(head) << 8 | _HEADERS, END_HEADERS, number)
            + head
            + HEADER.pack(size << 8, 0, number)
            + data
            + HEADER.pack(len(trailers) << 8 | _HEADERS, END_HEADERS | END_STREAM, number)
            + trailers
        )
        return True

    def room(self, stream: Stream) -> int:
        """How many bytes the host may send now. A stream with 0 is in `woken` once there is room again."""
        own = HTTP2_STREAM_QUEUE_BYTES_MAX - stream.queued
        if own <= 0:
            stream.starving = True
            return 0
        everyone = HTTP2_QUEUE_BYTES_MAX - self.queued
        if everyone <= 0:
            self._starving[stream.number] = None
            return 0
        return min(own, everyone)

    # -- windows ----------------------------------------------------------------------------------------------------

    @property
    def stalled(self) -> int:
        """How many streams have data that waits for their own window."""
        return len(self._stalled)

    def grow(self, stream: Stream, size: int) -> bool:
        """Enlarges the window of a stream. Returns whether the stream has ended with the data that was sent."""
        stream.grown += size
        if stream.grown > self._grown_max:
            self._grown_max = stream.grown
        return bool(stream.queued) and self._push(stream)

    def set_initial_window(self, window: int, streams: Iterable[Stream]) -> list[Stream] | None:
        """Changes the windows of all streams, even below zero. Returns those that ended, or None if one is too large.

        Only looks at streams that wait for it, unless one may be too large.
        """
        grew = window > self.initial_window
        self.initial_window = window
        if window + self._grown_max > NUMBER_MAX:
            self._grown_max = max((stream.grown for stream in streams), default=0)
            if window + self._grown_max > NUMBER_MAX:
                return None
        if not grew:
            return []
        return [stream for stream in list(self._stalled.values()) if self._push(stream)]

    def flush(self) -> list[Stream]:
        """Sends data that waits for the connection, in turns. Returns the streams that ended."""
        ended = []
        while self._ready and self.window > 0 and not self.paused:
            stream = self._ready.pop(next(iter(self._ready)))
            if self.initial_window + stream.grown > 0:
                self._frame(stream)
            if stream.queued:
                waits = self._ready if self.initial_window + stream.grown > 0 else self._stalled
                waits[stream.number] = stream
            elif self._end(stream):
                ended.append(stream)
        return ended

    def drop(self, stream: Stream) -> None:
        """Drops the queue of a stream that has ended."""
        self._ready.pop(stream.number, None)
        self._stalled.pop(stream.number, None)
        self._starving.pop(stream.number, None)
        if stream.queued:
            self._dequeued(stream.queued)
            stream.queued = 0

    def _push(self, stream: Stream) -> bool:
        number = stream.number
        while stream.queued:
            if self.initial_window + stream.grown <= 0:
                self._ready.pop(number, None)
                self._stalled[number] = stream
                return False
            if self.window <= 0 or self.paused:
                self._stalled.pop(number, None)
                self._ready[number] = stream
                return False
            self._frame(stream)
        self._ready.pop(number, None)
        self._stalled.pop(number, None)
        return self._end(stream)

    def _frame(self, stream: Stream) -> None:
        """Sends one DATA frame of the queue: several small pieces together, or a part of a large one."""
        assert stream.queue is not None
        room = size = min(self.initial_window + stream.grown, self.window, FRAME_BYTES, stream.queued)
        parts: list[bytes | memoryview] = []
        while room:
            piece = stream.queue.popleft()
            if len(piece) > room:
                view = memoryview(piece)
                stream.queue.appendleft(view[room:])
                piece = view[:room]
            parts.append(piece)
            room -= len(piece)
        stream.grown -= size
        self.window -= size
        self.frames += 1
        stream.queued -= size
        self._dequeued(size)
        if stream.starving and stream.queued <= HTTP2_STREAM_QUEUE_BYTES_MAX // 2:
            stream.starving = False
            self.woken.append(stream.number)
        end = END_STREAM if stream.ending == b"" and not stream.queued else 0
        self.output.append(HEADER.pack(size << 8, end, stream.number) + b"".join(parts))

    def _end(self, stream: Stream) -> bool:
        """After the last data, sends the trailers, if there are any. Returns whether the stream has ended."""
        if stream.ending:
            self.headers(stream, stream.ending, True)
        return stream.ending is not None

    def _dequeued(self, size: int) -> None:
        self.queued -= size
        if self._starving and self.queued <= HTTP2_QUEUE_BYTES_MAX // 2:
            self.woken.extend(self._starving)
            self._starving.clear()
