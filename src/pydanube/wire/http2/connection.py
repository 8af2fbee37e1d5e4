"""The server side of one HTTP/2 connection (RFC 9113): bytes of a client in, events out; responses in, bytes out.

This is the interface for the host: `reading` reads frames, `table` keeps streams. It owns no socket, clock or handler.
How a host drives it is in `docs/internals/http2.md`.
"""

from __future__ import annotations

from pydanube.base.errors import Http2ConnectionError
from pydanube.wire.http2.events import ConnectionEnded, Event
from pydanube.wire.http2.frames import GREETING, NUMBER_MAX, ErrorCode, FrameType, frame, goaway
from pydanube.wire.http2.reading import DRAIN_PING, FrameReader
from pydanube.wire.http2.table import StreamTable

_PING = b"danube.."


class ServerConnection:
    """One connection. Pass received bytes to `receive`, handle its events, send, and write what `take_output` returns.

    Sending on a stream that no longer exists does nothing. The host learns from `StreamReset` that it can stop.
    """

    __slots__ = ("_draining", "_reader", "_sending", "_table", "ended")

    def __init__(self) -> None:
        self.ended = False  # the client violated the protocol: write the output and close
        self._draining = False
        self._table = StreamTable()
        self._sending = self._table.sending
        self._sending.output.append(GREETING)
        self._reader = FrameReader(self._table)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._table.open)

    @property
    def drained(self) -> bool:
        """No stream is open and none will be opened: write the output and close."""
        return not self._reader.accepting and not self._table.open

    @property
    def more(self) -> bool:
        """Whether received bytes are still unread: call `receive` with no data and more work."""
        return self._reader.more and not self.ended

    # -- from the socket and to it ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now: int, work: int = NUMBER_MAX) -> list[Event]:
        """The events in the client's bytes; `now` is in microseconds. There are none after `ConnectionEnded`.

        Stops after about `work` frames, or fewer if they are expensive, and then sets `more`.
        """
        if self.ended:
            return []
        reader = self._reader
        events = reader.events = []
        try:
            reader.read(data, now, work)
        except Http2ConnectionError as error:
            self.ended = True
            self._table.clear()
            self._sending.output.append(goaway(reader.last, error.error_code, error.reason))
            events.append(ConnectionEnded(0, error))
        return events

    def take_output(self) -> list[bytes]:
        """Removes and returns what is to be written now, in this order."""
        output = self._sending.output
        self._sending.output = []
        return output

    def pause(self) -> None:
        """Call it when the socket's buffer is full: data waits in the streams, where `room` limits it."""
        self._sending.paused = True

    def resume(self) -> None:
        """Call it when the socket accepts more."""
        self._sending.paused = False
        self._table.flush()

    # -- responses --------------------------------------------------------------------------------------------------

    def respond(self, number: int, block: bytes, end: bool = False) -> None:
        """Sends the headers of a response."""
        stream = self._table.answerable(number)
        if stream is not None:
            self._sending.headers(stream, block, end)
            if end:
                self._table.finish(stream)

    def send_data(self, number: int, data: bytes, end: bool = False) -> None:
        """Sends a part of a response. What exceeds the client's windows is queued, so check `room` first."""
        stream = self._table.answerable(number)
        if stream is not None and self._sending.data(stream, data, end):
            self._table.finish(stream)

    def send_trailers(self, number: int, block: bytes) -> None:
        """Sends the headers that end a response, after its data."""
        stream = self._table.answerable(number)
        if stream is not None and self._sending.trailers(stream, block):
            self._table.finish(stream)

    def answer(self, number: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Sends a whole response. Without room the stream is reset: this client sends requests but does not read."""
        stream = self._table.answerable(number)
        if stream is None:
            return
        if self._sending.queued and not self._sending.room(stream):
            self._table.reset(number, ErrorCode.ENHANCE_YOUR_CALM)
        elif self._sending.answer(stream, head, data, trailers):
            self._table.finish(stream)

    def reset(self, number: int, code: int) -> None:
        """Ends a stream with an error code."""
        if number in self._table.open:
            self._table.reset(number, code)

    def room(self, number: int) -> int:
        """How much to send on a stream now; the last message may exceed it. If 0, wait until `take_woken` has it."""
        stream = self._table.answerable(number)
        return 0 if stream is None else self._sending.room(stream)

    def take_woken(self) -> list[int]:
        """The streams that had no `room` and have some again. Call it after each call that can make room."""
        woken = self._sending.woken
        self._sending.woken = []
        return woken

    # -- requests ---------------------------------------------------------------------------------------------------

    def expect(self, number: int, size: int) -> None:
        """Lets the client send `size` more bytes of a request, for a message that is longer than a window."""
        stream = self._table.open.get(number)
        if stream is not None and stream.receiving:
            self._table.receiving.expect(stream, size)

    def data_consumed(self, number: int, size: int) -> None:
        """The host has processed this many bytes of a request. When the stream ends, the rest counts as processed."""
        stream = self._table.open.get(number)
        if stream is not None:
            self._table.receiving.give_back(stream, size)

    # -- the connection ---------------------------------------------------------------------------------------------

    def ping(self) -> None:
        """Sends PING. Anything the client sends then shows that it is alive."""
        self._sending.output.append(frame(FrameType.PING, 0, 0, _PING))

    def drain(self) -> None:
        """Refuses new streams once the client knows of it. Open streams continue to their end."""
        if not self._draining and not self.ended:
            self._draining = True
            self._sending.output += [goaway(NUMBER_MAX, ErrorCode.NO_ERROR), frame(FrameType.PING, 0, 0, DRAIN_PING)]
