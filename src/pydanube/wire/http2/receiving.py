"""What the client may send: the connection's window, and the windows of its streams beyond the first 64 KiB.

The connection's window is given back on receipt; what a connection can make us hold is the sum of its streams' windows.
A stream that has a large message coming is given room for all of it or waits its turn, so that no two large messages
can stop each other half way.
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
        self.reserved = 0  # bytes of all streams
        self._credit = HTTP2_CONNECTION_WINDOW_BYTES
        self._sending = sending
        self._waiting: dict[int, tuple[Stream, int]] = {}  # streams whose message did not fit what was left

    def took(self, size: int) -> None:
        """So many bytes of DATA came, of whichever stream. Half the window is many frames: it is never used up."""
        self._credit -= size
        if self._credit < HTTP2_CONNECTION_WINDOW_BYTES // 2:
            self._sending.output.append(window_update(0, HTTP2_CONNECTION_WINDOW_BYTES - self._credit))
            self._credit = HTTP2_CONNECTION_WINDOW_BYTES

    def expect(self, stream: Stream, size: int) -> None:
        """Lets the client send `size` more bytes on a stream, now or when others are done."""
        missing = size - stream.credit
        if missing <= 0:
            return
        assert missing <= HTTP2_RESERVED_BYTES_MAX, "the host bounds its messages"
        self._waiting[stream.number] = (stream, missing)  # whoever waits already keeps its place
        self._serve()

    def give_back(self, stream: Stream, size: int) -> None:
        """The host is done with so many bytes of a stream."""
        assert size <= stream.held, "more bytes are returned than were received"
        stream.held -= size
        still = max(0, stream.held + stream.credit - WINDOW_BYTES)
        if still < stream.reserved:
            self._release(stream, stream.reserved - still)
        missing = WINDOW_BYTES + stream.reserved - stream.held - stream.credit
        if stream.receiving and missing >= WINDOW_BYTES // 2:
            self._grant(stream, missing)

    def drop(self, stream: Stream) -> None:
        """The stream is gone: what it was given is free for others."""
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
