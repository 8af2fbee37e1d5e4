"""A server's side of one HTTP/2 connection (RFC 9113): bytes of a client in, events out; answers in, bytes out.

What a host may call, and nothing else: frames are read in `reading`, streams are kept in `table`. Owns no socket, no
clock and no handler. How a host drives it is in `docs/internals/http2.md`.
"""

from __future__ import annotations

from pydanube.base.errors import Http2ConnectionError
from pydanube.wire.http2.events import ConnectionEnded, Event
from pydanube.wire.http2.frames import GREETING, NUMBER_MAX, ErrorCode, Kind, frame, goaway
from pydanube.wire.http2.reading import DRAIN_PING, FrameReader
from pydanube.wire.http2.table import StreamTable

_PING = b"danube.."


class ServerConnection:
    """One connection. `receive` what comes, look at its events, send, and write what `take_output` has.

    To send on a stream that is gone does nothing: the host learns from `StreamReset` when it may stop.
    """

    __slots__ = ("_draining", "_reader", "_sending", "_table", "ended")

    def __init__(self) -> None:
        self.ended = False  # by a fault of the client: write the output and close
        self._draining = False
        self._table = StreamTable()
        self._sending = self._table.sending
        self._sending.output.append(GREETING)
        self._reader = FrameReader(self._table)

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._table.open)

    @property
    def drained(self) -> bool:
        """Nothing is open and nothing new will be: write the output and close."""
        return not self._reader.accepting and not self._table.open

    @property
    def more(self) -> bool:
        """Something of what came is still to be looked at: `receive` nothing more, with more work."""
        return self._reader.more and not self.ended

    # -- from the socket and to it ----------------------------------------------------------------------------------

    def receive(self, data: bytes, now: int, work: int = NUMBER_MAX) -> list[Event]:
        """What the client's bytes mean; `now` is in microseconds. After `ConnectionEnded` nothing means anything.

        Stops after about as many frames as `work` says, fewer if they are dear: then there is `more`.
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
        """What is to be written now, in this order."""
        output = self._sending.output
        self._sending.output = []
        return output

    def pause(self) -> None:
        """The socket takes no more: data waits in the streams, where `room` bounds it."""
        self._sending.paused = True

    def resume(self) -> None:
        """The socket takes more."""
        self._sending.paused = False
        self._table.flush()

    # -- answers ----------------------------------------------------------------------------------------------------

    def respond(self, number: int, block: bytes, end: bool = False) -> None:
        """The headers of an answer."""
        stream = self._table.answerable(number)
        if stream is not None:
            self._sending.headers(stream, block, end)
            if end:
                self._table.finish(stream)

    def send_data(self, number: int, data: bytes, end: bool = False) -> None:
        """A part of an answer; what the client's windows do not allow waits. Ask for `room` first."""
        stream = self._table.answerable(number)
        if stream is not None and self._sending.data(stream, data, end):
            self._table.finish(stream)

    def send_trailers(self, number: int, block: bytes) -> None:
        """The headers that end an answer, behind its data."""
        stream = self._table.answerable(number)
        if stream is not None and self._sending.trailers(stream, block):
            self._table.finish(stream)

    def answer(self, number: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """A whole answer at once. Without room it is not kept: this client asks and does not read."""
        stream = self._table.answerable(number)
        if stream is None:
            return
        if self._sending.queued and not self._sending.room(stream):
            self._table.reset(number, ErrorCode.ENHANCE_YOUR_CALM)
        elif self._sending.answer(stream, head, data, trailers):
            self._table.finish(stream)

    def reset(self, number: int, code: int) -> None:
        """Gives a stream up."""
        if number in self._table.open:
            self._table.reset(number, code)

    def room(self, number: int) -> int:
        """How much may be sent on a stream now; its last message may go beyond. 0: wait until `take_woken` names it."""
        stream = self._table.answerable(number)
        return 0 if stream is None else self._sending.room(stream)

    def take_woken(self) -> list[int]:
        """The streams that were told of no room and have some again; ask after each call that can make room."""
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
        """So many bytes of a request are done with. The rest is when its stream ends."""
        stream = self._table.open.get(number)
        if stream is not None:
            self._table.receiving.give_back(stream, size)

    # -- the connection ---------------------------------------------------------------------------------------------

    def ping(self) -> None:
        """Asks the client for a sign of life; whatever it sends is one."""
        self._sending.output.append(frame(Kind.PING, 0, 0, _PING))

    def drain(self) -> None:
        """Takes no new streams from when the client has read that on; those that are open go on to their end."""
        if not self._draining and not self.ended:
            self._draining = True
            self._sending.output += [goaway(NUMBER_MAX, ErrorCode.NO_ERROR), frame(Kind.PING, 0, 0, DRAIN_PING)]
