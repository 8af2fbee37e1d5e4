"""Flow control of what the client sends: the window of the connection, and those of its streams beyond 64 KiB.

The window of the connection is returned on receipt, so the windows of its streams limit how much memory a connection
can take. A stream that expects a large message gets room for all of it or waits for its turn, so that two large
messages cannot block each other half way.
"""

from __future__ import annotations

from pydanube.base.limits import HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_RESERVED_BYTES_MAX
from pydanube.wire.http2.frames import WINDOW_BYTES, window_update
from pydanube.wire.http2.sending import Sending
from pydanube.wire.http2.stream import Stream


class Receiving:
    """The incoming half of one connection's flow control. For each stream: held + credit <= 64 KiB + reserved."""

    __slots__ = ("_credit", "_sending", "_waiting", "reserved")

    def __init__(self, sending: Sending) -> None:
        self.reserved = 0  # bytes reserved by all streams
        self._credit = HTTP2_CONNECTION_WINDOW_BYTES
        self._sending = sending
        self._waiting: dict[int, tuple[Stream, int]] = {}  # streams whose message did not fit into the rest

    def received(self, size: int) -> None:
        """Counts received DATA of any stream. The window is renewed when half of it is used, so it never runs out."""
        self._credit -= size
        if self._credit < HTTP2_CONNECTION_WINDOW_BYTES // 2:
            self._sending.output.append(window_update(0, HTTP2_CONNECTION_WINDOW_BYTES - self._credit))
            self._credit = HTTP2_CONNECTION_WINDOW_BYTES

    def expect(self, stream: Stream, size: int) -> None:
        """Lets the client send `size` more bytes on a stream, now or when other streams have made room."""
        missing = size - stream.credit
        if missing <= 0:
            return
        assert missing <= HTTP2_RESERVED_BYTES_MAX, "the host bounds its messages"
        self._waiting[stream.number] = (stream, missing)  # a stream that waits already keeps its position
        self._serve()

    def give_back(self, stream: Stream, size: int) -> None:
        """The host has processed this many bytes of a stream."""
        assert size <= stream.held, "more bytes are returned than were received"
        stream.held -= size
        still = max(0, stream.held + stream.credit - WINDOW_BYTES)
        if still < stream.reserved:
            self._release(stream, stream.reserved - still)
        missing = WINDOW_BYTES + stream.reserved - stream.held - stream.credit
        if stream.receiving and missing >= WINDOW_BYTES // 2:
            self._grant(stream, missing)

    def drop(self, stream: Stream) -> None:
        """Frees what a stream that has ended had reserved."""
        self._waiting.pop(stream.number, None)
        if stream.reserved:
            self._release(stream, stream.reserved)

    def _release(self, stream: Stream, size: int) -> None:
        stream.reserved -= size
        self.reserved -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            number, (stream, missing) = next(iter(self._waiting.items()))
            if self.reserved + missing > HTTP2_RESERVED_BYTES_MAX:
                return
            del self._waiting[number]
            self.reserved += missing
            stream.reserved += missing
            self._grant(stream, missing)

    def _grant(self, stream: Stream, size: int) -> None:
        stream.credit += size
        self._sending.output.append(window_update(stream.number, size))
