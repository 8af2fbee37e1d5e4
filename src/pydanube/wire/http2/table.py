"""The streams of one connection: which are open, and which we ended before the client did.

However a stream ends, it ends here, so that what it held is freed. Frames are read in `reading`.
"""

from __future__ import annotations

from pydanube.base.limits import HTTP2_STREAMS_FORGOTTEN_MAX
from pydanube.wire.http2.frames import ErrorCode, rst_stream
from pydanube.wire.http2.receiving import Receiving
from pydanube.wire.http2.sending import Sending
from pydanube.wire.http2.stream import Stream


class StreamTable:
    """The open streams, with both halves of their flow control."""

    __slots__ = ("forgotten", "open", "receiving", "sending")

    def __init__(self) -> None:
        self.open: dict[int, Stream] = {}
        self.forgotten: dict[int, None] = {}  # ended, perhaps unknown to the client: late frames are ignored
        self.sending = Sending()
        self.receiving = Receiving(self.sending)

    def answerable(self, number: int) -> Stream | None:
        """The stream, if it is open and its response has not ended."""
        stream = self.open.get(number)
        return stream if stream is not None and stream.ending is None else None

    def finish(self, stream: Stream) -> None:
        """Closes a stream whose response is complete. A client that still sends is told to stop (RFC 9113, 8.1)."""
        self.close(stream)
        if stream.receiving:
            self.forget(stream.number, ErrorCode.NO_ERROR)

    def flush(self) -> None:
        """Sends data that waits for the window of the connection."""
        for stream in self.sending.flush():
            self.finish(stream)

    def reset(self, number: int, code: int) -> bool:
        """Ends a stream in both directions. Returns whether it was open."""
        stream = self.open.get(number)
        if stream is not None:
            self.close(stream)
        self.forget(number, code)
        return stream is not None

    def close(self, stream: Stream) -> None:
        del self.open[stream.number]
        self.sending.drop(stream)
        self.receiving.drop(stream)

    def forget(self, number: int, code: int) -> None:
        self.sending.output.append(rst_stream(number, code))
        self.forgotten[number] = None
        if len(self.forgotten) > HTTP2_STREAMS_FORGOTTEN_MAX:
            del self.forgotten[next(iter(self.forgotten))]

    def clear(self) -> None:
        """Closes all streams at the end of the connection."""
        for stream in list(self.open.values()):
            self.close(stream)
